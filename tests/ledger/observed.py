"""What captured jobs did, and what the ledger says, in the same terms: calls per (primitive, group size, dtype, S)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from ledger.dtypes import dtype_bytes
from ledger.model import BIASES, ModelSpec, MoESpec
from ledger.parallel import CommRow

_PRIMITIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "send": "send_recv",
    "broadcast": "broadcast",
}
_DTYPES = {
    "Float": "float32",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Double": "float64",
    "Byte": "uint8",
}

TOY = {"layers": 4, "hidden": 64, "ffn": 256, "heads": 8, "vocab": 128, "gated": False, "norm": "layernorm"}
TOY_MODEL = ModelSpec(**TOY)  # 214,144 parameters
MEGATRON_MODEL = ModelSpec(**TOY, tied=True, biases=BIASES)
MEGATRON_MIXTURE = ModelSpec(**TOY, tied=True, moe=MoESpec(experts=8, top_k=2, expert_ffn=256))
LLAMA_DEBUG = ModelSpec(layers=6, hidden=256, ffn=768, heads=16, vocab=2048)

INPUT = {"seq_len": 48, "micro_batch_size": 2}
FLOAT32 = {"param_dtype": "float32", "act_dtype": "float32"}

Calls = Counter[tuple[str, int, str, int]]


def observed(shared: Path, case: str, rank: int) -> Calls:
    """Calls per step of one rank, from the capture's truth; groups of one rank and receives left out."""
    truth = json.loads((shared / "data" / "captures" / case / "truth.json").read_text(encoding="utf-8"))
    calls: Calls = Counter()
    for row in truth["observed_per_step"][str(rank)]:
        name = row["collective"].strip("_")
        primitive = next((value for key, value in _PRIMITIVES.items() if name.startswith(key)), None)
        if primitive is None or row["group_size"] == 1:
            continue
        size = row["out_nelems"] if primitive == "all_gather" else row["in_nelems"]
        count = row["calls_per_step"]
        count = sum(count) / len(count) if isinstance(count, list) else count
        calls[primitive, row["group_size"], _DTYPES[row["dtype"]], size] += count
    return calls


def predicted(rows: tuple[CommRow, ...]) -> Calls:
    """Calls per step of the ledger's rows."""
    calls: Calls = Counter()
    for row in rows:
        calls[row.primitive, row.group_size, row.dtype, row.payload_bytes // dtype_bytes(row.dtype)] += (
            row.calls_per_step
        )
    return calls


def differing(left: Calls, right: Calls) -> dict[tuple[str, int, str, int], tuple[float, float]]:
    """Where the two differ: (left, right) per key."""
    return {key: (left[key], right[key]) for key in set(left) | set(right) if left[key] != right[key]}


def elements(calls: Calls, primitive: str, dtype: str, *, group_size: int | None = None) -> float:
    """Elements over all calls of one primitive and dtype."""
    return sum(
        count * key[3]
        for key, count in calls.items()
        if key[0] == primitive and key[2] == dtype and group_size in (None, key[1])
    )

"""The answer beside the traces: `truth.json` with the keys that captured jobs have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.synthesis.program import Begin, Idle, Launch, Program
from benchmarks.synthesis.spec import Spec

SCHEDULES = {
    "gpipe": "GPipe",
    "looped_bfs": "LoopedBFS",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "zb_h1": "ZeroBubbleH1",
    "interleaved_zb": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}


def truth(spec: Spec, case: str, programs: Mapping[int, Program], written: Iterable[int]) -> dict[str, Any]:
    """What was run, and what each written rank sent per step."""
    m, trained = spec.model, spec.framework != "inference"
    v_shaped = spec.schedule in ("zbv", "dualpipev")
    return {
        "case": case,
        "framework": spec.framework,
        "backend": "nccl",
        "world_size": spec.world,
        **{key: getattr(spec, key) for key in ("tp", "cp", "pp", "dp", "ep", "etp")},
        "zero_stage": zero_stage(spec),
        "zero_by_traffic": zero_by_traffic(spec),
        "sp": spec.sp and spec.tp > 1,
        "schedule": SCHEDULES[spec.schedule] if spec.pp > 1 and spec.schedule and trained else None,
        "microbatches": None if spec.framework == "inference" else spec.microbatches,
        "vp": 2 if v_shaped else spec.virtual,
        "dp_shard": spec.dp_shard if spec.zero else 1,
        "dp_replicate": spec.dp_replicate if spec.zero else spec.dp,
        "cp_kind": spec.cp_kind if spec.cp > 1 else None,
        "dtype": spec.dtype,
        "steps": spec.steps,
        "level": spec.writing.level,
        "torch": spec.writing.torch,
        "library": spec.writing.library,
        "options": dict(spec.options),
        "seed": spec.seed,
        "layers": m.layers,
        "hidden": m.hidden,
        "heads": m.heads,
        "kv_heads": m.kv_heads,
        "ffn": m.ffn,
        "vocab": m.vocab,
        "seq": m.seq,
        "mbs": spec.micro_batch,
        "experts": m.experts,
        "topk": m.topk,
        "tied_embeddings": m.tied,
        "captured_ranks": list(written),
        "observed_per_step": {str(r): observed(programs[r], spec.steps) for r in written},
    }


def zero_stage(spec: Spec) -> int | None:
    """The stage as configured; none in inference."""
    return None if spec.framework == "inference" else spec.zero


def zero_by_traffic(spec: Spec) -> list[int] | None:
    """The stages that would show the same traffic, where the configured one is not alone."""
    if spec.framework == "inference":
        return [0]
    if spec.dp * spec.cp == 1:
        return [0, 1, 2, 3]
    if spec.zero == 3 and spec.option("reshard", spec.pp == 1) is False:
        return [2, 3]
    if spec.framework == "deepspeed" and spec.zero in (1, 2) and spec.microbatches == 1:
        return [1, 2]
    return None


def observed(program: Program, steps: int) -> list[dict[str, Any]]:
    """Every kind of call with its count per step, as in the captures."""
    counts: Counter[tuple[Any, ...]] = Counter()
    step = -1
    per_step: dict[tuple[Any, ...], list[int]] = {}
    for op in program.operations:
        if isinstance(op, Idle) if program.unmarked else isinstance(op, Begin) and op.name.startswith("ProfilerStep"):
            step += 1
        if not isinstance(op, Launch):
            continue
        for message in op.messages:
            ranks = tuple(message.group.ranks[:32])
            sizes = (message.group.size, message.in_n, message.out_n, message.dtype)
            key = (message.words[0], message.group.desc, ranks, *sizes, message.peer)
            counts[key] += 1
            per_step.setdefault(key, [0] * steps)[step] += 1
    names = ("collective", "group_desc", "group_ranks", "group_size", "in_nelems", "out_nelems", "dtype")
    return [
        {**dict(zip((*names, "peer_global_rank"), key, strict=True)), "calls_per_step": _same(per_step[key])}
        for key in sorted(counts, key=str)
    ]


def _same(counts: list[int]) -> int | list[int]:
    return counts[0] if len(set(counts)) == 1 else counts

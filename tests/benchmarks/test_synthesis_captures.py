"""The generator makes the calls that real programs made: counts, sizes and types of captured jobs, from their truth.

The captured jobs are tiny models (4 layers, hidden 64, sequence 48, 2 sequences a microbatch); the numbers below were
recorded from Megatron-core 0.16.1, torchtitan 0.3.0, DeepSpeed 0.19.8 and transformers 5.24 at work.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthesis.frameworks import program
from benchmarks.synthesis.spec import Model, Spec
from benchmarks.synthesis.truth import observed

GPT = Model(
    "gpt", layers=4, hidden=64, heads=8, kv_heads=8, ffn=256, gated=False, vocab=128, seq=48, tied=True, bias=True
)
WORDS = ("collective", "group_size", "in_nelems", "out_nelems", "dtype")


def made(spec: Spec, rank: int = 0) -> Counter[tuple[Any, ...]]:
    """Calls per step of groups larger than one."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in observed(program(spec, rank), spec.steps):
        if row["group_size"] > 1:
            found[tuple(row[word] for word in WORDS)] += row["calls_per_step"]
    return found


def recorded(shared: Path, case: str, rank: int) -> Counter[tuple[Any, ...]]:
    told = json.loads((shared / "data" / "captures" / case / "truth.json").read_text())
    found: Counter[tuple[Any, ...]] = Counter()
    for row in told["observed_per_step"][str(rank)]:
        if row["group_size"] > 1 and isinstance(row["calls_per_step"], int):
            found[tuple(row[word] for word in WORDS)] += row["calls_per_step"]
    return found


def of(calls: Counter[tuple[Any, ...]], *words: str) -> Counter[tuple[Any, ...]]:
    return Counter({call: n for call, n in calls.items() if call[0] in words and call[2] > 2})


def megatron(layout: str, **changes: Any) -> Spec:
    return Spec.parse("megatron", layout, model=GPT, micro_batch=2, **changes)


def test_megatron_sequence_parallel_layers_vocabulary_and_norm_gradients(shared: Path) -> None:
    calls, real = made(megatron("tp4", sp=True)), recorded(shared, "mc4_tp4_sp", 0)
    for words in (("_allgather_base",), ("_reduce_scatter_base",), ("allreduce",)):
        assert of(calls, *words) == of(real, *words)


def test_megatron_without_sequence_parallelism(shared: Path) -> None:
    calls, real = made(megatron("tp4", sp=False)), recorded(shared, "mc4_tp4", 0)
    assert of(calls, "allreduce") == of(real, "allreduce")
    assert not of(calls, "_allgather_base", "_reduce_scatter_base")


@pytest.mark.parametrize("rank", [0, 3])
def test_megatron_pipeline_messages_and_embedding_tie(shared: Path, rank: int) -> None:
    calls = made(megatron("pp4-m8"), rank)
    real = recorded(shared, "mc4_pp4", rank)
    for words in (("send",), ("recv",), ("allreduce",)):
        assert of(calls, *words) == of(real, *words)


@pytest.mark.parametrize("rank", [0, 3])
def test_megatron_interleaved_messages(shared: Path, rank: int) -> None:
    calls, real = made(megatron("pp2-dp2-vp2-m4"), rank), recorded(shared, "mc4_pp2_vp2_dp2", rank)
    for words in (("send",), ("recv",)):
        assert of(calls, *words) == of(real, *words)


def test_megatron_middle_rank_of_a_thousand(shared: Path) -> None:
    spec = Spec.parse(
        "megatron", "tp8-pp8-dp16-m8", model=Model(**{**GPT.__dict__, "layers": 8}), micro_batch=2, ranks=(517,)
    )
    calls, real = made(spec, 517), recorded(shared, "mcf_tp8pp8_w1024", 517)
    for words in (("_allgather_base",), ("_reduce_scatter_base",), ("send",), ("recv",), ("allreduce",)):
        assert of(calls, *words) == of(real, *words)


def test_megatron_distributed_optimizer_moves_all_parameters_once(shared: Path) -> None:
    calls, real = made(megatron("dp4-m2")), recorded(shared, "mc4_dp4_distopt", 0)

    def elements(of_calls: Counter[tuple[Any, ...]], word: str, column: int) -> int:
        return sum(n * call[column] for call, n in of(of_calls, word).items())

    for word, column in (("reduce_scatter_tensor_coalesced", 2), ("allgather_into_tensor_coalesced", 3)):
        padded, exact = elements(calls, word, column), elements(real, word, column)
        assert 208_256 <= padded <= exact * 1.01  # padded to 64 elements per rank and bucket


def test_megatron_data_parallel_all_reduces_all_gradients_once(shared: Path) -> None:
    calls, real = made(megatron("dp4-m2-zero0")), recorded(shared, "mc4_dp4", 0)
    assert set(of(real, "allreduce_coalesced")) == {("allreduce_coalesced", 4, 208_256, 208_256, "Float")}
    (call, count), *others = of(calls, "allreduce_coalesced").items()
    assert not others
    assert count == 1
    assert 208_256 <= call[2] <= 208_512


def test_megatron_experts_exchange_six_times_a_layer(shared: Path) -> None:
    model = Model(**{**GPT.__dict__, "experts": 8, "topk": 2, "expert_ffn": 256})
    told = json.loads((shared / "data" / "captures" / "mc4_moe_ep4" / "truth.json").read_text())
    spec = Spec.parse("megatron", "dp4-ep4", model=model, micro_batch=2)
    rows = observed(program(spec, 0), spec.steps)

    def exchanges(some: list[dict[str, Any]]) -> int:
        """In all three steps."""
        every = [r["calls_per_step"] for r in some if r["collective"] == "all_to_allv"]
        return sum(sum(c) if isinstance(c, list) else 3 * c for c in every)

    assert exchanges(rows) == exchanges(told["observed_per_step"]["0"]) == 3 * 24
    counts = [r for r in rows if r["dtype"] == "Long" and r["collective"] == "_allgather_base"]
    assert [(r["in_nelems"], r["out_nelems"], r["calls_per_step"]) for r in counts] == [(8, 32, 4)]


def test_deepspeed_stages(shared: Path) -> None:
    """Stage 1 reduces once, stage 2 in every microbatch, both all-reduce and gather what they own."""
    small = Model("seed", layers=4, hidden=64, heads=8, kv_heads=8, ffn=256, gated=False, vocab=128, seq=48)
    for stage, times in ((1, 1), (2, 2)):
        spec = Spec.parse("deepspeed", f"dp4-zero{stage}-m2", model=small, micro_batch=2)
        calls = made(spec)
        reduced = sum(n * call[2] for call, n in of(calls, "allreduce").items())
        gathered = sum(n * call[3] for call, n in of(calls, "_allgather_base").items())
        assert reduced == times * gathered
    real = recorded(shared, "ds4_zero2_bf16", 0)
    assert sum(n * c[2] for c, n in of(real, "allreduce").items()) == 2 * 214_144
    assert sum(n * c[3] for c, n in of(real, "_allgather_base").items()) == 214_144


def test_torchtitan_tensor_parallel_calls(shared: Path) -> None:
    """Two gathers and two scatters a layer in each direction, one more at each end of the model."""
    debug = Model("debug", layers=6, hidden=256, heads=16, kv_heads=16, ffn=768, vocab=2048, seq=128)
    calls = made(Spec.parse("torchtitan", "tp2-dp2", model=debug, sp=True))
    real = recorded(shared, "tt4_tp2_fsdp2_dtensor", 0)
    for words in (("allgather_into_tensor_coalesced",), ("reduce_scatter_tensor_coalesced",)):
        assert of(calls, *words) == of(real, *words)
    norms = {call: n for call, n in of(calls, "allreduce").items() if call[2] == 256}
    assert norms == {call: n for call, n in of(real, "allreduce").items() if call[2] == 256}


def test_hugging_face_reduces_once_per_column_parallel_weight(shared: Path) -> None:
    llama = Model("llama", layers=4, hidden=64, heads=8, kv_heads=8, ffn=128, vocab=128, seq=48)
    spec = Spec.parse("hf", "tp4", model=llama, micro_batch=2, dtype="Float")
    calls, real = made(spec), recorded(shared, "hf4_tp", 0)
    assert of(calls, "allreduce") == of(real, "allreduce")
    assert of(calls, "allgather_into_tensor_coalesced") == of(real, "allgather_into_tensor_coalesced")

"""Bytes against the ledger: by hand, and on captured jobs whose model and layout are known."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from analyzer.mirrored import from_forward
from analyzer.model import LedgerDoc
from analyzer.pipeline import analyze
from analyzer.predicted import Predicted
from analyzer.reconcile import compare
from analyzer.traffic import Flow, Sent, traffic
from heuristics.labelled import GpuRole
from heuristics.verdict import Layout, ModelGuess
from tests.analyzer.hand_made import Call, Kernel, labelled, measured

PLAIN = """
layers: 4
hidden: 64
ffn: 256
heads: 8
vocab: 128
gated: false
norm: layernorm
"""
"""The model of the plain PyTorch captures."""

MEGATRON = PLAIN + "biases: [qkv, attention_output, mlp]\ntied: true\n"
"""The model of the Megatron captures."""

A = 6144 * 2
"""Bytes of the layer-boundary activation in the hand-made cases."""


def sent(*flows: tuple[str, str, str, str, int, int, float]) -> dict[Flow, Sent]:
    """(dim, primitive, phase, dtype, bytes of a call, calls per step, bytes sent of one call)."""
    return {
        Flow(dim, primitive, phase, dtype, size, 4): Sent(calls, calls * each)
        for dim, primitive, phase, dtype, size, calls, each in flows
    }


def layout(**fields: object) -> Layout:
    base = Layout(tp=4, cp=1, pp=1, dp=1, ep=1, zero_stage=0, model=ModelGuess(activation_elements=6144))
    return dataclasses.replace(base, **fields)  # type: ignore[arg-type]


def verdicts(seen: dict[Flow, Sent], of: Layout, profile: str) -> dict[tuple[str, str], tuple[str, float | None]]:
    lines = compare(seen, from_forward(seen, of, profile, [0]), of)
    return {line.key: (line.verdict, line.predicted) for line in lines}


def test_sequence_parallel_backward_mirrors_forward() -> None:
    seen = sent(
        ("tp", "all_gather", "forward", "bfloat16", A, 8, A * 0.75),
        ("tp", "reduce_scatter", "forward", "bfloat16", A, 9, A * 0.75),
        ("tp", "all_gather", "backward", "bfloat16", A, 9, A * 0.75),
        ("tp", "reduce_scatter", "backward", "bfloat16", A, 8, A * 0.75),
        ("tp", "all_reduce", "optimizer", "bfloat16", 128, 18, 192),
    )
    found = verdicts(seen, layout(sequence_parallel=True), "textbook")
    assert found["tp", "all_gather"] == ("match", 17 * A * 0.75)
    assert found["tp", "reduce_scatter"] == ("match", 17 * A * 0.75)
    assert found["tp", "all_reduce"] == ("explained", None)


def test_megatron_gathers_once_more_and_the_textbook_does_not() -> None:
    seen = sent(
        ("tp", "all_gather", "forward", "bfloat16", A, 8, A * 0.75),
        ("tp", "reduce_scatter", "forward", "bfloat16", A, 8, A * 0.75),
        ("tp", "all_gather", "backward", "bfloat16", A, 16, A * 0.75),
        ("tp", "reduce_scatter", "backward", "bfloat16", A, 8, A * 0.75),
    )
    assert verdicts(seen, layout(sequence_parallel=True), "megatron")["tp", "all_gather"][0] == "match"
    assert verdicts(seen, layout(sequence_parallel=True), "textbook")["tp", "all_gather"][0] == "explained"


@pytest.mark.parametrize(("profile", "sums"), [("textbook", 2), ("torchtitan", 1)])
def test_layers_are_recomputed_and_the_ends_are_not(profile: str, sums: int) -> None:
    # One layer, embedding and output layer: torch.utils.checkpoint stops before the layer's last sum.
    seen = sent(
        ("tp", "all_gather", "forward", "bfloat16", A, 3, A * 0.75),
        ("tp", "reduce_scatter", "forward", "bfloat16", A, 3, A * 0.75),
        ("tp", "all_gather", "backward", "bfloat16", A, 3 + 2, A * 0.75),
        ("tp", "reduce_scatter", "backward", "bfloat16", A, 3 + sums, A * 0.75),
    )
    model = ModelGuess(activation_elements=6144, layers=1)
    found = verdicts(seen, layout(sequence_parallel=True, recompute="full", model=model), profile)
    assert found["tp", "all_gather"] == ("match", 8 * A * 0.75)
    assert found["tp", "reduce_scatter"] == ("match", (6 + sums) * A * 0.75)


@pytest.mark.parametrize(("again", "verdict"), [(0, "match"), (4, "match"), (2, "differs")])
def test_keys_and_values_are_kept_for_backward_or_gathered_again(again: int, verdict: str) -> None:
    # Two layers over four ranks: K and V of a layer gathered in forward, and where they are not kept in backward.
    seen = sent(
        ("cp", "all_gather", "forward", "float32", A, 4, A * 0.75),
        *([("cp", "all_gather", "backward", "float32", A, again, A * 0.75)] if again else []),
        ("cp", "reduce_scatter", "backward", "float32", A, 4, A * 0.75),
    )
    found = verdicts(seen, layout(tp=1, cp=4, cp_kind="all_gather"), "textbook")
    assert found["cp", "all_gather"] == (verdict, (4 + (4 if again else 0)) * A * 0.75)
    assert found["cp", "reduce_scatter"] == ("match", 4 * A * 0.75)


@pytest.mark.parametrize(
    ("stage", "calls_of_root", "verdict"), [(3, 1, "explained"), (3, 2, "match"), (3, 3, "differs"), (2, 1, "differs")]
)
def test_sharded_parameters_travel_as_often_as_the_stage_says(stage: int, calls_of_root: int, verdict: str) -> None:
    unit, root = 49_408, 16_512
    seen = sent(
        ("dp", "reduce_scatter", "backward", "float32", unit * 4, 4, unit * 3),
        ("dp", "reduce_scatter", "backward", "float32", root * 4, 1, root * 3),
        ("dp", "all_gather", "forward", "bfloat16", unit * 2, 8, unit * 1.5),
        ("dp", "all_gather", "forward", "bfloat16", root * 2, calls_of_root, root * 1.5),
    )
    of = layout(tp=1, dp=4, zero_stage=stage, dp_shard=4, dp_replicate=1)
    found = verdicts(seen, of, "textbook")
    assert found["dp", "reduce_scatter"][0] == "match"
    assert found["dp", "all_gather"][0] == verdict


def test_replicas_of_shards_sum_one_shard() -> None:
    n = 1_000_000
    seen = sent(
        ("dp", "reduce_scatter", "backward", "float32", n * 4, 1, n * 4 * 0.75),
        ("dp", "all_reduce", "backward", "float32", n, 1, n),  # a quarter of n elements, two replicas
        ("dp", "all_gather", "forward", "float32", n * 4, 2, n * 4 * 0.75),
    )
    of = layout(tp=1, dp=8, zero_stage=3, dp_shard=4, dp_replicate=2)
    assert verdicts(seen, of, "torch")["dp", "all_reduce"] == ("match", n)


def test_a_missing_reduction_is_missing_and_a_foreign_one_extra() -> None:
    seen = sent(
        ("pp", "send_recv", "unknown", "bfloat16", A, 4, A),
        ("unknown", "all_gather", "forward", "bfloat16", A, 1, A),
    )
    predicted = Predicted("textbook", {("pp", "send_recv"): 8 * A, ("dp", "all_reduce"): 100.0})
    lines = {line.key: line for line in compare(seen, predicted, layout())}
    assert lines["pp", "send_recv"].verdict == "differs"
    assert lines["pp", "send_recv"].unexplained == 4 * A
    assert lines["dp", "all_reduce"].verdict == "missing"
    assert lines["unknown", "all_gather"].verdict == "extra"


def test_a_byte_of_rounding_per_call_is_no_difference() -> None:
    seen = sent(("dp", "all_reduce", "backward", "float32", 44 * 4, 3, 65))
    lines = compare(seen, Predicted("textbook", {("dp", "all_reduce"): 198.0}), layout())
    assert [line.verdict for line in lines] == ["match"]
    lines = compare(seen, Predicted("textbook", {("dp", "all_reduce"): 199.0}), layout())
    assert [line.verdict for line in lines] == ["differs"]


def test_traffic_is_a_mean_over_steps_and_ranks_of_calls_whose_bytes_are_known() -> None:
    kernels = [Kernel(10 * i, 5, GpuRole.COMM, 20, call=i) for i in range(3)]
    calls = [Call(step=0, sent_bytes=100), Call(step=1, sent_bytes=100), Call(step=1, sent_bytes=None)]
    ranks = [
        measured(labelled(kernels, calls, steps=[(0, 0, 10), (1, 10, 90)]), ["dp"] * 3),
        measured(labelled([Kernel(0, 5)], steps=[(0, 0, 10)], rank=1), []),
    ]
    ((flow, found),) = traffic(ranks).items()
    assert (flow.dim, flow.primitive, flow.dtype, flow.size_bytes) == ("dp", "all_reduce", "bfloat16", 1024)
    assert (found.calls, found.bytes) == (0.5, 50.0)


# Captured jobs


def ledger(shared: Path, case: str, **options: object) -> LedgerDoc:
    files = sorted(str(p) for p in (shared / "data" / "captures" / case).glob("rank*.json.gz"))
    found = analyze(files, **options).ledger
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("case", "rows"),
    [
        ("ddp4_buckets", {"dp.all_reduce": 2 * 0.75 * 214_144 * 4}),
        ("fsdp2_4", {"dp.all_gather": 0.75 * 411_776 * 4, "dp.reduce_scatter": 0.75 * 214_144 * 4}),
        ("fsdp2_4_noreshard", {"dp.all_gather": 0.75 * 214_144 * 4, "dp.reduce_scatter": 0.75 * 214_144 * 4}),
        ("hsdp_2x4", {"dp.all_reduce": 214_144 / 4 * 4, "dp.reduce_scatter": 0.75 * 214_144 * 4}),
        ("zero1_hand", {"dp.all_gather": 0.75 * 214_144 * 4, "dp.reduce_scatter": 0.75 * 214_144 * 4}),
        ("pp4_1f1b", {}),
        ("tp4_prep", {}),
        ("tp2_fsdp4", {}),
        ("mc4_tp4_sp", {}),
        ("mc4_pp2_vp2_dp2", {}),
        ("ulysses4", {}),
        ("cp4_torch_allgather", {}),
        ("mc8_tp2ep2pp2_moe", {}),
    ],
)
def test_captured_jobs_leave_nothing_unexplained_without_a_model(
    shared: Path, case: str, rows: dict[str, float]
) -> None:
    found = ledger(shared, case)
    assert found.model.source == "inferred"
    assert found.residual_bytes == 0
    assert {row.verdict for row in found.rows} <= {"match", "explained"}
    observed = {f"{row.dim}.{row.primitive}": row.observed_bytes for row in found.rows}
    assert {key: observed[key] for key in rows} == rows


@pytest.mark.parametrize(
    ("case", "model"),
    [
        ("ddp4", PLAIN),
        ("fsdp2_4", PLAIN),
        ("fsdp2_4__rawgloo", PLAIN),
        ("hsdp_2x4", PLAIN),
        ("tp4_prep", PLAIN),
        ("tp2_fsdp4", PLAIN),
        ("pp4_1f1b", PLAIN),
        ("ds4_pp2_dp2_zero1", PLAIN),
        ("mc4_tp4", MEGATRON),
        ("mc4_tp4_sp", MEGATRON),
        ("mc4_pp4", MEGATRON),
        ("mc4_pp2_dp2", MEGATRON),
    ],
)
def test_captured_jobs_equal_the_ledger_of_their_model(shared: Path, tmp_path: Path, case: str, model: str) -> None:
    (tmp_path / "model.yaml").write_text(model)
    found = ledger(shared, case, model=str(tmp_path / "model.yaml"))
    assert found.model.source == "given"
    assert found.residual_bytes == 0
    assert {row.verdict for row in found.rows} <= {"match", "explained"}
    assert any(row.verdict == "match" or row.dim == "dp" for row in found.rows)


def test_a_wrong_model_is_not_explained_away(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(PLAIN.replace("ffn: 256", "ffn: 320"))
    found = ledger(shared, "ddp4", model=str(tmp_path / "model.yaml"))
    (row,) = (row for row in found.rows if row.dim == "dp")
    # Two matrices of 64 x 64 more in each of four layers, all-reduced over four ranks in float32.
    assert row.predicted_bytes is not None
    assert row.predicted_bytes - row.observed_bytes == 2 * 64 * 64 * 4 * 4 * 1.5
    assert row.verdict == "differs"
    assert found.residual_bytes == 2 * 64 * 64 * 4 * 4 * 1.5

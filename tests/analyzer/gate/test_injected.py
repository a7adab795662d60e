"""A fault in a captured job fails the gate and the row at fault is named, whatever the time says."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.gate.load import load_run
from analyzer.gate.verdict import Comparison, compare
from analyzer.options import Options
from tests.analyzer.gate.inject import Change, as_bfloat16, injected, remove, repeat


def against_fault(folder: Path, tmp_path: Path, collective: str, which: int, change: Change) -> Comparison:
    fault = injected(folder, tmp_path / "fault", collective, which, change)
    return compare(load_run([str(folder)], Options()), load_run([str(fault)], Options()))


# The last column is arithmetic: calls per step of the case (sample_traces/README.md), one more or one less.
CASES = [
    ("ddp4", "allreduce", 1, repeat, "calls.dp.all_reduce", 3, 4),
    ("ddp4", "allreduce", 0, remove, "calls.dp.all_reduce", 3, 2),
    ("ddp4", "allreduce", 2, as_bfloat16, "dtype.dp.all_reduce", "float32", "bfloat16+float32"),
    ("tp4", "allreduce", 4, remove, "calls.tp.all_reduce", 14, 13),
    ("tp4", "allreduce", 9, repeat, "calls.tp.all_reduce", 14, 15),
    ("tp4", "allreduce", 1, as_bfloat16, "dtype.tp.all_reduce", "float32", "bfloat16+float32"),
    ("fsdp2_4", "_allgather_base", 2, repeat, "calls.dp.all_gather", 8, 9),
    ("fsdp2_4", "_allgather_base", 5, remove, "calls.dp.all_gather", 8, 7),
    ("fsdp2_4", "_reduce_scatter_base", 1, repeat, "calls.dp.reduce_scatter", 4, 5),
    ("fsdp2_4", "_reduce_scatter_base", 0, as_bfloat16, "dtype.dp.reduce_scatter", "float32", "bfloat16+float32"),
    ("zero1_4", "_allgather_base", 1, repeat, "calls.dp.all_gather", 5, 6),
]


@pytest.mark.parametrize(("case", "collective", "which", "change", "metric", "before", "after"), CASES)
def test_fault_is_a_regression_of_the_right_row(
    sample_traces: Path,
    tmp_path: Path,
    case: str,
    collective: str,
    which: int,
    change: Change,
    metric: str,
    before: object,
    after: object,
) -> None:
    found = against_fault(sample_traces / case, tmp_path, collective, which, change)
    assert (found.exit_code, found.verdict, found.differences) == (1, "regression", [])
    row = next(row for row in found.rows if row.metric == metric)
    assert (row.status, row.level, row.baseline, row.current) == ("changed", "error", before, after)
    others = {
        r.metric.split(".", 1)[1] for r in found.rows if r.status == "changed" and r.kind == "exact" and "." in r.metric
    }
    assert others == {metric.split(".", 1)[1]}
    dim, primitive = metric.split(".")[1:]
    assert {(c.dim, c.primitive) for c in found.collectives} == {(dim, primitive)}


def test_duplicated_reduction_fails_although_time_is_unchanged(sample_traces: Path, tmp_path: Path) -> None:
    found = against_fault(sample_traces / "ddp4", tmp_path, "allreduce", 1, repeat)
    time = next(row for row in found.rows if row.metric == "step_us")
    assert (time.status, time.change) == ("pass", 0.0)
    # 150,720 float32 elements more, of which a rank of four sends 2·3/4
    sent = next(row for row in found.rows if row.metric == "bytes.dp.all_reduce")
    assert (sent.baseline, sent.current) == (2_013_120, 2_013_120 + 150_720 * 4 * 3 // 2)
    assert found.rows[0].metric == "bytes.dp.all_reduce"


def test_another_type_of_every_call_is_one_changed_row(sample_traces: Path, tmp_path: Path) -> None:
    folder = sample_traces / "ddp4"
    first = injected(folder, tmp_path / "a", "allreduce", 0, as_bfloat16)
    for path in first.iterdir():
        path.write_text(path.read_text().replace('"dtype": "Float"', '"dtype": "BFloat16"'))
    found = compare(load_run([str(folder)], Options()), load_run([str(first)], Options()))
    assert found.exit_code == 1
    assert [(c.kind, c.row, c.what) for c in found.collectives] == [
        ("changed", "dp all_reduce n=4 float32 backward", "dtype float32 → bfloat16")
    ]
    assert "dtype.dp.all_reduce" in {row.metric for row in found.rows if row.failed}


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        ("tp4", "fsdp2_4", "layout: tp4-cp1-pp1-dp1-ep1 in the baseline, tp1-cp1-pp1-dp4-ep1 here"),
        ("pp4_1f1b", "cp4_ring", "layout: tp1-cp1-pp4-dp1-ep1 in the baseline, tp1-cp4-pp1-dp1-ep1 here"),
        ("ddp4", "fsdp2_4", "layout: data parallel ddp in the baseline, data parallel zero3 here"),
        ("tp4", "tp4_sp", "model: hidden 96 in the baseline, hidden 64 here"),
        ("ddp4", "ep4_dp8", "world: 4 ranks in the baseline, 8 ranks here"),
    ],
)
def test_different_jobs_are_inconclusive_and_the_difference_is_named(
    sample_traces: Path, one: str, two: str, said: str
) -> None:
    found = compare(*(load_run([str(sample_traces / case)], Options()) for case in (one, two)))
    assert (found.exit_code, found.verdict, found.rows) == (3, "inconclusive", [])
    assert said in found.reason


@pytest.mark.parametrize("case", ["ddp4", "tp4", "ep4_dp8", "pp4_1f1b", "tp2_pp2_dp2", "ulysses4"])
def test_run_against_itself_passes(sample_traces: Path, case: str) -> None:
    run = load_run([str(sample_traces / case)], Options())
    found = compare(run, run)
    assert (found.exit_code, found.verdict) == (0, "pass")
    assert {row.status for row in found.rows} == {"pass"}
    assert found.collectives == []


def test_tokens_routed_to_experts_are_not_exact(sample_traces: Path) -> None:
    run = load_run([str(sample_traces / "ep4_dp8")], Options())
    assert "bytes.ep.all_to_all" in run.noisy
    assert "bytes.ep.all_to_all" not in run.exact
    assert run.exact["bytes.dp.all_reduce"] == 1_330_640
    # dense gradients over 8 ranks, those of experts over pairs
    assert (run.exact["groups.dp.all_reduce"], run.exact["groups.ep.all_to_all"]) == ("2+8", "4")

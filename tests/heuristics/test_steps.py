"""Steps: marked, inferred, whole or cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parsers
from benchmarks.steps import Around, compare, hidden, misses
from heuristics.label import label
from heuristics.repetition import believed, by_period
from heuristics.steps import step_at
from parsers.tables import Health
from tests.heuristics.traces import TraceMaker

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"
LONG = 100_000
"""Nanoseconds in a unit of the traces whose steps, of 1000 units, are so long that a profiler's time is nothing."""


def test_moments_outside_of_all_steps_have_none() -> None:
    begin, end = np.array([100, 200, 400]), np.array([200, 300, 500])
    moments = np.array([-1, 99, 100, 199, 200, 299, 300, 450, 500])
    assert step_at(begin, end, moments).tolist() == [-1, -1, 0, 0, 1, 1, -1, 2, -1]


def test_a_kernel_belongs_to_the_step_that_launched_it() -> None:
    make = TraceMaker()
    make.step(5, 0, 100)
    make.step(6, 100, 100)
    make.kernel(ALL_REDUCE, 150, 20, launch=90)
    make.kernel(ALL_REDUCE, 180, 20, launch=120)
    found = label(make.done())
    assert found.collectives["step"].to_pylist() == [0, 1]
    assert found.steps.table["number"].to_pylist() == [5, 6]


def test_without_launches_a_kernel_belongs_to_the_step_in_which_it_ran() -> None:
    make = TraceMaker()
    make.step(5, 0, 100)
    make.step(6, 100, 100)
    make.kernel(ALL_REDUCE, 50, 20)
    make.kernel(ALL_REDUCE, 180, 20)
    assert label(make.done()).collectives["step"].to_pylist() == [0, 1]


def test_a_step_past_the_last_readable_byte_is_cut() -> None:
    make = TraceMaker()
    make.step(0, 0, 100)
    make.step(1, 100, 100)
    whole = label(make.done()).steps
    assert whole.complete.tolist() == [True, True]
    cut = label(make.done(health=Health(complete=False, last_good_ts_ns=150_000))).steps
    assert cut.complete.tolist() == [True, False]


def test_a_step_with_dropped_kernels_is_cut(shared: Path) -> None:
    folder = shared / "data" / "pains"
    expected = json.loads((folder / "EXPECT.json").read_text())["19_dropped_kernels"]
    (trace,) = parsers.read(folder / "19_dropped_kernels" / "trace.json")
    steps = label(trace).steps
    numbers = steps.table["number"].to_pylist()
    assert [n for n, whole in zip(numbers, steps.complete, strict=True) if not whole] == expected["incomplete_steps"]


def test_steps_are_inferred_from_the_period_of_the_calls(shared: Path) -> None:
    folder = shared / "data" / "pains"
    expected = json.loads((folder / "EXPECT.json").read_text())["07_no_profiler_step"]
    (trace,) = parsers.read(folder / "07_no_profiler_step" / "trace.json")
    found = label(trace)
    assert found.steps.source == "inferred"
    assert found.steps.table.num_rows == expected["steps"]
    assert {ns / 1000 for ns in found.steps.table["dur_ns"].to_pylist()} == {expected["step_us"]}
    assert found.steps.complete.all()
    assert found.collectives["step"].to_pylist() == [0] * 4 + [1] * 4 + [2] * 4


def test_layers_that_repeat_without_a_pause_are_not_steps() -> None:
    make = TraceMaker()
    for layer in range(20):
        make.kernel(GEMM, 100 * layer, 60)
        make.kernel(ALL_REDUCE, 100 * layer + 60, 40)
    assert label(make.done()).steps.source == "none"


def test_repetitions_of_unequal_length_are_not_steps() -> None:
    make = TraceMaker()
    for start in (0, 1000, 2500, 2900):
        make.kernel(ALL_REDUCE, start, 40)
    assert label(make.done()).steps.source == "none"


@pytest.mark.parametrize("name", ["lightllm_tp8_decode", "lightllm_ep8_decode", "vllm_tp8_b200"])
def test_one_forward_pass_is_not_cut_into_layers(shared: Path, name: str) -> None:
    (trace,) = parsers.read(shared / "data" / "real" / name / "rank0.json.gz")
    assert label(trace).steps.source == "none"


def test_steps_are_inferred_from_the_optimizers_marks() -> None:
    """Two optimizers a step; the first step began before the window and is told by its number of calls."""
    make = TraceMaker(unit_ns=LONG)
    for k in range(3):
        for i in range(4):
            at = 1000 * k + 100 * i
            if k or i > 1:
                make.mark("autograd", "autograd::engine::evaluate_function: MmBackward0", at, 50)
                make.record("c10d", "c10d::allreduce_", at + 10, 20)
        make.mark("optimizer", "Optimizer.step#Muon.step", 1000 * k + 500, 100)
        make.mark("optimizer", "Optimizer.step#AdamW.step", 1000 * k + 700, 100)
    found = label(make.done())
    assert found.steps.source == "inferred"
    assert found.collectives["step"].to_pylist() == [0] * 2 + [1] * 4 + [2] * 4
    assert found.steps.complete.tolist() == [False, True, True]
    end = [a + b for a, b in zip(*found.steps.table.select(["ts_ns", "dur_ns"]).to_pydict().values(), strict=True)]
    # Nothing is recorded between the optimizer and the next backward: the boundary is just before the latter.
    assert end == [997.5 * LONG, 1_997.5 * LONG, 2_800 * LONG]


A, B, C = 0, 1, 2


def test_a_name_used_for_several_primitives_is_not_believed() -> None:
    name = np.array([9, 9, 9, 9, 4, 4])
    says = np.array([A, A, A, A, B, B])
    known = np.array([A, B, -1, -1, B, -1])
    assert believed(name, says, known).tolist() == [A, A, -1, -1, B, B]


def test_a_name_used_for_one_other_primitive_means_that_one() -> None:
    name, says = np.array([9] * 5), np.array([A] * 5)
    assert believed(name, says, np.array([C, C, C, -1, -1])).tolist() == [A, A, A, C, C]
    # but not where it is mostly left unexplained
    assert believed(name, says, np.array([C, -1, -1, -1, -1])).tolist() == [A, A, A, A, A]


def _period(primitives: list[int], lanes: list[int] | None = None, names: list[int] | None = None) -> list[int]:
    n = len(primitives)
    return by_period(
        np.array(lanes or [0] * n), np.arange(n), np.array(names or [7] * n), np.array(primitives)
    ).tolist()


def test_the_order_of_a_stream_names_what_came_before_the_window() -> None:
    assert _period([-1, -1, A, B, C, A, B, C]) == [B, C, -1, -1, -1, -1, -1, -1]


def test_an_order_that_is_not_kept_names_nothing() -> None:
    assert _period([-1, A, B, C, A, C, B]) == [-1] * 7
    assert _period([-1, A, B]) == [-1] * 3


def test_streams_repeat_on_their_own_and_names_must_repeat_too() -> None:
    lanes = [0, 1, 0, 1, 0, 1]
    assert _period([-1, -1, A, B, A, B], lanes) == [A, B, -1, -1, -1, -1]
    assert _period([-1, A, A, A], names=[3, 7, 7, 7]) == [-1] * 4


def training(make: TraceMaker, at: float, *, gather: str | None = None, work: int = 3) -> None:
    """A step of 1000: forward, backward, optimizer.

    ``gather`` says whether parameters are gathered before the forward, after the optimizer, or not at all.
    """
    if gather == "before":
        make.record("c10d", "c10d::_allgather_base_", at + 2, 20)
    for i in range(work):
        make.mark("op", f"aten::linear{i}", at + 40 + 60 * i, 50)
        if gather == "before":
            make.record("c10d", "c10d::_allgather_base_", at + 91 + 60 * i, 5)
    for i in range(work):
        make.mark("autograd", "autograd::engine::evaluate_function: MmBackward0", at + 400 + 60 * i, 50)
        make.record("c10d", "c10d::_reduce_scatter_base_", at + 410 + 60 * i, 20)
    make.mark("optimizer", "Optimizer.step#AdamW.step", at + 800, 100)
    if gather == "after":
        make.record("c10d", "c10d::_allgather_base_", at + 910, 80)


def begins(make: TraceMaker, **more: Any) -> list[float]:
    return [ns / make.unit_ns for ns in label(make.done(**more)).steps.table["ts_ns"].to_pylist()]


def test_parameters_gathered_after_the_optimizer_belong_to_the_step_that_ends() -> None:
    make = TraceMaker(unit_ns=LONG)
    for k in range(4):
        training(make, 1000 * k, gather="after")
    # Between 990 and 1040 nothing is recorded: no more than 0.25 % of a step is taken from it.
    assert begins(make)[1:] == [1037.5, 2037.5, 3037.5]
    found = label(make.done())
    assert found.steps.complete.tolist() == [True] * 4
    assert found.collectives["step"].to_pylist() == [k for k in range(4) for _ in range(4)]
    assert found.steps.unsure_ns == 47.5 * LONG
    assert not found.steps.certain
    assert [note for note in found.stats.notes if "not certain to 0.3% of a step" in note]


def test_parameters_gathered_before_the_forward_belong_to_the_step_that_begins() -> None:
    make = TraceMaker(unit_ns=LONG)
    for k in range(3):
        training(make, 1000 * k, gather="before")
    found = label(make.done())
    assert found.collectives["step"].to_pylist() == [k for k in range(3) for _ in range(7)]
    assert begins(make)[1:] == [999.5, 1999.5]


@pytest.mark.parametrize("gather", ["before", "after", None])
@pytest.mark.parametrize("cut", [150, 450])
def test_a_record_that_begins_within_a_step_shows_the_same_boundaries(gather: str | None, cut: float) -> None:
    whole, late = TraceMaker(unit_ns=LONG), TraceMaker(unit_ns=LONG)
    for k in range(4):
        training(whole, 1000 * k, gather=gather)
        training(late, 1000 * k, gather=gather)
    for rows in (late.marks, late.records):
        rows[:] = [row for row in rows if row["ts_ns"] >= cut * LONG]
    steps = label(late.done()).steps
    assert begins(late)[1:] == begins(whole)[1:]
    assert steps.complete.tolist() == [False, True, True, True]


def test_a_record_that_begins_with_the_end_of_a_step_is_not_misled() -> None:
    make = TraceMaker(unit_ns=LONG)
    for k in range(4):
        training(make, 1000 * k, gather="after")
    for rows in (make.marks, make.records):
        rows[:] = [row for row in rows if row["ts_ns"] >= 850 * LONG]
    steps = label(make.done()).steps
    assert begins(make)[1:] == [2037.5, 3037.5]
    assert steps.complete.tolist() == [False, True, True]


def test_a_record_that_ends_within_a_step_leaves_that_step_out() -> None:
    make = TraceMaker(unit_ns=LONG)
    for k in range(4):
        training(make, 1000 * k, gather="after")
    for rows in (make.marks, make.records):
        rows[:] = [row for row in rows if row["ts_ns"] < 3_300 * LONG]
    found = label(make.done())
    assert begins(make)[1:] == [1037.5, 2037.5]
    assert found.steps.complete.tolist() == [True] * 3
    end = found.steps.table["ts_ns"].to_pylist()[-1] + found.steps.table["dur_ns"].to_pylist()[-1]
    assert end == 3_037.5 * LONG


def test_what_a_step_does_after_its_optimizer_is_known_by_how_the_record_ends() -> None:
    """Metrics are computed between the optimizer and the next batch; the record holds whole steps."""
    make = TraceMaker(unit_ns=LONG)
    for k in range(3):
        make.mark("annotation", "## load_batch ##", 1000 * k + 2, 40)
        training(make, 1000 * k)
        make.mark("annotation", "## metrics ##", 1000 * k + 905, 94)
    found = label(make.done())
    assert begins(make)[1:] == [1000.5, 2000.5]
    assert found.steps.certain
    assert found.steps.complete.all()


def test_where_nothing_runs_backward_every_call_of_the_model_is_a_step() -> None:
    make = TraceMaker(unit_ns=LONG)
    for k in range(3):
        make.kernel("Memcpy HtoD", 1000 * k + 12, 1, kind="memcpy", launch=1000 * k + 2)
        make.mark("annotation", "DistributedDataParallel.forward", 1000 * k + 20, 970)
        make.metadata("broadcast", 1000 * k + 30, 5, in_nelems=4, out_nelems=4, dtype="Float", group_size=2)
        make.kernel("ncclDevKernel_Broadcast_RING_LL(x)", 1000 * k + 40, 20, 20, launch=1000 * k + 31)
    found = label(make.done())
    assert begins(make)[1:] == [999.5, 1999.5]
    assert found.collectives["step"].to_pylist() == [0, 1, 2]


def test_in_a_short_step_a_boundary_leaves_room_for_the_profiler() -> None:
    """Half of a pause of 50 us between two steps of 1 ms, and 75 us of one of 400 us, though 0.25 % would be 2.5 us."""
    close, apart = TraceMaker(), TraceMaker()
    for k in range(4):
        training(close, 1000 * k, gather="after")
        training(apart, 1350 * k, gather="after")
    assert begins(close)[1:] == [1015, 2015, 3015]
    assert begins(apart)[1:] == [1350 + 40 - 75, 2700 + 40 - 75, 4050 + 40 - 75]
    assert not label(close.done()).steps.certain


def test_where_only_the_gpu_was_recorded_its_order_shows_where_steps_begin() -> None:
    """Steps of 1000; the next one's first work follows the optimizer after a pause of 4, and half of that is 2."""
    make = TraceMaker(unit_ns=LONG)
    for k in range(3):
        make.kernel("params-all-gather", 1000 * k, 30, 20, arguments={"collective": "_allgather_base"})
        make.kernel("forward-compute", 1000 * k + 40, 300)
        make.kernel("backward-compute", 1000 * k + 400, 400)
        make.mark("autograd", "backward-compute", 1000 * k + 400, 400)
        make.kernel("optimizer", 1000 * k + 900, 96)
        make.mark("optimizer", "optimizer", 1000 * k + 900, 96)
    found = label(make.done())
    assert found.steps.source == "inferred"
    assert begins(make)[1:] == [998, 1998]
    assert found.collectives["step"].to_pylist() == [0, 1, 2]
    assert found.steps.complete.all()


def test_clearing_gradients_closes_no_step() -> None:
    """`zero_grad` before the forward of each step is the optimizer's too, but belongs to the step that begins."""
    make = TraceMaker(unit_ns=LONG)
    for k in range(3):
        make.mark("optimizer", "Optimizer.zero_grad#AdamW.zero_grad", 1000 * k + 2, 10)
        training(make, 1000 * k)
    assert begins(make)[1:] == [999.5, 1999.5]


@pytest.mark.parametrize(("job", "ranks", "off"), [("AR", 16, 0), ("ST", 8, 2)])
def test_steps_of_production_jobs_are_found_without_their_numbers(shared: Path, job: str, ranks: int, off: int) -> None:
    """Within 0.3 % wherever they are said to be; on two ranks nothing ran for 1 % of one step, and that is said."""
    found = [compare(each) for each in parsers.read(shared / "data/ground_truth/straggler" / f"trace-{job}.parquet")]
    assert len(found) == ranks
    assert all((each.found, each.calls_elsewhere) == (each.marked, 0) for each in found)
    assert sum(not each.right for each in found) == off
    assert all(each.right for each in found if each.certain)


def test_a_boundary_that_is_off_is_told_by_what_lies_around_the_mark() -> None:
    """Steps of 1000; the optimizer ends 100 before the mark, and the forward begins 40 after it: 2.5 are believed."""
    make = TraceMaker(unit_ns=LONG)
    for k in range(3):
        make.step(k, 1000 * k, 1000)
        training(make, 1000 * k)
    found = compare(make.done())
    assert found.around == (Around("Optimizer.step", "aten::linear0", 0.1, 0.04, 0.0375),) * 2
    row = misses({"jobs": {"one": [found]}}).splitlines()[-1]
    between = "`Optimizer.step` and `aten::linear0`"
    assert row == f"| jobs | {between} | 2 | 3.75% | 14.0 | 4.0 | 14.0 | silent in every step |"


def test_where_kernels_were_lost_steps_are_found_from_what_was_asked_for(shared: Path) -> None:
    (trace,) = parsers.read(shared / "data" / "pains" / "19_dropped_kernels" / "trace.json")
    found = compare(trace)
    assert (found.found, found.calls_elsewhere, found.length) == (3, 0, 0.0)
    assert label(hidden(trace)).steps.complete.tolist() == [False, True, True]


@pytest.mark.parametrize(("first", "last", "complete"), [(0, 11, [True] * 3), (2, 9, [False, True, False])])
def test_a_record_of_calls_may_begin_and_end_within_a_step(first: int, last: int, complete: list[bool]) -> None:
    make = TraceMaker()
    for i in range(12):
        if first <= i <= last:
            make.kernel(ALL_REDUCE, 1000 * i + 3000 * (i // 4), 900, 20)
    found = label(make.done())
    assert found.steps.complete.tolist() == complete
    assert found.collectives["step"].to_pylist() == [i // 4 for i in range(first, last + 1)]


SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


@pytest.mark.parametrize("case", sorted(path.parent.name for path in SAMPLES.glob("*/truth.json")))
def test_hidden_marks_are_found_again(case: str) -> None:
    """Every call in its step; and where the boundaries are said to be certain, they are where the marks are."""
    files = sorted((SAMPLES / case).glob("rank*.json.gz"))
    assert files
    for file in files:
        for trace in parsers.read(file):
            found = compare(trace)
            assert (found.found, found.calls_elsewhere) == (found.marked, 0)
            assert found.right or not found.certain


def test_inferred_steps_follow_the_cpu_where_it_runs_ahead() -> None:
    """Calls are asked for 800 us before they run; nothing tells when the compute before them was launched."""
    make = TraceMaker()
    for k in range(3):
        make.kernel(GEMM, 5000 * k + 1000, 1000)
        for i in range(2):
            start = 5000 * k + 2000 + 300 * i
            make.metadata("allreduce", start - 1800, 5, in_nelems=4, out_nelems=4, dtype="Float", group_size=2)
            make.kernel(ALL_REDUCE, start, 200, 20, launch=start - 1799)
    found = label(make.done())
    assert found.steps.source == "inferred"
    assert found.collectives["step"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert found.steps.complete.tolist() == [True] * 3

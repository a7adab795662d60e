from __future__ import annotations

import numpy as np
import pytest

from analyzer.exposure import clip_serial, measure, measure_parts
from analyzer.windows import Window
from heuristics.labelled import GpuRole
from tests.analyzer.hand_made import Call, Kernel, Mark, labelled, line_of

COMM, SYNC, COPY, IGNORE = GpuRole.COMM, GpuRole.COMM_SYNC, GpuRole.MEMCPY, GpuRole.IGNORE


def us(low: float, high: float) -> Window:
    return Window(np.array([[round(low * 1000), round(high * 1000)]], dtype=np.int64))


def test_a_step_divides_into_compute_exposed_memcpy_and_idle_exactly() -> None:
    rank = labelled(
        [
            Kernel(0, 10),
            Kernel(5, 10, COMM, stream=20, call=0),  # 5 hidden, 5 exposed
            Kernel(12, 6, COPY, stream=9),  # 3 behind communication, 3 alone
            Kernel(18, 2, SYNC, stream=20, call=0),
        ],
        [Call()],
    )
    time = measure(line_of(rank), ["dp"], us(0, 30))
    assert time.compute.tolist() == [10_000]
    assert time.exposed.tolist() == [7_000]
    assert time.overlapped.tolist() == [5_000]
    assert time.memcpy.tolist() == [3_000]
    assert time.idle.tolist() == [10_000]
    assert time.dims == ("dp",)
    assert time.busy.tolist() == [[12_000]]
    assert time.exposed_of.tolist() == [[7_000]]


def test_waits_markers_and_annotations_are_neither_compute_nor_communication() -> None:
    rank = labelled([Kernel(0, 4, COMM, stream=20, call=0), Kernel(0, 8, IGNORE), Kernel(2, 100, IGNORE, 20)], [Call()])
    time = measure(line_of(rank), ["dp"], us(0, 10))
    assert (time.compute.tolist(), time.exposed.tolist(), time.idle.tolist()) == ([0], [4_000], [6_000])


def test_time_exposed_in_two_dimensions_at_once_is_shared() -> None:
    rank = labelled(
        [Kernel(0, 10, COMM, stream=20, call=0), Kernel(4, 10, COMM, stream=24, call=1), Kernel(8, 1)], [Call(), Call()]
    )
    time = measure(line_of(rank), ["dp", "tp"], us(0, 20))
    # Alone 0-4, both 4-8 and 9-10, tp alone 10-14: 13 µs exposed in all.
    assert time.exposed.tolist() == [13_000]
    assert dict(zip(time.dims, time.exposed_of[0].tolist(), strict=True)) == {"dp": 6_500, "tp": 6_500}
    assert dict(zip(time.dims, time.busy[0].tolist(), strict=True)) == {"dp": 10_000, "tp": 10_000}


def test_an_odd_nanosecond_of_shared_time_is_not_lost() -> None:
    rank = labelled([Kernel(0, 0.003, COMM, 20, call=0), Kernel(0, 0.003, COMM, 24, call=1)], [Call(), Call()])
    time = measure(line_of(rank), ["dp", "tp"], us(0, 1))
    assert time.exposed.tolist() == [3]
    assert sorted(time.exposed_of[0].tolist()) == [1, 2]


def test_communication_that_belongs_to_no_call_is_unknown_not_compute() -> None:
    time = measure(line_of(labelled([Kernel(0, 5, COMM, stream=20)])), [], us(0, 5))
    assert time.dims == ("unknown",)
    assert time.exposed_of.tolist() == [[5_000]]


def test_windows_are_measured_one_by_one() -> None:
    rank = labelled([Kernel(0, 30, COMM, stream=20, call=0), Kernel(12, 3)], [Call()])
    window = Window(np.array([[0, 10_000], [10_000, 20_000]], dtype=np.int64), (0, 1))
    time = measure(line_of(rank), ["dp"], window)
    assert time.exposed.tolist() == [10_000, 7_000]
    assert time.exposed_of.tolist() == [[10_000], [7_000]]


def test_rows_of_one_dimension_add_up_to_it() -> None:
    rank = labelled(
        [
            Kernel(0, 10, COMM, 20, call=0),
            Kernel(2, 4, COMM, 24, call=1),
            Kernel(3, 9, COMM, 28, call=2),
            Kernel(5, 1),
        ],
        [Call(), Call(), Call()],
    )
    line, window = line_of(rank), us(0, 20)
    time = measure(line, ["dp", "dp", "tp"], window)
    busy, exposed = measure_parts(line, window, np.array([0, 1, 2]), [0, 0, 1])
    by_dim = dict(zip(time.dims, time.exposed_of[0].tolist(), strict=True))
    assert exposed[0] + exposed[1] == pytest.approx(by_dim["dp"], abs=4)
    assert exposed[2] == pytest.approx(by_dim["tp"], abs=4)
    assert busy.tolist() == [10_000, 4_000, 9_000]


def test_an_impossible_duration_is_cut_at_the_next_event_of_its_stream() -> None:
    kernels = [Kernel(i * 100, 3.4e6 if i in (5, 12) else 95) for i in range(20)]
    line = line_of(labelled(kernels))
    assert line.clipped == 2
    # 18 kernels of 95 µs, and the two cut ones reach to the next start.
    assert line.compute.total == (18 * 95 + 2 * 100) * 1000


def test_programmatic_dependent_launch_is_no_fault() -> None:
    line = line_of(labelled([Kernel(0, 10), Kernel(7, 10), Kernel(17.5, 10)]))
    assert line.clipped == 0
    assert line.compute.total == 27_000


def test_graph_branches_may_run_side_by_side_under_one_stream_number() -> None:
    line = line_of(labelled([Kernel(0, 100, graph=1), Kernel(10, 5, graph=2)]))
    assert line.clipped == 0


def test_other_streams_do_not_clip_each_other() -> None:
    start, end = np.array([0, 10, 20]), np.array([1000_000, 15, 25])
    out, clipped = clip_serial(start, end, np.array([1, 2, 2]), np.ones(3, dtype=np.bool_))
    assert clipped == 0
    assert out.tolist() == end.tolist()


def test_on_a_cpu_operators_are_compute_except_while_their_thread_communicates() -> None:
    rank = labelled(
        (),
        [Call(ts=10, dur=10, tid=1), Call(ts=40, dur=20, tid=9)],
        marks=[
            Mark(0, 30, "aten::linear"),  # holds a blocking call: 0-10 and 20-30 compute
            Mark(12, 2, "aten::copy_"),
            Mark(31, 4, "c10d::allreduce_"),
            Mark(45, 5, "aten::mm"),  # beside a call that runs on a thread of its own
            Mark(0, 90, "Optimizer.step", kind="optimizer"),
        ],
    )
    time = measure(line_of(rank), ["dp", "dp"], us(0, 100))
    assert time.compute.tolist() == [25_000]
    assert time.overlapped.tolist() == [5_000]
    assert time.exposed.tolist() == [25_000]


def test_the_exposure_does_not_depend_on_the_order_of_events() -> None:
    kernels = [Kernel(0, 10), Kernel(5, 10, COMM, 20, call=0), Kernel(16, 3), Kernel(17, 9, COMM, 24, call=0)]
    there = measure(line_of(labelled(kernels, [Call()])), ["dp"], us(0, 30))
    back = measure(line_of(labelled(kernels[::-1], [Call()])), ["dp"], us(0, 30))
    assert there.exposed.tolist() == back.exposed.tolist() == [5_000 + 7_000]


def test_one_swallowed_event_does_not_tell_which_of_two_is_wrong() -> None:
    line = line_of(labelled([Kernel(0, 1000), Kernel(0.7, 0.2), Kernel(1000, 1000)]))
    assert line.clipped == 0
    assert line.compute.total == 2_000_000


def test_compute_on_another_gpu_hides_nothing() -> None:
    rank = labelled(
        [Kernel(0, 10, COMM, stream=20, call=0), Kernel(0, 5), Kernel(0, 10, device=1), Kernel(10, 10, device=1)],
        [Call()],
    )
    line = line_of(rank)
    time = measure(line, ["dp"], us(0, 20))
    assert line.left_out == 2
    assert (time.compute.tolist(), time.exposed.tolist(), time.idle.tolist()) == ([5_000], [5_000], [10_000])

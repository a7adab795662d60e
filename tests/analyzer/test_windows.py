from __future__ import annotations

import numpy as np

from analyzer.step_marks import window_of
from analyzer.windows import gpu_steps
from tests.analyzer.hand_made import Kernel, labelled, read


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_a_drained_gpu_keeps_the_marks_of_the_cpu() -> None:
    edges = gpu_steps(ints(0, 100), ints(100, 200), ints(10, 110), ints(60, 170), ints(5, 105))
    assert edges.tolist() == [[0, 100], [100, 200]]


def test_a_gpu_that_lags_moves_the_boundary_to_where_the_new_step_begins() -> None:
    # The old step's kernel runs until 140, the first kernel of the new one starts at 130 on another stream.
    edges = gpu_steps(ints(0, 100), ints(100, 200), ints(10, 130), ints(140, 260), ints(5, 105))
    assert edges.tolist() == [[10, 130], [130, 260]]


def test_a_first_step_that_the_gpu_finishes_late_begins_with_its_first_event() -> None:
    assert gpu_steps(ints(0), ints(100), ints(10, 60), ints(60, 130), ints(5, 55)).tolist() == [[10, 130]]
    assert gpu_steps(ints(0), ints(100), ints(10, 60), ints(60, 90), ints(5, 55)).tolist() == [[0, 100]]


def test_time_between_two_marks_belongs_to_no_step() -> None:
    edges = gpu_steps(ints(0, 150), ints(100, 250), ints(10, 160), ints(90, 240), ints(5, 155))
    assert edges.tolist() == [[0, 100], [150, 250]]


def test_kernels_are_assigned_by_their_launch() -> None:
    rank = read(
        labelled(
            [Kernel(50, 70, launched=10), Kernel(125, 50, launched=105)],
            steps=[(3, 0, 100), (4, 100, 100)],
        )
    )
    window = window_of(rank, None)
    assert window.edges.tolist() == [[50_000, 120_000], [120_000, 200_000]]
    assert rank.steps.number[list(window.steps)].tolist() == [3, 4]


def test_only_the_steps_asked_for_are_measured() -> None:
    rank = read(
        labelled([Kernel(10, 5), Kernel(110, 5), Kernel(210, 5)], steps=[(n, n * 100.0, 100) for n in range(3)])
    )
    assert window_of(rank, (1, 1)).edges.tolist() == [[100_000, 200_000]]
    assert window_of(rank, (7, 9)).count == 0


def test_without_steps_the_window_is_the_span_of_the_work() -> None:
    window = window_of(read(labelled([Kernel(10, 5), Kernel(30, 10)])), None)
    assert window.edges.tolist() == [[10_000, 40_000]]
    assert window.steps == ()


def test_a_step_that_is_not_whole_is_not_measured() -> None:
    rank = read(labelled([Kernel(10, 5), Kernel(110, 5)], steps=[(0, 0, 100), (1, 100, 100)], cut=[0]))
    assert window_of(rank, None).edges.tolist() == [[100_000, 200_000]]

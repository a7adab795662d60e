from __future__ import annotations

import numpy as np
import pytest

from analyzer import intervals
from analyzer.exposure import Timeline, measure, measure_parts
from analyzer.occupancy import condensed
from analyzer.windows import Window


def timeline(random: np.random.Generator, kernels: int, calls: int) -> Timeline:
    """A rank with overlapping kernels, copies and calls, some of length nothing."""

    def some(count: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
        start = np.sort(random.integers(0, 10_000, count))
        return start, start + random.integers(0, longest, count)

    compute, memcpy, (start, end) = some(kernels, 90), some(kernels // 3, 60), some(calls, 200)
    return Timeline(
        on_gpu=True,
        compute=intervals.union(*compute),
        memcpy=intervals.union(*memcpy),
        comm_start=start,
        comm_end=end,
        comm_call=np.where(random.random(calls) < 0.1, -1, np.arange(calls)),
        call_start=start,
        call_end=end,
        clipped=0,
        left_out=0,
        first=0,
        last=10_300,
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_condensed_timeline_measures_the_same_to_the_nanosecond(seed: int) -> None:
    random = np.random.default_rng(seed)
    calls = int(random.integers(0, 60))
    line = timeline(random, int(random.integers(0, 300)), calls)
    edges = np.array([[500, 3100], [3100, 6000], [6400, 9000]])
    small = condensed(line, edges)
    dims = random.choice(["tp", "dp", "pp"], calls).tolist()
    part, owner = random.integers(-1, 5, calls), [0, 0, 1, 1, 2]
    for window in (Window(edges, (0, 1, 2)), Window(edges[1:2], (1,)), Window(np.array([[0, 10_300]]))):
        full, same = measure(line, dims, window), measure(small, dims, window)
        for name in ("compute", "exposed", "overlapped", "memcpy", "idle", "busy", "exposed_of"):
            assert np.array_equal(getattr(full, name), getattr(same, name)), name
        for one, other in zip(
            measure_parts(line, window, part, owner), measure_parts(small, window, part, owner), strict=True
        ):
            assert one.tolist() == other.tolist()


def test_compute_takes_one_interval_per_moment_at_most() -> None:
    line = timeline(np.random.default_rng(1), 3000, 10)
    small = condensed(line, np.array([[0, 10_300]]))
    assert len(small.compute.start) <= 2 * 10 + 2


def test_ten_kernels_under_one_call_become_one_stretch() -> None:
    start = np.arange(10) * 10
    nothing = np.empty(0, dtype=np.int64)
    line = Timeline(
        on_gpu=True,
        compute=intervals.union(start, start + 4),
        memcpy=intervals.union(np.array([96, 120]), np.array([98, 130])),
        comm_start=np.array([0]),
        comm_end=np.array([100]),
        comm_call=np.array([0]),
        call_start=nothing,
        call_end=nothing,
        clipped=0,
        left_out=0,
        first=0,
        last=130,
    )
    small = condensed(line, np.empty((0, 2), dtype=np.int64))
    assert (small.compute.start.tolist(), small.compute.end.tolist()) == ([0], [40])
    assert (small.memcpy.start.tolist(), small.memcpy.end.tolist()) == ([100], [110])  # that under the call counts not

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer import intervals
from analyzer.intervals import Spans

LAST = 60
"""Test intervals lie in [0, LAST): every moment can be looked at one by one."""

pieces = st.lists(st.tuples(st.integers(0, LAST - 1), st.integers(0, 15)), max_size=12)


def spans(parts: Sequence[tuple[int, int]]) -> Spans:
    start = np.array([s for s, _ in parts], dtype=np.int64)
    length = np.array([d for _, d in parts], dtype=np.int64)
    return intervals.union(start, np.minimum(start + length, LAST))


def moments(parts: Sequence[tuple[int, int]]) -> set[int]:
    return {t for s, d in parts for t in range(s, min(s + d, LAST))}


def moments_of(found: Spans) -> set[int]:
    return {t for s, e in zip(found.start.tolist(), found.end.tolist(), strict=True) for t in range(s, e)}


@given(pieces)
def test_union_covers_every_moment_of_its_parts_and_no_other(parts: list[tuple[int, int]]) -> None:
    found = spans(parts)
    assert moments_of(found) == moments(parts)
    assert found.total == len(moments(parts))
    assert (found.start[1:] > found.end[:-1]).all()
    assert (found.end > found.start).all()


@given(pieces, pieces)
def test_intersection_and_difference_split_a_span_set(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    both = intervals.intersection(spans(a), spans(b))
    rest = intervals.without(spans(a), spans(b))
    assert moments_of(both) == moments(a) & moments(b)
    assert moments_of(rest) == moments(a) - moments(b)
    assert both.total + rest.total == spans(a).total


@given(pieces, st.integers(-5, LAST + 5), st.integers(0, 30))
def test_covered_counts_the_moments_inside_a_window(parts: list[tuple[int, int]], low: int, length: int) -> None:
    found = intervals.covered(spans(parts), np.array([low]), np.array([low + length]))
    assert found.tolist() == [len({t for t in moments(parts) if low <= t < low + length})]


@given(st.lists(pieces, min_size=1, max_size=4), pieces, st.integers(0, LAST // 2), st.integers(1, LAST // 2))
def test_shares_are_equal_and_sum_to_the_time_that_is_not_hidden(
    parts: list[list[tuple[int, int]]], hidden: list[tuple[int, int]], low: int, length: int
) -> None:
    edges = np.array([[low, low + length], [low + length, LAST + 1]], dtype=np.int64)
    got = intervals.share([spans(p) for p in parts], spans(hidden), edges)
    for row, (first, last) in zip(got.tolist(), edges.tolist(), strict=True):
        wanted = [0.0] * len(parts)
        free = 0
        for t in range(first, last):
            on = [i for i, p in enumerate(parts) if t in moments(p)]
            if on and t not in moments(hidden):
                free += 1
                for i in on:
                    wanted[i] += 1 / len(on)
        assert sum(row) == free
        # At most one nanosecond is rounded per combination of parts that were on together.
        assert row == pytest.approx(wanted, abs=2 ** len(parts))


@given(st.lists(st.tuples(pieces, st.integers(0, 2)), min_size=1, max_size=5), pieces)
def test_two_level_shares_divide_among_owners_before_parts(
    owned: list[tuple[list[tuple[int, int]], int]], hidden: list[tuple[int, int]]
) -> None:
    edges = np.array([[3, 20], [25, LAST]], dtype=np.int64)
    owner = [o for _, o in owned]
    got = intervals.share_in_two([spans(p) for p, _ in owned], owner, spans(hidden), edges)
    wanted = [0.0] * len(owned)
    for t in [*range(3, 20), *range(25, LAST)]:
        on = [i for i, (p, _) in enumerate(owned) if t in moments(p)]
        if t not in moments(hidden):
            for i in on:
                mates = sum(owner[j] == owner[i] for j in on)
                wanted[i] += 1 / len({owner[j] for j in on}) / mates
    assert got.tolist() == pytest.approx(wanted)


def test_three_parts_at_once_share_ten_nanoseconds_as_four_three_three() -> None:
    part = spans([(0, 10)])
    got = intervals.share([part, part, part], intervals.NOTHING, np.array([[0, 10]]))
    assert got.tolist() == [[4, 3, 3]]


@pytest.mark.parametrize(
    ("weights", "total", "wanted"),
    [
        ([1, 1, 1], 10, [4, 3, 3]),
        ([0, 2], 5, [0, 5]),
        ([0.2, 0.3, 0.5], 10, [2, 3, 5]),
        ([], 0, []),
        ([0, 0], 0, [0, 0]),
    ],
)
def test_apportion_gives_whole_numbers_that_sum_to_the_total(
    weights: list[float], total: int, wanted: list[int]
) -> None:
    assert intervals.apportion(np.array(weights, dtype=np.float64), total).tolist() == wanted


def test_apportion_refuses_to_divide_by_nothing() -> None:
    with pytest.raises(ValueError, match="nothing to divide by"):
        intervals.apportion(np.zeros(3), 1)

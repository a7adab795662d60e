"""Call stacks read back from flat events."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heuristics.arrays import NULL
from heuristics.nesting import above_any, first_inside, nearest, outermost, parents
from tests.examples import examples


def _parents(rows: list[tuple[int, int, int]]) -> list[int]:
    thread, start, end = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return parents(thread, start, end, np.arange(len(rows))).tolist()


def test_innermost_enclosing_interval_of_the_same_thread() -> None:
    rows = [(1, 0, 100), (1, 10, 50), (1, 20, 30), (1, 60, 70), (2, 25, 28), (1, 200, 210)]
    assert _parents(rows) == [NULL, 0, 1, 0, NULL, NULL]


def test_intervals_that_touch_do_not_enclose_each_other() -> None:
    assert _parents([(1, 0, 10), (1, 10, 20), (1, 20, 20)]) == [NULL, NULL, NULL]


def test_an_end_cut_to_microseconds_does_not_break_the_stack() -> None:
    assert _parents([(1, 0, 57), (1, 50, 58)]) == [NULL, 0]


def test_equal_intervals_nest_by_rank() -> None:
    assert _parents([(1, 0, 10), (1, 0, 10), (1, 0, 10)]) == [NULL, 0, 1]


@st.composite
def _stacks(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Properly nested intervals on two threads, with the parent of each."""
    rows: list[tuple[int, int, int]] = []
    for thread in (1, 2):
        open_: list[int] = []
        clock = 0
        for opens in draw(st.lists(st.booleans(), max_size=40)):
            clock += draw(st.integers(1, 5))
            if opens:
                open_.append(len(rows))
                rows.append((thread, clock, 10**6))
            elif open_:
                i = open_.pop()
                rows[i] = (thread, rows[i][1], clock)
    return rows


@given(_stacks())
@examples(60)
def test_parents_are_those_of_a_stack(rows: list[tuple[int, int, int]]) -> None:
    if not rows:
        return
    expected = []
    for i, (thread, start, _) in enumerate(rows):
        outer = [j for j, (t, s, e) in enumerate(rows) if j != i and t == thread and s < start < e]
        expected.append(max(outer, key=lambda j: rows[j][1], default=NULL))
    assert _parents(rows) == expected


def test_climbing_and_choosing() -> None:
    #    0 > 1 > 2, 0 > 3, 4
    parent = np.array([NULL, 0, 1, 0, NULL])
    wanted = np.array([False, True, True, False, True])
    assert nearest(parent, np.arange(5), wanted).tolist() == [NULL, 1, 2, NULL, 4]
    assert outermost(parent, wanted).tolist() == [False, True, False, False, True]
    assert above_any(parent, np.array([False, False, True, False, False])).tolist() == [True, True, False, False, False]
    start = np.array([0, 1, 2, 5, 9])
    inside = first_inside(parent, np.array([False, False, True, True, False]), np.array([True] + [False] * 4), start)
    assert inside.tolist() == [2, NULL, NULL, NULL, NULL]


def test_stacks_of_any_depth_are_climbed() -> None:
    depth = 5000
    parent = np.arange(-1, depth - 1)
    wanted = np.zeros(depth, dtype=np.bool_)
    wanted[3] = True
    found = nearest(parent, np.arange(depth), wanted)
    assert found.tolist() == [NULL] * 3 + [3] * (depth - 3)
    assert nearest(parent, np.array([depth - 1, -1, 2]), np.zeros(depth, dtype=np.bool_)).tolist() == [NULL] * 3

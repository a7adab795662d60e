"""Which interval of a thread encloses which: call stacks read back from flat events, on columns."""

from __future__ import annotations

import numpy as np

from heuristics.arrays import NULL
from heuristics.columns import Bools, Ints
from parsers.columns import distinct_values

_USUAL_DEPTH = 64


def parents(thread: Ints, start: Ints, end: Ints, rank: Ints) -> Ints:
    """The innermost interval of the same thread that encloses each interval, `NULL` for none.

    An interval is enclosed when it starts inside the other one: ends are cut to microseconds by some writers, so the
    end of a callee may lie past the end of its caller. Points are intervals with ``start == end``.

    Args:
        thread: any number per thread.
        start: int64 ns.
        end: int64 ns.
        rank: breaks ties between intervals with equal bounds: the lower rank is the outer one.

    Returns:
        int64, a row number per row. O(n log n).
    """
    n = len(start)
    order = np.lexsort((start, thread))
    threads, starts = thread[order], start[order]
    if ((starts[1:] == starts[:-1]) & (threads[1:] == threads[:-1])).any():
        order = np.lexsort((rank, -end, start, thread))
    ends = np.maximum(end[order], starts + 1)
    above = np.arange(-1, n - 1, dtype=np.int64)
    if n:
        above[np.flatnonzero(np.r_[True, threads[1:] != threads[:-1]])] = NULL
    while True:
        # What does not enclose the row before does not enclose this row either, so its candidate can be skipped to.
        open_ = above >= 0
        wrong = open_.copy()
        wrong[open_] = ends[above[open_]] <= starts[open_]
        if not wrong.any():
            break
        above[wrong] = above[above[wrong]]
    out = np.full(n, NULL, dtype=np.int64)
    out[order] = np.where(above >= 0, order[np.maximum(above, 0)], NULL)
    return out


def nearest(parent: Ints, of: Ints, wanted: Bools) -> Ints:
    """Climb from each row of ``of`` (itself included) to the first row that is wanted; `NULL` where there is none."""
    row = of.copy()
    for _ in range(_USUAL_DEPTH):
        climb = row >= 0
        climb[climb] = ~wanted[row[climb]]
        if not climb.any():
            return row
        row[climb] = parent[row[climb]]
    return np.where(row >= 0, _tops(parent, wanted)[row], NULL)


def _tops(parent: Ints, wanted: Bools) -> Ints:
    """`nearest` of every row, in as many rounds as the depth has binary digits: no real stack is so deep."""
    n = len(parent)
    up = np.append(np.where(wanted, np.arange(n), np.where(parent >= 0, parent, n)), n)  # n: beyond the outermost
    while not np.array_equal(further := up[up], up):
        up = further
    return np.where(up == n, NULL, up)


def outermost(parent: Ints, wanted: Bools) -> Bools:
    """Which wanted rows have no wanted row above them."""
    return wanted & (nearest(parent, parent, wanted) < 0)


def above_any(parent: Ints, chosen: Bools) -> Bools:
    """Which rows enclose a chosen row, at any depth."""
    out = np.zeros(len(parent), dtype=np.bool_)
    row = parent[chosen]
    while True:
        row = distinct_values(row[row >= 0])
        row = row[~out[row]]
        if not len(row):
            return out
        out[row] = True
        row = parent[row]


def first_inside(parent: Ints, wanted: Bools, inside: Bools, start: Ints) -> Ints:
    """For every row of ``inside``, the earliest wanted row that it encloses; `NULL` where there is none."""
    out = np.full(len(parent), NULL, dtype=np.int64)
    rows = np.flatnonzero(wanted)
    owner = nearest(parent, parent[rows], inside)
    rows, owner = rows[owner >= 0], owner[owner >= 0]
    order = np.argsort(-start[rows], kind="stable")
    out[owner[order]] = rows[order]
    return out

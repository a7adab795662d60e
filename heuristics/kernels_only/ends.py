"""Ends of calls on two ranks held against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.kernels_only.calls import Calls


def matching(one: Calls, other: Calls, shift_ns: int) -> npt.NDArray[np.int64]:
    """Per call of the one, the call of its kind of the other that ends nearest; -1 where there is none.

    ``shift_ns`` is taken from the other's times.
    """
    found = np.full(len(one), -1, dtype=np.int64)
    for kind in np.intersect1d(one.kind, other.kind):
        own, theirs = np.flatnonzero(one.kind == kind), np.flatnonzero(other.kind == kind)
        theirs = theirs[np.argsort(other.end_ns[theirs], kind="stable")]
        ends = other.end_ns[theirs] - shift_ns
        after = np.minimum(np.searchsorted(ends, one.end_ns[own]), len(ends) - 1)
        before = np.maximum(after - 1, 0)
        nearer = np.abs(ends[before] - one.end_ns[own]) < np.abs(ends[after] - one.end_ns[own])
        found[own] = theirs[np.where(nearer, before, after)]
    return found


def distance(one: Calls, other: Calls, shift_ns: int) -> npt.NDArray[np.int64]:
    """From each end of the one to the nearest end of a call of its kind of the other, in ns."""
    match = matching(one, other, shift_ns)
    apart = np.abs(other.end_ns[match] - shift_ns - one.end_ns) if len(other) else np.zeros(len(one), dtype=np.int64)
    return np.where(match < 0, np.iinfo(np.int64).max, apart)


def differences(
    one: Calls,
    other: Calls,
    reach_ns: int,
    shift_ns: int = 0,
    own: npt.NDArray[np.bool_] | None = None,
    theirs: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.int64]:
    """Ends of the other (less the shift) minus ends of the one, over all pairs of a kind within reach, in ns.

    ``own`` and ``theirs`` say which calls count; None: all.
    """
    found = [np.empty(0, dtype=np.int64)]
    kinds, ends = (one.kind, one.end_ns) if own is None else (one.kind[own], one.end_ns[own])
    other_kinds, other_ends = (
        (other.kind, other.end_ns) if theirs is None else (other.kind[theirs], other.end_ns[theirs])
    )
    for kind in np.intersect1d(kinds, other_kinds):
        mine, rest = np.sort(ends[kinds == kind]), np.sort(other_ends[other_kinds == kind]) - shift_ns
        first = np.searchsorted(rest, mine - reach_ns)
        count = np.searchsorted(rest, mine + reach_ns) - first
        inner = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        found.append(rest[np.repeat(first, count) + inner] - np.repeat(mine, count))
    return np.concatenate(found)

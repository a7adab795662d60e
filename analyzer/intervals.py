"""Interval arithmetic on columns: unions, cover, and fair division of shared time. Integer nanoseconds throughout.

Everything is O(n log n) in the number of intervals (one sort, then searches), without a Python loop over intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parsers.columns import distinct_values

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Spans:
    """Disjoint half-open intervals ``[start, end)`` in time order, none empty, none touching.

    Attributes:
        start: int64 ns.
        end: int64 ns, ``start < end``.
        before: int64 ns, the time covered by all earlier intervals.
    """

    start: Ints
    end: Ints
    before: Ints

    @property
    def total(self) -> int:
        """Time covered, in ns."""
        return int(self.before[-1] + self.end[-1] - self.start[-1]) if len(self.start) else 0


def _spans(start: Ints, end: Ints) -> Spans:
    before = np.zeros(len(start), dtype=np.int64)
    np.cumsum((end - start)[:-1], out=before[1:])
    return Spans(start, end, before)


NOTHING = _spans(np.empty(0, np.int64), np.empty(0, np.int64))
"""No time at all."""


def union(start: Ints, end: Ints) -> Spans:
    """The time covered by at least one of the intervals ``[start, end)``; empty and inverted ones cover nothing."""
    real = end > start
    if not real.all():
        start, end = start[real], end[real]
    if not len(start):
        return NOTHING
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    gap = start[1:] > reach[:-1]
    first = np.flatnonzero(np.concatenate(([True], gap)))
    last = np.flatnonzero(np.concatenate((gap, [True])))
    return _spans(start[first], reach[last])


def union_of(parts: Sequence[Spans]) -> Spans:
    """The time covered by any of the parts."""
    if not parts:
        return NOTHING
    return union(np.concatenate([p.start for p in parts]), np.concatenate([p.end for p in parts]))


def in_order(moments: Sequence[Ints]) -> Ints:
    """All moments once, in time order. By sorting: `numpy.unique` hashes (from 2.3), many times slower at millions."""
    at = np.concatenate(moments)
    at.sort()
    return at[np.concatenate(([True], at[1:] != at[:-1]))] if len(at) else at


def covered_before(spans: Spans, t: Ints) -> Ints:
    """How much of the time before each ``t`` the spans cover, in ns."""
    if not len(spans.start):
        return np.zeros(np.shape(t), dtype=np.int64)
    row = np.searchsorted(spans.start, t, side="right") - 1
    known = np.maximum(row, 0)
    inside = np.minimum(t, spans.end[known]) - spans.start[known]
    return np.where(row < 0, 0, spans.before[known] + inside)


def covered(spans: Spans, start: Ints, end: Ints) -> Ints:
    """How much of each interval ``[start, end)`` the spans cover, in ns."""
    return covered_before(spans, end) - covered_before(spans, start)


def without(spans: Spans, hidden: Spans) -> Spans:
    """The time of ``spans`` that ``hidden`` does not cover."""
    if not len(spans.start) or not len(hidden.start):
        return spans
    # The gaps of `hidden`, open at both ends, cut to `spans`.
    lo = min(int(spans.start[0]), int(hidden.start[0])) - 1
    hi = max(int(spans.end[-1]), int(hidden.end[-1])) + 1
    return intersection(spans, _spans(np.append(lo, hidden.end), np.append(hidden.start, hi)))


def intersection(a: Spans, b: Spans) -> Spans:
    """The time that both cover."""
    if not len(a.start) or not len(b.start):
        return NOTHING
    # Each piece of the intersection starts where one of the two starts while the other is on.
    start = np.concatenate((a.start[_inside(b, a.start)], b.start[_inside(a, b.start)]))
    start = distinct_values(start)
    end = np.minimum(a.end[_row(a, start)], b.end[_row(b, start)])
    return _spans(start, end)


def _row(spans: Spans, t: Ints) -> Ints:
    return np.searchsorted(spans.start, t, side="right") - 1


def _inside(spans: Spans, t: Ints) -> Bools:
    row = _row(spans, t)
    return (row >= 0) & (t < spans.end[np.maximum(row, 0)])


def share(parts: Sequence[Spans], hidden: Spans, edges: Ints) -> Ints:
    """Divide the time that ``hidden`` leaves free equally among the parts that are on at each moment.

    Args:
        parts: what competes for the time, at most 62.
        hidden: time that counts for no part.
        edges: ``(windows, 2)`` int64 ns, disjoint and in time order; time outside them counts for no part.

    Returns:
        ``(windows, len(parts))`` int64 ns. A row sums exactly to the time of that window in which at least one part
        is on and ``hidden`` is off: where a division leaves a remainder, the first parts get one nanosecond more.
    """
    out = np.zeros((len(edges), len(parts)), dtype=np.int64)
    if not parts or not len(edges):
        return out
    moments = [edges.ravel()] + [side for p in parts for side in (p.start, p.end)]
    at = in_order(moments)
    free = at - covered_before(hidden, at)
    length = np.diff(free)
    window = np.searchsorted(edges[:, 0], at[:-1], side="right") - 1
    counts = (window >= 0) & (length > 0)
    counts &= at[:-1] < edges[np.maximum(window, 0), 1]
    at, length, window = at[:-1][counts], length[counts], window[counts]
    active = np.zeros(len(at), dtype=np.int64)
    for bit, part in enumerate(parts):
        if len(part.start):
            active |= _inside(part, at).astype(np.int64) << bit
    key, inverse = np.unique((window << len(parts)) | active, return_inverse=True)
    total = np.zeros(len(key), dtype=np.int64)
    np.add.at(total, inverse, length)
    for code, ns in zip(key.tolist(), total.tolist(), strict=True):
        row, mask = code >> len(parts), code & ((1 << len(parts)) - 1)
        who = [bit for bit in range(len(parts)) if mask >> bit & 1]
        if who:
            each, rest = divmod(ns, len(who))
            for place, bit in enumerate(who):
                out[row, bit] += each + (place < rest)
    return out


def share_in_two(parts: Sequence[Spans], owner: Sequence[int], hidden: Spans, edges: Ints) -> Floats:
    """As `share`, in two levels: equally among the owners that are on, then equally among that owner's parts.

    Args:
        parts: what competes for the time; any number.
        owner: who each part belongs to: small whole numbers.
        hidden: time that counts for no part.
        edges: ``(windows, 2)`` int64 ns, disjoint and in time order; time outside them counts for no part.

    Returns:
        ``(len(parts),)`` float64 ns over all windows together.
    """
    out = np.zeros(len(parts))
    if not parts or not len(edges):
        return out
    moments = [edges.ravel()] + [side for p in parts for side in (p.start, p.end)]
    at = in_order(moments)
    free = without(union(edges[:, 0], edges[:, 1]), hidden)
    length = np.diff(covered_before(free, at)).astype(np.float64)
    bounds = [(np.searchsorted(at, p.start), np.searchsorted(at, p.end)) for p in parts]
    on = {}
    for who in sorted(set(owner)):
        step = np.zeros(len(at), dtype=np.int64)
        for (lo, hi), o in zip(bounds, owner, strict=True):
            if o == who:
                step[lo] += 1
                step[hi] -= 1
        on[who] = np.cumsum(step)[:-1]
    owners_on = sum((n > 0).astype(np.int64) for n in on.values())
    for who, n in on.items():
        weight = np.divide(length, owners_on * n, out=np.zeros(len(length)), where=n > 0)
        upto = np.concatenate(([0.0], np.cumsum(weight)))
        for i, (lo, hi) in enumerate(bounds):
            if owner[i] == who:
                out[i] = float(np.sum(upto[hi] - upto[lo]))
    return out


def apportion(weights: Floats, total: int) -> Ints:
    """Whole numbers in proportion to non-negative weights that sum to ``total`` exactly (largest remainder).

    Raises:
        ValueError: ``total`` is not zero and every weight is.
    """
    scale = float(weights.sum())
    if scale <= 0:
        if total:
            raise ValueError("nothing to divide by")
        return np.zeros(len(weights), dtype=np.int64)
    ideal = weights * (total / scale)
    whole = np.floor(ideal).astype(np.int64)
    largest = np.argsort(whole - ideal, kind="stable")
    whole[largest[: total - int(whole.sum())]] += 1
    return whole

"""Calls that can be compared across ranks, as columns, and the collectives whose every participant was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzer.intervals import Bools, Ints
from parsers.columns import distinct_values

IDENTITY = 5
"""Columns that say which collective a call is part of; the first of them is one of the three below."""

BY_ID, BY_SEQUENCE, BY_ORDER, BY_ENDS = 0, 1, 2, 3
"""What the identity was taken from, best first; the last is a guess that the ends must bear out."""

COLUMNS = IDENTITY + 8
"""And its size, rank, row, start, end, kind (a primitive), payload, data type."""


@dataclass(frozen=True, eq=False)
class Meetings:
    """Calls of matched collectives, in order of ``key``; one entry per rank and collective, all int64.

    Attributes:
        key: 0, 1, 2, ...: the same collective.
        rank: position in the ranks given.
        row: row of that rank's COLLECTIVES.
        start: arrival, ns since ``base``.
        end: ns since ``base``.
        kind: the primitive, a position in `collectives.KINDS`; of messages the direction.
        rooted: 1 for the root of a rooted collective.
        source: `BY_ID`, `BY_SEQUENCE`, `BY_ORDER` or `BY_ENDS`.
        base: ns; times since the epoch do not fit a double to the nanosecond.
    """

    key: Ints
    rank: Ints
    row: Ints
    start: Ints
    end: Ints
    kind: Ints
    rooted: Ints
    source: Ints
    base: int

    @property
    def count(self) -> int:
        """How many collectives."""
        return int(self.key[-1]) + 1 if len(self.key) else 0

    @property
    def first(self) -> Ints:
        """The first entry of each collective."""
        return np.flatnonzero(np.diff(self.key, prepend=-1))

    def found_by(self) -> dict[str, int]:
        """How many collectives each kind of identity found."""
        names = ("comms_id", "sequence", "order", "ends")
        counts = np.bincount(self.source[self.first], minlength=len(names)) if len(self.key) else ()
        return {name: int(n) for name, n in zip(names, counts, strict=False) if n}

    def where(self, keep: Bools) -> Meetings:
        """Those of the collectives for which ``keep`` is true, one entry per collective."""
        mine = keep[self.key]
        columns = {f: getattr(self, f)[mine] for f in ("rank", "row", "start", "end", "kind", "rooted", "source")}
        return replace(self, key=(np.cumsum(keep) - 1)[self.key[mine]], **columns)

    def on(self, correct: Callable[[Ints, Ints, int], Ints]) -> Meetings:
        """The same on another time axis; ``correct(times, ranks, base)`` gives the new times."""
        return replace(
            self,
            start=correct(self.start, self.rank, self.base),
            end=correct(self.end, self.rank, self.base),
        )


def whole(tables: Sequence[Ints], ranks: int) -> Meetings:
    """The collectives whose every participant was found exactly once, and whose participants agree on what it is.

    Args:
        tables: per rank, ``(calls, COLUMNS)``.
        ranks: how many ranks there are.
    """
    table = np.concatenate([t for t in tables if len(t)]) if any(len(t) for t in tables) else _NO_CALLS
    key = _numbered(table[:, :IDENTITY])
    size, rank = table[:, IDENTITY], table[:, IDENTITY + 1]
    count = np.bincount(key)
    distinct = np.bincount(distinct_values(key * max(ranks, 1) + rank) // max(ranks, 1), minlength=len(count))
    complete = (count[key] == size) & (distinct[key] == size) & agreed(table, key)
    chosen = table[complete]
    key = _numbered(chosen[:, :IDENTITY])
    order = np.argsort(key, kind="stable")
    chosen = chosen[order]
    _, rank, row, start, end, kind, _, _ = chosen[:, IDENTITY:].T
    base = int(start.min()) if len(start) else 0
    # Kinds of rooted collectives come with their root in the sign: see `collectives`.
    return Meetings(
        key=key[order],
        rank=rank,
        row=row,
        start=start - base,
        end=end - base,
        kind=kind >> 1,
        rooted=kind & 1,
        source=chosen[:, 0],
        base=base,
    )


_NO_CALLS = np.empty((0, COLUMNS), dtype=np.int64)


def agreed(table: Ints, key: Ints) -> Ints:
    """Which calls are part of a collective that is the same primitive for all."""
    kind = table[:, IDENTITY + 5] >> 1
    low = np.full(int(key.max()) + 1 if len(key) else 0, np.iinfo(np.int64).max)
    high = np.full(len(low), np.iinfo(np.int64).min)
    np.minimum.at(low, key, kind)
    np.maximum.at(high, key, kind)
    same: Ints = (low == high)[key]
    return same


def _numbered(identity: Ints) -> Ints:
    """0, 1, 2, ... : equal rows get equal numbers."""
    if not len(identity):
        return np.empty(0, dtype=np.int64)
    _, key = np.unique(identity, axis=0, return_inverse=True)
    return key.ravel().astype(np.int64)


def order_within(kind: Ints, start: Ints) -> Ints:
    """Position of each call among the calls of its kind, in time order; ``kind`` is ``(calls, columns)``."""
    if not len(start):
        return np.empty(0, dtype=np.int64)
    code = _numbered(kind)
    order = np.lexsort((start, code))
    first = np.flatnonzero(np.diff(code[order], prepend=-1))
    lengths = np.diff(np.append(first, len(order)))
    out = np.empty(len(order), dtype=np.int64)
    out[order] = np.arange(len(order)) - np.repeat(first, lengths)
    return out

"""From arrivals to waiting: how long each rank stood in a collective before it could begin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.intervals import Ints
from analyzer.matching.calls import Meetings
from analyzer.matching.collectives import FROM_ROOT, KINDS, SYMMETRIC
from heuristics.arrays import NULL


def waits(meetings: Meetings, exchanged: Meetings, calls: Sequence[int]) -> tuple[Ints, ...]:
    """Per rank, the waiting of each call in ns, -1 where it was not matched; what remains of a call is transfer.

    A rank waits for those it depends on: in a symmetric collective for all, in a broadcast for the root, the root of a
    reduction for all, a receive for its send and a send for its receive. Who left before another arrived did not depend
    on it: a short message is sent into a buffer.

    Args:
        meetings: matched collectives, arrivals on one time axis.
        exchanged: matched messages, likewise.
        calls: how many calls each rank has.
    """
    out = tuple(np.full(n, NULL, dtype=np.int64) for n in calls)
    for found, wait in ((meetings, _in_collectives(meetings)), (exchanged, _in_messages(exchanged))):
        for place, values in enumerate(out):
            mine = found.rank == place
            values[found.row[mine]] = wait[mine]
    return out


def _in_collectives(found: Meetings) -> Ints:
    if not len(found.key):
        return np.empty(0, dtype=np.int64)
    last = np.maximum.reduceat(found.start, found.first)[found.key]
    root = found.rooted == 1
    of_root = np.zeros(found.count, dtype=np.int64)
    of_root[found.key[root]] = found.start[root]
    symmetric = found.kind < len(SYMMETRIC)
    from_root = np.isin(found.kind, [KINDS.index(p) for p in FROM_ROOT])
    awaited = np.where(symmetric, last, np.where(from_root, of_root[found.key], np.where(root, last, found.start)))
    return np.clip(awaited - found.start, 0, found.end - found.start)


def _in_messages(found: Meetings) -> Ints:
    if not len(found.key):
        return np.empty(0, dtype=np.int64)
    # Two entries a message, one after the other.
    other = np.arange(len(found.key)) ^ 1
    awaited = found.start[other]
    eager = (found.rooted == 0) & (found.end <= awaited)
    return np.where(eager, 0, np.clip(awaited - found.start, 0, found.end - found.start))

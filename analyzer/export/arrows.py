"""Arrows between the calls of one collective on its ranks, and from each send to its receive: flow events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from analyzer.export.chrome import microseconds
from analyzer.export.tracks import CATEGORY, Made, Spot
from analyzer.intervals import Ints
from analyzer.matching.calls import Meetings
from analyzer.matching.messages import RECEIVE
from heuristics.arrays import NULL


def arrows(meetings: Meetings, spots: Sequence[Spot], thread: Sequence[Ints], first_id: int) -> Iterator[Made]:
    """From the first to arrive, by way of the others, to the last, which is the one that all had waited for.

    Args:
        meetings: what was matched; ``rank`` is a position in the spots.
        spots: where the ranks' tracks are.
        thread: per rank, the thread of each call's slice, -1 for calls that are not written.
        first_id: the number of the first arrow; one is used per collective.
    """
    at = _of_entries(meetings, [spot.start for spot in spots])
    yield from _drawn(meetings, spots, thread, at, first_id)


def message_arrows(messages: Meetings, spots: Sequence[Spot], thread: Sequence[Ints], first_id: int) -> Iterator[Made]:
    """From the begin of each send to the end of its receive (which may be posted first); arguments as of `arrows`."""
    start = _of_entries(messages, [spot.start for spot in spots])
    last = _of_entries(messages, [spot.end for spot in spots]) - 1
    yield from _drawn(messages, spots, thread, np.where(messages.kind == RECEIVE, last, start), first_id)


def _of_entries(meetings: Meetings, of_rank: Sequence[Ints]) -> Ints:
    """A value of each entry's call."""
    out = np.zeros(len(meetings.key), dtype=np.int64)
    for rank, values in enumerate(of_rank):
        mine = meetings.rank == rank
        out[mine] = values[meetings.row[mine]]
    return out


def _drawn(
    meetings: Meetings, spots: Sequence[Spot], thread: Sequence[Ints], at: Ints, first_id: int
) -> Iterator[Made]:
    tid = _of_entries(meetings, thread)
    order = np.lexsort((at, meetings.key))
    order = order[tid[order] != NULL]
    first = np.flatnonzero(np.diff(meetings.key[order], prepend=-1))
    for mine in np.split(order, first[1:]):
        for place, entry in enumerate(mine.tolist() if len(mine) > 1 else ()):
            spot = spots[int(meetings.rank[entry])]
            ns = int(at[entry])
            if spot.window is not None:
                ns = min(max(ns, spot.window.start_ns), spot.window.end_ns - 1)
            made: Made = {
                "ph": "s" if place == 0 else "f" if place == len(mine) - 1 else "t",
                "cat": CATEGORY,
                "name": "one call",
                "id": first_id + int(meetings.key[entry]),
                "pid": spot.pid,
                "tid": int(tid[entry]),
                "ts": microseconds(ns),
            }
            yield made if place == 0 else {**made, "bp": "e"}

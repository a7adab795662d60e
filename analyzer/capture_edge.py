"""The first collective of a capture: profilers do not start at the same moment, and what waits for that is no cost.

Ranks that began to record early reach it early; it is told by waits that no other collective comes near. Where the
other ranks are not there, it is told by what the rank must have waited at least (`analyzer.least_waits`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analyzer.intervals import Bools
from analyzer.least_waits import least_waits
from analyzer.matching.calls import Meetings
from analyzer.matching.collectives import SYMMETRIC
from analyzer.measured import Measured
from heuristics.arrays import NULL

BOUNDARY = 3.0
"""The first collective of a capture stands at its edge where its waits exceed those of every other by this factor."""


def at_edge(ranks: Sequence[Measured], met: Meetings) -> int:
    """Which of the given collectives stands at the edge of the capture; `NULL` for none.

    A rank that communicated before its first measured step was recorded by then: if all were, none of the collectives
    stands there.
    """
    if met.count < 2:
        return NULL
    first = met.first
    begin = np.minimum.reduceat(met.start, first)
    wait = np.maximum.reduceat(met.start, first) - begin
    edge = int(np.argmin(begin))
    if not any(_from_the_edge(ranks[place]) for place in met.rank[met.key == edge].tolist()):
        return NULL
    return edge if wait[edge] > BOUNDARY * np.delete(wait, edge).max() else NULL


def _from_the_edge(rank: Measured) -> bool:
    """Whether nothing that a rank communicated lies before its measured steps."""
    line = rank.source.line
    return bool(rank.window.count and not (_ran(rank) & (line.call_start < rank.window.edges[0, 0])).any())


def _ran(rank: Measured) -> Bools:
    found: Bools = rank.source.line.call_end > rank.source.line.call_start
    return found


def _alone(rank: Measured) -> int:
    """The call at the edge of a capture whose ranks do not meet, by its least waiting; `NULL` for none."""
    rows = np.flatnonzero(rank.counted & _ran(rank))
    if len(rows) < 2 or (rank.wait_ns[rows] != NULL).any() or not _from_the_edge(rank):
        return NULL
    waits = least_waits(rank)[rows]
    edge = int(np.argmin(rank.source.line.call_start[rows]))
    return int(rows[edge]) if waits[edge] > BOUNDARY * np.delete(waits, edge).max() else NULL


def counted(ranks: Sequence[Measured], meetings: Meetings) -> Meetings:
    """Symmetric collectives in the measured steps of all their ranks."""
    if not meetings.count:
        return meetings
    inside = np.concatenate([np.append(rank.counted, False) for rank in ranks])
    base = np.concatenate(([0], np.cumsum([len(rank.counted) + 1 for rank in ranks])))
    counts = inside[base[meetings.rank] + meetings.row] & (meetings.kind < len(SYMMETRIC))
    whole = np.ones(meetings.count, dtype=np.bool_)
    np.logical_and.at(whole, meetings.key, counts)
    return meetings.where(whole)


def with_edge(ranks: Sequence[Measured], meetings: Meetings) -> list[Measured]:
    """The ranks, each with its call of the collective at the edge of the capture."""
    met = counted(ranks, meetings)
    edge = at_edge(ranks, met)
    if edge == NULL:
        return [replace(rank, edge_call=_alone(rank)) for rank in ranks]
    mine = met.key == edge
    row_of = dict(zip(met.rank[mine].tolist(), met.row[mine].tolist(), strict=True))
    return [replace(rank, edge_call=row_of.get(place, NULL)) for place, rank in enumerate(ranks)]

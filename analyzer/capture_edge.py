"""The first collective of a capture: profilers do not start at the same moment, and what waits for that is no cost.

Ranks that began to record early reach it early; it is told by waits that no other collective comes near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analyzer.matching.calls import Meetings
from analyzer.matching.collectives import SYMMETRIC
from analyzer.measured import Measured
from heuristics.arrays import NULL

BOUNDARY = 3.0
"""The first collective of a capture stands at its edge where its waits exceed those of every other by this factor."""


def at_edge(met: Meetings) -> int:
    """Which of the given collectives stands at the edge of the capture; `NULL` for none."""
    if met.count < 2:
        return NULL
    first = met.first
    begin = np.minimum.reduceat(met.start, first)
    wait = np.maximum.reduceat(met.start, first) - begin
    edge = int(np.argmin(begin))
    return edge if wait[edge] > BOUNDARY * np.delete(wait, edge).max() else NULL


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
    edge = at_edge(met)
    if edge == NULL:
        return list(ranks)
    mine = met.key == edge
    row_of = dict(zip(met.rank[mine].tolist(), met.row[mine].tolist(), strict=True))
    return [replace(rank, edge_call=row_of.get(place, NULL)) for place, rank in enumerate(ranks)]

"""Latency and bandwidth of a job's own links, from its transfers: time = latency + bytes / bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.intervals import Floats
from analyzer.matching import Meetings
from analyzer.matching.collectives import KINDS, SYMMETRIC
from analyzer.measured import Measured
from heuristics.arrays import NULL, ints

ENOUGH = 8
"""Collectives a line is drawn through: two parameters, and something left to see whether they fit."""

APART = 4.0
"""Largest over smallest payload: with less, latency and bandwidth cannot be told apart."""

FITS = 0.25
"""Median relative error up to which the line is believed; protocols change with size, and then it is not one line."""


TELLS = 0.5
"""Share of the latency by which the largest payload must take longer than the smallest: twice the error of a line that
is believed."""


@dataclass(frozen=True)
class Fit:
    """One kind of transfer.

    Attributes:
        dim: dimension.
        primitive: as in the contract.
        group_size: ranks.
        link: intra_node | inter_node | mixed | None.
        latency_us: of an empty transfer.
        busbw_gbps: decimal GB/s a rank sends at, latency taken out.
        error: median of the relative differences between line and transfer.
        count: collectives.
    """

    dim: str
    primitive: str
    group_size: int
    link: str | None
    latency_us: float
    busbw_gbps: float
    error: float
    count: int


def fit_links(ranks: Sequence[Measured], meetings: Meetings) -> list[Fit]:
    """Fit each kind of collective whose payloads vary; transfer runs from the last arrival to the first departure."""
    if not meetings.count:
        return []
    first = meetings.first
    moved = (np.minimum.reduceat(meetings.end, first) - np.maximum.reduceat(meetings.start, first)).astype(np.float64)
    sent = [ints(rank.source.collectives, "sent_bytes") for rank in ranks]
    links = [np.array([*rank.links, None], dtype=object)[ints(rank.source.collectives, "group")] for rank in ranks]
    size = np.diff(np.append(first, len(meetings.key)))
    kinds: dict[tuple[str, str, int, str | None], list[int]] = {}
    payload = np.zeros(meetings.count)
    columns = (meetings.rank[first], meetings.row[first], meetings.kind[first], size)
    for i, (place, row, kind, n) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        payload[i] = sent[place][row]
        if kind < len(SYMMETRIC) and sent[place][row] not in (NULL, 0) and moved[i] > 0:
            kinds.setdefault((ranks[place].dims[row], KINDS[kind], n, links[place][row]), []).append(i)
    found = ((key, _line(payload[rows], moved[rows]), len(rows)) for key, rows in kinds.items())
    return [Fit(*key, *line, count) for key, line, count in found if line is not None]


def _line(sent: Floats, ns: Floats) -> tuple[float, float, float] | None:
    """Latency in us, bandwidth in GB/s and error of the line with the median slope (Theil-Sen); None if none fits."""
    if len(sent) < ENOUGH or sent.max() < APART * sent.min():
        return None
    sizes = np.unique(sent)
    typical = np.array([np.median(ns[sent == size]) for size in sizes])
    a, b = np.triu_indices(len(sizes), 1)
    slope = float(np.median((typical[b] - typical[a]) / (sizes[b] - sizes[a])))
    latency = float(np.median(typical - slope * sizes))
    if slope <= 0 or latency < 0:
        return None
    # Where bytes hardly change the time there is a latency, and any bandwidth would do.
    if slope * (sent.max() - sent.min()) < TELLS * latency:
        return None
    error = float(np.median(np.abs(latency + slope * sent - ns) / ns))
    return (round(latency / 1000, 3), round(1 / slope, 3), round(error, 4)) if error <= FITS else None

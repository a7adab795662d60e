"""What one rank did in a stretch of time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer import intervals
from analyzer.details.model import Lane, Turn
from analyzer.intervals import Floats, Ints, Spans
from analyzer.measured import Measured
from analyzer.rows import DIM_ORDER

MOST = 400
"""Stretches per lane and kind; what is closer together than a picture can show is joined."""


def lane(
    rank: Measured,
    label: str,
    low: int,
    high: int,
    turns: Sequence[Turn] = (),
    extent: tuple[float, float] | None = None,
) -> Lane:
    """One rank between two moments.

    Args:
        rank: the rank.
        label: what to call the lane.
        low: ns on the rank's own clock; 0 of the lane.
        high: ns.
        turns: of a pipeline stage.
        extent: of the pipeline's work, µs since ``low``.
    """
    line = rank.source.line
    rows = np.flatnonzero((line.comm_end > low) & (line.comm_start < high))
    call = line.comm_call[rows]
    dims = np.array([*rank.dims, "unknown"], dtype=object)[call]
    start, end = line.comm_start[rows], line.comm_end[rows]
    waited = np.append(np.maximum(rank.wait_ns, 0), 0)[call]
    until = np.minimum(np.append(line.call_start, 0)[call] + waited, end)
    return Lane(
        rank=rank.source.rank,
        label=label,
        turns=tuple(turns),
        compute=_shown(line.compute, low, high),
        communication={
            dim: _shown(intervals.union(start[dims == dim], end[dims == dim]), low, high)
            for dim in DIM_ORDER
            if (dims == dim).any()
        },
        waiting=_shown(intervals.union(start, np.where(call >= 0, until, start)), low, high),
        extent=extent,
    )


def _shown(spans: Spans, low: int, high: int) -> Floats:
    """``(n, 2)`` µs since ``low``, cut to the stretch, joined where a picture shows no gap."""
    start, end = np.clip(spans.start, low, high), np.clip(spans.end, low, high)
    keep = end > start
    start, end = start[keep], end[keep]
    if len(start) > MOST:
        start, end = _joined(start, end, (high - low) // (2 * MOST))
    return np.stack((start - low, end - low), axis=1) / 1000


def _joined(start: Ints, end: Ints, gap: int) -> tuple[Ints, Ints]:
    far = start[1:] - end[:-1] > gap
    first, last = np.concatenate(([True], far)), np.concatenate((far, [True]))
    return start[first], end[last]

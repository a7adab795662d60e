"""A timeline reduced to what can still be asked of it, exactly.

Whatever is measured later is measured between moments at which a step or a piece of communication begins or ends. So
between two neighbouring moments only the *amount* of compute matters, not where it lies: ten million kernels become at
most one interval per moment, and every total, every dimension's share and every call's share stays the same integer of
nanoseconds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from analyzer import intervals
from analyzer.exposure import Timeline
from analyzer.intervals import Ints, Spans


def condensed(line: Timeline, edges: Ints) -> Timeline:
    """The timeline with compute and copies pushed together between the moments that matter.

    Args:
        line: the full timeline.
        edges: ``(steps, 2)`` int64 ns, the windows in which time will be measured; the whole span always is one.

    Returns:
        A timeline that measures the same in every window made of ``edges``, and in the whole span: compute begins each
        stretch, copies follow it where no communication runs (elsewhere they count for nothing).
    """
    real = line.comm_end > line.comm_start
    moments = (line.comm_start[real], line.comm_end[real], edges.ravel(), np.array([line.first, line.last]))
    at = intervals.in_order(moments)
    computing = np.diff(intervals.covered_before(line.compute, at))
    either = np.diff(intervals.covered_before(intervals.union_of([line.compute, line.memcpy]), at))
    talking = np.diff(intervals.covered_before(intervals.union(line.comm_start, line.comm_end), at)) > 0
    copying = np.where(talking, 0, either - computing)
    start = at[:-1]
    return replace(line, compute=_after(start, computing), memcpy=_after(start + computing, copying))


def _after(start: Ints, length: Ints) -> Spans:
    return intervals.union(start, start + length)

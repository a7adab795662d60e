"""Where a step begins and ends on the side that does the work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.intervals import Ints

LAUNCH_NS = 50_000
"""A GPU with nothing to do begins within this time of the launch; usually it takes 5 to 20 us."""


@dataclass(frozen=True, eq=False)
class Window:
    """The time that is measured on one rank.

    Attributes:
        edges: ``(n, 2)`` int64 ns, disjoint and in time order; one row a step, or one row for the whole span.
        steps: the row of the rank's ``STEPS`` for each; empty where the window is the whole span.
    """

    edges: Ints
    steps: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """Time measured, in ns."""
        return int((self.edges[:, 1] - self.edges[:, 0]).sum())

    @property
    def count(self) -> int:
        """How many steps "per step" divides by."""
        return len(self.edges)


def gpu_steps(begin: Ints, end: Ints, event_start: Ints, event_end: Ints, launch: Ints) -> Ints:
    """Put steps that were marked on the CPU onto the GPU's own time.

    The GPU runs behind the CPU: at the moment in which the CPU marks a new step, kernels of the old one may still be
    queued. A step begins where the CPU says so if the GPU is idle by then, else as soon as the old step's last event
    has ended or the new step's first event has started. Work that an idle GPU begins at or after the mark, launched
    just before it, is the new step's: writers round, and the mark itself takes time. The last step ends with its mark
    or its last event. Of the first step nobody can see what ran before; if the GPU is behind at its end, it begins with
    its own first event.

    Args:
        begin: int64 ns, where the CPU marks each step, in time order.
        end: int64 ns, where the CPU marks its end.
        event_start: int64 ns, GPU events.
        event_end: int64 ns.
        launch: int64 ns, when each was launched; its own start where the launch is not known.

    Returns:
        ``(len(begin), 2)`` int64 ns.
    """
    launch = _after_mark(begin, event_start, event_end, launch)
    step = np.searchsorted(begin, launch, side="right") - 1
    inside = (step >= 0) & (launch < end[np.maximum(step, 0)])
    first = np.full(len(begin), np.iinfo(np.int64).max)
    np.minimum.at(first, step[inside], event_start[inside])
    first = np.minimum.accumulate(first[::-1])[::-1]
    last = np.full(len(begin) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, step + 1, event_end)
    drained = np.maximum.accumulate(last)
    starts = np.maximum(begin, np.minimum(drained[:-1], first))
    behind = (drained[:-1] == np.iinfo(np.int64).min) & (last[1:] > end)
    starts = np.where(behind, np.maximum(begin, first), starts)
    ends = np.append(starts[1:], 0)
    ends[-1] = max(int(end[-1]), int(last[-1])) if len(begin) else 0
    # Marks that leave a gap between two steps keep it, once the GPU has drained.
    gap = np.maximum(end, drained[1:])
    return np.stack((starts, np.minimum(ends, np.maximum(gap, starts))), axis=1)


def _after_mark(begin: Ints, event_start: Ints, event_end: Ints, launch: Ints) -> Ints:
    """Launches, those just before a mark at which the GPU is idle moved to the mark."""
    if not len(begin) or not len(event_start):
        return launch
    mark = np.searchsorted(begin, launch, side="right")
    at = begin[np.minimum(mark, len(begin) - 1)]
    near = (mark < len(begin)) & (event_start >= at) & (at - launch <= LAUNCH_NS)
    if not near.any():
        return launch
    order = np.argsort(event_start, kind="stable")
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(event_end[order])))
    idle = reach[np.searchsorted(event_start[order], begin, side="left")] <= begin
    return np.where(near & idle[np.minimum(mark, len(begin) - 1)], at, launch)

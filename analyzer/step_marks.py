"""The steps of a rank as the measurements need them: on the time axis of whatever did the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analyzer.exposure import GpuWork
from analyzer.intervals import Bools, Ints
from analyzer.windows import Window, gpu_steps
from heuristics.arrays import ints
from heuristics.labelled import GpuRole, LabelledRank

if TYPE_CHECKING:
    from analyzer.summary.model import RankSummary


@dataclass(frozen=True, eq=False)
class StepMarks:
    """The steps of one rank.

    Attributes:
        source: profiler_step | inferred | none.
        edges: ``(steps, 2)`` int64 ns, begin and end on the time axis of whatever did the work.
        number: the step's own number.
        complete: which steps lie in the file whole.
    """

    source: str
    edges: Ints
    number: Ints
    complete: Bools


def step_marks(rank: LabelledRank, work: GpuWork) -> StepMarks:
    """The steps of one rank on its own time axis."""
    table = rank.steps.table
    begin = ints(table, "ts_ns")
    end = begin + np.maximum(ints(table, "dur_ns", 0), 0)
    return StepMarks(
        source=rank.steps.source,
        edges=_edges(rank, begin, end, work),
        number=ints(table, "number"),
        complete=rank.steps.complete,
    )


def window_of(rank: RankSummary, wanted: tuple[int, int] | None) -> Window:
    """Where to measure a rank: its complete steps, those of them that were asked for, or the whole span.

    Without steps, a record of calls alone (a log, a profiler of NCCL's) has nothing to measure: what runs between the
    calls is not in it.

    Args:
        rank: the rank.
        wanted: first and last step number, inclusive.
    """
    marks, line = rank.steps, rank.line
    chosen = marks.complete
    if wanted is not None:
        chosen = chosen & (marks.number >= wanted[0]) & (marks.number <= wanted[1])
    if not chosen.any():
        whole = wanted is None and line.last > line.first and line.divides
        edges = [[line.first, line.last]] if whole else np.empty((0, 2))
        return Window(np.array(edges, dtype=np.int64).reshape(-1, 2))
    rows = np.flatnonzero(chosen)
    return Window(marks.edges[rows], tuple(rows.tolist()))


def _edges(rank: LabelledRank, begin: Ints, end: Ints, work: GpuWork) -> Ints:
    """Begin and end of every step, on the GPU's own time where there is a GPU."""
    busy = work.role != GpuRole.IGNORE
    if not len(begin) or not busy.any():
        return np.stack((begin, end), axis=1)
    start = work.start[busy]
    launch = launched(rank, ints(rank.trace.gpu_events, "correlation")[busy], start)
    return gpu_steps(begin, end, start, work.end[busy], launch)


def launched(rank: LabelledRank, correlation: Ints, start: Ints) -> Ints:
    """When each GPU event was launched; its own start where no launch is recorded."""
    launches = rank.trace.launches
    known, at = ints(launches, "correlation"), ints(launches, "ts_ns")
    if not len(known):
        return start
    order = np.argsort(known, kind="stable")
    row = np.minimum(np.searchsorted(known[order], correlation), len(known) - 1)
    found = (known[order][row] == correlation) & (correlation > 0)
    return np.where(found, at[order][row], start)

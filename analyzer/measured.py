"""One rank on its way through the pipeline: what was read, what it means, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analyzer.exposure import RankTime, Timeline
from analyzer.intervals import Bools, Ints
from analyzer.windows import Window
from heuristics.labelled import LabelledRank


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


@dataclass(frozen=True, eq=False)
class Labelled:
    """A rank that was read and labelled, and its timeline; dimensions are not known yet."""

    labelled: LabelledRank
    line: Timeline
    steps: StepMarks

    @property
    def rank(self) -> int | None:
        """Global rank, where known."""
        return self.labelled.trace.identity.rank


@dataclass(frozen=True, eq=False)
class Measured:
    """A rank with the dimension and the link of every call, and its time divided up.

    Attributes:
        source: the labelled rank.
        dims: one per row of the rank's ``COLLECTIVES``.
        links: intra_node | inter_node | mixed | None, one per row of the rank's ``GROUPS``.
        window: where time was measured.
        counted: which calls belong to the window.
        time: the window divided up.
        wait_ns: int64 ns per call, -1 where waiting cannot be told from moving data.
    """

    source: Labelled
    dims: Sequence[str]
    links: Sequence[str | None]
    window: Window
    counted: Bools
    time: RankTime
    wait_ns: Ints

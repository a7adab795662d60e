"""One rank on its way through the pipeline: what was read, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analyzer.exposure import RankTime
from analyzer.intervals import Bools, Ints
from analyzer.summary.model import RankSummary
from analyzer.windows import Window


@dataclass(frozen=True, eq=False)
class Measured:
    """A rank with the dimension and the link of every call, and its time divided up.

    Attributes:
        source: the rank.
        dims: one per row of the rank's ``COLLECTIVES``.
        links_of_group: intra_node | inter_node | mixed | None, and the wire (nvlink, ib, ...) or None, one pair per row
            of the rank's ``GROUPS``.
        window: where time was measured.
        counted: which calls belong to the window.
        time: the window divided up.
        wait_ns: int64 ns per call, -1 where waiting cannot be told from moving data.
        edge_call: the call that waited for the others to begin recording (see `analyzer.capture_edge`), -1 for none.
    """

    source: RankSummary
    dims: Sequence[str]
    links_of_group: Sequence[tuple[str | None, str | None]]
    window: Window
    counted: Bools
    time: RankTime
    wait_ns: Ints
    edge_call: int = -1

    @property
    def step_numbers(self) -> list[int]:
        """Numbers of the measured steps, one per row of the window; empty where it is the whole span."""
        return [int(self.source.steps.number[row]) for row in self.window.steps]

    @property
    def links(self) -> list[str | None]:
        """intra_node | inter_node | mixed | None, one per row of the rank's ``GROUPS``."""
        return [link for link, _ in self.links_of_group]

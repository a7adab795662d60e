"""The summary of one rank: everything after reading works from this, whether it was just made or comes from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from analyzer.exposure import Timeline
from analyzer.step_marks import StepMarks
from analyzer.summary.capture import Capture
from analyzer.summary.host import Host
from analyzer.summary.turns import Turns
from heuristics.groups import without_descriptions
from heuristics.labelled import LabelStats
from heuristics.view import RankView
from parsers.tables import Health, RankIdentity

if TYPE_CHECKING:
    from typing import Self

    from parsers.nccl_log import NcclLog


@dataclass(frozen=True, eq=False)
class RankSummary:
    """One rank without its events.

    Attributes:
        path: the trace it was made from, as the user named it.
        format: of that trace.
        identity: who wrote it.
        health: what was wrong with it.
        devices: the GPUs of its host, as `deviceProperties` has them.
        span: first start and last end on the clock of the day, in ns; None where the file has no such clock.
        stats: how its communication was recognised.
        groups: `parsers.tables.GROUPS`.
        collectives: `parsers.tables.COLLECTIVES`; ``step`` is a row of ``steps``.
        steps: on the time axis of whatever did the work.
        line: what ran when, condensed (see `analyzer.occupancy`).
        view: what layout inference sees of it.
        nccl_ns: NCCL time on streams that also compute, and NCCL time in all.
        capture: how it was captured, and how long the GPU waited for launches.
        host: what held up the side that launches.
        turns: of a pipeline stage.
        witness: what the source tells beyond its calls (see `analyzer.summary.witness`), for joining.
        log: the NCCL log that it is, or that it captured.
    """

    path: str
    format: str
    identity: RankIdentity
    health: Health
    devices: tuple[Mapping[str, object], ...]
    span: tuple[int, int] | None
    stats: LabelStats
    groups: pa.Table
    collectives: pa.Table
    steps: StepMarks
    line: Timeline
    view: RankView
    nccl_ns: tuple[int, int]
    capture: Capture = field(default_factory=Capture)
    host: Host = field(default_factory=Host)
    turns: Turns = field(default_factory=Turns)
    witness: object | None = None
    log: NcclLog | None = None

    @property
    def rank(self) -> int | None:
        """Global rank, where known."""
        return self.identity.rank

    @property
    def on_gpu(self) -> bool:
        """Whether anything ran on a GPU."""
        return self.line.on_gpu

    def without_names(self) -> Self:
        """The same without the groups' descriptions; identifiers stay, for they only join."""
        return replace(self, groups=without_descriptions(self.groups), view=self.view.without_names())

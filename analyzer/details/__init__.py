"""What pictures of a job are drawn from: computed here, when asked for, from what the document was made from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from analyzer.details.anatomy import anatomy
from analyzer.details.bandwidths import bandwidths
from analyzer.details.loads import expert_loads
from analyzer.details.mesh import mesh
from analyzer.details.model import (
    Anatomy,
    Bandwidth,
    ComputeRatios,
    ExpertLoads,
    Mesh,
    Missing,
    PipelineView,
    RankTraffic,
    WorstCall,
)
from analyzer.details.pipelines import pipeline_view
from analyzer.details.ratios import compute_ratios
from analyzer.details.traffic import rank_traffic
from analyzer.details.worst import worst_calls
from analyzer.model import Analysis
from analyzer.pipeline import Examined

if TYPE_CHECKING:
    from heuristics.hang import HangReport

__all__ = ["Details", "Missing"]


class Details:
    """The details of a job; each is computed once, or `Missing` with the reason."""

    def __init__(self, job: Examined) -> None:
        self._job = job

    @property
    def analysis(self) -> Analysis:
        """The document."""
        return self._job.analysis

    @property
    def hang(self) -> HangReport | None:
        """What Flight Recorder dumps among the sources show; None without any."""
        return self._job.hang

    @cached_property
    def mesh(self) -> Mesh | Missing:
        """The layout as ranks in nodes and groups."""
        return mesh(self._job)

    @cached_property
    def anatomy(self) -> Anatomy | Missing:
        """The step of every rank as parts that sum to it."""
        return anatomy(self._job)

    @cached_property
    def bandwidths(self) -> Sequence[Bandwidth] | Missing:
        """Bandwidth by payload."""
        return bandwidths(self._job)

    @cached_property
    def traffic(self) -> RankTraffic | Missing:
        """Bytes between every two ranks."""
        return rank_traffic(self._job)

    @cached_property
    def ratios(self) -> ComputeRatios | Missing:
        """Compute time over that of the middle rank, by step, stage and replica."""
        return compute_ratios(self._job)

    @cached_property
    def pipeline(self) -> PipelineView | Missing:
        """One step of one pipeline."""
        return pipeline_view(self._job)

    @cached_property
    def experts(self) -> ExpertLoads | Missing:
        """Load of the expert ranks by layer."""
        return expert_loads(self._job)

    @cached_property
    def worst(self) -> Sequence[WorstCall] | Missing:
        """The collectives that cost most."""
        return worst_calls(self._job)

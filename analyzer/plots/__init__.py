"""Pictures of a job, each a function of its `analyzer.details.Details` and, if wanted, of axes to draw on.

Matplotlib is imported when the first is drawn. What cannot be drawn raises `NothingToShowError` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from analyzer.plots.bars import step_anatomy
from analyzer.plots.maps import expert_load, rank_step_heatmap, stage_replica_heatmap, traffic_matrix
from analyzer.plots.mesh import layout_mesh
from analyzer.plots.scatter import bandwidth_scatter
from analyzer.plots.theme import NothingToShowError
from analyzer.plots.timelines import pipeline_timeline, worst_collectives

__all__ = ["PICTURES", "NothingToShowError"]

PICTURES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        f.__name__: f
        for f in (
            layout_mesh,
            step_anatomy,
            bandwidth_scatter,
            traffic_matrix,
            rank_step_heatmap,
            stage_replica_heatmap,
            pipeline_timeline,
            expert_load,
            worst_collectives,
        )
    }
)
"""All of them by name, in the order of a report; ``picture(details, ax=None) -> Figure``."""

"""Which rank computes longer than the others, in which step, in which stage and replica."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.details.mesh import mesh
from analyzer.details.model import ComputeRatios, Mesh, Missing
from analyzer.intervals import Floats
from analyzer.measured import Measured
from analyzer.pipeline import Examined


def compute_ratios(job: Examined) -> ComputeRatios | Missing:
    """Compute time per rank and step over the median of all; what waits for others computes no longer for it."""
    known = [rank for rank in job.ranks if rank.source.rank is not None and rank.window.total > 0]
    if not known:
        return Missing("no rank has any time to compare")
    stepped = [rank for rank in known if rank.window.steps]
    steps: list[int] = []
    if stepped:
        known = stepped
        steps = sorted(set.intersection(*(set(rank.step_numbers) for rank in known)))
        if not steps:
            return Missing("the ranks have no complete step in common")
    us = np.array([_compute_us(rank, steps) for rank in known])
    middle = float(np.median(us))
    if middle <= 0 or us.size < 2:
        return Missing("one rank and one step cannot be compared" if middle > 0 else "the middle rank does not compute")
    ranks = tuple(rank.source.rank for rank in known if rank.source.rank is not None)
    ratio = us / middle
    means = dict(zip(ranks, ratio.mean(axis=1).tolist(), strict=True))
    return ComputeRatios(ranks, tuple(steps), ratio, _grid(mesh(job), means))


def _compute_us(rank: Measured, steps: Sequence[int]) -> list[float]:
    """Per step; of the whole window where there are no steps."""
    if not steps:
        return [float(rank.time.compute.sum()) / 1000]
    numbers = rank.step_numbers
    return [float(rank.time.compute[numbers.index(step)]) / 1000 for step in steps]


def _grid(of: Mesh | Missing, mean: dict[int, float]) -> Floats | None:
    """Stage by replica."""
    if isinstance(of, Missing):
        return None
    places = {r: (of.place[r].get("pp", 0), of.place[r].get("dp", 0)) for r in mean if r in of.place}
    if len(set(places.values())) < 2:
        return None
    shape = (max(p for p, _ in places.values()) + 1, max(d for _, d in places.values()) + 1)
    out = np.full(shape, np.nan)
    for rank, at in places.items():
        out[at] = np.nanmax([out[at], mean[rank]])
    return out

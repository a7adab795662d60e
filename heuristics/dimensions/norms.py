"""Losses, norms, counts and flags: what is too small, too rare or too late to be gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heuristics.dimensions.claim import indices, of, per_step
from heuristics.dimensions.order import all_after
from heuristics.view import OPTIMIZER, SCALARS, within

if TYPE_CHECKING:
    from heuristics.view import Family, RankView

STATISTICS_ELEMENTS = 1024
"""Vectors of per-parameter norms, losses and counts are shorter than this; weight matrices are not."""

STATISTICS_SHARE = 0.02
"""... and they are a small share of the largest tensor that the same rank communicates."""

RARE = 0.1
"""Calls of unknown size that are fewer than this, per reduction of gradients, are no tensor of every unit."""


def is_statistic(view: RankView, family: Family) -> bool:
    """Whether a payload is too small to be gradients: a loss, a norm, a vector of norms, a flag."""
    if family.size < 0:
        return _few_beside_shards(view, family) or _after_shards(view, family)
    if family.size <= SCALARS:
        return True
    return family.size <= STATISTICS_ELEMENTS and family.size <= STATISTICS_SHARE * view.largest_float


def _few_beside_shards(view: RankView, family: Family) -> bool:
    """Whether an all-reduce of unknown size is rare where sharded gradients are scattered: a loss, a norm.

    Those of hybrid sharding come as often as the reduce-scatters before them, those of tensor parallelism oftener.
    """
    if family.primitive != "all_reduce" or family.calls_per_step == 0:
        return False
    beside = [f for f in view.on_group(family.group) if f.is_tensor and f.size < 0]
    scatters, gathers = of(beside, "reduce_scatter"), of(beside, "all_gather")
    scattered = sum(f.calls_per_step for f in scatters)
    sharded = bool(gathers) and scattered > 0 and not any(f.forward for f in scatters)
    return sharded and family.calls_per_step <= RARE * scattered


def _after_shards(view: RankView, family: Family) -> bool:
    """Whether an all-reduce of unknown size comes once the last shard of the gradients has left: a norm, a loss.

    Hybrid sharding reduces among other ranks than it scatters to, as often as it scatters.
    """
    if family.primitive != "all_reduce" or not 0 < family.calls_per_step == family.by_phase[OPTIMIZER]:
        return False
    tensors = [f for f in view.families if f.is_tensor and f.calls_per_step > 0]
    gathered = {f.group for f in of(tensors, "all_gather")}
    scatters = [f for f in of(tensors, "reduce_scatter") if f.group in gathered]
    groups = {f.group for f in scatters if not any(g.forward for g in scatters if g.group == f.group)}
    for group in groups:
        own = [f for f in scatters if f.group == group]
        if all_after(view, indices([family]), indices(own)) and (
            _holds(view, family.group, group) or family.calls_per_step < per_step(own)
        ):
            return True
    return False


def _holds(view: RankView, one: int, other: int) -> bool:
    """Whether a group has all ranks of another."""
    if one == other:
        return True
    ranks, inside = view.group(one).ranks, view.group(other).ranks
    return ranks is not None and inside is not None and within(inside, ranks)

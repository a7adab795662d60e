"""The layout as ranks in nodes and groups of ranks."""

from __future__ import annotations

from collections import defaultdict

from analyzer.details.model import Mesh, Missing
from analyzer.pipeline import Examined

LARGEST = 4096
"""Ranks beyond which no picture of single ranks is possible."""


def mesh(job: Examined) -> Mesh | Missing:
    """Ranks, nodes and groups, as far as they are known."""
    world = job.analysis.world_size
    dims = {
        name: tuple(tuple(group) for group in dim.groups if len(group) > 1)
        for name, dim in job.analysis.layout.dimensions.items()
        if (dim.degree or 2) > 1
    }
    dims = {name: groups for name, groups in dims.items() if groups}
    if world is None:
        world = max((r + 1 for groups in dims.values() for group in groups for r in group), default=0)
    if world < 2:
        return Missing("the job has one rank" if world else "the number of ranks is not known")
    if world > LARGEST:
        return Missing(f"{world:,} ranks are too many to draw")
    place: dict[int, dict[str, int]] = {rank: {} for rank in range(world)}
    for name, groups in dims.items():
        for group in groups:
            for position, rank in enumerate(group):
                place.setdefault(rank, {})[name] = position
    for name, stage in (job.analysis.pipeline.stage_of_rank if job.analysis.pipeline else {}).items():
        place.setdefault(int(name), {})["pp"] = stage
    return Mesh(world, dims, _nodes(job, world), place)


def _nodes(job: Examined, world: int) -> tuple[tuple[int, ...], ...]:
    hosts = job.nodes.hosts
    if len(hosts) == world:
        found: dict[str, list[int]] = defaultdict(list)
        for rank, host in sorted(hosts.items()):
            found[host].append(rank)
        return tuple(tuple(ranks) for ranks in found.values())
    size = job.nodes.gpus_per_node
    if not size:
        return ()
    return tuple(tuple(range(first, min(first + size, world))) for first in range(0, world, size))

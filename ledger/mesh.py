"""Which ranks form a group, and over which link it speaks.

Two meshes cover the same ranks: the dense one (tp, cp, dp, pp) and the expert one (etp, ep, edp, pp). Both nest in the
order of ``ParallelConfig.rank_order``, which names the dense dimensions and ``ep``.

Source: megatron/core/parallel_state.py, RankGenerator; torchtitan distributed/parallel_dims.py nests the same way.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product
from math import prod

from ledger.config import ParallelConfig
from ledger.errors import LedgerError

Axis = tuple[int, int]
"""Length and stride, in ranks."""

P2P_GROUPS = frozenset({"pp", "cp_ring", "cp_outer"})
"""Groups whose members speak to their neighbours only."""


def _dense_axes(config: ParallelConfig) -> dict[str, Axis]:
    sizes = {"tp": config.tp, "cp": config.cp, "dp": config.dp, "pp": config.pp}
    return _strides(config, sizes)


def _expert_axes(config: ParallelConfig) -> dict[str, Axis]:
    """The expert mesh, its axes under the names of the dense ones they stand in for."""
    sizes = {"tp": config.etp, "ep": config.ep, "dp": config.expert_grad_ranks, "pp": config.pp}
    return _strides(config, sizes)


def _strides(config: ParallelConfig, sizes: dict[str, int]) -> dict[str, Axis]:
    axes: dict[str, Axis] = {}
    stride = 1
    for dim in config.rank_order.split("-"):
        if dim in sizes:
            axes[dim] = (sizes[dim], stride)
            stride *= sizes[dim]
    return axes


def group_axes(config: ParallelConfig, group: str) -> tuple[Axis, ...]:
    """The axes of a group, fastest first.

    Groups: ``tp cp cp_ring cp_inner cp_outer pp``; ``dp`` (all copies of dense parameters: dp x cp), ``dp_shard`` and
    ``dp_replicate`` (its two factors), ``dp_plain`` (dp without cp), ``reshard`` (the ranks parameters stay sharded
    over after forward); ``ep etp tp_ep``; ``edp``, ``edp_shard`` and ``edp_replicate`` (copies of expert parameters);
    ``embedding`` (first and last pipeline rank); ``tp_cp``; ``model`` (tp x pp); ``world``.

    Raises:
        LedgerError: unknown group.
    """
    dense, expert = _dense_axes(config), _expert_axes(config)
    cp, cp_stride = dense["cp"]
    dp, dp_stride = dense["dp"]
    pp, pp_stride = dense["pp"]
    edp, edp_stride = expert["dp"]
    shard = config.dp_shard
    edp_shard = min(edp, config.expert_shard_ranks)
    outer = cp // config.cp_inner
    keep = config.reshard_after_forward
    axes: dict[str, tuple[Axis, ...]] = {
        "tp": (dense["tp"],),
        "cp": (dense["cp"],),
        "cp_ring": (dense["cp"],),
        "cp_inner": ((config.cp_inner, cp_stride),),
        "cp_outer": ((outer, cp_stride * config.cp_inner),),
        "pp": (dense["pp"],),
        "dp": (dense["cp"], dense["dp"]),
        "dp_plain": (dense["dp"],),
        "dp_shard": (dense["cp"], (shard, dp_stride)),
        "dp_replicate": ((dp // shard, dp_stride * shard),),
        "reshard": (((1 if isinstance(keep, bool) else keep), cp_stride),),
        "ep": (expert["ep"],),
        "etp": (expert["tp"],),
        "tp_ep": (expert["tp"], expert["ep"]),
        "edp": (expert["dp"],),
        "edp_shard": ((edp_shard, edp_stride),),
        "edp_replicate": ((edp // edp_shard, edp_stride * edp_shard),),
        "embedding": ((min(2, pp), (pp - 1) * pp_stride),),
        "tp_cp": (dense["tp"], dense["cp"]),
        "model": (dense["tp"], dense["pp"]),
        "world": ((config.world_size, 1),),
    }
    try:
        return axes[group]
    except KeyError:
        raise LedgerError(f"unknown group {group!r}; known: {', '.join(axes)}", key="group") from None


def group_size(config: ParallelConfig, group: str) -> int:
    """Ranks of one such group."""
    return prod(length for length, _ in group_axes(config, group))


def members(axes: tuple[Axis, ...], base: int = 0) -> list[int]:
    """Global ranks of the group that starts at ``base``, in order."""
    offsets = ([step * stride for step in range(length)] for length, stride in reversed(axes))
    return [base + sum(parts) for parts in product(*offsets)]


def link(config: ParallelConfig, group: str) -> str:
    """``intra_node``, ``inter_node`` or ``mixed``, from the ranks' span and ``gpus_per_node``.

    A group is intra-node if each of its instances sits on one node, inter-node if no two members share one, mixed
    otherwise. For groups whose members speak to neighbours only, the pairs count instead of the whole group.
    """
    axes = group_axes(config, group)
    offsets = members(axes)
    if len(offsets) == 1:
        return "intra_node"
    parts = tuple(pairwise(offsets)) if group in P2P_GROUPS else (tuple(offsets),)
    nesting = group_axes(config, "pp") if group == "embedding" else axes
    places = _places_in_node(config, nesting)
    kinds = {_kind(config.gpus_per_node, place, part) for part in parts for place in places}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def most_on_a_node(config: ParallelConfig, group: str) -> int:
    """The most members of one group that share a node; of groups that speak to neighbours only, of one pair."""
    axes = group_axes(config, group)
    offsets = members(axes)
    parts = tuple(pairwise(offsets)) if group in P2P_GROUPS and len(offsets) > 1 else (tuple(offsets),)
    places = _places_in_node(config, group_axes(config, "pp") if group == "embedding" else axes)
    per_node = config.gpus_per_node
    return max(max(Counter((place + at) // per_node for at in part).values()) for part in parts for place in places)


def _kind(per_node: int, place: int, offsets: tuple[int, ...]) -> str:
    nodes = {(place + offset) // per_node for offset in offsets}
    if len(nodes) == 1:
        return "intra_node"
    return "inter_node" if len(nodes) == len(offsets) else "mixed"


def _places_in_node(config: ParallelConfig, axes: tuple[Axis, ...]) -> set[int]:
    """Where in a node the first ranks of the groups with these axes sit: one place stands for all groups there."""
    per_node = config.gpus_per_node
    others: list[Axis] = []
    inner = 1
    for length, stride in sorted((axis for axis in axes if axis[0] > 1), key=lambda axis: axis[1]):
        others.append((stride // inner, inner))
        inner = stride * length
    others.append((config.world_size // inner, inner))
    places = {0}
    for length, stride in others:
        places = {(place + step * stride) % per_node for place in places for step in range(min(length, per_node))}
    return places

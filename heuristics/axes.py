"""What one rank alone says about the mesh: a degree, a group and a weight per dimension."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING

from heuristics.dimensions.claim import FAIR, STRONG, Claim, elements, of
from heuristics.view import compact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from heuristics.roles import Roles
    from heuristics.view import Family, RankView

DOUBTFUL = 0.7
"""Most that a claim weighs whose group is known by its description alone, or that tells parameters from keys and values
by their order, without a size: four to one."""

DENSE_SHARE = 0.01
"""Dense gradients are a larger share of all gradients than this, even of the sparsest published mixture of experts;
those of norms alone, which tensor-parallel ranks reduce among themselves, are a smaller one."""


@dataclass(frozen=True)
class Axis:
    """One dimension as one rank sees it.

    Attributes:
        degree: members of the group, 0 if its size is not known.
        ranks: the rank's own group, None if not listed.
        weight: log odds of the claim ahead of its best rival.
        claims: the claims behind it.
    """

    degree: int
    ranks: Sequence[int] | None
    weight: float
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Axes:
    """All that one rank says about the mesh.

    Attributes:
        axes: ``tp``, ``cp``, ``pp``, ``ep`` where claimed.
        sync: the group over which dense gradients are reduced (data times context), None without any.
        shard, replicate: the two groups of hybrid sharding, both None otherwise.
        expert_sync: groups over which only expert gradients are reduced.
        ties: claims on tied embeddings between the first and the last stage.
        dense: the claim whose traffic shows how dense parameters are sharded.
    """

    axes: Mapping[str, Axis] = field(default_factory=lambda: MappingProxyType({}))
    sync: Axis | None = None
    shard: Axis | None = None
    replicate: Axis | None = None
    expert_sync: tuple[Claim, ...] = ()
    ties: tuple[Claim, ...] = ()
    dense: Claim | None = None


class AxesOf:
    """The axes of ranks of one behaviour (`heuristics.view.Signatures`), from the claims that stand on them.

    What they have in common is worked out for the first: degrees and weights. Each rank has groups of its own.
    """

    def __init__(self, view: RankView, roles: Roles) -> None:
        self._view, self._roles = view, roles
        self._split = {dim: _axis(view, roles, roles.of(dim)) for dim in ("tp", "cp", "ep") if roles.of(dim)}
        self._gradients = roles.of("dp", "gradient_scatter", "gradient_reduce")
        self._stages = roles.of("pp", "stage_link")[:1]
        self._link_weight = _weight(view, roles, self._stages[0]) if self._stages else 0.0
        self._data: dict[tuple[int, ...], Axes] = {}

    def at(self, view: RankView) -> Axes:
        """The axes of one of the ranks."""
        found = {dim: _at(view, axis) for dim, axis in self._split.items()}
        ties: tuple[int, ...] = ()
        if self._stages:
            found["pp"] = _pipeline(view, self._stages[0], self._link_weight, self._gradients)
            chain = set(found["pp"].ranks or ())
            ties = tuple(n for n, c in enumerate(self._gradients) if chain and _inside(view, c, chain))
        data = self._without(ties)
        return Axes(
            axes=MappingProxyType(found),
            sync=data.sync and _at(view, data.sync),
            shard=data.shard and _at(view, data.shard),
            replicate=data.replicate and _at(view, data.replicate),
            expert_sync=data.expert_sync,
            ties=data.ties,
            dense=data.dense,
        )

    def _without(self, ties: tuple[int, ...]) -> Axes:
        """What gradients show, on ranks where some of them tie embeddings."""
        if ties not in self._data:
            gradients = [claim for n, claim in enumerate(self._gradients) if n not in ties]
            tied = tuple(self._gradients[n] for n in ties)
            self._data[ties] = replace(_data(self._view, self._roles, gradients), ties=tied)
        return self._data[ties]


def _at(view: RankView, axis: Axis) -> Axis:
    """An axis as another rank of the same behaviour has it."""
    if axis.ranks is None:
        return axis
    return Axis(axis.degree, view.group(axis.claims[0].group).ranks, axis.weight, axis.claims)


def _data(view: RankView, roles: Roles, gradients: list[Claim]) -> Axes:
    """The groups that gradients are reduced over."""
    hybrid = _hybrid(view, gradients)
    if hybrid is not None:
        shard, replicate = (_single(view, roles, claim) for claim in hybrid)
        rest = tuple(c for c in gradients if c not in hybrid)
        both = Axis(shard.degree * replicate.degree, None, min(shard.weight, replicate.weight), hybrid)
        return Axes(sync=both, shard=shard, replicate=replicate, expert_sync=rest, dense=hybrid[0])
    dense = _dense(view, gradients)
    if dense is None:
        return Axes()
    experts = tuple(c for c in gradients if view.group(c.group) != view.group(dense.group))
    return Axes(sync=_single(view, roles, dense), expert_sync=experts, dense=dense)


def _single(view: RankView, roles: Roles, claim: Claim) -> Axis:
    group = view.group(claim.group)
    return Axis(group.size or _shown_size(view, claim), group.ranks, _weight(view, roles, claim), (claim,))


def _shown_size(view: RankView, claim: Claim) -> int:
    """Members as the calls themselves show them, where their group is not known."""
    shown = {f.members for f in view.families if f.index in claim.families and f.members}
    return shown.pop() if len(shown) == 1 else 0


def _weight(view: RankView, roles: Roles, claim: Claim) -> float:
    margin = roles.margin(claim)
    by_order_alone = claim.kind == "gradient_scatter" and all(
        f.size < 0 for f in view.families if f.index in claim.families
    )
    return min(margin, DOUBTFUL) if claim.group in view.doubtful or by_order_alone else margin


def _axis(view: RankView, roles: Roles, claims: Sequence[Claim]) -> Axis:
    groups = {c.group for c in claims}
    if claims[0].dim == "cp" and len(groups) == 2:  # exchange in an inner group, ring in an outer one
        degree = 1
        for group in groups:
            degree *= view.group(group).size
        return Axis(degree, None, min(roles.margin(c) for c in claims), tuple(claims))
    best = claims[0]
    single = _single(view, roles, best)
    same = tuple(c for c in claims if c.group == best.group)
    return Axis(single.degree, single.ranks, max(_weight(view, roles, c) for c in same), same)


def _pipeline(view: RankView, claim: Claim, weight: float, gradients: list[Claim]) -> Axis:
    """The ranks of the pipeline through this rank.

    A pipeline group holds the stages in order, so neighbours in it exchange messages. Frameworks that send over the
    world group (DeepSpeed runtime/pipe/p2p.py; Megatron with two stages) leave only the distance between neighbours.
    """
    group = view.group(claim.group)
    if group.ranks is None:
        doubtful = group.size == view.world_size  # messages over the world group show no length
        return Axis(group.size, None, min(weight, DOUBTFUL) if doubtful else weight, (claim,))
    if len(group.ranks) < (view.world_size or max(other.size for other in view.groups)):
        return Axis(group.size, group.ranks, weight, (claim,))
    peers = {f.peer for f in view.with_peer if f.index in claim.families}
    if not peers or view.rank < 0 or view.rank in peers:  # who sends to itself exchanges with all
        return Axis(0, None, weight, (claim,))
    step = min(abs(peer - view.rank) for peer in peers)
    if any((peer - view.rank) % step for peer in peers) or len(group.ranks) % step:
        return Axis(0, None, weight, (claim,))
    chain = compact([r for r in group.ranks if (r - view.rank) % step == 0])
    certain = step > 1 or not any(view.group(c.group).size < len(group.ranks) for c in gradients)
    return Axis(len(chain), chain, weight if certain else min(weight, FAIR), (claim,))


def _inside(view: RankView, claim: Claim, chain: set[int]) -> bool:
    """Whether a reduction stays within one pipeline: the tied embedding of first and last stage."""
    ranks = view.group(claim.group).ranks
    return ranks is not None and len(ranks) <= len(chain) and set(ranks) <= chain


def _hybrid(view: RankView, gradients: list[Claim]) -> tuple[Claim, Claim] | None:
    """Hybrid sharding: what one group's reduce-scatter leaves, a second group all-reduces (HSDP)."""
    for scatter in gradients:
        if scatter.kind != "gradient_scatter" or scatter.group < 0:
            continue
        members = view.group(scatter.group).size
        shards = {f.size // members for f in _families(view, scatter, "reduce_scatter") if members and f.size > 0}
        for reduce in gradients:
            if reduce.kind != "gradient_reduce" or reduce.group == scatter.group:
                continue
            sizes = {f.size for f in _families(view, reduce, "all_reduce")}
            if sizes and sizes <= shards:
                return scatter, reduce
    return None


def _families(view: RankView, claim: Claim, primitive: str) -> list[Family]:
    return of((f for f in view.families if f.index in claim.families), primitive)


def _dense(view: RankView, gradients: list[Claim]) -> Claim | None:
    """The claim on dense parameters: the widest group; experts are replicated less."""
    solid = [c for c in gradients if c.weight >= STRONG] or gradients
    if not solid:
        return None
    moved = [_moved(view, c) for c in solid]
    worthy = [(view.group(c.group).size, m, n) for n, (c, m) in enumerate(zip(solid, moved, strict=True))]
    return solid[max(w for w in worthy if w[1] >= DENSE_SHARE * max(moved))[2]]


def _moved(view: RankView, claim: Claim) -> float:
    """Elements per step of a claim; infinite where some size is not recorded, for that may be any size."""
    families = [f for f in view.families if f.index in claim.families and f.calls_per_step]
    return inf if any(f.size < 0 for f in families) else elements(families)

"""What one rank alone says about the mesh: a degree, a group and a weight per dimension."""

from __future__ import annotations

from dataclasses import dataclass, field
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


def axes(view: RankView, roles: Roles) -> Axes:
    """Read the axes from the accepted claims of one rank."""
    found: dict[str, Axis] = {}
    for dim in ("tp", "cp", "ep"):
        if roles.of(dim):
            found[dim] = _axis(view, roles, roles.of(dim))
    gradients = roles.of("dp", "gradient_scatter", "gradient_reduce")
    stages = roles.of("pp", "stage_link")
    if stages:
        found["pp"] = _pipeline(view, roles, stages[0], gradients)
    chain = set(found["pp"].ranks or ()) if "pp" in found else set()
    ties = [c for c in gradients if chain and _inside(view, c, chain)]
    gradients = [c for c in gradients if c not in ties]
    hybrid = _hybrid(view, gradients)
    if hybrid is not None:
        shard, replicate = (_single(view, roles, claim) for claim in hybrid)
        rest = [c for c in gradients if c not in hybrid]
        both = Axis(shard.degree * replicate.degree, None, min(shard.weight, replicate.weight), hybrid)
        return Axes(MappingProxyType(found), both, shard, replicate, tuple(rest), tuple(ties), hybrid[0])
    dense = _dense(view, gradients)
    experts = tuple(c for c in gradients if dense is not None and view.group(c.group) != view.group(dense.group))
    sync = _single(view, roles, dense) if dense is not None else None
    return Axes(MappingProxyType(found), sync, None, None, experts, tuple(ties), dense)


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


def _pipeline(view: RankView, roles: Roles, claim: Claim, gradients: list[Claim]) -> Axis:
    """The ranks of the pipeline through this rank.

    A pipeline group holds the stages in order, so neighbours in it exchange messages. Frameworks that send over the
    world group (DeepSpeed runtime/pipe/p2p.py; Megatron with two stages) leave only the distance between neighbours.
    """
    weight = _weight(view, roles, claim)
    group = view.group(claim.group)
    if group.ranks is None:
        doubtful = group.size == view.world_size  # messages over the world group show no length
        return Axis(group.size, None, min(weight, DOUBTFUL) if doubtful else weight, (claim,))
    peers = {f.peer for f in view.families if f.index in claim.families and f.peer >= 0}
    if len(group.ranks) < (view.world_size or max(other.size for other in view.groups)):
        return Axis(group.size, group.ranks, weight, (claim,))
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

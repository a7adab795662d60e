"""Groups for calls that name none: raw gloo traces, old NCCL, kernels without arguments.

The header may still list the rank's groups. A call belongs to the one whose size its payloads show; where several fit,
to the one whose members make the same calls and finish them at the same moment, or to what the groups of other
dimensions leave. Without a list, the ranks that finish together are the group. Where only a group's description could
decide, or only the world group is left, the result is marked as doubtful.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from heuristics.coincidence import CLEARLY_BEST, scatter, together
from heuristics.hints import hint
from heuristics.roles import roles
from heuristics.view import GroupView, compact

if TYPE_CHECKING:
    from heuristics.dimensions.claim import Claim
    from heuristics.view import Family, RankView

MAY_SHARE_RANKS = frozenset({"dp", "cp", "ep"})
"""Dimensions that one group can serve together: gradients are reduced over the ranks that split sequence or experts."""


def _orthogonal(one: str, other: str) -> bool:
    """Whether groups of two dimensions share no more than a rank. Experts may be spread over tensor ranks as well."""
    return one != other and not {one, other} <= MAY_SHARE_RANKS and {one, other} != {"tp", "ep"}


def resolved(views: Sequence[RankView]) -> tuple[RankView, ...]:
    """The views with calls on unnamed groups put on known groups where something decides."""
    by_rank = {view.rank: view for view in views if view.rank >= 0}
    return tuple(_resolve(view, by_rank) for view in views)


def _resolve(view: RankView, by_rank: Mapping[int, RankView]) -> RankView:
    if view.calls_identified:
        return view
    claims = [claim for claim in roles(view).accepted if not view.group(claim.group).identified]
    if any(group.identified and group.size > 1 for group in view.groups):
        chosen, doubtful = _among_listed(view, claims, by_rank)
        told_by = _told_by(view, [claim for n, claim in enumerate(claims) if n not in chosen])
        return replace(_placed(view, claims, chosen, doubtful), told_by=told_by)
    view, chosen = _found_together(view, claims, by_rank)
    if chosen:
        return _placed(view, claims, chosen, {})
    view, doubtful = _on_world(view, claims)
    return _placed(view, claims, {}, doubtful)


def _among_listed(
    view: RankView, claims: Sequence[Claim], by_rank: Mapping[int, RankView]
) -> tuple[dict[int, int], dict[int, int]]:
    """Per claim, the listed group that is left for it; and those that only a description picks."""
    chosen: dict[int, int] = {}
    while True:
        before = len(chosen)
        for number, claim in enumerate(claims):
            if number not in chosen:
                others = [(claims[n], view.groups[g].ranks) for n, g in chosen.items()]
                group = _group_of(view, claim, others, by_rank)
                if group is not None:
                    chosen[number] = group
        if len(chosen) == before:
            break
    doubtful = {}
    for number, claim in enumerate(claims):
        named = [g for g in _fitting(view, claim) if hint(view.groups[g].desc) == claim.dim]
        if number not in chosen and len(named) == 1:
            doubtful[number] = named[0]
    return chosen, doubtful


def _told_by(view: RankView, claims: Sequence[Claim]) -> Mapping[str, int]:
    """Per dimension that several listed groups may serve, the lowest rank that is in some of them and not in all."""
    found = {}
    for claim in claims:
        groups = [set(ranks) for g in _fitting(view, claim) if (ranks := view.groups[g].ranks) is not None]
        some: set[int] = set().union(*groups).difference(*[set.intersection(*groups)]) if len(groups) > 1 else set()
        if some:
            found[str(claim.dim)] = min(some)
    return MappingProxyType(found)


def _found_together(
    view: RankView, claims: Sequence[Claim], by_rank: Mapping[int, RankView]
) -> tuple[RankView, dict[int, int]]:
    """Groups that no header lists, from the ranks that finish together."""
    groups, chosen = list(view.groups), {}
    for number, claim in enumerate(claims):
        members = together(view, claim, by_rank) if claim.kind != "stage_link" else None
        if members is not None and len(members) > 1 and _leaves_room(view, claim, len(members), claims):
            chosen[number] = len(groups)
            groups.append(GroupView(len(members), compact(members), "", "", declared=False))
    return replace(view, groups=tuple(groups)), chosen


def _leaves_room(view: RankView, claim: Claim, members: int, claims: Sequence[Claim]) -> bool:
    """Whether the world holds a group of so many beside those of the dimensions that must be orthogonal to it.

    Ranks that wait for each other in one dimension finish those of another together as well, so who finishes together
    may be more than the group.
    """
    sizes = [
        view.group(other.group).size or _members(view, other) for other in claims if _orthogonal(other.dim, claim.dim)
    ]
    return all(view.world_size % (members * size) == 0 for size in sizes if size > 1)


def _on_world(view: RankView, claims: Sequence[Claim]) -> tuple[RankView, dict[int, int]]:
    """Everything on the world group, where no other group shows and one reading can have all ranks.

    Every job has that group (torch.distributed's default group), but it may have others.
    """
    dims = {claim.dim for claim in claims}
    claimed = {index for claim in claims for index in claim.families}
    if any(f.primitive == "send_recv" and f.index not in claimed for f in view.families):
        return view, {}
    sized = any(view.group(claim.group).size or _members(view, claim) for claim in claims)
    if view.world_size < 2 or sized or not (len(dims) == 1 or dims <= MAY_SHARE_RANKS):
        return view, {}
    world = GroupView(view.world_size, compact(range(view.world_size)), "", "", declared=False)
    placed = dict.fromkeys(range(len(claims)), len(view.groups))
    return replace(view, groups=(*view.groups, world)), placed


def _placed(
    view: RankView, claims: Sequence[Claim], chosen: Mapping[int, int], doubtful: Mapping[int, int]
) -> RankView:
    found = {**chosen, **doubtful}
    on = {index: group for n, group in found.items() for index in claims[n].families}
    targets: dict[int, set[int]] = {}
    for n, group in found.items():
        targets.setdefault(claims[n].group, set()).add(group)
    # What else runs on the stream of one group belongs to it, unless another dimension claims it.
    along = {group: next(iter(to)) for group, to in targets.items() if len(to) == 1}
    owner = {claims[n].group: claims[n].dim for n in found}
    others = [c for n, c in enumerate(claims) if n not in found and c.dim != owner.get(c.group)]
    stay = {index for claim in others for index in claim.families}
    families = tuple(
        _on(view, f, on.get(f.index, f.group if f.index in stay else along.get(f.group, f.group)))
        for f in view.families
    )
    return replace(view, families=families, doubtful=frozenset(doubtful.values()))


def _on(view: RankView, family: Family, group: int) -> Family:
    """The family on a group; in a group of two the peer is the other member."""
    ranks = view.group(group).ranks
    peer = family.peer
    if family.direction and peer < 0 and ranks is not None and len(ranks) == 2 and view.rank in ranks:
        peer = next(rank for rank in ranks if rank != view.rank)
    return replace(family, group=group, peer=peer)


def _group_of(
    view: RankView,
    claim: Claim,
    others: Sequence[tuple[Claim, Sequence[int] | None]],
    by_rank: Mapping[int, RankView],
) -> int | None:
    """The group of a claim, if its size, the groups of other dimensions or the other ranks leave only one."""
    sized = bool(_members(view, claim))
    fitting = [g for g in _fitting(view, claim) if _apart(view, claim, view.groups[g].ranks, others)]
    fitting = [g for g in fitting if sized or view.groups[g].declared]  # the groups of other calls are not all groups
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    return _coinciding(view, claim, fitting, by_rank)


def _apart(
    view: RankView,
    claim: Claim,
    ranks: Sequence[int] | None,
    others: Sequence[tuple[Claim, Sequence[int] | None]],
) -> bool:
    """Whether a group shares only the rank itself with the groups of dimensions that must be orthogonal to it.

    Data parallelism may span the context ranks, and experts lie within either.
    """
    for other, members in others:
        if _orthogonal(other.dim, claim.dim) and ranks and members and set(ranks) & set(members) - {view.rank}:
            return False
    return True


def _fitting(view: RankView, claim: Claim) -> list[int]:
    """Declared groups of more than one member that have the size the payloads show, one per set of members."""
    size = _members(view, claim)
    seen: dict[Sequence[int] | int, int] = {}
    for index, group in enumerate(view.groups):
        if group.identified and group.size > 1 and size in (0, group.size):
            seen.setdefault(group.ranks if group.ranks is not None else -1 - index, index)
    return list(seen.values())


def _members(view: RankView, claim: Claim) -> int:
    """Group size as the claimed calls show it, 0 if they do not or disagree."""
    sizes = {f.members for f in view.families if f.index in claim.families and f.members > 1}
    return sizes.pop() if len(sizes) == 1 else 0


def _coinciding(view: RankView, claim: Claim, fitting: list[int], by_rank: Mapping[int, RankView]) -> int | None:
    """The group whose members finish together, or the only one whose members make the same calls at all."""
    spread: dict[int, float | None] = {}
    for group in fitting:
        partners = [by_rank[r] for r in view.groups[group].ranks or () if r != view.rank and r in by_rank]
        linked = claim.kind != "stage_link" or len(view.groups[group].ranks or ()) > 2
        scatters = [scatter(view, p, claim) if linked or _answers(view, p) else np.inf for p in partners]
        known = [s for s in scatters if s is not None]
        spread[group] = max(known) if known and (np.inf in known or len(known) == len(scatters)) else None
    possible = [group for group in fitting if spread[group] != np.inf]
    if len(possible) < 2:
        return possible[0] if possible else None
    if claim.kind == "stage_link":
        return None  # a message ends where it is waited for, not at the same moment on both sides
    measured = sorted((s, group) for group in possible if (s := spread[group]) is not None)
    if len(measured) == len(possible) and measured[0][0] * CLEARLY_BEST <= measured[1][0]:
        return measured[0][1]
    return None


def _answers(view: RankView, partner: RankView) -> bool:
    """Whether one of two stages starts a step by sending and the other by receiving."""
    starts = []
    for one in (view, partner):
        messages = [one.families[int(index)].direction for index in one.sequence]
        starts.append(next((direction for direction in messages if direction), None))
    return starts[0] != starts[1]

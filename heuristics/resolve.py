"""Groups for calls that name none: raw gloo traces, old NCCL, kernels without arguments.

The header still lists the rank's groups. A call belongs to the one whose size its payloads show; where several fit, to
the one whose members make the same calls and finish them at the same moment, or to what the groups of other dimensions
leave. Where the other members' traces are not given, a group's description may decide, and the result is marked as
doubtful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from heuristics.hints import hint
from heuristics.roles import roles
from heuristics.view import GroupView

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.dimensions.claim import Claim
    from heuristics.view import Family, RankView

CLEARLY_BEST = 3.0
"""The members of a group finish together; other ranks must scatter by this many times more to be ruled out."""

ENOUGH_CALLS = 3
"""Fewer calls than this show no scatter: with two, the median difference lies between them whatever they are."""


def resolved(views: Sequence[RankView]) -> tuple[RankView, ...]:
    """The views with group-less families put on declared groups where something decides."""
    by_rank = {view.rank: view for view in views if view.rank >= 0}
    return tuple(_resolve(view, by_rank) for view in views)


def _resolve(view: RankView, by_rank: dict[int, RankView]) -> RankView:
    if all(family.group >= 0 for family in view.families):
        return view
    view, implied = _with_world(view)
    claims = [claim for claim in roles(view).accepted if claim.group < 0]
    chosen: dict[int, int] = {}
    while not implied:
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
        named = [g for g in _fitting(view, claim) if implied or hint(view.groups[g].desc) == claim.dim]
        if number not in chosen and len(named) == 1:
            doubtful[number] = named[0]
    placed = {index: group for n, group in (chosen | doubtful).items() for index in claims[n].families}
    families = tuple(_on(view, family, placed.get(family.index, family.group)) for family in view.families)
    return replace(view, families=families, doubtful=frozenset(doubtful.values()))


def _with_world(view: RankView) -> tuple[RankView, bool]:
    """The view with the world group, where no group of the job is listed; and whether it had to be added.

    Every job has that group (torch.distributed's default group), but it may have others.
    """
    if view.world_size < 2 or any(group.size > 1 for group in view.groups):
        return view, False
    world = GroupView(view.world_size, tuple(range(view.world_size)), "", "", declared=False)
    return replace(view, groups=(*view.groups, world)), True


def _on(view: RankView, family: Family, group: int) -> Family:
    """The family on a group; in a group of two the peer is the other member."""
    ranks = view.groups[group].ranks if group >= 0 else None
    peer = family.peer
    if family.direction and peer < 0 and ranks is not None and len(ranks) == 2 and view.rank in ranks:
        peer = next(rank for rank in ranks if rank != view.rank)
    return replace(family, group=group, peer=peer)


def _group_of(
    view: RankView,
    claim: Claim,
    others: Sequence[tuple[Claim, Sequence[int] | None]],
    by_rank: dict[int, RankView],
) -> int | None:
    """The group of a claim, if its size, the groups of other dimensions or the other ranks leave only one."""
    fitting = [g for g in _fitting(view, claim) if _apart(view, claim, view.groups[g].ranks, others)]
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
        orthogonal = other.dim != claim.dim and not {other.dim, claim.dim} <= {"dp", "cp", "ep"}
        if orthogonal and ranks and members and set(ranks) & set(members) - {view.rank}:
            return False
    return True


def _fitting(view: RankView, claim: Claim) -> list[int]:
    """Declared groups of more than one member that have the size the payloads show, one per set of members."""
    sizes = {f.members for f in view.families if f.index in claim.families and f.members > 1}
    seen: dict[Sequence[int] | int, int] = {}
    for index, group in enumerate(view.groups):
        if group.size > 1 and (not sizes or sizes == {group.size}):
            seen.setdefault(group.ranks if group.ranks is not None else -1 - index, index)
    return list(seen.values())


def _coinciding(view: RankView, claim: Claim, fitting: list[int], by_rank: dict[int, RankView]) -> int | None:
    """The group whose members finish together, or the only one whose members make the same calls at all."""
    spread: dict[int, float | None] = {}
    for group in fitting:
        partners = [by_rank[r] for r in view.groups[group].ranks or () if r != view.rank and r in by_rank]
        linked = claim.kind != "stage_link" or len(view.groups[group].ranks or ()) > 2
        scatters = [_scatter(view, p, claim) if linked or _answers(view, p) else np.inf for p in partners]
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


def _scatter(view: RankView, partner: RankView, claim: Claim) -> float | None:
    """How much the ends of the same calls differ between two ranks, about their median difference, in ns."""
    mine, theirs = (_ends(v, view, claim) for v in (view, partner))
    if len(theirs) != len(mine):
        return np.inf
    if len(mine) < ENOUGH_CALLS:
        return None
    apart = theirs - mine
    return float(np.median(np.abs(apart - np.median(apart)))) + 1.0


def _ends(view: RankView, owner: RankView, claim: Claim) -> npt.NDArray[np.int64]:
    """Ends of a rank's calls that have the same primitive, dtype and size as the claimed ones."""
    wanted = {(f.primitive, f.dtype, f.size) for f in owner.families if f.index in claim.families}
    same = [f.index for f in view.families if (f.primitive, f.dtype, f.size) in wanted]
    return view.ends_ns[np.isin(view.family_of_call, same)]

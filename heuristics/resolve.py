"""Groups for calls that name none: raw gloo traces, old NCCL, kernels without arguments.

The header still lists the rank's groups. A call belongs to the one whose size its payloads show; where several fit, to
the one whose members finish the call at the same moment; where the other members' traces are not given, the group's
description may decide, and the result is marked as doubtful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from heuristics.hints import hint
from heuristics.roles import roles

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.dimensions.claim import Claim
    from heuristics.view import Family, RankView

CLEARLY_BEST = 3.0
"""The members of a group finish together; other ranks must scatter by this many times more to be ruled out."""

ENOUGH_CALLS = 4
"""Fewer coincidences than this may be chance."""


def resolved(views: Sequence[RankView]) -> tuple[RankView, ...]:
    """The views with group-less families put on declared groups where something decides."""
    by_rank = {view.rank: view for view in views if view.rank >= 0}
    return tuple(_resolve(view, by_rank) for view in views)


def _resolve(view: RankView, by_rank: dict[int, RankView]) -> RankView:
    if all(family.group >= 0 for family in view.families):
        return view
    placed: dict[int, int] = {}
    doubtful: set[int] = set()
    for claim in roles(view).accepted:
        if claim.group >= 0:
            continue
        group, sure = _group_of(view, claim, by_rank)
        if group is not None:
            placed |= dict.fromkeys(claim.families, group)
            doubtful |= set() if sure else {group}
    families = tuple(_on(view, family, placed.get(family.index, family.group)) for family in view.families)
    return replace(view, families=families, doubtful=frozenset(doubtful))


def _on(view: RankView, family: Family, group: int) -> Family:
    """The family on a group; in a group of two the peer is the other member."""
    ranks = view.groups[group].ranks if group >= 0 else None
    peer = family.peer
    if family.direction and peer < 0 and ranks is not None and len(ranks) == 2 and view.rank in ranks:
        peer = next(rank for rank in ranks if rank != view.rank)
    return replace(family, group=group, peer=peer)


def _group_of(view: RankView, claim: Claim, by_rank: dict[int, RankView]) -> tuple[int | None, bool]:
    """The group, and whether something better than its description says so."""
    fitting = _fitting(view, claim)
    if len(fitting) == 1:
        return fitting[0], True
    together = _coinciding(view, claim, fitting, by_rank)
    if together is not None:
        return together, True
    named = [group for group in fitting if hint(view.groups[group].desc) == claim.dim]
    return (named[0], False) if len(named) == 1 else (None, False)


def _fitting(view: RankView, claim: Claim) -> list[int]:
    """Declared groups of more than one member that have the size the payloads show, one per set of members."""
    sizes = {f.members for f in view.families if f.index in claim.families and f.members > 1}
    seen: dict[tuple[int, ...] | int, int] = {}
    for index, group in enumerate(view.groups):
        if group.size > 1 and (not sizes or sizes == {group.size}):
            seen.setdefault(group.ranks if group.ranks is not None else -1 - index, index)
    return list(seen.values())


def _coinciding(view: RankView, claim: Claim, fitting: list[int], by_rank: dict[int, RankView]) -> int | None:
    spread = {}
    for group in fitting:
        ranks = view.groups[group].ranks or ()
        partners = [by_rank[rank] for rank in ranks if rank != view.rank and rank in by_rank]
        scatters = [s for partner in partners if (s := _scatter(view, partner, claim)) is not None]
        if scatters:
            spread[group] = max(scatters)
    if len(spread) < len(fitting) or not spread:
        return None
    ordered = sorted(spread, key=lambda group: spread[group])
    if len(ordered) == 1 or spread[ordered[0]] * CLEARLY_BEST <= spread[ordered[1]]:
        return ordered[0]
    return None


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

"""Who takes part in a collective, from when it ends: all members of a group finish a call at the same moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.dimensions.claim import Claim
    from heuristics.view import RankView

CLEARLY_BEST = 3.0
"""The members of a group finish together; other ranks must scatter by this many times more to be ruled out."""

ENOUGH_CALLS = 3
"""Fewer calls than this show no scatter: with two, the median difference lies between them whatever they are."""


def scatter(view: RankView, partner: RankView, claim: Claim) -> float | None:
    """How much the ends of the same calls differ between two ranks, about their median difference, in ns.

    Infinite if the partner does not make the same calls; None if they are too few to say.
    """
    mine, theirs = (_ends(v, view, claim) for v in (view, partner))
    if len(theirs) != len(mine):
        return np.inf
    if len(mine) < ENOUGH_CALLS:
        return None
    apart = theirs - mine
    return float(np.median(np.abs(apart - np.median(apart)))) + 1.0


def _ends(view: RankView, owner: RankView, claim: Claim) -> npt.NDArray[np.int64]:
    """Ends of a rank's calls that have the same primitive, dtype and size as the claimed ones.

    Where such calls run on several unnamed groups of the partner, those that are as many are meant.
    """
    claimed = [f for f in owner.families if f.index in claim.families]
    wanted = {(f.primitive, f.dtype, f.size): f.calls_per_step for f in claimed}
    same = [f for f in view.families if (f.primitive, f.dtype, f.size) in wanted]
    alike = [f.index for f in same if f.calls_per_step == wanted[f.primitive, f.dtype, f.size]]
    return view.ends_ns[np.isin(view.family_of_call, alike or [f.index for f in same])]


def together(view: RankView, claim: Claim, by_rank: Mapping[int, RankView]) -> tuple[int, ...] | None:
    """The ranks that finish the claimed calls with this one, where all ranks are given.

    None if there are too few calls, or no clear gap between those that finish together and the rest. Where the calls
    say how many take part, it is the gap after that many that has to be clear.
    """
    if view.world_size < 2 or len(by_rank) < view.world_size:
        return None
    stated = {f.members or view.group(f.group).size for f in view.families if f.index in claim.families} - {0}
    if len(stated) > 1:
        return None
    measured = {rank: scatter(view, other, claim) for rank, other in by_rank.items() if rank != view.rank}
    known = sorted((s, rank) for rank, s in measured.items() if s is not None and s != np.inf)
    if not known or any(s is None for s in measured.values()):
        return None
    spreads = np.array([s for s, _ in known])
    steps = spreads[1:] / spreads[:-1]
    gaps = np.flatnonzero(steps >= CLEARLY_BEST)
    inside = int(gaps[np.argmax(steps[gaps])]) + 1 if len(gaps) else len(known)
    if stated:
        inside = stated.pop() - 1
        if len(known) < inside or (len(known) > inside and steps[inside - 1] < CLEARLY_BEST):
            return None
    members = tuple(sorted([view.rank, *(rank for _, rank in known[:inside])]))
    return members if view.world_size % len(members) == 0 else None

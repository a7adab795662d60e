"""What each rank's calls serve: the claims of all dimensions, weighed against each other where they want the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heuristics.dimensions import context, data, expert, pipeline, tensor
from heuristics.dimensions.claim import FAIR, WEAK, Claim, Test
from heuristics.hints import hint

if TYPE_CHECKING:
    from heuristics.view import RankView

ACCEPT = FAIR
"""A claim stands at odds of ten to one."""


@dataclass(frozen=True)
class Roles:
    """The claims that stand on one rank.

    Attributes:
        accepted: claims over disjoint families, heaviest first.
        rejected: claims that lost their families to an accepted one, with the winner.
        faint: claims too weak to stand.
    """

    accepted: tuple[Claim, ...]
    rejected: tuple[tuple[Claim, Claim], ...]
    faint: tuple[Claim, ...]

    def of(self, dim: str, *kinds: str) -> list[Claim]:
        """Accepted claims of a dimension."""
        return [c for c in self.accepted if c.dim == dim and (not kinds or c.kind in kinds)]

    def margin(self, claim: Claim) -> float:
        """How far an accepted claim is ahead of the best rival for its families (its own weight without one)."""
        rivals = [loser.weight for loser, winner in self.rejected if winner is claim]
        return claim.weight - max([0.0, *rivals])


MOST_GROUPS = 1024
"""Groups that one rank may communicate on. Dozens are many; what has more was not written by a job, and weighing each
of its groups against all calls would take for ever."""


def roles(view: RankView) -> Roles:
    """Weigh all claims on one rank's groups of more than one member."""
    found: list[Claim] = []
    groups = sorted({f.group for f in view.families})
    if len(groups) > MOST_GROUPS:
        return Roles((), (), ())
    for group in groups:
        if view.group(group).size == 1:
            continue
        for dimension in (tensor, context, pipeline, expert, data):
            found += (_with_hint(view, claim) for claim in dimension.claims(view, group))
    found.sort(key=lambda claim: -claim.weight)
    accepted: list[Claim] = []
    rejected: list[tuple[Claim, Claim]] = []
    for claim in found:
        if claim.weight < ACCEPT:
            continue
        winner = next((other for other in accepted if _excludes(view, other, claim)), None)
        if winner is None:
            accepted.append(claim)
        elif _apart(winner, claim):
            rejected.append((claim, winner))
        elif _stands_without(claim, winner):
            accepted.append(replace(claim, families=claim.families - winner.families))
        else:
            rejected.append((claim, winner))
    for claim in found:
        if 0 < claim.weight < ACCEPT:
            winner = next((other for other in accepted if _excludes(view, other, claim)), None)
            if winner is not None:
                rejected.append((claim, winner))
    faint = tuple(c for c in found if c.weight < ACCEPT)
    return Roles(tuple(accepted), tuple(rejected), faint)


def _apart(one: Claim, other: Claim) -> bool:
    """Readings that exclude each other whatever calls they rest on: ranks that share a layer hold no replicas of it."""
    return {one.dim, other.dim} == {"tp", "dp"}


def _excludes(view: RankView, one: Claim, other: Claim) -> bool:
    if one.families & other.families:
        return True
    return _apart(one, other) and view.same_ranks(one.group, other.group)


def _stands_without(claim: Claim, winner: Claim) -> bool:
    """Whether a claim keeps its substance when the winner takes the families both want."""
    left = claim.families - winner.families
    return len(left) > len(claim.families & winner.families)


def _with_hint(view: RankView, claim: Claim) -> Claim:
    if claim.weight <= 0:
        return claim
    description = view.group(claim.group).desc
    if hint(description) != claim.dim:
        return claim
    said = Test(WEAK, f"the job calls the group {description}")
    return replace(claim, tests=(*claim.tests, said))

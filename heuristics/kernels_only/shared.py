"""What all ranks together show of the calls in one place of a step: which division of the ranks they are on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from heuristics.kernels_only.candidates import ALWAYS, CLOSEST_NS, ENOUGH
from heuristics.kernels_only.together import Group, Together

if TYPE_CHECKING:
    import numpy.typing as npt


LOOSER = 1.5
"""The same over the calls of all ranks together, where less is left to chance."""

ALIKE = 0.1
"""Shares of calls that every group of one division has must agree within this."""

BETWEEN = 0.25
"""Nearly together, for every call that is: more says that ranks drift past each other."""


def shared(
    rows: Sequence[npt.NDArray[np.int64]], seen: Sequence[Together], groups: set[Group]
) -> tuple[list[Group], list[Group]]:
    """The groups that end all calls of one context together, on all ranks that have it; and wider ones of some calls.

    Of two ways to divide the ranks, the coarser is right if those whom only it puts together end their calls as
    closely as those whom both do. It is right for some of the calls if the others are far apart, not nearly together.
    """
    there = {place for place, own in enumerate(rows) if len(own)}
    calls = min((len(rows[place]) for place in there), default=0)
    if calls * len(there) < ENOUGH:
        return [], []
    best: list[Group] = []
    sometimes: list[Group] = []
    for size in sorted({len(g) for g in groups}):
        for own in _covers([g for g in groups if len(g) == size and there.issuperset(g)], there):
            inner = {member: set(g) for g in best for member in g}
            if any(not inner[m] <= set(g) for g in own for m in g if inner):
                continue
            if all(_share(rows, seen, g) >= ALWAYS for g in own):
                if not best or not _looser(rows, seen, own, inner):
                    best = own
            elif best and _either_or(rows, seen, own, inner):
                sometimes = own
    return best, sometimes


def _covers(groups: Sequence[Group], there: set[int]) -> list[list[Group]]:
    """The ways to divide ranks into groups: those of one shape, or all if there is but one way."""
    shapes: dict[Group, list[Group]] = {}
    for g in sorted(groups):
        shapes.setdefault(tuple(member - g[0] for member in g), []).append(g)
    ways = [own for own in [*shapes.values(), sorted(groups)] if _divides(own, there)]
    return [way for number, way in enumerate(ways) if way not in ways[:number]]


def _divides(groups: Sequence[Group], there: set[int]) -> bool:
    return sum(map(len, groups)) == len(there) and {m for g in groups for m in g} == there


def _share(rows: Sequence[npt.NDArray[np.int64]], seen: Sequence[Together], group: Group) -> float:
    """Share of the calls of a group's members that the others end as well."""
    return float(np.mean([seen[m].seen[rows[m]][:, [o for o in group if o != m]].mean() for m in group]))


def _looser(
    rows: Sequence[npt.NDArray[np.int64]],
    seen: Sequence[Together],
    groups: Sequence[Group],
    inner: Mapping[int, set[int]],
) -> bool:
    """Whether members of these groups who are not together in the inner ones end their calls less closely."""
    near, far = [], []
    for group in groups:
        for member in group:
            apart = seen[member].apart_ns[rows[member]]
            near.append(apart[:, sorted(inner[member] - {member})].ravel())
            far.append(apart[:, sorted(set(group) - inner[member])].ravel())
    close = max(float(np.quantile(np.concatenate(near), 0.9)), CLOSEST_NS)
    return float(np.quantile(np.concatenate(far), 0.9)) >= LOOSER * close


def _either_or(
    rows: Sequence[npt.NDArray[np.int64]],
    seen: Sequence[Together],
    groups: Sequence[Group],
    inner: Mapping[int, set[int]],
) -> bool:
    """Whether members who are not together in the inner groups end a call together or far apart, seldom in between."""
    near = between = 0
    shares = []
    for group in groups:
        own = 0
        for member in group:
            others = sorted(set(group) - inner[member])
            apart, seen_ = seen[member].apart_ns[rows[member]][:, others], seen[member].seen[rows[member]][:, others]
            limit = int(apart[seen_].max()) if seen_.any() else 0
            own += int(seen_.sum())
            between += int(((apart > limit) & (apart <= 4 * max(limit, CLOSEST_NS))).sum())
        near += own
        shares.append(own / max(sum(len(rows[m]) * (len(group) - len(inner[m])) for m in group), 1))
    alike = max(shares) - min(shares) <= ALIKE  # all ranks run the same program
    return alike and near >= ENOUGH and between <= BETWEEN * near

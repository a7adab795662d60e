"""Groups that the calls of one kind show: what is left of the partners of all calls in the same place of a step.

Members of a group always end together; other ranks now and then, by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from heuristics.kernels_only.ends import LEAST, MEMBER
from heuristics.kernels_only.together import Group, Together

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.kernels_only.calls import Calls

ALWAYS = 0.9
"""A member takes part in every call; a few ends are late, or lost at the edges of the windows."""

CHANCE = 1e-3
"""A rank that ends calls together with another by chance does so in all calls of a context no more often than this."""

CLOSEST = 1.0
"""Scatter that is usual for calls of their length: closer is chance."""

ENOUGH = 8
"""Calls from which on their scatter shows."""

FEW = 3
"""Calls in one place of the step from which on chance is unlikely to make a partner."""


def shown(
    ranks: Sequence[Calls], seen: Sequence[Together], kind: int, put: Sequence[Mapping[int, Group]]
) -> set[Group]:
    """The groups that calls of one kind show."""
    found = [_candidates(calls, own, kind, put[p]) for p, (calls, own) in enumerate(zip(ranks, seen, strict=True))]
    agreed = {g for own in found for g in own if all(g in found[member] for member in g)}
    groups = _whole(agreed, len(ranks)) | {g for part in _divisions(agreed, len(ranks)) for g in part}
    pairs = primitive_of(ranks, kind) == "send_recv"
    return groups | agreed | _moved(agreed, ranks, seen, kind) if pairs else groups


def primitive_of(ranks: Sequence[Calls], kind: int) -> str:
    """The primitive of a kind of calls."""
    return next(calls.primitive(int(np.flatnonzero(calls.kind == kind)[0])) for calls in ranks if kind in calls.kind)


def _candidates(calls: Calls, own: Together, kind: int, put: Mapping[int, Group]) -> set[Group]:
    """What is left of the partners of all calls of the kind on one stream, and of those in one context."""
    found: set[Group] = set()
    for stream in parts(calls.streams, still_open(np.flatnonzero(calls.kind == kind), put)):
        if len(stream) >= FEW:
            found |= set(cores(own, stream))
        for rows in parts(calls.context, stream):
            if len(rows) >= FEW:
                found |= {core for core in cores(own, rows) if not by_chance(core, rows, stream, own.seen)}
    return {g for g in found if len(g) > 1}


def still_open(rows: npt.NDArray[np.int64], put: Mapping[int, Group]) -> npt.NDArray[np.int64]:
    """The calls that are on no group yet."""
    return rows[[call not in put for call in rows.tolist()]] if put else rows


def parts(label: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Rows in parts of one label."""
    return [rows[label[rows] == one] for one in np.unique(label[rows])]


def cores(own: Together, rows: npt.NDArray[np.int64]) -> list[Group]:
    """The ranks that end some calls as members do; after them those that may as well be members as not, if any.

    Groups that work in step end their calls at nearly the same time, but over many calls not as members of one do.
    """
    if not len(rows):
        return []
    odds = own.odds[rows].mean(axis=0)
    there = own.seen[rows].mean(axis=0) >= ALWAYS
    sure, open_ = (tuple(np.flatnonzero(there & (odds >= least)).tolist()) for least in (MEMBER, LEAST))
    return [sure] if sure == open_ else [sure, open_]


def by_chance(
    group: Group, rows: npt.NDArray[np.int64], stream: npt.NDArray[np.int64], seen: npt.NDArray[np.bool_]
) -> bool:
    """Whether some member, who is not there in all calls of the stream, might be there by chance in all of these."""
    rest = np.setdiff1d(stream, rows)
    if not len(rest):
        return False
    often = (seen[rest].sum(axis=0) + 0.5) / (len(rest) + 1.0)
    doubtful = [often[m] ** len(rows) > CHANCE for m in group if seen[stream][:, m].mean() < ALWAYS]
    return any(doubtful)


def _whole(groups: set[Group], ranks: int) -> set[Group]:
    """Groups that divide the ranks between them, and those that share no rank with another of their size.

    What falls together by chance does neither: its complement does not fall together as well.
    """
    kept: set[Group] = set()
    for size in {len(g) for g in groups}:
        own = sorted(g for g in groups if len(g) == size)
        divided = {g for g in own if _completes(g, own, ranks)}
        rest = [g for g in own if g not in divided]
        times = Counter(member for g in rest for member in g)
        kept |= divided | {g for g in rest if all(times[member] == 1 for member in g)}
    return kept


def _completes(group: Group, groups: Sequence[Group], ranks: int) -> bool:
    """Whether some of the groups make up all other ranks."""

    def extend(left: frozenset[int]) -> bool:
        first = min(left, default=None)
        return first is None or any(g[0] == first and left.issuperset(g) and extend(left.difference(g)) for g in groups)

    return extend(frozenset(range(ranks)).difference(group))


def _divisions(groups: set[Group], ranks: int) -> set[tuple[Group, ...]]:
    """All ranks divided as one group divides them: moved along, as groups of a mesh are."""
    found = set()
    for group in groups:
        parts, left = [], set(range(ranks))
        while left:
            moved = tuple(member + min(left) - group[0] for member in group)
            if not left.issuperset(moved):
                break
            parts.append(moved)
            left -= set(moved)
        else:
            found.add(tuple(parts))
    return found


def _moved(groups: set[Group], ranks: Sequence[Calls], seen: Sequence[Together], kind: int) -> set[Group]:
    """Pairs as far apart as others: what one rank sends to its neighbour, its peers send to theirs."""
    strides = {g[1] - g[0] for g in groups if len(g) == 2}
    pairs = {(one, one + stride) for stride in strides for one in range(len(ranks) - stride)}
    return {pair for pair in pairs if _meets(ranks, seen, kind, pair) and _meets(ranks, seen, kind, pair[::-1])}


def _meets(ranks: Sequence[Calls], seen: Sequence[Together], kind: int, pair: Group) -> bool:
    """Whether the first of a pair ends all calls of some stream with the second."""
    calls = ranks[pair[0]]
    streams = parts(calls.streams, np.flatnonzero(calls.kind == kind))
    return any(seen[pair[0]].seen[rows][:, pair[1]].mean() >= ALWAYS for rows in streams)

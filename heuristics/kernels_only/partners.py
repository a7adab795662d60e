"""Who takes part in each call: the ranks whose calls of that kind end at the same moment.

A group is what is left of the partners of all calls that stand in the same place of a step, on all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics.kernels_only.candidates import ALWAYS, by_chance, cores, parts, primitive_of, shown, still_open
from heuristics.kernels_only.shared import shared
from heuristics.kernels_only.stages import between_stages
from heuristics.kernels_only.together import Group, Together

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.kernels_only.calls import Calls

MOST = 0.7
"""Share of a stream's calls that says what the stream is for."""


@dataclass(frozen=True)
class Meetings:
    """Per rank: its groups, and the group of every call as a position in them, -1 where it stays open."""

    groups: tuple[Group, ...]
    of_call: npt.NDArray[np.int64]

    def group(self, call: int) -> Group | None:
        """The members of a call's group."""
        return self.groups[self.of_call[call]] if self.of_call[call] >= 0 else None


def meetings(ranks: Sequence[Calls], seen: Sequence[Together]) -> list[Meetings]:
    """The groups of every rank, told for each kind of call from the contexts of that kind.

    A group counts if all of its members find the same one, and if it does not cut into another of its size.
    """
    kinds = sorted({int(kind) for calls in ranks for kind in np.unique(calls.kind)})
    put: list[dict[int, Group]] = [{} for _ in ranks]
    for kind in kinds:
        if primitive_of(ranks, kind) == "send_recv":
            between_stages(ranks, seen, kind, put)
    groups = {kind: shown(ranks, seen, kind, put) for kind in kinds}
    for kind in kinds:
        _place(ranks, seen, kind, groups[kind], put)
    for calls, own, matrix in zip(ranks, put, seen, strict=True):
        _settle(calls, own, matrix)
    return [_numbered(len(calls), own) for calls, own in zip(ranks, put, strict=True)]


def _numbered(calls: int, put: Mapping[int, Group]) -> Meetings:
    ordered = tuple(sorted(set(put.values()), key=lambda g: (len(g), g)))
    of_call = np.full(calls, -1, dtype=np.int64)
    for call, group in put.items():
        of_call[call] = ordered.index(group)
    return Meetings(ordered, of_call)


def _settle(calls: Calls, put: dict[int, Group], own: Together) -> None:
    """Most calls of a stream are on one group: the few on a part of it are too, if all members end them together."""
    for rows in (
        part for kind in np.unique(calls.kind) for part in parts(calls.streams, np.flatnonzero(calls.kind == kind))
    ):
        times = Counter(put[call] for call in rows.tolist() if call in put)
        if not times or times.most_common(1)[0][1] < MOST * len(rows):
            continue
        group = times.most_common(1)[0][0]
        for call in rows.tolist():
            if call in put and set(put[call]) < set(group) and own.seen[call, list(group)].all():
                put[call] = group


def _place(
    ranks: Sequence[Calls], seen: Sequence[Together], kind: int, groups: set[Group], put: list[dict[int, Group]]
) -> None:
    """Put every call of a kind on a group: those of one context by what all ranks show of it, the rest rank by rank."""
    for context in sorted({int(c) for calls in ranks for c in np.unique(calls.context[calls.kind == kind])}):
        rows = [
            still_open(np.flatnonzero(calls.context == context), own) for calls, own in zip(ranks, put, strict=True)
        ]
        always, sometimes = shared(rows, seen, groups)
        for place, own in enumerate(rows):
            base = next((g for g in always if place in g), None)
            wide = next((g for g in sometimes if place in g), None)
            for call in own.tolist() if base is not None else ():
                whole = wide is not None and bool(seen[place].seen[call, list(wide)].all())
                put[place][call] = wide if whole and wide is not None else base or ()
    for place, (calls, own_seen) in enumerate(zip(ranks, seen, strict=True)):
        mine = sorted((g for g in groups if place in g), key=lambda g: (len(g), g))
        left = still_open(np.flatnonzero(calls.kind == kind), put[place])
        for call, group in _assigned(calls, own_seen, left, mine):
            put[place][call] = group


def _assigned(
    calls: Calls, own: Together, rows: npt.NDArray[np.int64], groups: Sequence[Group]
) -> list[tuple[int, Group]]:
    """Each context on the group that its calls show; else on the largest that all have and that is not there by chance.

    Calls of contexts that have none in all of their calls are put on the smallest group that they have one by one.
    """
    found: list[tuple[int, Group]] = []
    has = {g: np.asarray(own.seen[:, list(g)].all(axis=1)) for g in groups}
    for stream in parts(calls.streams, rows):
        close = [core for core in cores(own, stream)[:-1] if core in has]
        for part in parts(calls.context, stream):
            best = close[0] if close else _best(own, part, stream, has)
            for call in part.tolist():
                fits = min((g for g in groups if has[g][call]), key=len, default=None) if best is None else best
                found += [(call, fits)] if fits is not None else []
    return found


def _best(
    own: Together,
    rows: npt.NDArray[np.int64],
    stream: npt.NDArray[np.int64],
    has: Mapping[Group, npt.NDArray[np.bool_]],
) -> Group | None:
    close = [core for core in cores(own, rows)[:-1] if core in has]
    if close:
        return close[0]
    always = [g for g, there in has.items() if there[rows].mean() >= ALWAYS]
    sure = [g for g in always if not by_chance(g, rows, stream, own.seen)]
    return max(sure, key=len, default=min(always, key=len, default=None))

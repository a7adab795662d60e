"""Who takes part in each call: the ranks whose calls of that kind end at the same moment.

A group is what is left of the partners of all calls that stand in the same place of a step, on all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics.kernels_only.candidates import ALWAYS, ENOUGH, by_chance, cores, parts, primitive_of, shown, still_open
from heuristics.kernels_only.shared import axes, consistent, shared
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
    meshed = axes(len(ranks)).union(*(groups[kind] for kind in kinds if primitive_of(ranks, kind) != "send_recv"))
    lanes = _of_lanes(ranks, seen, meshed, put)
    for kind in kinds:
        _place(ranks, seen, kind, groups[kind] | meshed, lanes, put)
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
    ranks: Sequence[Calls],
    seen: Sequence[Together],
    kind: int,
    groups: set[Group],
    lanes: Mapping[int, Sequence[Group]],
    put: list[dict[int, Group]],
) -> None:
    """Put every call of a kind on a group: those of one lane, else of one channel, by what all ranks show of it.

    A context counts before its channel, where it has calls enough: some of a channel may be on another group.
    """
    for channel in _present(calls.channel[calls.kind == kind] for calls in ranks):
        rows = [
            still_open(np.flatnonzero(calls.channel == channel), own) for calls, own in zip(ranks, put, strict=True)
        ]
        lane = next(iter(_present(calls.lane[calls.channel == channel] for calls in ranks)))
        base = shared(rows, seen, groups, lanes.get(lane, ()))
        for context in _present(calls.context[own] for calls, own in zip(ranks, rows, strict=True)):
            part = [own[calls.context[own] == context] for calls, own in zip(ranks, rows, strict=True)]
            for group in shared(part, seen, groups, base):
                for place in group:
                    put[place].update(dict.fromkeys(part[place].tolist(), group))
    for place, (calls, own_seen) in enumerate(zip(ranks, seen, strict=True)):
        mine = sorted((g for g in groups if place in g), key=lambda g: (len(g), g))
        left = still_open(np.flatnonzero(calls.kind == kind), put[place])
        for call, group in _assigned(calls, own_seen, left, mine):
            put[place][call] = group


def _present(codes: Iterable[npt.NDArray[np.int64]]) -> list[int]:
    """The codes that some rank has."""
    return sorted({int(code) for own in codes for code in np.unique(own)})


def _of_lanes(
    ranks: Sequence[Calls], seen: Sequence[Together], groups: set[Group], put: Sequence[Mapping[int, Group]]
) -> dict[int, list[Group]]:
    """Per lane, the groups that all of its calls show together, of every kind: most streams serve one group."""
    found = {}
    for lane in _present(calls.lane for calls in ranks):
        rows = [still_open(np.flatnonzero(calls.lane == lane), own) for calls, own in zip(ranks, put, strict=True)]
        base = shared(rows, seen, groups)
        kinds = _present(calls.kind[own] for calls, own in zip(ranks, rows, strict=True))
        parts_ = [[own[c.kind[own] == kind] for c, own in zip(ranks, rows, strict=True)] for kind in kinds]
        if all(consistent(part, seen, base) for part in parts_):
            found[lane] = base
    return found


def _assigned(
    calls: Calls, own: Together, rows: npt.NDArray[np.int64], groups: Sequence[Group]
) -> list[tuple[int, Group]]:
    """Each context on the group that its calls show; else on the largest that all have and that is not there by chance.

    Calls of contexts that have none in all of their calls are put on the smallest group that they have one by one.
    """
    found: list[tuple[int, Group]] = []
    has = {g: np.asarray(own.seen[:, list(g)].all(axis=1)) for g in groups}
    for stream in parts(calls.streams, rows):
        close = [core for core in cores(own, stream)[:1] if core in has and len(stream) >= ENOUGH]
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
    close = [core for core in cores(own, rows)[:1] if core in has and len(rows) >= ENOUGH]
    if close:
        return close[0]
    always = [g for g, there in has.items() if there[rows].mean() >= ALWAYS]
    sure = [g for g in always if not by_chance(g, rows, stream, own.seen)]
    return max(sure, key=len, default=min(always, key=len, default=None))

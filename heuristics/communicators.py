"""Who is in a communicator of NCCL: what one report leaves open, the reports of the other ranks say.

A communicator has the same hash on all of its members (NCCL's ``commHash``). Each report says at which place its own
rank is in it; all of them together say who the others are. Children of a split are put together in NCCL's way: by
color, in order of key and then of the rank in the parent (src/init.cc `commGetSplitInfo`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar, cast

import pyarrow as pa

from heuristics.arrays import codes
from parsers import assemble, tables

if TYPE_CHECKING:
    from heuristics.account import Account
    from parsers.nsys.places import Member, NsysWitness, Place
    from parsers.tables import RankTrace

Source = TypeVar("Source", "RankTrace", "Account")

_FORMAT = "nsys"
_GUESSED = "gpu_order"


@dataclass(frozen=True)
class Across:
    """What the reports of a job tell of each other.

    Attributes:
        groups: size and ranks in order, of the communicators where they are known.
        first_rank: by path, what is to be added to ranks that were guessed within one report.
    """

    groups: Mapping[str, tuple[int, tuple[int, ...] | None]] = field(default_factory=dict)
    first_rank: Mapping[str, int] = field(default_factory=dict)


def joined(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """The same traces, with the members of their communicators filled in where the others tell.

    Ranks that were guessed from the order of the GPUs within each of several reports are counted on from report to
    report, by host.

    Args:
        traces: of one job, of any format; only those of Nsight Systems are looked at.

    Returns:
        In the same order; a trace to which nothing was added is the same object.
    """
    found = across([(trace.path, _place(trace)) for trace in traces if trace.format == _FORMAT])
    return [completed(trace, _named(trace), found) for trace in traces]


def across(places: Sequence[tuple[str, Place]], logged: Mapping[str, tuple[int, ...]] | None = None) -> Across:
    """What the ranks of a job tell of each other.

    Args:
        places: per rank, the path of its report and its places in communicators.
        logged: members of communicators as NCCL's logs say.
    """
    first = _first_ranks(places)
    known = [
        replace(place, identity=replace(place.identity, rank=place.identity.rank + first.get(path, 0)))
        for path, place in places
        if place.identity.rank is not None
    ]
    from_logs = {name: (len(ranks), ranks) for name, ranks in (logged or {}).items()}
    from_reports = _groups(known)
    settled = {name for name, (_, ranks) in from_reports.items() if ranks is not None}
    return Across(from_reports | {name: said for name, said in from_logs.items() if name not in settled}, first)


def completed(source: Source, named: Iterable[str], found: Across) -> Source:
    """A source with what the others tell of its communicators and of its rank.

    Args:
        source: a trace, or what is kept of one; changed only where it comes from Nsight Systems.
        named: communicators that its calls name.
        found: what the others tell.
    """
    if source.format != _FORMAT:
        return source
    first = found.first_rank.get(source.path, 0)
    if first and source.identity.rank is not None and source.identity.rank_source == _GUESSED:
        source = replace(source, identity=replace(source.identity, rank=source.identity.rank + first))
    rows = source.groups.to_pylist()
    listed = {row["name"] for row in rows}
    rows += [
        {"name": name, "backend": "nccl", "size": None, "ranks": None, "ranks_source": "none", "declared": True}
        for name in sorted(named)
        if name not in listed
    ]
    changed = False
    for row in rows:
        size, ranks = found.groups.get(row["name"], (0, None))
        if ranks is not None and row["ranks"] is None and source.identity.rank in ranks:
            row |= {"size": len(ranks), "ranks": list(ranks), "ranks_source": "members"}
            changed = True
        elif size and row["size"] is None:
            row["size"] = size
            changed = True
    return replace(source, groups=groups_of_rows(rows)) if changed else source


def groups_of_rows(rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """`parsers.tables.GROUPS` from one mapping per group (`pyarrow.Table.from_pylist` would import pandas)."""
    return assemble.table(tables.GROUPS, {name: [row.get(name) for row in rows] for name in tables.GROUPS.names})


def _place(trace: RankTrace) -> Place:
    from parsers.nsys.places import Place

    witness = cast("NsysWitness | None", trace.witness)
    return Place(trace.identity, () if witness is None else witness.members, frozenset(_named(trace)))


def _named(trace: RankTrace) -> list[str]:
    return codes(trace.comm_records, "group_name")[1]


def _first_ranks(places: Sequence[tuple[str, Place]]) -> dict[str, int]:
    """By path, how many ranks the reports before it hold, where all ranks are guesses within their reports."""
    counts: dict[tuple[str, str], int] = {}
    for path, place in places:
        if place.identity.rank_source != _GUESSED:
            return {}
        key = (place.identity.host or "", path)
        counts[key] = counts.get(key, 0) + 1
    first, total = {}, 0
    for (_, path), count in sorted(counts.items()):
        first[path] = total
        total += count
    return first if len(first) > 1 else {}


def _groups(places: Sequence[Place]) -> dict[str, tuple[int, tuple[int, ...] | None]]:
    """Per name, the size and the ranks in order, as far as they can be known."""
    taken: dict[str, dict[int, int]] = {}
    sizes: dict[str, int] = {}
    children: dict[str, list[tuple[int, Member]]] = {}
    for rank, name, member in _own(places):
        if member.rank is None:
            children.setdefault(name, []).append((rank, member))
            continue
        sizes.setdefault(name, member.size or 0)
        taken.setdefault(name, {}).setdefault(member.rank, rank)
    whole = {name: _in_order(found, sizes[name]) for name, found in taken.items()}
    for _ in range(len(children)):  # a child may be split again
        for name, found in children.items():
            parents = {member.parent for _, member in found}
            parent = whole.get(str(parents.pop())) if len(parents) == 1 else None
            if whole.get(name) is None and parent is not None:
                in_order = sorted((m.key or 0, m.parent_rank or 0, rank) for rank, m in found)
                whole[name] = tuple(rank for _, _, rank in in_order)
                sizes[name] = len(found)
    for name, ranks in _users(places).items():
        if whole.get(name) is None and (len(ranks) == sizes.get(name) or (name not in sizes and _all_there(places))):
            whole[name], sizes[name] = ranks, len(ranks)
    return {name: (sizes.get(name, 0), whole.get(name)) for name in sorted({*sizes, *whole})}


def _own(places: Sequence[Place]) -> Iterator[tuple[int, str, Member]]:
    """Every rank's own places in communicators that have a name."""
    for place in places:
        for member in place.members:
            if place.identity.rank is not None and member.name is not None:
                yield place.identity.rank, member.name, member


def _in_order(taken: Mapping[int, int], size: int) -> tuple[int, ...] | None:
    """Ranks by place, if every place is taken by a rank of its own."""
    ranks = tuple(taken[place] for place in sorted(taken))
    return ranks if sorted(taken) == list(range(size)) and len(set(ranks)) == size else None


def _users(places: Sequence[Place]) -> dict[str, tuple[int, ...]]:
    """The ranks that name each communicator in their calls, in order (as torch.distributed keeps its groups)."""
    found: dict[str, set[int]] = {}
    for place in places:
        for name in place.names:
            if place.identity.rank is not None:
                found.setdefault(name, set()).add(place.identity.rank)
    return {name: tuple(sorted(ranks)) for name, ranks in found.items()}


def _all_there(places: Sequence[Place]) -> bool:
    worlds = {place.identity.world_size for place in places}
    ranks = {place.identity.rank for place in places}
    world = worlds.pop() if len(worlds) == 1 else None
    return world is not None and ranks == set(range(world))

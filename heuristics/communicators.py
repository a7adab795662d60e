"""Who is in a communicator of NCCL: what one report leaves open, the reports of the other ranks say.

A communicator has the same hash on all of its members (NCCL's ``commHash``). Each report says at which place its own
rank is in it; all of them together say who the others are. Children of a split are put together in NCCL's way: by
color, in order of key and then of the rank in the parent (src/init.cc `commGetSplitInfo`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from heuristics.arrays import codes
from parsers import tables

if TYPE_CHECKING:
    from parsers.nsys.communicators import Member, NsysWitness
    from parsers.tables import RankTrace

_FORMAT = "nsys"
_GUESSED = "gpu_order"


def joined(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """The same traces, with the members of their communicators filled in where the others tell.

    Ranks that were guessed from the order of the GPUs within each of several reports are counted on from report to
    report, by host.

    Args:
        traces: of one job, of any format; only those of Nsight Systems are looked at.

    Returns:
        In the same order; a trace to which nothing was added is the same object.
    """
    renumbered = _renumbered(traces)
    members = _members([trace for trace in renumbered if trace.format == _FORMAT])
    return [_with(trace, members) if trace.format == _FORMAT else trace for trace in renumbered]


def _renumbered(traces: Sequence[RankTrace]) -> list[RankTrace]:
    guessed = [i for i, t in enumerate(traces) if t.format == _FORMAT and t.identity.rank_source == _GUESSED]
    if len({traces[i].path for i in guessed}) < 2 or len(guessed) != len(traces):
        return list(traces)
    by_place = sorted(
        guessed, key=lambda i: (traces[i].identity.host or "", traces[i].path, traces[i].identity.rank or 0)
    )
    out = list(traces)
    for rank, i in enumerate(by_place):
        if out[i].identity.rank != rank:
            out[i] = replace(out[i], identity=replace(out[i].identity, rank=rank))
    return out


def _own(traces: Sequence[RankTrace]) -> Iterator[tuple[int, Member]]:
    """Every rank's own places in communicators that have a name."""
    for trace in traces:
        witness = cast("NsysWitness | None", trace.witness)
        if trace.identity.rank is not None and witness is not None:
            yield from ((trace.identity.rank, member) for member in witness.members if member.name is not None)


def _members(traces: Sequence[RankTrace]) -> dict[str, tuple[int | None, list[int] | None]]:
    """Per name, the size and the ranks in order, as far as they can be known."""
    places: dict[str, dict[int, int]] = {}
    sizes: dict[str, int] = {}
    children: dict[str, list[tuple[int, Member]]] = {}
    for rank, member in _own(traces):
        name = str(member.name)
        if member.rank is None:
            children.setdefault(name, []).append((rank, member))
            continue
        sizes.setdefault(name, member.size or 0)
        places.setdefault(name, {}).setdefault(member.rank, rank)
    whole = {name: _in_order(found, sizes[name]) for name, found in places.items()}
    for _ in range(len(children)):  # a child may be split again
        for name, found in children.items():
            parents = {member.parent for _, member in found}
            parent = whole.get(str(parents.pop())) if len(parents) == 1 else None
            if whole.get(name) is None and parent is not None:
                whole[name] = [
                    rank for _, _, rank in sorted((m.key or 0, m.parent_rank or 0, rank) for rank, m in found)
                ]
                sizes[name] = len(found)
    for name, ranks in _users(traces).items():
        if whole.get(name) is None and (len(ranks) == sizes.get(name) or (name not in sizes and _all_there(traces))):
            whole[name], sizes[name] = ranks, len(ranks)
    return {name: (sizes.get(name), whole.get(name)) for name in {*sizes, *whole}}


def _in_order(found: Mapping[int, int], size: int) -> list[int] | None:
    """Ranks by place, if every place is taken by a rank of its own."""
    ranks = [found[place] for place in sorted(found)]
    return ranks if sorted(found) == list(range(size)) and len(set(ranks)) == size else None


def _users(traces: Sequence[RankTrace]) -> dict[str, list[int]]:
    """The ranks that name each communicator in their calls, in order (as torch.distributed keeps its groups)."""
    found: dict[str, set[int]] = {}
    for trace in traces:
        if trace.identity.rank is not None:
            for name in _named(trace):
                found.setdefault(name, set()).add(trace.identity.rank)
    return {name: sorted(ranks) for name, ranks in found.items()}


def _named(trace: RankTrace) -> list[str]:
    return codes(trace.comm_records, "group_name")[1]


def _all_there(traces: Sequence[RankTrace]) -> bool:
    worlds = {trace.identity.world_size for trace in traces}
    ranks = {trace.identity.rank for trace in traces}
    world = worlds.pop() if len(worlds) == 1 else None
    return world is not None and ranks == set(range(world))


def _with(trace: RankTrace, members: Mapping[str, tuple[int | None, list[int] | None]]) -> RankTrace:
    rows = trace.groups.to_pylist()
    listed = {row["name"] for row in rows}
    rows += [
        {"name": name, "backend": "nccl", "size": None, "ranks": None, "ranks_source": "none", "declared": True}
        for name in _named(trace)
        if name not in listed
    ]
    changed = False
    for row in rows:
        size, ranks = members.get(row["name"], (None, None))
        if ranks is not None and row["ranks"] is None and trace.identity.rank in ranks:
            row |= {"size": len(ranks), "ranks": ranks, "ranks_source": "members"}
            changed = True
        elif size and row["size"] is None:
            row["size"] = size
            changed = True
    return replace(trace, groups=pa.Table.from_pylist(rows, schema=tables.GROUPS)) if changed else trace

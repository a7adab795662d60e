"""The sources of one job: what is analysed, and the logs, dumps and profilers' files that say what it does not.

Joining works on summaries, so that it gives the same whether these were just made or come from files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from analyzer.summary.model import RankSummary
from heuristics.account import Account
from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.columns import nullable
from heuristics.groups import member
from heuristics.links import Nodes, link_type
from heuristics.view import compact
from parsers import tables

if TYPE_CHECKING:
    from heuristics.conflicts import Conflict
    from heuristics.hang import HangReport
    from heuristics.wires import Wires

_DUMP = "flight_recorder"


@dataclass(frozen=True, eq=False)
class Sources:
    """The sources of one job.

    Attributes:
        ranks: to be analysed, with what the others say filled in.
        others: the witnesses.
        given: all of these, in the order in which they were given.
        wires: what NCCL's logs say about connections; null without logs.
        conflicts: what contradicts.
        notes: what was filled in from where, a sentence each.
        hang: what the Flight Recorder dumps show; null without dumps of known ranks.
    """

    ranks: tuple[RankSummary, ...]
    others: tuple[RankSummary, ...] = ()
    given: tuple[RankSummary, ...] = ()
    wires: Wires | None = None
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()
    hang: HangReport | None = None

    @property
    def files(self) -> tuple[RankSummary, ...]:
        """What is analysed, and of each witness's file the first rank: what readers noted holds for the file."""
        first = {rank.path: rank for rank in reversed(self.others)}
        return (*self.ranks, *(first[path] for path in dict.fromkeys(rank.path for rank in self.others)))


def join_sources(read: Sequence[RankSummary]) -> Sources:
    """Tell what is analysed from its witnesses, and put both together."""
    formats = {rank.format for rank in read}
    if len(formats) < 2 and all(rank.log is None and rank.witness is None for rank in read):
        return Sources(tuple(read), given=tuple(read))
    from heuristics.joining import join

    joined = join([_account(rank) for rank in read])
    main = {account.format for account in joined.traces}
    chosen, witnesses = iter(joined.traces), iter(joined.witnesses)  # each in the order in which it was given
    given = tuple(_completed(rank, next(chosen if rank.format in main else witnesses)) for rank in read)
    ranks = tuple(rank for rank in given if rank.format in main)
    return Sources(
        ranks=ranks,
        others=tuple(rank for rank in given if rank.format not in main),
        given=given,
        wires=joined.wires,
        conflicts=joined.conflicts,
        notes=joined.notes,
        hang=_hang(given, () if main == {_DUMP} else ranks),
    )


def _account(rank: RankSummary) -> Account:
    names = rank.groups.column("name").to_pylist()
    used = {names[group] for group in np.unique(ints(rank.collectives, "group")).tolist() if group != NULL}
    return Account(
        path=rank.path,
        format=rank.format,
        identity=rank.identity,
        groups=rank.groups,
        named=frozenset(name for name in used if name),
        calls=rank.collectives.num_rows,
        witness=rank.witness,
        log=rank.log,
        collectives=rank.collectives,
    )


def _completed(rank: RankSummary, account: Account) -> RankSummary:
    """A rank with what the others say of it: who it is, who is in its groups, and so whom its messages go to."""
    if account.groups is rank.groups and account.identity == rank.identity:
        return rank
    groups = account.groups.slice(0, rank.groups.num_rows)  # further ones have no calls
    collectives = _with_peers(rank.collectives, groups)
    peers = ints(collectives, "peer")
    first = _first_calls(rank)
    view = replace(
        rank.view,
        rank=NULL if account.identity.rank is None else account.identity.rank,
        world_size=account.identity.world_size or 0,
        groups=(*_views(rank, groups), *rank.view.groups[groups.num_rows :]),
        families=tuple(
            replace(family, peer=int(peers[first[family.index]]), root=NULL)
            if family.root != NULL and peers[first[family.index]] != NULL
            else family
            for family in rank.view.families
        ),
    )
    return replace(rank, identity=account.identity, groups=groups, collectives=collectives, view=view)


def _first_calls(rank: RankSummary) -> Mapping[int, int]:
    families, first = np.unique(rank.view.family_of_call, return_index=True)
    return dict(zip(families.tolist(), first.tolist(), strict=True))


def _views(rank: RankSummary, groups: pa.Table) -> list[Any]:
    rows = groups.select(["size", "ranks"]).to_pylist()
    return [
        replace(view, size=view.size or row["size"] or 0, ranks=compact(row["ranks"]) if row["ranks"] else view.ranks)
        for view, row in zip(rank.view.groups, rows, strict=False)
    ]


def _with_peers(table: pa.Table, groups: pa.Table) -> pa.Table:
    """The calls with the global ranks of peers that are known by their place in a group whose members are."""
    primitive, names = codes(table, "primitive")
    peer, place = ints(table, "peer"), ints(table, "root")
    message = primitive == code_of(names, "send_recv")
    found = np.where(message & (peer == NULL), member(groups, ints(table, "group"), place), peer)
    known = message & (peer == NULL) & (found != NULL)
    if not known.any():
        return table
    for name, values in (("peer", found), ("root", np.where(known, NULL, place))):
        field = tables.COLLECTIVES.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, nullable(values, field.type))
    return table


def _hang(given: Sequence[RankSummary], ranks: Sequence[RankSummary]) -> HangReport | None:
    """What the dumps among the sources show; the step it happened in, from the calls per step of the traces."""
    dumps = [rank for rank in given if rank.format == _DUMP and rank.witness is not None and rank.rank is not None]
    if not dumps:
        return None
    from heuristics.hang import hang_report

    return hang_report(dumps, _calls_per_step(ranks))


def _calls_per_step(ranks: Sequence[RankSummary]) -> dict[str, int]:
    """Collectives per step by process group, where every trace with the group shows the same whole number."""
    seen: dict[str, set[float]] = {}
    for rank in ranks:
        counts: dict[str, float] = {}
        for family in rank.view.families if rank.view.steps else ():
            name = rank.view.group(family.group).name
            if name and family.primitive != "send_recv":
                counts[name] = counts.get(name, 0) + family.calls_per_step
        for name, count in counts.items():
            seen.setdefault(name, set()).add(round(count, 6))
    whole = {name: counts.pop() for name, counts in seen.items() if len(counts) == 1}
    return {name: int(count) for name, count in whole.items() if count >= 1 and count == int(count)}


class Links:
    """Over which wire each group of a rank goes: from what is known of hosts and devices, and from NCCL's logs."""

    def __init__(self, nodes: Nodes, wires: Wires | None) -> None:
        self._nodes, self._wires = nodes, wires
        self._known: dict[tuple[Any, ...], tuple[str | None, str | None]] = {}

    def of(self, rank: RankSummary) -> list[tuple[str | None, str | None]]:
        """Link and type of link, one per row of the rank's ``GROUPS``; null where not known."""
        gpus = tuple(sorted({str(device.get("name", "")) for device in rank.devices}))
        rows = rank.groups.select(["name", "ranks"]).to_pylist()
        return [self._link(row["name"], tuple(row["ranks"]) if row["ranks"] else None, gpus) for row in rows]

    def _link(
        self, name: str | None, ranks: tuple[int, ...] | None, gpus: tuple[str, ...]
    ) -> tuple[str | None, str | None]:
        key = (name if name and name.startswith("0x") else None, ranks, gpus)
        if key not in self._known:
            link, kind = self._nodes.link(ranks), None
            if self._wires is not None and (key[0] or ranks) and (ranks is None or len(ranks) > 1):
                logged = self._wires.group(ranks, key[0], link)
                link, kind = logged.link, logged.link_type
            self._known[key] = link, kind if kind is not None else link_type(link, gpus)
        return self._known[key]

"""The dumps of a hung job side by side: who issued what on which group, how far each rank came."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from heuristics.arrays import NULL, codes, ints
from heuristics.hang_match import CallOfRank

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from parsers.flight_recorder import Dump
    from parsers.tables import RankIdentity

    Ints = npt.NDArray[np.int64]

FINISHED, WAITING, NOT_ISSUED, UNKNOWN = "finished", "waiting", "not issued", "unknown"


class OfDump(Protocol):
    """One rank's dump as a trace or as a summary."""

    @property
    def identity(self) -> RankIdentity:
        """Who wrote it."""

    @property
    def groups(self) -> pa.Table:
        """`parsers.tables.GROUPS`."""

    @property
    def witness(self) -> object | None:
        """The `Dump`."""


_COUNTED = re.compile(r"[0-9]{1,9}")  # names that torch.distributed gives groups: their number


@dataclass(frozen=True)
class GroupOfJob:
    """A process group: a name and the ranks in it; groups that were split off together may share a name."""

    name: str
    desc: str | None
    ranks: tuple[int, ...] | None

    @property
    def label(self) -> str:
        """For people."""
        return self.desc or f"group {self.name}"


@dataclass(frozen=True, eq=False)
class RankDump:
    """One rank's dump.

    Attributes:
        rank: global.
        dump: what the parser made of it.
        group: per entry, the number of its group in ``names``.
        seq: per entry, its number on the group: of collectives, or of messages.
        p2p: per entry, whether it is a message.
        done: per entry, whether it had finished.
    """

    rank: int
    dump: Dump
    names: tuple[str, ...]
    group: Ints
    seq: Ints
    p2p: npt.NDArray[np.bool_]
    done: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, rank: int, dump: Dump) -> RankDump:
        """Columns of a dump's entries."""
        table = dump.entries
        group, names = codes(table, "group_name")
        state, states = codes(table, "state")
        p2p = ints(table, "is_p2p") > 0
        completed = states.index("completed") if "completed" in states else -2
        seq = np.where(p2p, ints(table, "p2p_seq"), ints(table, "collective_seq"))
        return cls(rank, dump, tuple(names), group, seq, p2p, state == completed)

    def rows(self, group: str) -> Ints:
        """The entries of collectives on one group."""
        if group not in self.names:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero((self.group == self.names.index(group)) & ~self.p2p & (self.seq != NULL))

    @cached_property
    def oldest(self) -> int | None:
        """The first entry that had not finished; null where all had."""
        waiting = np.flatnonzero(~self.done)
        return int(waiting[0]) if len(waiting) else None

    @property
    def whole(self) -> bool:
        """Whether the dump reaches back to the first call of the process."""
        record = ints(self.dump.entries, "record_id")
        return bool(len(record) and record[0] == 0)

    def call(self, row: int) -> CallOfRank:
        """One entry."""
        said = self.dump.entries.slice(row, 1).to_pylist()[0]
        return CallOfRank(
            rank=self.rank,
            op=said["op"] or "",
            state=said["state"],
            input_sizes=said["input_sizes"] or [],
            output_sizes=said["output_sizes"] or [],
            input_dtypes=said["input_dtypes"] or [],
            output_dtypes=said["output_dtypes"] or [],
            stack=said["stack"],
            created_ns=said["created_ns"],
        )

    def name_of(self, row: int) -> str:
        """The name of an entry's group; empty where it has none."""
        return self.names[self.group[row]] if self.group[row] >= 0 else ""

    def peer(self, row: int) -> int | None:
        """The other side of a message."""
        peer: int | None = self.dump.entries.column("peer")[row].as_py()
        return peer

    @cached_property
    def last_stack(self) -> str | None:
        """Where in the code its latest call was made."""
        count = self.dump.entries.num_rows
        stack: str | None = self.dump.entries.column("stack")[count - 1].as_py() if count else None
        return stack


@dataclass(frozen=True, eq=False)
class Dumps:
    """All dumps of a job, by rank, and its groups: all of them, and per rank the one behind a name."""

    ranks: Mapping[int, RankDump]
    groups: tuple[GroupOfJob, ...]
    group_of: Mapping[tuple[int, str], GroupOfJob]
    status: Mapping[tuple[int, str], tuple[int, int]]  # (rank, group) -> last collective enqueued, completed

    @classmethod
    def of(cls, traces: Iterable[OfDump]) -> Dumps:
        """From the dumps of one job; of a rank that is there twice, the first counts."""
        from parsers.flight_recorder import Dump

        ranks: dict[int, RankDump] = {}
        group_of: dict[tuple[int, str], GroupOfJob] = {}
        status: dict[tuple[int, str], tuple[int, int]] = {}
        for trace in traces:
            rank, dump = trace.identity.rank, trace.witness
            if rank is None or rank in ranks or not isinstance(dump, Dump):
                continue
            ranks[rank] = RankDump.of(rank, dump)
            declared = trace.groups.select(["name", "desc", "ranks"]).to_pylist()
            for row in declared:
                members = tuple(row["ranks"]) if row["ranks"] else None
                group_of[rank, row["name"]] = GroupOfJob(row["name"], row["desc"], members)
            for name in ranks[rank].names:
                group_of.setdefault((rank, name), GroupOfJob(name, None, None))
            names = _names_of_status(dump, [row["name"] for row in declared])
            for one in dump.statuses:
                if one.pg_id in names:
                    status[rank, names[one.pg_id]] = (one.enqueued, one.completed)
        carries_messages = {
            dump.names[number] for dump in ranks.values() for number in np.unique(dump.group[dump.p2p]) if number >= 0
        }
        # Where messages go over a group, its status counts them with the collectives (ProcessGroupNCCL.cpp).
        kept = {key: said for key, said in status.items() if key[1] not in carries_messages}
        return cls(ranks, tuple(dict.fromkeys(group_of.values())), group_of, kept)

    def members(self, group: GroupOfJob) -> list[int]:
        """The ranks of a group that left a dump."""
        return [
            rank
            for rank in group.ranks or sorted(self.ranks)
            if self.group_of.get((rank, group.name), group) == group and rank in self.ranks
        ]

    @property
    def absent(self) -> tuple[int, ...]:
        """Ranks that groups name and that have no dump."""
        named = {rank for group in self.groups for rank in group.ranks or ()}
        return tuple(sorted(named - self.ranks.keys()))

    def issued(self, rank: int, group: str) -> int | None:
        """The last collective that a rank asked for on a group; -1 for none, null where its dump does not tell."""
        dump = self.ranks[rank]
        rows = dump.rows(group)
        known = [int(dump.seq[rows].max())] if len(rows) else []
        if (rank, group) in self.status:
            known.append(self.status[rank, group][0])
        if known:
            return max(known)
        return -1 if dump.whole else None

    def standing(self, rank: int, group: str, seq: int) -> tuple[str, int | None]:
        """What a rank has done with a collective, and its entry where it is in the dump."""
        dump = self.ranks[rank]
        rows = dump.rows(group)
        at = rows[dump.seq[rows] == seq]
        if len(at):
            row = int(at[-1])
            return (FINISHED if dump.done[row] else WAITING), row
        issued = self.issued(rank, group)
        if issued is None:
            return UNKNOWN, None
        # Asked for, but not among the entries: overwritten in the ring, or left out of a dump of active calls.
        return (NOT_ISSUED, None) if issued < seq else (FINISHED, None)


def _names_of_status(dump: Dump, declared: Sequence[str]) -> dict[int, str]:
    """The group behind each number that `pg_status` uses.

    Entries give both. Beyond them: a process counts its groups in the order in which it makes them, and so do the names
    that torch.distributed gives (distributed_c10d `_process_group_name`), so both orders are one where all are listed.
    """
    pairs = dump.entries.select(["pg_id", "group_name"]).to_pydict()
    known = {number: name for number, name in zip(*pairs.values(), strict=True) if number is not None and name}
    numbers = sorted(status.pg_id for status in dump.statuses)
    if len(numbers) == len(declared) and all(map(_COUNTED.fullmatch, declared)):
        by_order = dict(zip(numbers, sorted(declared, key=int), strict=True))
        if all(by_order.get(number) == name for number, name in known.items()):
            return by_order
    return known

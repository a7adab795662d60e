"""What one source says of one rank: who it is, its groups, and whatever its format tells beyond calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heuristics.arrays import codes

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.nccl_log import NcclLog
    from parsers.nsys.places import Member
    from parsers.tables import RankIdentity, RankTrace


@dataclass(frozen=True, eq=False)
class Account:
    """One source of one rank.

    Attributes:
        path: the file, as the user named it.
        format: of the file.
        identity: who wrote it.
        groups: `parsers.tables.GROUPS`.
        named: names of the groups that its calls run on.
        calls: how many calls it lists.
        witness: what the format says beyond the tables: `parsers.flight_recorder.Dump`,
            `parsers.profiled.ProfilerWitness`, `parsers.nsys.places.NsysWitness`, or null.
        log: the NCCL log that it is, or that a report of Nsight Systems captured.
        collectives: `parsers.tables.COLLECTIVES`, where the calls have been labelled.
    """

    path: str
    format: str
    identity: RankIdentity
    groups: pa.Table
    named: frozenset[str] = frozenset()
    calls: int = 0
    witness: object | None = None
    log: NcclLog | None = None
    collectives: pa.Table | None = None

    @property
    def members(self) -> tuple[Member, ...]:
        """Its places in communicators, of a report of Nsight Systems."""
        return getattr(self.witness, "members", ()) if self.format == "nsys" else ()

    @classmethod
    def of(cls, trace: RankTrace) -> Account:
        """What a trace says before its calls are labelled."""
        witness, log = apart(trace.witness)
        named = frozenset(name for name in codes(trace.comm_records, "group_name")[1] if name)
        calls = trace.comm_records.num_rows
        return cls(trace.path, trace.format, trace.identity, trace.groups, named, calls, witness, log)


def apart(witness: object | None) -> tuple[object | None, NcclLog | None]:
    """A parser's witness as what concerns one rank, and the log that many ranks share."""
    if witness is None:
        return None, None
    from parsers.nccl_log import NcclLog

    if isinstance(witness, NcclLog):
        return None, witness
    log = getattr(witness, "log", None)
    return witness, log if isinstance(log, NcclLog) else None

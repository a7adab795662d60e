"""Several kinds of sources of one job, put together: traces, dumps and logs.

They are joined on what they share: the communicator's id (traces and profilers print it as a number, logs in
hexadecimal), the process group's name (traces and Flight Recorder), host and process id (logs, profilers, traces), and
the rank. One kind of source is analysed; the others are witnesses that fill in what it does not say. Where two sources
contradict each other nothing is overwritten: the contradiction is handed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from heuristics.account import Account
from heuristics.communicators import across, completed, groups_of_rows
from heuristics.conflicts import Conflict, conflicts, short
from heuristics.wires import GroupLinks, Wires
from parsers.nsys.places import Place

if TYPE_CHECKING:
    from parsers.nccl_log import NcclLog

TRACES = ("kineto", "nsys", "straggler_analysis")
"""Formats that place calls in time: analysed wherever one of them is given."""

ALONE = ("flight_recorder", "nccl_inspector", "nccl_profiler", "execution_trace", "nccl_log", "deepspeed_log")
"""Formats analysed when no trace is given: the first of them that lists calls."""


@dataclass(frozen=True, eq=False)
class Joined:
    """The sources of one job.

    Attributes:
        traces: what to analyse, with ranks, hosts and members of groups filled in from the witnesses.
        witnesses: the rest, with ranks filled in.
        members: global ranks by group: of process groups by name, of communicators by id (``0x...``).
        wires: what NCCL's logs say about connections; null without logs.
        conflicts: what contradicts.
        notes: what was filled in from where.
    """

    traces: tuple[Account, ...]
    witnesses: tuple[Account, ...] = ()
    members: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    wires: Wires | None = None
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()

    def links(self, ranks: Sequence[int] | None, name: str | None = None) -> GroupLinks | None:
        """The wires of a group, from its ranks or its communicator's id; null without logs."""
        return self.wires.group(ranks, name) if self.wires is not None else None

    @property
    def hosts(self) -> Mapping[int, str]:
        """Host by rank, as any source says."""
        found = dict(self.wires.hosts) if self.wires is not None else {}
        for trace in (*self.witnesses, *self.traces):
            if trace.identity.rank is not None and trace.identity.host:
                found.setdefault(trace.identity.rank, trace.identity.host)
        return MappingProxyType(found)


def join(sources: Sequence[Account]) -> Joined:
    """Put the sources of one job together.

    Args:
        sources: what all files say, in any order.
    """
    told = across([(s.path, Place(s.identity, s.members, s.named)) for s in sources if s.format == "nsys"])
    sources = [completed(source, source.named, told) for source in sources]
    logs = _logs(sources)
    wires = Wires.of(logs) if logs else None
    notes: list[str] = []
    known = _Processes(sources)
    main = _main_format(sources)
    named = [_with_identity(source, known, wires, notes if source.format in main else []) for source in sources]
    named = _with_ranks_of_profilers(named, notes)
    members = _members(named)
    notes += _unheard(logs, members)
    formats = {source.format for source in named}
    filled = [_with_members(source, members) for source in named] if len(formats) > 1 or len(logs) > 1 else named
    others = [source for source in filled if source.format not in main]
    chosen = [_with_world(source, others) for source in filled if source.format in main]
    return Joined(
        traces=tuple(chosen),
        witnesses=tuple(others),
        members=MappingProxyType(members),
        wires=wires,
        conflicts=conflicts((*chosen, *others)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _logs(sources: Iterable[Account]) -> list[NcclLog]:
    return list(dict.fromkeys(source.log for source in sources if source.log is not None))


def _main_format(sources: Sequence[Account]) -> tuple[str, ...]:
    formats = {source.format for source in sources}
    if formats & set(TRACES):
        return TRACES
    with_calls = {source.format for source in sources if source.calls}
    ranked = [name for name in ALONE if name in with_calls] or [name for name in ALONE if name in formats]
    return (ranked[0],) if ranked else tuple(formats)


class _Processes:
    """Ranks by process, as far as any source knows both."""

    def __init__(self, sources: Iterable[Account]) -> None:
        self.rank: dict[tuple[str | None, int], set[int]] = {}
        self.hosts: dict[int, set[str]] = {}
        for source in sources:
            one = source.identity
            if one.rank is not None and one.pid is not None:
                self.rank.setdefault((short(one.host), one.pid), set()).add(one.rank)
                self.hosts.setdefault(one.pid, set()).add(short(one.host) or "")

    def of(self, host: str | None, pid: int) -> int | None:
        """The rank of a process; without a host, if only one process of the job has the id."""
        found = self.rank.get((short(host), pid), set())
        if not found and (host is None or (None, pid) in self.rank):
            where = [ranks for (_, known), ranks in self.rank.items() if known == pid]
            found = where[0] if len(where) == 1 else set()
        return next(iter(found)) if len(found) == 1 else None


def _with_identity(source: Account, known: _Processes, wires: Wires | None, notes: list[str]) -> Account:
    """Rank from host and process id, host from the rank."""
    one = source.identity
    if one.rank is None and one.pid is not None:
        rank = known.of(one.host, one.pid)
        if rank is not None:
            one = replace(one, rank=rank, rank_source="process")
            notes.append(f"ranks of {source.format} files come from their process ids")
    if one.rank is not None and one.host is None and wires is not None and one.rank in wires.hosts:
        one = replace(one, host=wires.hosts[one.rank])
        notes.append(f"hosts of {source.format} files come from the NCCL log")
    return source if one is source.identity else replace(source, identity=one)


def _with_ranks_of_profilers(sources: Sequence[Account], notes: list[str]) -> list[Account]:
    """Ranks of profilers' files from their place in communicators whose members are known."""
    from parsers.profiled import ProfilerWitness

    members = _members(sources)
    profiled = [s.witness for s in sources if isinstance(s.witness, ProfilerWitness)]
    world = _common_world(profiled)
    found = []
    for source in sources:
        if source.identity.rank is None and isinstance(source.witness, ProfilerWitness):
            own = source.witness.own_ranks
            ranks = {members[group][place] for group, place in own.items() if 0 <= place < len(members.get(group, ()))}
            if not ranks and world is not None and world in own:
                ranks = {own[world]}
            if len(ranks) == 1:
                identity = replace(source.identity, rank=ranks.pop(), rank_source="communicator")
                source = replace(source, identity=identity)
                notes.append(f"ranks of {source.format} files come from their communicators")
        found.append(source)
    return found


def _common_world(profiled: Sequence[object]) -> str | None:
    """The communicator that every profiled process is in, each at another place: the group of all ranks."""
    owned: list[Mapping[str, int]] = [getattr(witness, "own_ranks", {}) for witness in profiled]
    shared = set.intersection(*(set(own) for own in owned)) if len(owned) > 1 else set()
    whole = [group for group in sorted(shared) if len({own[group] for own in owned}) == len(owned)]
    return whole[0] if whole else None


def _members(sources: Iterable[Account]) -> dict[str, tuple[int, ...]]:
    """Ranks by name of every group that some source lists in full; where sources differ, of none."""
    found: dict[str, tuple[int, ...]] = {}
    doubtful: set[str] = set()
    for source in sources:
        for row in source.groups.select(["name", "ranks"]).to_pylist():
            name, ranks = row["name"], tuple(row["ranks"] or ())
            if not name or not ranks:
                continue
            if set(found.setdefault(name, ranks)) != set(ranks):
                doubtful.add(name)
    for name, ranks in members_of_logs(_logs(sources)).items():
        if set(found.setdefault(name, ranks)) != set(ranks):
            doubtful.add(name)
    return {name: ranks for name, ranks in found.items() if name not in doubtful}


def members_of_logs(logs: Iterable[NcclLog]) -> dict[str, tuple[int, ...]]:
    """Ranks by communicator, put together from the logs of its members, which may be files of their own."""
    places: dict[str, dict[int, int]] = {}
    sizes: dict[str, int] = {}
    for log in logs:
        columns = log.processes.select(["host", "pid", "rank"]).to_pylist()
        rank_of = {(row["host"], row["pid"]): row["rank"] for row in columns if row["rank"] is not None}
        for row in log.communicators.select(["group", "host", "pid", "rank", "size"]).to_pylist():
            rank = rank_of.get((row["host"], row["pid"]))
            if rank is not None:
                places.setdefault(row["group"], {})[row["rank"]] = rank
                sizes[row["group"]] = row["size"]
    return {
        group: tuple(of[place] for place in range(sizes[group]))
        for group, of in places.items()
        if len(of) == sizes[group] and set(of) == set(range(sizes[group]))
    }


def _unheard(logs: Iterable[NcclLog], members: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Communicators of which no log of some member was given."""
    groups = {name for log in logs for name in log.communicators.column("group").to_pylist()}
    partly = len(groups - members.keys())
    return [f"{partly} of {len(groups)} communicators have members whose log is not here"] if partly else []


def _with_members(trace: Account, members: Mapping[str, tuple[int, ...]]) -> Account:
    """The trace with ranks of groups filled in that it declares without, and groups that only its calls name."""
    rows = trace.groups.to_pylist()
    changed = False
    for row in rows:
        ranks = members.get(row["name"] or "")
        if row["ranks"] is None and ranks is not None and row["size"] in (None, len(ranks)):
            row |= {"ranks": list(ranks), "size": len(ranks), "ranks_source": "members"}
            changed = True
    for name in sorted(trace.named - {row["name"] for row in rows}):
        ranks = members.get(name)
        if ranks is not None and (trace.identity.rank is None or trace.identity.rank in ranks):
            rows.append(
                {"name": name, "size": len(ranks), "ranks": list(ranks), "ranks_source": "members", "declared": False}
            )
            changed = True
    return replace(trace, groups=groups_of_rows(rows)) if changed else trace


def _with_world(trace: Account, witnesses: Sequence[Account]) -> Account:
    """The trace with the number of ranks, where it does not say it and all witnesses that do agree."""
    said = {w.identity.world_size for w in witnesses if w.identity.world_size is not None}
    if trace.identity.world_size is not None or len(said) != 1:
        return trace
    return replace(trace, identity=replace(trace.identity, world_size=said.pop()))

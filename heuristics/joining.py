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

from heuristics.communicators import joined as across_reports
from heuristics.wires import GroupLinks, Wires
from parsers import tables

if TYPE_CHECKING:
    import pyarrow as pa

    from parsers.nccl_log import NcclLog
    from parsers.tables import RankTrace

TRACES = ("kineto", "nsys")
"""Formats that place calls in time: analysed wherever one of them is given."""

ALONE = ("flight_recorder", "nccl_inspector", "nccl_profiler", "execution_trace", "nccl_log", "deepspeed_log")
"""Formats analysed when no trace is given: the first of them that lists calls."""


@dataclass(frozen=True)
class Conflict:
    """Two sources that contradict each other.

    Attributes:
        about: ``rank``, ``host``, ``world_size``, ``group`` or ``communicator``.
        sentence: what each says.
        paths: the files.
        ranks: whom it concerns.
    """

    about: str
    sentence: str
    paths: tuple[str, ...]
    ranks: tuple[int, ...] = ()


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

    traces: tuple[RankTrace, ...]
    witnesses: tuple[RankTrace, ...] = ()
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


def join(sources: Sequence[RankTrace]) -> Joined:
    """Put the sources of one job together.

    Args:
        sources: what the parsers made of all files, in any order.
    """
    sources = across_reports(sources)
    logs = dict.fromkeys(log for source in sources if (log := _log_of(source)) is not None)
    wires = Wires.of(logs) if logs else None
    notes: list[str] = []
    known = _Processes(sources)
    named = [_with_identity(source, known, wires, notes) for source in sources]
    named = _with_ranks_of_profilers(named, notes)
    members = _members(named)
    main = _main_format(named)
    chosen = [source for source in named if source.format in main]
    others = [source for source in named if source.format not in main]
    filled = [_with_members(trace, members) for trace in chosen] if others else chosen
    conflicts = [*_about_ranks(named), *_about_worlds(named), *_about_groups(named), *_about_communicators(named)]
    return Joined(
        traces=tuple(filled),
        witnesses=tuple(others),
        members=MappingProxyType(members),
        wires=wires,
        conflicts=tuple(dict.fromkeys(conflicts)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _log_of(source: RankTrace) -> NcclLog | None:
    """A log, or the log among the output that a report of Nsight Systems captured."""
    from parsers.nccl_log import NcclLog

    for found in (source.witness, getattr(source.witness, "log", None)):
        if isinstance(found, NcclLog):
            return found
    return None


def _main_format(sources: Sequence[RankTrace]) -> tuple[str, ...]:
    formats = {source.format for source in sources}
    if formats & set(TRACES):
        return TRACES
    with_calls = {source.format for source in sources if source.comm_records.num_rows}
    ranked = [name for name in ALONE if name in with_calls] or [name for name in ALONE if name in formats]
    return (ranked[0],) if ranked else tuple(formats)


def _short(host: str | None) -> str | None:
    """A host's name without its domain."""
    return host.split(".", 1)[0].lower() if host else None


class _Processes:
    """Ranks by process, as far as any source knows both."""

    def __init__(self, sources: Iterable[RankTrace]) -> None:
        self.rank: dict[tuple[str | None, int], set[int]] = {}
        self.hosts: dict[int, set[str]] = {}
        for source in sources:
            one = source.identity
            if one.rank is not None and one.pid is not None:
                self.rank.setdefault((_short(one.host), one.pid), set()).add(one.rank)
                self.hosts.setdefault(one.pid, set()).add(_short(one.host) or "")

    def of(self, host: str | None, pid: int) -> int | None:
        """The rank of a process; without a host, if only one process of the job has the id."""
        found = self.rank.get((_short(host), pid), set())
        if not found and (host is None or (None, pid) in self.rank):
            where = [ranks for (_, known), ranks in self.rank.items() if known == pid]
            found = where[0] if len(where) == 1 else set()
        return next(iter(found)) if len(found) == 1 else None


def _with_identity(source: RankTrace, known: _Processes, wires: Wires | None, notes: list[str]) -> RankTrace:
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


def _with_ranks_of_profilers(sources: Sequence[RankTrace], notes: list[str]) -> list[RankTrace]:
    """Ranks of profilers' files from their place in communicators whose members are known."""
    from parsers.profiled import ProfilerWitness

    members = _members(sources)
    profiled = [s.witness for s in sources if isinstance(s.witness, ProfilerWitness)]
    world = _common_world(profiled)
    found = []
    for source in sources:
        if source.identity.rank is None and isinstance(source.witness, ProfilerWitness):
            own = source.witness.own_ranks
            ranks = {members[group][place] for group, place in own.items() if place < len(members.get(group, ()))}
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


def _members(sources: Iterable[RankTrace]) -> dict[str, tuple[int, ...]]:
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
    for name, ranks in _members_of_logs(sources).items():
        if set(found.setdefault(name, ranks)) != set(ranks):
            doubtful.add(name)
    return {name: ranks for name, ranks in found.items() if name not in doubtful}


def _members_of_logs(sources: Iterable[RankTrace]) -> dict[str, tuple[int, ...]]:
    """Ranks by communicator, put together from the logs of its members, which may be files of their own."""
    from parsers.nccl_log import NcclLog

    places: dict[str, dict[int, int]] = {}
    sizes: dict[str, int] = {}
    for log in dict.fromkeys(s.witness for s in sources if isinstance(s.witness, NcclLog)):
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


def _with_members(trace: RankTrace, members: Mapping[str, tuple[int, ...]]) -> RankTrace:
    """The trace with ranks of groups filled in that it declares without, and groups that only its calls name."""
    rows = trace.groups.to_pylist()
    changed = False
    for row in rows:
        ranks = members.get(row["name"] or "")
        if row["ranks"] is None and ranks is not None and row["size"] in (None, len(ranks)):
            row |= {"ranks": list(ranks), "size": len(ranks), "ranks_source": "members"}
            changed = True
    for name in _named_in_calls(trace.comm_records) - {row["name"] for row in rows}:
        ranks = members.get(name)
        if ranks is not None and (trace.identity.rank is None or trace.identity.rank in ranks):
            rows.append(
                {"name": name, "size": len(ranks), "ranks": list(ranks), "ranks_source": "members", "declared": False}
            )
            changed = True
    return replace(trace, groups=_groups(rows)) if changed else trace


def _named_in_calls(records: pa.Table) -> set[str]:
    column = records.column("group_name").unify_dictionaries()
    return {name for chunk in column.chunks for name in chunk.dictionary.to_pylist() if name}


def _groups(rows: list[dict[str, object]]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=tables.GROUPS)


# -- contradictions


def _about_ranks(sources: Sequence[RankTrace]) -> list[Conflict]:
    by_process: dict[tuple[str, int], list[RankTrace]] = {}
    by_rank: dict[int, list[RankTrace]] = {}
    for source in sources:
        one = source.identity
        if one.rank is None:
            continue
        by_rank.setdefault(one.rank, []).append(source)
        if one.host and one.pid is not None:
            by_process.setdefault((_short(one.host) or "", one.pid), []).append(source)
    found = []
    for (host, pid), same in by_process.items():
        ranks = {s.identity.rank for s in same if s.identity.rank is not None}
        if len(ranks) > 1:
            said = [(f"rank {s.identity.rank}", s) for s in same]
            found.append(_conflict("rank", f"process {pid} on {host} is", said))
    for rank, same in by_rank.items():
        hosts = {_short(s.identity.host) for s in same if s.identity.host}
        if len({s.format for s in same}) > 1 and len(hosts) > 1:
            said = [(str(s.identity.host), s) for s in same if s.identity.host]
            found.append(_conflict("host", f"rank {rank} is on", said))
    return found


def _about_worlds(sources: Sequence[RankTrace]) -> list[Conflict]:
    said = {s.identity.world_size: s for s in sources if s.identity.world_size is not None}
    if len({s.format for s in said.values()}) < 2:
        return []  # within one format it means two jobs, which the roster says
    return [_conflict("world_size", "the job has", [(f"{size} ranks", source) for size, source in said.items()])]


def _about_groups(sources: Sequence[RankTrace]) -> list[Conflict]:
    """Process groups of one name with other members in another source."""
    seen: dict[str, list[tuple[tuple[int, ...], RankTrace]]] = {}
    for source in sources:
        for row in source.groups.select(["name", "ranks"]).to_pylist():
            if row["name"] and row["ranks"]:
                seen.setdefault(row["name"], []).append((tuple(sorted(row["ranks"])), source))
    found = []
    for name, said in seen.items():
        # torch.distributed may give one name to several groups (split_group), but each rank is in one of them.
        for rank in sorted({s.identity.rank for _, s in said if s.identity.rank is not None}):
            own = [(ranks, s) for ranks, s in said if s.identity.rank == rank]
            if len({ranks for ranks, _ in own}) > 1:
                what = f"to rank {rank}, group {name} is"
                found.append(_conflict("group", what, [(_few(ranks), s) for ranks, s in own]))
    return found


def _about_communicators(sources: Sequence[RankTrace]) -> list[Conflict]:
    """Communicators of one id with another size."""
    seen: dict[str, dict[int, RankTrace]] = {}
    for source in sources:
        for row in source.groups.select(["name", "size"]).to_pylist():
            if row["name"] and row["name"].startswith("0x") and row["size"]:
                seen.setdefault(row["name"], {}).setdefault(row["size"], source)
    found = []
    for name, sizes in seen.items():
        if len(sizes) > 1:
            said = [(f"{size} ranks", source) for size, source in sizes.items()]
            found.append(_conflict("communicator", f"communicator {name} has", said))
    return found


def _conflict(about: str, what: str, said: Sequence[tuple[str, RankTrace]]) -> Conflict:
    """One conflict, each of its sides once, with the first file that takes it."""
    sides: dict[str, RankTrace] = {}
    for side, source in said:
        sides.setdefault(side, source)
    listed = ", ".join(f"{side} in {source.path} ({source.format})" for side, source in sides.items())
    ranks = {source.identity.rank for _, source in said if source.identity.rank is not None}
    return Conflict(
        about, f"{what} {listed}", tuple(dict.fromkeys(s.path for s in sides.values())), tuple(sorted(ranks))
    )


def _few(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"[{shown}, ... {len(ranks)} ranks]" if len(ranks) > 8 else f"[{shown}]"

"""NCCL and RCCL debug logs (``NCCL_DEBUG=INFO``): communicators, who is in them, over which wire, and their calls.

Read are the forms of NCCL 2.3 to 2.30 and of RCCL, from one process or from all, with the labels that launchers put
before the lines, torn and interleaved.

What a log cannot tell: when anything ran (it has no times by default), how long it took, and which dimension of the
layout a communicator serves. Calls are there only with ``NCCL_DEBUG_SUBSYS`` including ``COLL``; connections that were
never used (NCCL connects on first use) are not there at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from parsers import tables
from parsers.assemble import table
from parsers.bytes_of import lines
from parsers.errors import InputError
from parsers.nccl_log_calls import records
from parsers.nccl_log_state import Collected, Comm, Process
from parsers.nccl_words import signed
from parsers.source import Source
from parsers.tables import Health, RankIdentity, RankTrace

FORMAT = "nccl_log"

_SIGN = re.compile(
    rb"(?<![\w.\-])[\w.\-]{1,255}:\d{1,10}:\d{1,10} (?:\[\d{1,4}\] )?(?:\S{1,400}:\d{1,6} )?"
    rb"(?:<[\d.]{1,24}> \S{1,200} )?NCCL (?:INFO|WARN|TRACE|CALL) "
    rb"|(?:\A|\n)[^\n]{0,24}\b[NR]CCL version ?:? ?\d+\.\d+\.\d+"
)

PROCESSES = pa.schema(
    [
        ("host", pa.string()),
        ("pid", pa.int64()),
        ("rank", pa.int32()),  # global
        ("rank_source", pa.string()),  # label (of the launcher) | communicator (rank in the largest one)
        ("network", pa.string()),  # the network plugin in use: IBext_v10, Socket, ...
        ("fabric_state", pa.int32()),  # NVML: 0 no NVLink switch fabric, 3 registered with one
        ("architecture", pa.string()),  # gfx942, ... (RCCL)
    ]
)
"""Every process that printed something about a communicator."""

COMMUNICATORS = pa.schema(
    [
        ("group", pa.string()),  # equal on all members: the communicator's id, or parent, number of split and color
        ("comms_id", pa.int64()),  # the id as a signed number; null for splits that print none
        ("host", pa.string()),
        ("pid", pa.int64()),
        ("device", pa.int32()),  # number in the process
        ("bus_id", pa.string()),
        ("rank", pa.int32()),  # in the communicator
        ("size", pa.int32()),
        ("nodes", pa.int32()),
        ("local_ranks", pa.int32()),
        ("parent", pa.string()),
        ("color", pa.int64()),
        ("key", pa.int64()),
        ("complete", pa.bool_()),  # made to the end
        ("multi_node_nvlink", pa.bool_()),
        ("nvls", pa.bool_()),  # reductions in the NVLink switch are available
        ("p2p_chunk_bytes", pa.int64()),
        ("path", pa.string()),  # worst path between GPUs in NCCL's ring: NVL, XGMI, PIX, PXB, PHB, SYS
    ]
)
"""One row per communicator and member that printed."""

LINKS = pa.schema(
    [
        ("group", pa.string()),
        ("src", pa.int32()),  # rank in the communicator
        ("dst", pa.int32()),
        ("src_rank", pa.int32()),  # global
        ("dst_rank", pa.int32()),
        ("kind", tables.TEXT),  # p2p | shm | net | collnet
        ("how", tables.TEXT),  # IPC | CUMEM | direct pointer | MNNVL | ..., of a network its plugin
        ("nic", pa.int32()),
        ("layer", tables.TEXT),  # IB | RoCE, of the network device where the log lists it
        ("gdr", pa.bool_()),  # the network reads and writes GPU memory itself
        ("through", pa.int32()),  # the rank whose network device is used (PXN)
        ("read", pa.bool_()),
        ("connection", pa.int32()),  # 0 rings and trees, 1 messages
        ("channels", pa.int32()),
    ]
)
"""One row per pair of ranks and way of connecting them; both ends of a connection are one row."""

ALGORITHMS = pa.schema(
    [
        ("function", tables.TEXT),
        ("size_bytes", pa.int64()),  # of the whole array, as nccl-tests
        ("algorithm", tables.TEXT),  # RING, TREE, NVLS, ... or the name of the kernel; a number before NCCL 2.26
        ("protocol", tables.TEXT),
        ("calls", pa.int64()),
    ]
)
"""What NCCL chose to run (``NCCL_DEBUG_SUBSYS=TUNING``)."""


@dataclass(frozen=True, eq=False)
class NcclLog:
    """A whole log.

    Attributes:
        library: ``nccl`` or ``rccl``.
        version: of it.
        processes: `PROCESSES`.
        communicators: `COMMUNICATORS`.
        links: `LINKS`.
        algorithms: `ALGORITHMS`.
        settings: ``NCCL_*`` variables that the log says were set, with every value they had.
        uncertain_links: channel lines that fit communicators with different processes at the ends.
    """

    library: str | None
    version: str | None
    processes: pa.Table
    communicators: pa.Table
    links: pa.Table
    algorithms: pa.Table
    settings: Mapping[str, tuple[str, ...]]
    uncertain_links: int


def sniff(head: bytes) -> bool:
    """Whether a line at the beginning comes from NCCL or RCCL."""
    return not head.startswith((b"{", b"[{", b"\x80", b"SQLite")) and _SIGN.search(head) is not None


def read(source: Source) -> list[RankTrace]:
    """Read a log.

    Returns:
        One `RankTrace` per process, by rank. ``comm_records`` has a row of layer ``nccl_log`` per call that the log
        lists, ``groups`` the process's communicators under their ids, ``witness`` the `NcclLog` of the whole file.

    Raises:
        InputError: no line says anything about a communicator.
    """
    collected = _collect(source)
    if not any(process.comms for process in collected.processes.values()):
        hint = "run with NCCL_DEBUG=INFO; communicators are logged when they are made"
        raise InputError("names no communicator of NCCL or RCCL", path=source.name, hint=hint)
    who = _Who(collected)
    log = _log(collected, who)
    health = Health(
        complete=not source.faults,
        file_bytes=source.file_bytes,
        events=collected.messages,
        dropped=collected.torn,
        notes=tuple(_notes(collected, who, source)),
    )
    ordered = sorted(collected.processes.values(), key=lambda p: (who.rank.get(p, 1 << 31), p.host, p.pid))
    return [_trace(source, process, who, log, health) for process in ordered if process.comms]


def _collect(source: Source) -> Collected:
    collected = Collected()
    for line in lines(source):
        collected.take(line)
    collected.finish()
    return collected


class _Who:
    """Which rank each process is, and who is in each communicator."""

    def __init__(self, collected: Collected) -> None:
        self.members: dict[str, dict[int, Process]] = {}
        self.sizes: dict[str, int] = {}
        for process in collected.processes.values():
            for comm in process.comms:
                if comm.announced:
                    self.members.setdefault(comm.group, {})[comm.rank] = process
                    self.sizes[comm.group] = comm.size
        largest = [max(p.comms, key=lambda c: c.size) for p in collected.processes.values() if p.comms]
        one_size = {comm.size for comm in largest if comm.announced}
        self.world = one_size.pop() if len(one_size) == 1 else None
        in_world = {comm.process: comm.rank for comm in largest if comm.announced and self.world is not None}
        self.rank: dict[Process, int] = {}
        self.source: dict[Process, str] = {}
        self.disagree = 0
        for process in collected.processes.values():
            label = process.labels.most_common(1)[0][0] if process.labels else None
            if label is not None:
                self.rank[process], self.source[process] = label, "label"
                self.disagree += label != in_world.get(process, label)
            elif process in in_world:
                self.rank[process], self.source[process] = in_world[process], "communicator"
        if self.world is not None and max(self.rank.values(), default=0) >= self.world:
            self.world = None  # the largest communicator does not hold all ranks

    def global_rank(self, group: str, rank: int | None) -> int | None:
        """The global rank of a member of a communicator, if its process printed."""
        process = self.members.get(group, {}).get(rank) if rank is not None else None
        return self.rank.get(process) if process is not None else None

    def ranks(self, group: str) -> list[int] | None:
        """Global ranks of a communicator in its order; null where a member did not print."""
        found = [self.global_rank(group, rank) for rank in range(self.sizes.get(group, 0))]
        return [rank for rank in found if rank is not None] if found and None not in found else None


def _log(collected: Collected, who: _Who) -> NcclLog:
    settings: dict[str, set[str]] = {}
    for process in collected.processes.values():
        for name, value in process.settings.items():
            settings.setdefault(name, set()).add(value)
    return NcclLog(
        library=collected.library,
        version=collected.version,
        processes=_processes(collected, who),
        communicators=_communicators(collected),
        links=_links(collected, who),
        algorithms=_algorithms(collected),
        settings={name: tuple(sorted(values)) for name, values in sorted(settings.items())},
        uncertain_links=collected.unplaced,
    )


def _processes(collected: Collected, who: _Who) -> pa.Table:
    rows = list(collected.processes.values())
    return table(
        PROCESSES,
        {
            "host": [p.host for p in rows],
            "pid": [p.pid for p in rows],
            "rank": [who.rank.get(p) for p in rows],
            "rank_source": [who.source.get(p) for p in rows],
            "network": [p.network for p in rows],
            "fabric_state": [p.fabric_state for p in rows],
            "architecture": [p.architecture for p in rows],
        },
    )


def _communicators(collected: Collected) -> pa.Table:
    rows = [comm for process in collected.processes.values() for comm in process.comms if comm.announced]
    return table(
        COMMUNICATORS,
        {
            "group": [c.group for c in rows],
            "comms_id": [signed(c.comm_id) for c in rows],
            "host": [c.process.host for c in rows],
            "pid": [c.process.pid for c in rows],
            **{
                name: [getattr(c, name) for c in rows]
                for name in ("device", "bus_id", "rank", "size", "nodes", "local_ranks", "color", "key")
            },
            "parent": [c.parent.group if c.parent is not None else None for c in rows],
            "complete": [c.complete for c in rows],
            "multi_node_nvlink": [c.mnnvl for c in rows],
            "nvls": [c.nvls for c in rows],
            "p2p_chunk_bytes": [c.chunk for c in rows],
            "path": [c.path for c in rows],
        },
    )


def _links(collected: Collected, who: _Who) -> pa.Table:
    rows = list(collected.channels.items())
    groups = [key[0] for key, _ in rows]
    sources, targets = [key[1] for key, _ in rows], [key[2] for key, _ in rows]
    hows = [key[3] for key, _ in rows]
    return table(
        LINKS,
        {
            "group": groups,
            "src": sources,
            "dst": targets,
            "src_rank": [who.global_rank(g, r) for g, r in zip(groups, sources, strict=True)],
            "dst_rank": [who.global_rank(g, r) for g, r in zip(groups, targets, strict=True)],
            "kind": [how.kind for how in hows],
            "how": [how.how for how in hows],
            "nic": [how.nic for how in hows],
            "layer": [_layer(who, key) for key, _ in rows],
            "gdr": [how.gdr for how in hows],
            "through": [how.through for how in hows],
            "read": [how.read for how in hows],
            "connection": [key[4] for key, _ in rows],
            "channels": [max(len(sent), len(received)) for _, (sent, received) in rows],
        },
    )


def _layer(who: _Who, key: tuple[str, int, int | None, object, int | None]) -> str | None:
    """IB or RoCE, where every process at an end of the link lists its device of that number so."""
    group, source, target, how, _ = key
    nic = getattr(how, "nic", None)
    if nic is None:
        return None
    ends = [who.members.get(group, {}).get(rank) for rank in (source, target) if rank is not None]
    said = set().union(*(_layers(process, nic) for process in ends if process is not None))
    return said.pop() if len(said) == 1 else None


def _layers(process: Process, nic: int) -> set[str]:
    """The layer of a process's network device; of an unlisted number, which is made of listed ones, all it can be."""
    listed = {index: device.layer for (_, index), device in process.devices.items() if device.layer is not None}
    return {listed[nic]} if nic in listed else set(listed.values())


def _algorithms(collected: Collected) -> pa.Table:
    rows = list(collected.algorithms.items())
    return table(
        ALGORITHMS,
        {
            "function": [key[0] for key, _ in rows],
            "size_bytes": [key[1] for key, _ in rows],
            "algorithm": [key[2] for key, _ in rows],
            "protocol": [key[3] for key, _ in rows],
            "calls": [count for _, count in rows],
        },
    )


def _notes(collected: Collected, who: _Who, source: Source) -> list[str]:
    notes = [fault.message for fault in source.faults]
    if collected.torn:
        notes.append(f"torn lines of NCCL left out: {collected.torn}")
    if collected.unplaced:
        notes.append(f"{collected.unplaced} channel lines fit several communicators")
    if who.disagree:
        notes.append(f"{who.disagree} processes have another rank in the largest communicator than on their label")
    return notes


def _trace(source: Source, process: Process, who: _Who, log: NcclLog, health: Health) -> RankTrace:
    devices = {comm.device for comm in process.comms if comm.device is not None}
    return RankTrace(
        path=source.name,
        format=FORMAT,
        identity=RankIdentity(
            rank=who.rank.get(process),
            rank_source=who.source.get(process),
            world_size=who.world,
            host=process.host,
            pid=process.pid,
            device=devices.pop() if len(devices) == 1 else None,
            backend=log.library,
        ),
        gpu_events=tables.empty(tables.GPU_EVENTS),
        comm_records=records(process, who.global_rank),
        launches=tables.empty(tables.LAUNCHES),
        cpu_marks=tables.empty(tables.CPU_MARKS),
        steps=tables.empty(tables.STEPS),
        groups=_groups(process.comms, who, log.library),
        health=health,
        witness=log,
    )


def _groups(comms: Sequence[Comm], who: _Who, library: str | None) -> pa.Table:
    rows = list({comm.group: comm for comm in comms if comm.announced}.values())
    ranks = [who.ranks(comm.group) for comm in rows]
    return table(
        tables.GROUPS,
        {
            "name": [comm.group for comm in rows],
            "backend": [library] * len(rows),
            "size": [comm.size for comm in rows],
            "ranks": ranks,
            "ranks_source": ["none" if members is None else "members" for members in ranks],
            "declared": [True] * len(rows),
        },
    )

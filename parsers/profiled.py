"""Calls as NCCL's profiler plugins report them: one row each, and the tables of the process that made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from parsers import tables
from parsers.assemble import table
from parsers.nccl_words import ROOTED, WORDS, elements, signed
from parsers.source import Source
from parsers.tables import Health, RankIdentity, RankTrace

LAYER = "nccl_profiler"

MEASURED = pa.schema(
    [
        ("group_name", tables.TEXT),
        ("exec_ns", pa.int64()),  # how long it ran; what that is measured on says `timing`
        ("timing", tables.TEXT),  # kernel_gpu | kernel_cpu | collective_cpu: the clock and what it bounds
        ("algbw_gbps", pa.float64()),
        ("busbw_gbps", pa.float64()),
        ("algorithm", tables.TEXT),
        ("protocol", tables.TEXT),
        ("channels", pa.int32()),
        ("network_peers", pa.list_(pa.int32())),  # ranks in the communicator that the proxy thread moved data for
    ]
)
"""What a profiler measured; row i belongs to row i of the trace's ``comm_records``."""


@dataclass(frozen=True, eq=False)
class ProfilerWitness:
    """What a profiler plugin says beyond the common tables.

    Attributes:
        plugin: ``inspector``, ``example`` or ``comma``.
        version: of its output; null where it says none.
        measured: `MEASURED`.
        own_ranks: the process's rank in each of its communicators, by `GROUPS.name`.
        nodes: how many nodes each communicator spans, where the plugin says it.
        dropped: calls that the plugin says it could not keep.
        sampled: whether it keeps only the latest call of each communicator and interval.
        networked: ranks in the communicator that the process exchanged data with over a network, by `GROUPS.name`.
    """

    plugin: str
    version: str | None
    measured: pa.Table
    own_ranks: Mapping[str, int]
    nodes: Mapping[str, int]
    dropped: int = 0
    sampled: bool = False
    networked: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Profiled:
    """One call.

    Attributes:
        op: NCCL's or torch.distributed's name.
        group: the communicator's id as text, ``0x...``.
        comm_name: given by the framework (NCCL 2.30 and later).
        rank, size: of the communicator.
        message_bytes: NCCL's count argument in bytes, where no type is known.
        count: that argument, where the type is known.
        peer: rank in the communicator, of a send or receive; the root of a rooted operation.
    """

    op: str
    group: str | None
    host: str | None = None
    pid: int | None = None
    comm_name: str | None = None
    rank: int | None = None
    size: int | None = None
    nodes: int | None = None
    message_bytes: int | None = None
    count: int | None = None
    dtype: str | None = None
    peer: int | None = None
    seq: int | None = None
    ts_ns: int | None = None
    dur_ns: int | None = None
    timing: str | None = None
    algbw_gbps: float | None = None
    busbw_gbps: float | None = None
    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None
    network_peers: tuple[int, ...] | None = None

    @property
    def word(self) -> str:
        """The operation as torch.distributed calls it."""
        return WORDS.get(self.op, self.op.lower())


def traces(
    source: Source,
    name: str,
    calls: Sequence[Profiled],
    health: Health,
    *,
    plugin: str,
    version: str | None,
    dropped: int = 0,
    sampled: bool = False,
) -> list[RankTrace]:
    """One `RankTrace` per process among the calls, in order of first appearance.

    The rank is null: a profiler knows ranks in communicators only (see `heuristics.joining`).
    """
    by_process: dict[tuple[str | None, int | None], list[Profiled]] = {}
    for call in calls:
        by_process.setdefault((call.host, call.pid), []).append(call)
    found = []
    for (host, pid), own in by_process.items():
        comms = {call.group: call for call in own if call.group is not None}
        witness = ProfilerWitness(
            plugin=plugin,
            version=version,
            measured=_measured(own),
            own_ranks={group: call.rank for group, call in comms.items() if call.rank is not None},
            nodes={group: call.nodes for group, call in comms.items() if call.nodes is not None},
            dropped=dropped,
            sampled=sampled,
            networked=_networked(own),
        )
        found.append(
            RankTrace(
                path=source.name,
                format=name,
                identity=RankIdentity(None, None, None, host=host, pid=pid, backend="nccl"),
                gpu_events=tables.empty(tables.GPU_EVENTS),
                comm_records=_records(own),
                launches=tables.empty(tables.LAUNCHES),
                cpu_marks=tables.empty(tables.CPU_MARKS),
                steps=tables.empty(tables.STEPS),
                groups=_groups(comms),
                health=health,
                witness=witness,
            )
        )
    return found


def _networked(calls: Sequence[Profiled]) -> dict[str, tuple[int, ...]]:
    peers: dict[str, set[int]] = {}
    for call in calls:
        if call.group is not None and call.network_peers:
            peers.setdefault(call.group, set()).update(call.network_peers)
    return {group: tuple(sorted(ranks)) for group, ranks in peers.items()}


def _records(calls: Sequence[Profiled]) -> pa.Table:
    words = [call.word for call in calls]
    both = [
        (None, None) if call.count is None else elements(word, call.count, call.size)
        for call, word in zip(calls, words, strict=True)
    ]
    return table(
        tables.COMM_RECORDS,
        {
            "layer": [LAYER] * len(calls),
            "name": [call.op for call in calls],
            "ts_ns": [call.ts_ns for call in calls],
            "dur_ns": [call.dur_ns for call in calls],
            "collective": words,
            "dtype": [call.dtype for call in calls],
            "in_nelems": [given for given, _ in both],
            "out_nelems": [taken for _, taken in both],
            "message_bytes": [call.message_bytes for call in calls],
            "group_name": [call.group for call in calls],
            "group_desc": [call.comm_name for call in calls],
            "group_size": [call.size for call in calls],
            "rank_arg": [call.peer if word in ROOTED else call.rank for call, word in zip(calls, words, strict=True)],
            "seq": [call.seq for call in calls],
            "comms_id": [signed(call.group) for call in calls],
        },
    )


def _measured(calls: Sequence[Profiled]) -> pa.Table:
    names = ("timing", "algbw_gbps", "busbw_gbps", "algorithm", "protocol", "channels", "network_peers")
    return table(
        MEASURED,
        {
            "group_name": [call.group for call in calls],
            "exec_ns": [call.dur_ns for call in calls],
            **{name: [getattr(call, name) for call in calls] for name in names},
        },
    )


def _groups(comms: Mapping[str, Profiled]) -> pa.Table:
    return table(
        tables.GROUPS,
        {
            "name": list(comms),
            "desc": [call.comm_name for call in comms.values()],
            "backend": ["nccl"] * len(comms),
            "size": [call.size for call in comms.values()],
            "ranks_source": ["none"] * len(comms),
            "declared": [True] * len(comms),
        },
    )

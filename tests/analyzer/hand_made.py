"""Ranks made by hand: GPU events and calls as lists of plain numbers in µs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from analyzer.exposure import Timeline, gpu_work, measure, timeline
from analyzer.measured import Measured
from analyzer.rows import counted_calls
from analyzer.step_marks import window_of
from analyzer.summary.make import summarize
from analyzer.summary.model import RankSummary
from heuristics.labelled import GpuRole, LabelledRank, LabelStats, Steps
from parsers import tables
from parsers.tables import Health, RankIdentity, RankTrace

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_kernel"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Kernel:
    """One GPU event, times in µs."""

    ts: float
    dur: float
    role: GpuRole = GpuRole.COMPUTE
    stream: int = 7
    device: int = 0
    call: int = -1
    graph: int | None = None
    launched: float | None = None


@dataclass(frozen=True)
class Call:
    """One collective call."""

    ts: float = 0.0
    dur: float = 0.0
    primitive: str = "all_reduce"
    group: int | None = 0
    size: int | None = 2
    size_bytes: int | None = 1024
    sent_bytes: int | None = 1024
    dtype: str | None = "bfloat16"
    op: str | None = "allreduce"
    phase: str = "unknown"
    step: int | None = None
    seq: int | None = None
    comms_id: int | None = None
    tid: int | None = 1
    library: str | None = "nccl"
    classified_by: str = "metadata"
    role: str = "payload"
    direction: str | None = None
    peer: int | None = None
    root: int | None = None
    stream: int | None = None


@dataclass(frozen=True)
class Mark:
    """One CPU mark."""

    ts: float
    dur: float
    name: str
    kind: str = "op"
    tid: int = 1


def ns(us: float | None) -> int | None:
    """µs to ns."""
    return None if us is None else round(us * 1000)


def _table(schema: pa.Schema, rows: Sequence[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)


def labelled(
    kernels: Sequence[Kernel] = (),
    calls: Sequence[Call] = (),
    *,
    marks: Sequence[Mark] = (),
    steps: Sequence[tuple[int, float, float]] = (),
    cut: Sequence[int] = (),
    groups: Sequence[Sequence[int]] = ((0, 1),),
    rank: int | None = 0,
    world_size: int | None = 2,
    path: str = "rank0.json",
    host: str | None = None,
    health: Health | None = None,
    metadata: dict[str, object] | None = None,
) -> LabelledRank:
    """A labelled rank; steps are (number, begin, length), those in ``cut`` are not whole."""
    events = [
        {
            "ts_ns": ns(k.ts),
            "dur_ns": ns(k.dur),
            "device": k.device,
            "stream": k.stream,
            "kind": "kernel",
            "name": NCCL if k.role == GpuRole.COMM else GEMM,
            "correlation": i + 1,
            "graph": k.graph,
        }
        for i, k in enumerate(kernels)
    ]
    launches = [
        {"ts_ns": ns(k.launched), "dur_ns": 1000, "tid": 1, "correlation": i + 1}
        for i, k in enumerate(kernels)
        if k.launched is not None
    ]
    step_table = _table(tables.STEPS, [{"number": n, "ts_ns": ns(b), "dur_ns": ns(d)} for n, b, d in steps])
    whole = [n not in cut for n, _, _ in steps]
    trace = RankTrace(
        path=path,
        format="kineto",
        identity=RankIdentity(rank, "metadata", world_size, host=host),
        gpu_events=_table(tables.GPU_EVENTS, events),
        comm_records=tables.empty(tables.COMM_RECORDS),
        launches=_table(tables.LAUNCHES, launches),
        cpu_marks=_table(
            tables.CPU_MARKS,
            [{"ts_ns": ns(m.ts), "dur_ns": ns(m.dur), "tid": m.tid, "kind": m.kind, "name": m.name} for m in marks],
        ),
        steps=step_table,
        groups=tables.empty(tables.GROUPS),
        health=health or Health(file_bytes=1000, events=len(events)),
        metadata=metadata or {},
    )
    return LabelledRank(
        trace=trace,
        collectives=_collectives(calls),
        groups=_table(
            tables.GROUPS,
            [
                {"name": str(i), "size": len(g), "ranks": list(g), "ranks_source": "pg_config", "declared": True}
                for i, g in enumerate(groups)
            ],
        ),
        gpu_role=np.array([k.role for k in kernels], dtype=np.int8),
        gpu_call=np.array([k.call for k in kernels], dtype=np.int32),
        stats=LabelStats(),
        steps=Steps("profiler_step" if steps else "none", step_table, np.array(whole, dtype=np.bool_)),
    )


def _collectives(calls: Sequence[Call]) -> pa.Table:
    rows = [
        {
            "ts_ns": ns(c.ts),
            "dur_ns": ns(c.dur),
            "launch_ts_ns": ns(c.ts),
            "tid": c.tid,
            "primitive": c.primitive,
            "role": c.role,
            "library": c.library,
            "classified_by": c.classified_by,
            "conflict": False,
            "op": c.op,
            "name": NCCL,
            "group": c.group,
            "group_size": c.size,
            "dtype": c.dtype,
            "size_bytes": c.size_bytes,
            "sent_bytes": c.sent_bytes,
            "seq": c.seq,
            "comms_id": c.comms_id,
            "step": c.step,
            "phase": c.phase,
            "direction": c.direction,
            "peer": c.peer,
            "root": c.root,
            "stream": c.stream,
        }
        for c in calls
    ]
    return _table(tables.COLLECTIVES, rows)


def measured(
    rank: LabelledRank, dims: Sequence[str], *, link: str | None = None, wait_us: Sequence[float] | None = None
) -> Measured:
    """A rank whose calls have dimensions, measured over its steps or its whole span."""
    source = read(rank)
    window = window_of(source, None)
    calls = rank.collectives.num_rows
    wait = np.full(calls, -1) if wait_us is None else np.array([round(w * 1000) for w in wait_us])
    return Measured(
        source=source,
        dims=list(dims),
        links_of_group=[(link, None)] * rank.groups.num_rows,
        window=window,
        counted=counted_calls(rank.collectives, window.steps),
        time=measure(source.line, list(dims), window),
        wait_ns=wait.astype(np.int64),
    )


def line_of(rank: LabelledRank) -> Timeline:
    """The timeline of a rank."""
    return timeline(rank, gpu_work(rank))


def read(rank: LabelledRank) -> RankSummary:
    """A rank as it leaves the reading stage."""
    return summarize(rank)

"""Our figures, and the same events measured the other tool's way, one step of its definition at a time.

Each step changes one thing; what it changes of a figure is that difference's share of the whole. After the last step
the figures should be the other tool's: what is left is shown as not explained. Definitions as read in
HolisticTraceAnalysis 0.6.1 (hta/common/types.py, trace.py, trace_parser.py, analyzers/).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from analyzer import intervals
from analyzer.exposure import gpu_work
from analyzer.intervals import Bools, Ints
from analyzer.step_marks import launched, step_marks
from analyzer.windows import Window
from heuristics.arrays import NULL, codes, ints
from heuristics.labelled import GpuRole, LabelledRank

COMPUTE, COMM, OTHER, NOTHING = range(4)

_COMM = re.compile(r"(^nccl.*)|(^hip)|(^hccl)|(.*ncclKernel.*)")
_NOT_COMPUTE = re.compile(
    r"(^nccl)|(.*Memcpy)|(.*Memset)|(.*dma)|(^.*Sync)|(^Stream Wait Event)|(cuda.*LaunchKernel)|(^runFunction)|(^hip)"
    r"|(^job_exe)|(^packet)|(^pe_exe)|(^cpum_exe_subgraph)|(^hccl)|(^collective_subgraph_execution)"
)
_MEMORY = re.compile(r"(^(hip)?Memcpy)|(^(hip)?Memset)|(^dma)")

CAUSES = {
    "window": "GPU events launched before the last profiler step begins, uncut, from the first to the last; here the "
    "complete steps on the GPU's own time",
    "no launch": "GPU events without a recorded launch are dropped; here they are kept",
    "durations": "impossible durations are kept; here they are cut where the next event of the stream begins",
    "devices": "all GPUs of a file are one timeline; here a rank is measured on its own GPU",
    "names": "what an event is, is told from its name alone; here from metadata, operator and annotation first, and "
    "waits are no work",
    "rounding": "times with decimals are rounded to whole microseconds, starts up and ends down",
}
"""The other tool's way, by the step that adopts it."""


@dataclass(frozen=True)
class Figures:
    """Totals over the window in µs; the overlap in percent of communication time, None without any."""

    overlap_percent: float | None
    compute_us: float
    idle_us: float
    span_us: float


@dataclass(frozen=True, eq=False)
class _Events:
    start: Ints
    end: Ints
    kind: Ints
    window: Window | None


def figures(rank: LabelledRank, *, include_last_step: bool = False) -> Iterator[tuple[str, Figures]]:
    """Our figures first (named ``ours``), then those after each step of `CAUSES`.

    Args:
        rank: one rank with its events.
        include_last_step: what the other tool was asked for.
    """
    work = gpu_work(rank)
    marks = step_marks(rank, work)
    rows = np.flatnonzero(marks.complete)
    busy = work.role != GpuRole.IGNORE
    span = [[int(work.start[busy].min()), int(work.end[busy].max())]] if busy.any() else np.empty((0, 2))
    edges = marks.edges[rows] if len(rows) else np.array(span, dtype=np.int64).reshape(-1, 2)
    events = _Events(work.start, work.end, _of_role(work.role.astype(np.int64)), Window(edges))
    yield "ours", _measured(events)
    keep, recorded = _launched_in_time(rank, include_last_step)
    events = _Events(events.start, events.end, np.where(keep, events.kind, NOTHING), None)
    yield "window", _measured(events)
    kept = keep & recorded
    events = replace(events, kind=np.where(kept, events.kind, NOTHING))
    yield "no launch", _measured(events)
    table = rank.trace.gpu_events
    raw_end = ints(table, "ts_ns", 0) + np.maximum(ints(table, "dur_ns", 0), 0)
    events = replace(events, end=raw_end)
    yield "durations", _measured(events)
    every = _of_role(rank.gpu_role.astype(np.int64))
    events = replace(events, kind=np.where(kept, every, NOTHING))
    yield "devices", _measured(events)
    events = replace(events, kind=np.where(kept, _of_name(rank), NOTHING))
    yield "names", _measured(events)
    if (events.start % 1000).any() or (events.end % 1000).any():
        events = replace(events, start=-(-events.start // 1000) * 1000, end=events.end // 1000 * 1000)
    yield "rounding", _measured(events)


def _of_role(role: Ints) -> Ints:
    kinds = np.full(len(GpuRole), NOTHING, dtype=np.int64)
    kinds[GpuRole.COMPUTE] = COMPUTE
    kinds[[GpuRole.COMM, GpuRole.COMM_SYNC]] = COMM
    kinds[GpuRole.MEMCPY] = OTHER
    return kinds[role]


def _of_name(rank: LabelledRank) -> Ints:
    code, names = codes(rank.trace.gpu_events, "name")
    kind, kinds = codes(rank.trace.gpu_events, "kind")
    by_name = np.array([_kind_of(name) for name in names] + [NOTHING], dtype=np.int64)[code]
    annotated = np.array([word == "annotation" for word in kinds] + [True], dtype=np.bool_)[kind]
    return np.where(annotated, NOTHING, by_name)


def _kind_of(name: str) -> int:
    if _COMM.match(name):
        return COMM
    if _MEMORY.match(name):
        return OTHER
    return OTHER if _NOT_COMPUTE.match(name) else COMPUTE


def _launched_in_time(rank: LabelledRank, include_last: bool) -> tuple[Bools, Bools]:
    """Which events were launched in the other tool's window, and which have a launch; all, with under two steps."""
    table, steps = rank.trace.gpu_events, rank.trace.steps
    everything = np.ones(table.num_rows, dtype=np.bool_)
    if steps.num_rows < 2:
        return everything, everything
    begin = ints(steps, "ts_ns")
    correlation = ints(table, "correlation")
    launch = launched(rank, correlation, ints(table, "ts_ns"))
    recorded = np.isin(correlation, ints(rank.trace.launches, "correlation")) & (correlation != NULL)
    last = int(begin[-1] + ints(steps, "dur_ns")[-1]) if include_last else int(begin[-1])
    return (launch <= last if include_last else launch < last), recorded


def _measured(events: _Events) -> Figures:
    """Measure what there is, inside of the window where there is one."""
    spans = {
        kind: intervals.union(events.start[events.kind == kind], events.end[events.kind == kind])
        for kind in (COMPUTE, COMM, OTHER)
    }
    busy = intervals.union_of(list(spans.values()))
    if events.window is not None:
        low, high = events.window.edges[:, 0], events.window.edges[:, 1]
    elif len(busy.start):
        low, high = busy.start[:1], busy.end[-1:]
    else:
        low, high = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)

    def inside(part: intervals.Spans) -> int:
        return int(intervals.covered(part, low, high).sum())

    comm = inside(spans[COMM])
    both = inside(intervals.intersection(spans[COMM], spans[COMPUTE]))
    total = int((high - low).sum())
    return Figures(
        overlap_percent=100 * both / comm if comm else None,
        compute_us=inside(spans[COMPUTE]) / 1000,
        idle_us=(total - inside(busy)) / 1000,
        span_us=total / 1000,
    )

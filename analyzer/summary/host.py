"""What held up the side that launches, and what communication did to the kernels beside it: read off the events, kept
as a few numbers per call, so that nothing later needs the events."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from analyzer import intervals
from analyzer.exposure import RESOLUTION_NS, GpuWork, Timeline
from analyzer.intervals import NOTHING, Ints, Spans
from analyzer.step_marks import launched
from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.labelled import GpuRole, LabelledRank
from parsers.columns import distinct_values

KEPT = 8
"""Names of host activity that are kept, by the time they took: what holds up every call is among the longest."""

SYNC, DATA, COLLECTOR = "device sync", "data loading", "garbage collection"

_DATA = re.compile(r"dataloader|next\(data|data_?loading|get_batch|fetch_batch", re.IGNORECASE)
_COLLECTOR = re.compile(r"\bgc\b|garbage.?collect", re.IGNORECASE)

ALONE, BESIDE = 0.02, 0.9
"""Shares of a kernel's time with communication beside it: below the first it ran alone, from the second on it did not.
What lies between says nothing clear."""

STEADY = 0.1
"""Spread (quartiles over median) up to which durations of one name are taken for one and the same piece of work."""


@dataclass(frozen=True)
class Tax:
    """One kernel that is slower with communication beside it.

    Attributes:
        name: of the kernel.
        alone_ns: its median duration with nothing beside it.
        beside_ns: with communication beside it.
        extra_ns: how much longer its slower runs took together.
        count: how many those were.
    """

    name: str
    alone_ns: int
    beside_ns: int
    extra_ns: int
    count: int


@dataclass(frozen=True, eq=False)
class Host:
    """The host's side of each call.

    Attributes:
        names: ``<what>: <name>`` of what held up the CPU, longest first.
        at_start: ``(names, calls)`` int64 ns, how much of it there had been when each call arrived.
        at_end: the same when the call ended.
        dry_ns: int64 ns per call, how long the GPU had been out of work when the call was launched; -1 where the launch
            is not known.
        ready_ns: int64 ns per call, when the compute that was launched before the call was over, or the launch itself
            if that came later: the call could have begun then, had its stream been free; its start where the launch is
            not known.
        passes: ``(steps, 2)`` int64 ns, begin of the first and end of the last compute of each step that was launched
            before the optimizer: the model's own passes; both -1 where there is none.
        taxes: kernels that communication slowed down, over all steps.
        lost_launches: launches that left nothing on the GPU.
        early: GPU events that begin before their launch, and by how many ns at most: the clocks of CPU and GPU differ.
        streams: those that mostly compute.
    """

    names: tuple[str, ...] = ()
    at_start: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    at_end: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    dry_ns: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    passes: Ints = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    taxes: tuple[Tax, ...] = ()
    lost_launches: int = 0
    early: tuple[int, int] = (0, 0)
    streams: tuple[int, ...] = ()
    ready_ns: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def host(rank: LabelledRank, work: GpuWork, line: Timeline, edges: Ints) -> Host:
    """Read the host's side off the events.

    Args:
        rank: the labelled rank.
        work: from `analyzer.exposure.gpu_work`.
        line: the rank's full timeline, not condensed.
        edges: ``(steps, 2)`` int64 ns.
    """
    held = _held_up(rank)
    calls = len(line.call_start)
    start, end = np.zeros((len(held), calls), dtype=np.int64), np.zeros((len(held), calls), dtype=np.int64)
    for i, spans in enumerate(held.values()):
        start[i] = intervals.covered_before(spans, line.call_start)
        end[i] = intervals.covered_before(spans, line.call_end)
    return Host(
        tuple(held),
        start,
        end,
        _dry(rank, line),
        _passes(rank, work, edges),
        _taxes(rank, work, line),
        *_against_launches(rank),
        streams=compute_streams(rank),
        ready_ns=_ready(rank, work, line),
    )


MAIN = 0.1
"""Share of all compute that a stream must run to be a compute stream: FSDP runs the copies around its collectives on
the very streams of those collectives (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py)."""


def compute_streams(rank: LabelledRank) -> tuple[int, ...]:
    """The streams that mostly compute."""
    events = rank.trace.gpu_events
    stream, length = ints(events, "stream"), np.maximum(ints(events, "dur_ns", 0), 0)
    compute = (rank.gpu_role == GpuRole.COMPUTE) & (stream != NULL)
    streams, at = np.unique(stream[compute], return_inverse=True)
    busy = np.bincount(at.ravel(), weights=length[compute], minlength=len(streams))
    return tuple(streams[busy >= MAIN * busy.sum()].tolist())


def _held_up(rank: LabelledRank) -> dict[str, Spans]:
    """When the CPU stood still or did something else, by what it was; of nested marks the outermost counts."""
    marks = rank.trace.cpu_marks
    kind, kinds = codes(marks, "kind")
    name, names = codes(marks, "name")
    if not len(kind):
        return {}
    what = np.array([_what(n) for n in names] + [NULL], dtype=np.int64)[name]
    of_mark = np.where(kind == code_of(kinds, "sync"), 0, np.where(kind == code_of(kinds, "annotation"), what, NULL))
    rows = np.flatnonzero((of_mark != NULL) & (ints(marks, "dur_ns", 0) > 0))
    if not len(rows):
        return {}
    start = ints(marks, "ts_ns")[rows]
    end = start + ints(marks, "dur_ns", 0)[rows]
    rows = rows[_outermost(start, end, ints(marks, "tid")[rows])]
    start = ints(marks, "ts_ns")[rows]
    end = start + ints(marks, "dur_ns", 0)[rows]
    words, of_row = np.unique(np.stack((of_mark[rows], name[rows]), axis=1), axis=0, return_inverse=True)
    of_row = of_row.ravel()
    total = np.bincount(of_row, weights=end - start)
    out = {}
    for i in np.argsort(-total, kind="stable")[:KEPT].tolist():
        said = f"{(SYNC, DATA, COLLECTOR)[int(words[i, 0])]}: {names[int(words[i, 1])]}"
        out[said] = intervals.union(start[of_row == i], end[of_row == i])
    return out


def _what(name: str) -> int:
    return 1 if _DATA.search(name) else 2 if _COLLECTOR.search(name) else NULL


def _outermost(start: Ints, end: Ints, thread: Ints) -> Ints:
    """Rows that lie in no other of their thread."""
    order = np.lexsort((-end, start, thread))
    keep = []
    for part in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1):
        reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end[part])[:-1]))
        keep.append(part[end[part] > reach])
    return np.concatenate(keep)


def _dry(rank: LabelledRank, line: Timeline) -> Ints:
    """How long the GPU had been out of work at the launch of each call; 0 where it was not."""
    launch = ints(rank.collectives, "launch_ts_ns")
    if not line.on_gpu:
        return np.full(len(launch), NULL, dtype=np.int64)
    known = (launch != NULL) & (line.call_end > line.call_start)
    busy = intervals.union_of([line.compute, line.memcpy, intervals.union(line.comm_start, line.comm_end)])
    if not len(busy.start):
        return np.full(len(launch), NULL, dtype=np.int64)
    row = np.searchsorted(busy.end, line.call_start, side="right") - 1
    before = np.where(row >= 0, busy.end[np.maximum(row, 0)], launch)
    # Where something runs up to the very start, the GPU was never out of work.
    running = intervals.covered(busy, line.call_start - 1, line.call_start) > 0
    dry = np.where(running, 0, np.clip(np.minimum(launch, line.call_start) - before, 0, None))
    return np.where(known, dry, NULL).astype(np.int64)


def _ready(rank: LabelledRank, work: GpuWork, line: Timeline) -> Ints:
    """When each call could have begun: streams of communication queue calls whose data has long been there."""
    asked = ints(rank.collectives, "launch_ts_ns")
    # Copies around a call run on its own stream, and stand in it behind the call before.
    computes = np.isin(ints(rank.trace.gpu_events, "stream"), compute_streams(rank))
    rows = np.flatnonzero((work.role == GpuRole.COMPUTE) & (work.end > work.start) & computes)
    if not line.on_gpu or not rank.trace.launches.num_rows or not len(rows):
        return line.call_start.copy()
    launch = launched(rank, ints(rank.trace.gpu_events, "correlation")[rows], work.start[rows])
    order = np.argsort(launch, kind="stable")
    over = np.maximum.accumulate(work.end[rows][order])
    before = np.searchsorted(launch[order], asked) - 1
    computed = np.where(before >= 0, over[np.maximum(before, 0)], asked)
    return np.where(asked == NULL, line.call_start, np.minimum(line.call_start, np.maximum(asked, computed)))


def _against_launches(rank: LabelledRank) -> tuple[int, tuple[int, int]]:
    """Launches without GPU event, and GPU events before their launch (how many, and by how many ns at most)."""
    asked = ints(rank.trace.launches, "correlation")
    ran = ints(rank.trace.gpu_events, "correlation")
    if not len(asked) or not len(ran):
        return 0, (0, 0)
    start = ints(rank.trace.gpu_events, "ts_ns")
    lead = launched(rank, ran, start) - start
    early = lead > RESOLUTION_NS
    lost = int(np.count_nonzero((asked > 0) & ~np.isin(asked, ran)))
    return lost, (int(early.sum()), int(lead[early].max(initial=0)))


def _passes(rank: LabelledRank, work: GpuWork, edges: Ints) -> Ints:
    """First and last compute of each step, without what the optimizer launched."""
    out = np.full((len(edges), 2), NULL, dtype=np.int64)
    rows = np.flatnonzero((work.role == GpuRole.COMPUTE) & (work.end > work.start))
    if not len(rows) or not len(edges):
        return out
    start, end = work.start[rows], work.end[rows]
    launch = launched(rank, ints(rank.trace.gpu_events, "correlation")[rows], start)
    marks = rank.trace.cpu_marks
    kind, kinds = codes(marks, "kind")
    updates = kind == code_of(kinds, "optimizer")
    at = ints(marks, "ts_ns")[updates]
    inside = intervals.union(at, at + ints(marks, "dur_ns", 0)[updates])
    own = intervals.covered(inside, launch, launch + 1) == 0
    step = np.searchsorted(edges[:, 0], start, side="right") - 1
    own &= (step >= 0) & (start < edges[np.maximum(step, 0), 1])
    first = np.full(len(edges), np.iinfo(np.int64).max)
    last = np.full(len(edges), NULL, dtype=np.int64)
    np.minimum.at(first, step[own], start[own])
    np.maximum.at(last, step[own], end[own])
    out[:, 0], out[:, 1] = np.where(last == NULL, NULL, first), last
    return out


def _taxes(rank: LabelledRank, work: GpuWork, line: Timeline) -> tuple[Tax, ...]:
    """Kernels of one name, with steady durations alone and beside communication, that are slower in the second case."""
    compute = np.flatnonzero((work.role == GpuRole.COMPUTE) & (work.end > work.start))
    comm = intervals.union(line.comm_start, line.comm_end) if line.on_gpu else NOTHING
    if not len(compute) or not len(comm.start):
        return ()
    start, end = work.start[compute], work.end[compute]
    length = end - start
    share = intervals.covered(comm, start, end) / length
    name, names = codes(rank.trace.gpu_events, "name")
    name = name[compute]
    alone, beside = share <= ALONE, share >= BESIDE
    out = []
    for one in distinct_values(name[alone & np.isin(name, name[beside])]).tolist():
        free, taxed = length[alone & (name == one)], length[beside & (name == one)]
        if min(len(free), len(taxed)) < 2 or not (_steady(free) and _steady(taxed)):
            continue
        middle = int(np.median(free))
        extra = int(taxed.sum()) - middle * len(taxed)
        if extra > 0:
            out.append(Tax(names[one], middle, int(np.median(taxed)), extra, len(taxed)))
    return tuple(sorted(out, key=lambda t: -t.extra_ns)[:KEPT])


def _steady(values: Ints) -> bool:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return bool(high - low <= STEADY * middle)

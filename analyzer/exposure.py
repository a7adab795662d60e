"""How one rank spent its time: computing, communicating in the open, copying, or idle.

Per window (a step, or the whole span):

* compute: at least one compute kernel runs on this GPU;
* overlapped: communication runs and compute runs too;
* exposed: communication runs and no compute does;
* memcpy: a local copy or fill runs, and neither of the two;
* idle: none of them. ``compute + exposed + memcpy + idle`` is the window, to the nanosecond.

A dimension is *busy* in the union of its communication. Where several dimensions are exposed at once the time is
divided equally among them, so that the dimensions add up to the total; *overlapped* is what remains of busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analyzer import intervals
from analyzer.intervals import NOTHING, Bools, Floats, Ints, Spans
from analyzer.windows import Window
from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.labelled import GpuRole, LabelledRank
from parsers.columns import distinct_values

RESOLUTION_NS = 1_000
"""Traces written in whole microseconds cut off start and duration, so that ends are good to one microsecond."""

COMM_NAMESPACES = ("c10d::", "c10d_functional::", "_c10d_functional::", "_c10d_functional_autograd::", "symm_mem::")
"""CPU operators of these namespaces communicate (or wait for communication): they are not compute."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """What ran when, on one rank.

    Attributes:
        on_gpu: whether this is the GPU's time; else that of the CPU threads.
        compute: when compute ran.
        memcpy: when local copies ran.
        comm_start: int64 ns, one per piece of communication: a kernel or copy on a GPU, a call on a CPU.
        comm_end: int64 ns.
        comm_call: int64, the row of the rank's ``COLLECTIVES`` it belongs to; -1 for none.
        call_start: int64 ns, one per row of ``COLLECTIVES``.
        call_end: int64 ns; equal to the start where a call left nothing to measure.
        clipped: GPU events that were cut because they outlasted later events of their own stream.
        left_out: events on other GPUs than the rank's own.
        first: when the first work of any kind began, in ns.
        last: when the last ended.
    """

    on_gpu: bool
    compute: Spans
    memcpy: Spans
    comm_start: Ints
    comm_end: Ints
    comm_call: Ints
    call_start: Ints
    call_end: Ints
    clipped: int
    left_out: int
    first: int
    last: int

    @property
    def divides(self) -> bool:
        """Whether the record shows what communication may hide behind: a GPU, or operators that compute."""
        return self.on_gpu or bool(len(self.compute.start))


@dataclass(frozen=True, eq=False)
class RankTime:
    """The time of one rank, per window; every array is int64 ns with one entry (or row) a window.

    Attributes:
        window: length of each window.
        dims: names of the columns of ``busy`` and ``exposed_of``.
        busy: ``(windows, dims)``.
        exposed_of: ``(windows, dims)``; a row sums to ``exposed``.
    """

    window: Ints
    compute: Ints
    exposed: Ints
    overlapped: Ints
    memcpy: Ints
    idle: Ints
    dims: tuple[str, ...]
    busy: Ints
    exposed_of: Ints


@dataclass(frozen=True, eq=False)
class GpuWork:
    """The events of the rank's own GPU, impossible ends cut; empty where no GPU ran.

    Attributes:
        start: int64 ns, one per row of ``GPU_EVENTS``.
        end: int64 ns.
        role: int8 `GpuRole`; events of other GPUs are ``IGNORE``.
        clipped: how many ends were cut.
        left_out: events on other GPUs.
    """

    start: Ints
    end: Ints
    role: npt.NDArray[np.int8]
    clipped: int
    left_out: int


def gpu_work(rank: LabelledRank) -> GpuWork:
    """The GPU events of a rank: compute on one GPU cannot hide the communication of another."""
    events = rank.trace.gpu_events
    start = ints(events, "ts_ns", 0)
    end = start + np.maximum(ints(events, "dur_ns", 0), 0)
    foreign = _foreign(rank, end - start)
    role = np.where(foreign, np.int8(GpuRole.IGNORE), rank.gpu_role)
    # Branches of a CUDA graph are reported under the stream that launched the graph, side by side.
    serial = (role != GpuRole.IGNORE) & (ints(events, "graph") == NULL) & (ints(events, "stream") != NULL)
    end, clipped = clip_serial(start, end, _lanes(events), serial)
    return GpuWork(start, end, role, clipped, int(np.count_nonzero(foreign & (rank.gpu_role != GpuRole.IGNORE))))


def _foreign(rank: LabelledRank, length: Ints) -> Bools:
    """Events that are not on the rank's own GPU: the one named, else where most communication ran, else most work."""
    device = ints(rank.trace.gpu_events, "device", 0)
    if not len(device) or int(device.min()) == int(device.max()):
        return np.zeros(len(device), dtype=np.bool_)
    own = rank.trace.identity.device
    if own is None:
        for roles in ((GpuRole.COMM, GpuRole.COMM_SYNC), (GpuRole.COMPUTE, GpuRole.MEMCPY)):
            mine = np.isin(rank.gpu_role, roles)
            if mine.any():
                devices, place = np.unique(device[mine], return_inverse=True)
                own = int(devices[np.argmax(np.bincount(place, weights=length[mine]))])
                break
    return np.zeros(len(device), dtype=np.bool_) if own is None else device != own


def timeline(rank: LabelledRank, work: GpuWork) -> Timeline:
    """What ran when on one rank; ``work`` comes from `gpu_work`."""
    return _gpu_timeline(rank, work) if rank.trace.on_gpu else _cpu_timeline(rank)


def measure(line: Timeline, dims: Sequence[str], window: Window) -> RankTime:
    """Divide the windows of one rank up.

    Args:
        line: the rank's timeline.
        dims: the dimension of each row of the rank's ``COLLECTIVES``.
        window: where to measure.
    """
    low, high = window.edges[:, 0], window.edges[:, 1]
    by_dim = _by_dimension(line, dims)
    parts = list(by_dim.values())
    comm = intervals.union_of(parts)
    either = intervals.union_of([line.compute, comm])
    everything = intervals.union_of([either, line.memcpy])
    compute, any_comm, work, busy = (
        intervals.covered(spans, low, high) for spans in (line.compute, comm, either, everything)
    )
    each = [intervals.covered(p, low, high) for p in parts]
    return RankTime(
        window=high - low,
        compute=compute,
        exposed=work - compute,
        overlapped=any_comm - (work - compute),
        memcpy=busy - work,
        idle=high - low - busy,
        dims=tuple(by_dim),
        busy=np.stack(each, axis=1) if each else np.zeros((len(low), 0), dtype=np.int64),
        exposed_of=intervals.share(parts, line.compute, window.edges),
    )


def measure_parts(
    line: Timeline, window: Window, part_of_call: Ints, dim_of_part: Sequence[int]
) -> tuple[Floats, Floats]:
    """Busy and exposed time of groups of calls, over all windows.

    Args:
        line: the rank's timeline.
        window: where to measure.
        part_of_call: which group each call belongs to, -1 for none.
        dim_of_part: a number per group; time in the open is divided among dimensions first, then within each.

    Returns:
        Two ``(groups,)`` float64 arrays in ns: time in which a call of the group ran, and its exposed share.
    """
    part = np.append(part_of_call, -1)[line.comm_call]
    parts = [_of(line.comm_start, line.comm_end, part == i) for i in range(len(dim_of_part))]
    low, high = window.edges[:, 0], window.edges[:, 1]
    busy = np.array([float(intervals.covered(p, low, high).sum()) for p in parts])
    return busy, intervals.share_in_two(parts, dim_of_part, line.compute, window.edges)


def _by_dimension(line: Timeline, dims: Sequence[str]) -> dict[str, Spans]:
    """When each dimension communicated; what belongs to no call is ``unknown``."""
    names = sorted({*dims, "unknown"})
    place = {name: i for i, name in enumerate(names)}
    of_call = np.array([place[d] for d in dims] + [place["unknown"]], dtype=np.int64)
    of_piece = of_call[line.comm_call]
    spans = {name: _of(line.comm_start, line.comm_end, of_piece == i) for name, i in place.items()}
    return {name: s for name, s in spans.items() if len(s.start)}


def clip_serial(start: Ints, end: Ints, lane: Ints, serial: Bools) -> tuple[Ints, int]:
    """Cut events that outlast later events of their own lane, beyond the next one.

    A stream runs its work in order: an event cannot outlast those that come after it. Events that merely run into the
    next one are left alone, because programmatic dependent launch starts a kernel before its predecessor is done (CUDA
    C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"). The next event alone is no witness
    either: which of two is wrong would be a guess.

    Args:
        start: int64 ns.
        end: int64 ns.
        lane: the stream of each event.
        serial: which events are work that their stream does in order; the others are left alone.

    Returns:
        The ends, impossible ones moved to the start of the next event of the lane, and how many were moved.
    """
    rows = np.flatnonzero(serial & (end > start))
    order = rows[np.argsort(_small(lane[rows]), kind="stable")]
    cuts = np.flatnonzero(np.diff(lane[order])) + 1
    out, clipped = end.copy(), 0
    for mine in np.split(order, cuts):
        if np.any(start[mine][1:] < start[mine][:-1]):
            mine = mine[np.argsort(start[mine], kind="stable")]
        earliest_later = np.minimum.accumulate(end[mine][::-1])[::-1][2:]
        wrong = np.flatnonzero(end[mine][:-2] > earliest_later + RESOLUTION_NS)
        out[mine[wrong]] = np.maximum(start[mine[wrong + 1]], start[mine[wrong]])
        clipped += len(wrong)
    return out, clipped


def _small(lane: Ints) -> np.ndarray:
    """Lanes as 16-bit numbers where they fit, which NumPy sorts in linear time."""
    if len(lane) and int(lane.min()) >= 0 and int(lane.max()) < 1 << 16:
        return lane.astype(np.uint16)
    return lane


def _gpu_timeline(rank: LabelledRank, work: GpuWork) -> Timeline:
    start, end, role = work.start, work.end, work.role
    comm = (role == GpuRole.COMM) | (role == GpuRole.COMM_SYNC)
    busy = role != GpuRole.IGNORE
    call_start, call_end = _call_times(rank, start, end)
    return Timeline(
        on_gpu=True,
        compute=_of(start, end, role == GpuRole.COMPUTE),
        memcpy=_of(start, end, role == GpuRole.MEMCPY),
        comm_start=start[comm],
        comm_end=end[comm],
        comm_call=rank.gpu_call[comm].astype(np.int64),
        call_start=call_start,
        call_end=call_end,
        clipped=work.clipped,
        left_out=work.left_out,
        first=int(start[busy].min()) if busy.any() else 0,
        last=int(end[busy].max()) if busy.any() else 0,
    )


def _lanes(events: pa.Table) -> Ints:
    """A number per stream of each device."""
    device, stream = ints(events, "device", 0), ints(events, "stream", 0)
    width = int(stream.max()) + 1 if len(stream) else 1
    return device * width + stream


def _of(start: Ints, end: Ints, mine: Bools) -> Spans:
    return intervals.union(start[mine], end[mine])


def _call_times(rank: LabelledRank, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """From the first to the last GPU event of each call; nothing where a call left none on the GPU."""
    calls = rank.collectives.num_rows
    first = np.full(calls, np.iinfo(np.int64).max)
    last = np.full(calls, np.iinfo(np.int64).min)
    mine = rank.gpu_call >= 0
    np.minimum.at(first, rank.gpu_call[mine], start[mine])
    np.maximum.at(last, rank.gpu_call[mine], end[mine])
    none = last < first
    at = ints(rank.collectives, "ts_ns", 0)
    return np.where(none, at, first), np.where(none, at, last)


def _cpu_timeline(rank: LabelledRank) -> Timeline:
    start = ints(rank.collectives, "ts_ns", 0)
    end = start + np.maximum(ints(rank.collectives, "dur_ns", 0), 0)
    marks = rank.trace.cpu_marks
    mark_start = ints(marks, "ts_ns", 0)
    begins = np.concatenate((start, mark_start))
    ends = np.concatenate((end, mark_start + ints(marks, "dur_ns", 0)))
    return Timeline(
        on_gpu=False,
        compute=_cpu_compute(rank, start, end),
        memcpy=NOTHING,
        comm_start=start,
        comm_end=end,
        comm_call=np.arange(len(start)),
        call_start=start,
        call_end=end,
        clipped=0,
        left_out=0,
        first=int(begins.min()) if len(begins) else 0,
        last=int(ends.max()) if len(ends) else 0,
    )


def _cpu_compute(rank: LabelledRank, call_start: Ints, call_end: Ints) -> Spans:
    """Time inside operators, thread by thread, less the time in which that thread sits in a communication call."""
    marks = rank.trace.cpu_marks
    start = ints(marks, "ts_ns", 0)
    end = start + ints(marks, "dur_ns", 0)
    thread = ints(marks, "tid")
    kind, kinds = codes(marks, "kind")
    name, names = codes(marks, "name")
    talks = np.array([n.startswith(COMM_NAMESPACES) for n in names] + [False], dtype=np.bool_)[name]
    is_op = np.isin(kind, [code_of(kinds, "op"), code_of(kinds, "sync")])
    call_thread = ints(rank.collectives, "tid")
    parts = []
    for tid in distinct_values(thread[is_op]):
        mine = is_op & (thread == tid)
        calls = call_thread == tid
        busy = _of(start, end, mine & ~talks)
        talking = intervals.union(
            np.concatenate((start[mine & talks], call_start[calls])),
            np.concatenate((end[mine & talks], call_end[calls])),
        )
        parts.append(intervals.without(busy, talking))
    return intervals.union_of(parts)

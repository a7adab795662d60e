"""The tracks that an export adds for a rank: its calls by dimension, exposed time, waiting, and two counters."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer import intervals
from analyzer.export.calls import Calls
from analyzer.export.chrome import microseconds
from analyzer.export.cut import Window
from analyzer.exposure import Timeline
from analyzer.intervals import Bools, Floats, Ints
from analyzer.rows import DIM_ORDER
from heuristics.arrays import NULL

CATEGORY = "commlens"
"""Of every event that is added."""

LANES, EXPOSED, WAITING = 0, 500, 600
"""Thread numbers of a dimension, beside a thousand per dimension."""

Made = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Spot:
    """Where a rank's tracks go.

    Attributes:
        pid: the process that holds them.
        rank: the rank, None where not known.
        start: begin of each call on the axis of the export, ns.
        end: end of each call.
        exposed: per dimension, begin and end of its exposed stretches on that axis.
        window: what is written; None for all.
    """

    pid: int
    rank: int | None
    start: Ints
    end: Ints
    exposed: dict[str, tuple[Ints, Ints]]
    window: Window | None

    def shown(self) -> Bools:
        """Which calls are written: those that left something to measure and overlap the window."""
        shown: Bools = self.end > self.start
        if self.window is not None:
            shown = shown & (self.start < self.window.end_ns) & (self.end > self.window.start_ns)
        return shown


def exposed_stretches(line: Timeline, dims: list[str | None]) -> dict[str, tuple[Ints, Ints]]:
    """When communication of each dimension ran and no compute did, on the rank's own clock.

    Where two dimensions are exposed at once, the stretch is on both tracks; the tables divide it.
    """
    of_call = np.array([DIM_ORDER.index(dim or "unknown") for dim in dims] + [DIM_ORDER.index("unknown")])
    of_piece = of_call[line.comm_call]
    out = {}
    for number in np.unique(of_piece).tolist():
        mine = of_piece == number
        free = intervals.without(intervals.union(line.comm_start[mine], line.comm_end[mine]), line.compute)
        if len(free.start):
            out[DIM_ORDER[number]] = (free.start, free.end)
    return out


def lanes(start: Ints, end: Ints, shown: Bools) -> Ints:
    """A lane for each call so that calls of one lane follow each other: viewers nest what overlaps."""
    lane = np.full(len(start), NULL, dtype=np.int64)
    rows = np.flatnonzero(shown)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for row in rows[np.argsort(start[rows], kind="stable")].tolist():
        while busy and busy[0][0] <= start[row]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane[row] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (int(end[row]), int(lane[row])))
    return lane


def threads(calls: Calls, spot: Spot) -> Ints:
    """The thread of each call's slice; -1 for calls that are not written."""
    out = np.full(len(calls), NULL, dtype=np.int64)
    dims = np.array([DIM_ORDER.index(dim or "unknown") for dim in calls.texts["dim"]], dtype=np.int64)
    shown = spot.shown()
    for number in np.unique(dims[shown]).tolist():
        mine = shown & (dims == number)
        out[mine] = number * 1000 + LANES + np.minimum(lanes(spot.start, spot.end, mine)[mine], EXPOSED - 1)
    return out


def tracks(calls: Calls, spot: Spot, thread: Ints) -> Iterator[Made]:
    """All added events of a rank but the arrows: names of the tracks first."""
    yield from _names(calls, spot, thread)
    yield from _slices(calls, spot, thread)
    yield from _exposed(spot)
    yield from _counter("bytes in flight", spot, calls, *_in_flight(calls, spot))
    yield from _counter("bandwidth (GB/s)", spot, calls, *_rates(calls, spot))


def _names(calls: Calls, spot: Spot, thread: Ints) -> Iterator[Made]:
    who = "rank unknown" if spot.rank is None else f"rank {spot.rank}"
    yield _meta("process_name", spot.pid, 0, {"name": f"{who}: communication by dimension"})
    yield _meta("process_sort_index", spot.pid, 0, {"sort_index": spot.pid})
    used = {int(tid) for tid in np.unique(thread[thread != NULL])}
    waits = {tid + WAITING for tid in {int(t) for t in thread[(thread != NULL) & (calls.wait > 0)]}}
    exposed = {DIM_ORDER.index(dim) * 1000 + EXPOSED for dim in spot.exposed}
    for tid in sorted(used | waits | exposed):
        dim, kind = DIM_ORDER[tid // 1000], tid % 1000
        if kind == EXPOSED:
            name = f"{dim} exposed"
        else:
            lane = kind - (WAITING if kind >= WAITING else LANES)
            name = dim + (" waiting" if kind >= WAITING else "") + (f" ({lane + 1})" if lane else "")
        yield _meta("thread_name", spot.pid, tid, {"name": name})
        yield _meta("thread_sort_index", spot.pid, tid, {"sort_index": tid})


def _slices(calls: Calls, spot: Spot, thread: Ints) -> Iterator[Made]:
    """A slice per call, and one per stretch of waiting."""
    for row in np.flatnonzero(thread != NULL).tolist():
        start, end = int(spot.start[row]), int(spot.end[row])
        name = calls.texts["primitive"][row] or "unknown"
        yield from _slice(name, spot, int(thread[row]), start, end, calls.args(row))
        wait = int(calls.wait[row])
        if wait > 0:
            said = {"dim": calls.texts["dim"][row], "primitive": name, "wait_us": wait / 1000}
            yield from _slice(f"waiting: {name}", spot, int(thread[row]) + WAITING, start, start + wait, said)


def _exposed(spot: Spot) -> Iterator[Made]:
    for dim, (start, end) in spot.exposed.items():
        tid = DIM_ORDER.index(dim) * 1000 + EXPOSED
        for first, last in zip(start.tolist(), end.tolist(), strict=True):
            yield from _slice(
                f"{dim} exposed", spot, tid, first, last, {"dim": dim, "exposed_us": (last - first) / 1000}
            )


def _slice(name: str, spot: Spot, tid: int, start: int, end: int, args: Made) -> Iterator[Made]:
    """One slice, or none where it lies outside of the window."""
    window = spot.window
    if window is not None:
        if not window.overlaps(start, end) or start == end:
            return
        if end - start > window.length_ns:
            args = {"full_dur_us": (end - start) / 1000, "cut_to_the_window": True, **args}
            start, end = max(start, window.start_ns), min(end, window.end_ns)
    yield {
        "ph": "X",
        "cat": CATEGORY,
        "name": name,
        "pid": spot.pid,
        "tid": tid,
        "ts": microseconds(start),
        "dur": microseconds(end - start),
        "args": args,
    }


def _meta(what: str, pid: int, tid: int, args: Made) -> Made:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _in_flight(calls: Calls, spot: Spot) -> tuple[Ints, Ints, Floats]:
    """Begin and end of each call, and the bytes it sends."""
    return spot.start, spot.end, np.maximum(calls.sent, 0).astype(np.float64)


def _rates(calls: Calls, spot: Spot) -> tuple[Ints, Ints, Floats]:
    """Begin and end of each transfer, and its mean rate in GB/s; the whole call where waiting is not known."""
    begin = spot.start + np.maximum(calls.wait, 0)
    length = spot.end - begin
    rate = np.zeros(len(calls))
    good = (calls.sent > 0) & (length > 0)
    rate[good] = calls.sent[good] / length[good]
    return begin, spot.end, rate


def _counter(name: str, spot: Spot, calls: Calls, begin: Ints, end: Ints, value: Floats) -> Iterator[Made]:
    """A counter with a series per dimension, one event wherever any of them changes."""
    rows = np.flatnonzero(spot.shown() & (value > 0) & (end > begin))
    if not len(rows):
        return
    dims = [calls.texts["dim"][row] or "unknown" for row in rows.tolist()]
    names = sorted(set(dims), key=DIM_ORDER.index)
    place = np.array([names.index(dim) for dim in dims], dtype=np.int64)
    moment = np.concatenate((begin[rows], end[rows]))
    change = np.zeros((2 * len(rows), len(names)))
    change[np.arange(2 * len(rows)), np.concatenate((place, place))] = np.concatenate((value[rows], -value[rows]))
    at, which = np.unique(moment, return_inverse=True)
    level = np.zeros((len(at), len(names)))
    np.add.at(level, which.ravel(), change)
    level = np.maximum(np.round(np.cumsum(level, axis=0), 3), 0)
    for ns, row in zip(at.tolist(), level.tolist(), strict=True):
        if spot.window is not None:
            ns = min(max(ns, spot.window.start_ns), spot.window.end_ns)
        yield {
            "ph": "C",
            "cat": CATEGORY,
            "name": name,
            "pid": spot.pid,
            "tid": 0,
            "ts": microseconds(ns),
            "args": dict(zip(names, row, strict=True)),
        }

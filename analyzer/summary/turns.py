"""A pipeline stage's turns: its forward and backward passes, one microbatch each, read off the events.

A stage hands over between two turns: the host asks for messages after it has launched one pass and before it launches
the next. So work in the order of its launches, cut at every message and wherever forward becomes backward, falls into
turns, whatever the streams overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from analyzer import intervals
from analyzer.exposure import COMM_NAMESPACES, GpuWork
from analyzer.intervals import Ints
from analyzer.step_marks import launched
from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.labelled import GpuRole, LabelledRank
from heuristics.phases import BACKWARD, FORWARD, OPTIMIZER, UNKNOWN, marked_phases

GLUE = 0.1
"""Work between two messages that takes less than this share of the middle turn is no turn: casts, losses, buffers."""

_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Turns:
    """The turns of one rank in time order; empty where it exchanges no messages.

    Attributes:
        start: int64 ns, begin of the turn's first work.
        end: int64 ns, end of its last.
        phase: `heuristics.phases.FORWARD`, `BACKWARD`, or `UNKNOWN` where the trace does not mark backward work.
    """

    start: Ints = field(default_factory=lambda: _NONE)
    end: Ints = field(default_factory=lambda: _NONE)
    phase: Ints = field(default_factory=lambda: _NONE)


def turns(rank: LabelledRank, work: GpuWork, edges: Ints) -> Turns:
    """Read the turns off the events.

    Args:
        rank: the labelled rank.
        work: from `analyzer.exposure.gpu_work`.
        edges: ``(steps, 2)`` int64 ns.
    """
    handed = _messages(rank)
    if not len(handed) or not len(edges):
        return Turns()
    start, end, launch = _gpu_pieces(rank, work) if rank.trace.on_gpu else _cpu_pieces(rank)
    step = np.searchsorted(edges[:, 0], start, side="right") - 1
    inside = (step >= 0) & (start < edges[np.maximum(step, 0), 1])
    start, end, launch, step = start[inside], end[inside], launch[inside], step[inside]
    if not len(start):
        return Turns()
    phase = _phase(rank, launch)
    order = np.argsort(launch, kind="stable")
    key = np.stack((step, np.searchsorted(handed, launch), phase), axis=1)[order]
    first = np.flatnonzero(np.concatenate(([True], (key[1:] != key[:-1]).any(axis=1))))
    begin, over = np.minimum.reduceat(start[order], first), np.maximum.reduceat(end[order], first)
    kind, step = key[first, 2], key[first, 0]
    keep = (kind != OPTIMIZER) & ~_after_backward(kind, step, begin)
    begin, over, kind = _without_glue(begin[keep], over[keep], kind[keep])
    by_time = np.argsort(begin, kind="stable")
    return Turns(begin[by_time], over[by_time], kind[by_time])


def _messages(rank: LabelledRank) -> Ints:
    """When each message was asked for, in order."""
    direction, _ = codes(rank.collectives, "direction")
    asked, at = ints(rank.collectives, "launch_ts_ns"), ints(rank.collectives, "ts_ns", 0)
    return np.sort(np.where(asked != NULL, asked, at)[direction >= 0])


def _gpu_pieces(rank: LabelledRank, work: GpuWork) -> tuple[Ints, Ints, Ints]:
    rows = np.flatnonzero((work.role == GpuRole.COMPUTE) & (work.end > work.start))
    start = work.start[rows]
    return start, work.end[rows], launched(rank, ints(rank.trace.gpu_events, "correlation")[rows], start)


def _cpu_pieces(rank: LabelledRank) -> tuple[Ints, Ints, Ints]:
    marks = rank.trace.cpu_marks
    kind, kinds = codes(marks, "kind")
    name, names = codes(marks, "name")
    talks = np.array([*(n.startswith(COMM_NAMESPACES) for n in names), False], dtype=np.bool_)[name]
    rows = np.flatnonzero((kind == code_of(kinds, "op")) & ~talks & (ints(marks, "dur_ns", 0) > 0))
    start = ints(marks, "ts_ns")[rows]
    return start, start + ints(marks, "dur_ns", 0)[rows], start


def _phase(rank: LabelledRank, launch: Ints) -> Ints:
    """Optimizer or backward where such a mark was open at the launch, forward elsewhere; unknown without any mark."""
    meaning, begin, end = marked_phases(rank.trace)
    if not (meaning == BACKWARD).any():
        return np.full(len(launch), UNKNOWN, dtype=np.int64)
    out = np.full(len(launch), FORWARD, dtype=np.int64)
    for one in (BACKWARD, OPTIMIZER):
        mine = intervals.union(begin[meaning == one], end[meaning == one])
        out[intervals.covered(mine, launch, launch + 1) > 0] = one
    return out


def _after_backward(kind: Ints, step: Ints, begin: Ints) -> intervals.Bools:
    """What looks like forward after the step's last backward is the optimizer's."""
    last = np.full(int(step.max()) + 1, np.iinfo(np.int64).max)
    back = kind == BACKWARD
    ends = np.full(len(last), np.iinfo(np.int64).min)
    np.maximum.at(ends, step[back], begin[back])
    last = np.where(ends == np.iinfo(np.int64).min, last, ends)
    found: intervals.Bools = (kind == FORWARD) & (begin > last[step])
    return found


def _without_glue(begin: Ints, end: Ints, kind: Ints) -> tuple[Ints, Ints, Ints]:
    keep = np.ones(len(kind), dtype=np.bool_)
    for one in np.unique(kind).tolist():
        mine = kind == one
        length = (end - begin)[mine]
        keep[mine] = length >= GLUE * float(np.median(length))
    return begin[keep], end[keep], kind[keep]

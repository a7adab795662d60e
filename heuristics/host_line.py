"""What a rank was seen doing, in order, as one line of moments: the host, or the GPU where only that is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.columns import Bools, Ints

if TYPE_CHECKING:
    from parsers.tables import RankTrace

_GPU_LAYERS = ("kernel", "gpu_annotation", "gpu_nvtx")
GPU_WORK = ("kernel", "memcpy", "memset")
"""The kinds of GPU events that are work, not notes about it."""


@dataclass(frozen=True, eq=False)
class HostLine:
    """Marks, calls and launches of one thread in the order they began, and when anything of any thread ended.

    Where the record holds none of the host's calls and launches: what ran on the GPU, in the order it began.

    Attributes:
        begin: when each began, ns, ascending.
        what: equal for things of equal kind and name; launches of kernels of one name are alike.
        waits: whether it only stands still for the GPU.
        calls: whether it is communication.
        works: whether it is neither, nor anything the optimizer does.
        ends: when anything on any thread ended, ns, ascending.
    """

    begin: Ints
    what: Ints
    waits: Bools
    calls: Bools
    works: Bools
    ends: Ints

    def between(self, begin_ns: int, end_ns: int) -> slice:
        """The rows that begin in ``[begin_ns, end_ns)``."""
        low, high = np.searchsorted(self.begin, [begin_ns, end_ns])
        return slice(int(low), int(high))

    def paused(self, moments: Ints) -> Ints:
        """How long before each moment the last thing ended that had ended by then, ns; 0 where nothing had."""
        row = np.searchsorted(self.ends, moments, side="right") - 1
        known = row >= 0
        pause = np.zeros(len(moments), dtype=np.int64)
        pause[known] = moments[known] - self.ends[row[known]]
        return pause


def rank_line(trace: RankTrace, tid: int) -> HostLine:
    """The line of thread ``tid``, or of the GPU where only that was recorded."""
    on_host = trace.launches.num_rows or (ints(trace.comm_records, "gpu_event") == NULL).any()
    return host_line(trace, tid) if on_host or not trace.on_gpu else _gpu_line(trace)


def _gpu_line(trace: RankTrace) -> HostLine:
    """The line of what ran on the GPU. Nothing in it waits for the GPU."""
    kind, kinds = codes(trace.gpu_events, "kind")
    rows = np.flatnonzero(np.isin(kind, [code_of(kinds, text) for text in GPU_WORK]))
    begin, dur = (ints(trace.gpu_events, column)[rows] for column in ("ts_ns", "dur_ns"))
    order = np.lexsort((-dur, begin))
    rows, begin, dur = rows[order], begin[order], dur[order]
    what, _ = codes(trace.gpu_events, "name")
    calls = np.isin(rows, ints(trace.comm_records, "gpu_event"))
    return HostLine(
        begin,
        what[rows],
        np.zeros(len(rows), dtype=np.bool_),
        calls,
        ~calls & ~_in_optimizer(trace, begin),
        np.sort(begin + np.maximum(dur, 0)),
    )


def _in_optimizer(trace: RankTrace, moments: Ints) -> Bools:
    """Whether each moment lies in a range of the optimizer."""
    kind, kinds = codes(trace.cpu_marks, "kind")
    mine = kind == code_of(kinds, "optimizer")
    ts, dur = (ints(trace.cpu_marks, column, 0)[mine] for column in ("ts_ns", "dur_ns"))
    opened = np.searchsorted(np.sort(ts), moments, side="right")
    closed = np.searchsorted(np.sort(ts + dur), moments, side="right")
    return np.asarray(opened > closed, dtype=np.bool_)


def host_line(trace: RankTrace, tid: int) -> HostLine:
    """The line of thread ``tid``: `CPU_MARKS` but for steps, communication asked for, and launches."""
    kind, kinds = codes(trace.cpu_marks, "kind")
    name, names = codes(trace.cpu_marks, "name")
    layer, layers = codes(trace.comm_records, "layer")
    comm, comm_names = codes(trace.comm_records, "name")
    mark = kind != code_of(kinds, "step")
    asked = ~np.isin(layer, [code_of(layers, text) for text in _GPU_LAYERS])
    asked &= ints(trace.comm_records, "tid") != NULL
    launched = np.ones(trace.launches.num_rows, dtype=np.bool_)
    parts = [(trace.cpu_marks, mark), (trace.comm_records, asked), (trace.launches, launched)]
    begin, dur, thread = (
        np.concatenate([ints(table, column, null)[rows] for table, rows in parts])
        for column, null in (("ts_ns", NULL), ("dur_ns", 0), ("tid", NULL))
    )
    first_launch = len(names) + len(comm_names)
    what = np.concatenate([name[mark], comm[asked] + len(names), _launched_name(trace) + first_launch])
    source = np.repeat(np.arange(len(parts)), [int(rows.sum()) for _, rows in parts])
    waits, works = np.zeros(len(what), dtype=np.bool_), source != 1
    waits[source == 0] = kind[mark] == code_of(kinds, "sync")
    works[source == 0] = ~np.isin(kind[mark], [code_of(kinds, text) for text in ("sync", "optimizer")])
    mine = np.flatnonzero(thread == tid)
    mine = mine[np.lexsort((-dur[mine], begin[mine]))]
    return HostLine(
        begin[mine], what[mine], waits[mine], (source == 1)[mine], works[mine], np.sort(begin + np.maximum(dur, 0))
    )


def _launched_name(trace: RankTrace) -> Ints:
    """Per launch, the code of what it launched by name; 0 if that left no trace."""
    name, _ = codes(trace.gpu_events, "name")
    known = ints(trace.gpu_events, "correlation")
    wanted = ints(trace.launches, "correlation")
    if not len(known) or not len(wanted):
        return np.zeros(len(wanted), dtype=np.int64)
    order = np.argsort(known, kind="stable")
    row = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
    found = (known[order][row] == wanted) & (wanted >= 0)
    return np.where(found, name[order][row] + 1, 0)


def most_used(threads: Ints) -> int:
    """The thread that occurs most often; `NULL` if there is none."""
    distinct, often = np.unique(threads, return_counts=True)
    return int(distinct[often.argmax()]) if len(distinct) else NULL

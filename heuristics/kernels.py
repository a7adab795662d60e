"""Which GPU events are communication, and which of them are one call.

A kernel belongs to the call whose record encloses its launch; where no launch was recorded, to the call whose
`External id` Kineto copied onto it together with the collective's arguments; where the profiler recorded no launches
at all, to the call with the same arguments and the same place among those alike. What is left is grouped by `Comms Id`,
or stands for itself: kernels launched before the window, replayed from a CUDA graph, or launched behind PyTorch's back
(pynccl, custom all-reduce, DeepEP).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics import nesting
from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.calls import Forest, Records
from heuristics.columns import Bools, Ints, at, distinct, first, none
from heuristics.kernel_table import KernelClass, KernelTable
from heuristics.labelled import GpuRole
from heuristics.nvtx_calls import Linked
from parsers.columns import distinct_values

if TYPE_CHECKING:
    import numpy.typing as npt

    from parsers.tables import RankTrace


ROLES = ("payload", "sync", "pack")
"""Values of `COLLECTIVES.role`."""

PAYLOAD, SYNC, PACK = range(len(ROLES))


@dataclass(frozen=True, eq=False)
class GpuWork:
    """The GPU's side of communication: one entry per GPU event that communicates, in the order of the file.

    Attributes:
        event: row of ``gpu_events``.
        metadata: the record with the event's own copy of the collective's arguments, or `NULL`.
        annotation: the GPU-side annotation that spans the event on its stream, or `NULL`.
        launch: row of ``launches``, or `NULL`.
        linked: the CPU-side call that launched it, or `NULL`.
        node: the innermost CPU record that encloses the launch, or `NULL`.
        kind: number into ``classes``, `NULL` where the table does not know the name.
        classes: what the distinct names say.
        role: what the event does, as a position in `ROLES`.
        replayed: whether the event was replayed from a CUDA graph.
    """

    event: Ints
    metadata: Ints
    annotation: Ints
    launch: Ints
    linked: Ints
    node: Ints
    kind: Ints
    classes: tuple[KernelClass, ...]
    role: Ints
    replayed: Bools


def find(trace: RankTrace, records: Records, forest: Forest, names: KernelTable, matched: Linked) -> GpuWork:
    """Find the GPU events that communicate and link each to the call that asked for it.

    Args:
        trace: the facts.
        records: its records.
        forest: how they nest.
        names: what the names say.
        matched: what the reader of the trace has linked already.
    """
    gpu = trace.gpu_events
    kind, classes = _kinds(trace, names)
    role = np.array([*(ROLES.index(c.role) for c in classes), PAYLOAD], dtype=np.int64)[kind]
    own = none(gpu.num_rows)
    kernel_rows = np.flatnonzero(records.layer("kernel", "gpu_nvtx"))
    own[ints(records.table, "gpu_event")[kernel_rows]] = kernel_rows
    event = np.flatnonzero((kind >= 0) | (own >= 0) | matched.events)
    launch = _launches(trace, event)
    shared = _replayed(trace, event)
    thread, moment = ints(trace.launches, "tid"), ints(trace.launches, "ts_ns")
    placed = np.flatnonzero((launch >= 0) & ~shared)
    linked, node = none(len(event)), none(len(event))
    linked[placed], node[placed] = forest.call_at(records, thread[launch[placed]], moment[launch[placed]])
    linked = first(linked, _by_external_id(trace, records, forest, event, own[event], (node < 0) & ~shared))
    if not trace.launches.num_rows:
        linked = first(linked, _by_arguments(trace, records, forest, event, own[event]))
    linked = first(matched.call_of_event[event], np.where(matched.batch_of_event[event] < 0, linked, NULL))
    unlinked = (linked < 0) & ~shared
    annotation = none(len(event))
    annotation[unlinked] = _spanning(trace, records, event[unlinked])
    work = GpuWork(event, own[event], annotation, launch, linked, node, kind[event], classes, role[event], shared)
    return _without_copies(work, records)


def roles(trace: RankTrace, work: GpuWork, barrier: Bools) -> npt.NDArray[np.int8]:
    """The `GpuRole` of every GPU event.

    Args:
        trace: the facts.
        work: its communication.
        barrier: per GPU event, whether it belongs to a barrier: an all-reduce by name, but nothing that anybody wants.
    """
    kinds, values = codes(trace.gpu_events, "kind")
    by_kind = {"kernel": GpuRole.COMPUTE, "memcpy": GpuRole.MEMCPY, "memset": GpuRole.MEMCPY}
    table = np.array([*(by_kind.get(value, GpuRole.IGNORE) for value in values), GpuRole.IGNORE], dtype=np.int8)
    out = table[kinds]
    out[work.event] = np.array([GpuRole.COMM, GpuRole.COMM_SYNC, GpuRole.COMPUTE], dtype=np.int8)[work.role]
    out[barrier & (out == GpuRole.COMM)] = GpuRole.COMM_SYNC
    return out


def _kinds(trace: RankTrace, names: KernelTable) -> tuple[Ints, tuple[KernelClass, ...]]:
    """Per GPU event, what the table says of its name: a number into the classes, `NULL` for nothing."""
    name, distinct = codes(trace.gpu_events, "name")
    kinds, values = codes(trace.gpu_events, "kind")
    runs = np.isin(kinds, [code_of(values, "kernel"), code_of(values, "memcpy")])
    used = distinct_values(name[runs])
    found = {int(number): names.kernel(distinct[number]) for number in used if number >= 0}
    classes = tuple(dict.fromkeys(c for c in found.values() if c is not None))
    index = {c: i for i, c in enumerate(classes)}
    lookup = none(len(distinct) + 1)
    for number, kernel in found.items():
        if kernel is not None:
            lookup[number] = index[kernel]
    return np.where(runs, lookup[name], NULL), classes


def _launches(trace: RankTrace, event: Ints) -> Ints:
    """The launch of each event: the first one with its correlation (a runtime call and the driver call under it)."""
    correlation = ints(trace.launches, "correlation")
    if not len(correlation):
        return none(len(event))
    unique, row = np.unique(correlation, return_index=True)
    wanted = ints(trace.gpu_events, "correlation")[event]
    place = np.minimum(np.searchsorted(unique, wanted), len(unique) - 1)
    return np.where((unique[place] == wanted) & (wanted >= 0), row[place], NULL)


def _replayed(trace: RankTrace, event: Ints) -> Bools:
    """Events replayed from a CUDA graph: marked so, or several kernels of one launch."""
    graph = ints(trace.gpu_events, "graph")[event] > 0
    correlation = ints(trace.gpu_events, "correlation")
    kinds, values = codes(trace.gpu_events, "kind")
    kernels = (kinds == code_of(values, "kernel")) & (correlation >= 0)
    unique, count = np.unique(correlation[kernels], return_counts=True)
    return graph | np.isin(correlation[event], unique[count > 1])


def _by_arguments(trace: RankTrace, records: Records, forest: Forest, event: Ints, own: Ints) -> Ints:
    """The call with the arguments that the event carries, where the profiler recorded no launch at all.

    Of several alike, the first call goes with the first event: a process group runs its calls in order. Where there are
    not as many calls as events, nothing says which is which.
    """
    out = none(len(event))
    said = records.metadata & (forest.call >= 0)
    rows, places = np.flatnonzero(said & records.on_cpu), np.flatnonzero(own >= 0)
    columns = [codes(records.table, name)[0] for name in ("collective", "group_name", "dtype")]
    columns += [ints(records.table, name) for name in ("in_nelems", "out_nelems", "seq")]
    both = np.concatenate([rows, own[places]])
    if not len(rows) or not len(places):
        return out
    _, kind = distinct(*(column[both] for column in columns))
    of_call, of_event = kind[: len(rows)], kind[len(rows) :]
    kinds = int(kind.max()) + 1
    alike = np.bincount(of_call, minlength=kinds) == np.bincount(of_event, minlength=kinds)
    calls = rows[np.lexsort((records.ts[rows], of_call))]
    events = np.lexsort((ints(trace.gpu_events, "ts_ns")[event[places]], of_event))
    calls = calls[alike[np.sort(of_call)]]
    events = events[alike[of_event[events]]]
    out[places[events]] = forest.call[calls]
    return out


def _by_external_id(trace: RankTrace, records: Records, forest: Forest, event: Ints, own: Ints, wanted: Bools) -> Ints:
    """The call with the event's `External id`: only where Kineto copied the arguments, which is by the same id."""
    out = none(len(event))
    wanted = wanted & (own >= 0)
    external = ints(records.table, "external_id")
    rows = np.flatnonzero(records.metadata & (external >= 0))
    if not wanted.any() or not len(rows):
        return out
    unique, index = np.unique(external[rows], return_index=True)
    mine = ints(trace.gpu_events, "external_id")[event[wanted]]
    place = np.minimum(np.searchsorted(unique, mine), len(unique) - 1)
    record = np.where(unique[place] == mine, rows[index[place]], NULL)
    same = at(records.collective, record) == records.collective[own[wanted]]
    record = np.where(same, record, NULL)
    out[wanted] = at(forest.call, nesting.nearest(forest.parent, record, forest.chosen))
    return out


def _spanning(trace: RankTrace, records: Records, event: Ints) -> Ints:
    """The GPU-side annotation over each event, on the same device and stream."""
    rows = np.flatnonzero(records.layer("gpu_annotation") & records.role("payload", "batch"))
    if not len(rows) or not len(event):
        return none(len(event))
    device, stream = ints(records.table, "device"), ints(records.table, "stream")
    gpu = trace.gpu_events
    _, lane = distinct(
        np.concatenate([device[rows], ints(gpu, "device")[event]]),
        np.concatenate([stream[rows], ints(gpu, "stream")[event]]),
    )
    start = np.concatenate([records.ts[rows], ints(gpu, "ts_ns")[event]])
    end = np.concatenate([records.end[rows], ints(gpu, "ts_ns")[event]])
    rank = np.concatenate([np.zeros(len(rows), np.int64), np.ones(len(event), np.int64)])
    above = nesting.parents(lane, start, end, rank)
    inside = nesting.nearest(above, above[len(rows) :], np.arange(len(start)) < len(rows))
    return at(rows, inside)


def _without_copies(work: GpuWork, records: Records) -> GpuWork:
    """Drop events that carry a collective's arguments but only copy for it.

    Kineto copies the arguments onto every kernel launched under `record_param_comms`, also onto those that gather or
    scatter the tensors of a list. Where the table knows one kernel of a call by name, the others are such copies; in
    a group of one rank all of them are.
    """
    size = ints(records.table, "group_size")
    alone = at(size, work.metadata) == 1
    unknown = work.kind < 0
    recognised = distinct_values(work.linked[~unknown & (work.linked >= 0)])
    drop = unknown & (alone | np.isin(work.linked, recognised))
    if not drop.any():
        return work
    keep = ~drop
    return GpuWork(
        work.event[keep],
        work.metadata[keep],
        work.annotation[keep],
        work.launch[keep],
        work.linked[keep],
        work.node[keep],
        work.kind[keep],
        work.classes,
        work.role[keep],
        work.replayed[keep],
    )

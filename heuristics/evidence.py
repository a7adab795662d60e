"""Everything known of each call, gathered from both sides: one row number per call and kind of evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics import batches, kernels, nesting, nvtx_calls
from heuristics import calls as cpu_calls
from heuristics.arrays import NULL, ints
from heuristics.calls import Calls, Records
from heuristics.columns import Bools, Ints, at, distinct, first, none
from heuristics.kernel_table import KernelTable
from heuristics.kernels import PAYLOAD, GpuWork
from heuristics.primitives import SEND_RECV, codes_of

if TYPE_CHECKING:
    from parsers.tables import RankTrace

_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Evidence:
    """What each call was seen as; every array has one entry a call, `NULL` where there is nothing.

    Attributes:
        anchor: the CPU record that stands for the call.
        metadata: the record with the collective's name and arguments, from the CPU side or from the kernel.
        operator: the c10d operator, else the functional or symmetric-memory one.
        functional: the functional operator.
        annotation: the annotation on the CPU, else the one on the GPU.
        nvtx: NCCL's NVTX range.
        communicator: the record that names the call's group.
        plain: `record_param_comms` without a collective name.
        event: the GPU event that shows the call: the first that moves payload.
        kind: what that event's name says, as a number into ``classes``.
        role: position in `kernels.ROLES`.
        start: when its GPU work began, ns.
        end: when it ended.
        asked: when the CPU asked for it.
        thread: which thread did.
        batch: number of the batch that shares one launch; rows of a batch share start and end.
        classes: what distinct kernel names say.
        event_call: per row of ``gpu_events``, the call it belongs to.
        call_of_record: per record of the CPU side, the call it is part of.
        work: the GPU's side.
    """

    anchor: Ints
    metadata: Ints
    operator: Ints
    functional: Ints
    annotation: Ints
    nvtx: Ints
    communicator: Ints
    plain: Ints
    event: Ints
    kind: Ints
    role: Ints
    start: Ints
    end: Ints
    asked: Ints
    thread: Ints
    batch: Ints
    event_call: Ints
    call_of_record: Ints
    work: GpuWork


def gather(trace: RankTrace, records: Records, names: KernelTable) -> Evidence:
    """Find the calls of both sides and bring them together."""
    calls, forest = cpu_calls.find(records)
    n = len(calls.anchor)
    matched = nvtx_calls.link(trace, records, forest, n)
    work = kernels.find(trace, records, forest, names, matched)
    p2p, alone = _p2p(records, calls), at(ints(records.table, "group_size"), calls.communicator) == 1
    shared = batches.find(trace, records, calls, forest, work, matched, p2p, alone)
    owner = _owners(records, work, shared, n)
    more = int(owner.max(initial=n - 1)) + 1 - n
    event, start, end = _intervals(trace, work, owner, n + more)
    batch = np.concatenate([shared.of_call, none(more)])
    event, start, end = _share(batch, event, start, end)
    place = none(trace.gpu_events.num_rows)
    place[work.event] = np.arange(len(work.event))
    seen = at(place, event)

    def both(cpu: Ints, gpu: Ints) -> Ints:
        return first(np.concatenate([cpu, none(more)]), at(gpu, seen))

    launch_ts, launch_tid = ints(trace.launches, "ts_ns"), ints(trace.launches, "tid")
    event_call = none(trace.gpu_events.num_rows)
    event_call[work.event] = owner
    return Evidence(
        anchor=np.concatenate([calls.anchor, none(more)]),
        metadata=both(calls.metadata, work.metadata),
        operator=np.concatenate([calls.operator, none(more)]),
        functional=np.concatenate([calls.functional, none(more)]),
        annotation=both(calls.annotation, work.annotation),
        nvtx=both(calls.nvtx, np.where(at(records.layer("gpu_nvtx"), work.metadata, False), work.metadata, NULL)),
        communicator=both(calls.communicator, work.metadata),
        plain=np.concatenate([calls.plain, none(more)]),
        event=event,
        kind=at(work.kind, seen),
        role=at(work.role, seen, PAYLOAD),
        start=start,
        end=end,
        asked=both(records.ts[calls.anchor], at(launch_ts, work.launch)),
        thread=both(records.tid[calls.anchor], at(launch_tid, work.launch)),
        batch=batch,
        event_call=event_call,
        call_of_record=at(forest.call, nesting.nearest(forest.parent, np.arange(records.count), forest.chosen)),
        work=work,
    )


def _p2p(records: Records, calls: Calls) -> Bools:
    by_name, _ = codes_of(records.operators)
    by_collective, _ = codes_of(records.collective_operators)
    said = first(by_collective[at(records.collective, calls.metadata)], by_name[at(records.name, calls.anchor)])
    return np.asarray(said == SEND_RECV)


def _owners(records: Records, work: GpuWork, shared: batches.Batches, n: int) -> Ints:
    """The call of every communicating event: its own, its batch's first, or a new one after the first ``n``."""
    leader = none(int(shared.of_call.max(initial=-1)) + 1)
    numbered = np.flatnonzero(shared.of_call >= 0)[::-1]
    leader[shared.of_call[numbered]] = numbered
    owner = first(work.linked, at(leader, shared.of_event))
    left = np.flatnonzero(owner < 0)
    # Kernels of one call that lost their CPU side still carry the call's `Comms Id`; messages do not own one.
    direction = codes_of(records.collective_operators)[1][at(records.collective, work.metadata[left])]
    ids = ints(records.table, "comms_id", 0)
    same = np.where(direction < 0, at(ids, work.metadata[left], 0), 0)
    example, number = distinct(same, np.where(same == 0, left, NULL))
    rank = np.empty(len(example), dtype=np.int64)
    rank[np.argsort(example, kind="stable")] = np.arange(len(example))
    owner[left] = n + rank[number]
    return owner


def _intervals(trace: RankTrace, work: GpuWork, owner: Ints, n: int) -> tuple[Ints, Ints, Ints]:
    """First event, start and end of each call's payload on the GPU; of its other work where it moved none."""
    start = ints(trace.gpu_events, "ts_ns")[work.event]
    end = start + np.maximum(ints(trace.gpu_events, "dur_ns", 0)[work.event], 0)
    best = np.full(n, len(kernels.ROLES), dtype=np.int64)
    np.minimum.at(best, owner, work.role)
    counts = work.role == best[owner]
    begin, finish, event = np.full(n, _FAR), np.full(n, -_FAR), none(n)
    np.minimum.at(begin, owner[counts], start[counts])
    np.maximum.at(finish, owner[counts], end[counts])
    order = np.lexsort((-work.event, -start))
    order = order[counts[order]]
    event[owner[order]] = work.event[order]
    lost = event < 0
    return event, np.where(lost, NULL, begin), np.where(lost, NULL, finish)


def _share(batch: Ints, event: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Give every call of a batch the interval of the batch's launch, which its first call holds."""
    rows = np.flatnonzero(batch >= 0)
    if not len(rows):
        return event, start, end
    held = rows[event[rows] >= 0]
    holder = none(int(batch.max()) + 1)
    holder[batch[held]] = held
    source = holder[batch[rows]]
    out = event.copy(), start.copy(), end.copy()
    for mine, theirs in zip(out, (event, start, end), strict=True):
        mine[rows] = theirs[source]
    return out

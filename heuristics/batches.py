"""Calls that were issued one by one and ran as one launch: coalescing blocks and batched point-to-point.

`batch_isend_irecv` records every send and receive, but NCCL launches their kernel when the group closes
(`ncclGroupEnd`), after their records have ended, so that the kernel carries no arguments and lies in none of them
(pytorch/pytorch#194693). The calls of a batch are those which left nothing on the GPU by themselves since the launch
before, on the thread that closed the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics import nesting
from heuristics.arrays import NULL, ints
from heuristics.calls import Calls, Forest, Records
from heuristics.columns import Bools, Ints, at, none
from heuristics.kernel_table import PRIMITIVES
from heuristics.kernels import GpuWork
from heuristics.primitives import SEND_RECV
from parsers.columns import distinct_values

if TYPE_CHECKING:
    from heuristics.nvtx_calls import Linked
    from parsers.tables import RankTrace


@dataclass(frozen=True, eq=False)
class Batches:
    """Which batch each CPU call and each communicating GPU event belongs to; `NULL` for none.

    A batch has calls and events; numbers are arbitrary.
    """

    of_call: Ints
    of_event: Ints


def find(
    trace: RankTrace,
    records: Records,
    calls: Calls,
    forest: Forest,
    work: GpuWork,
    matched: Linked,
    p2p: Bools,
    alone: Bools,
) -> Batches:
    """Match launches that belong to no call with the calls that have no launch.

    Args:
        trace: the facts.
        records: its records.
        calls: the calls asked for on the CPU.
        forest: how the records nest.
        work: the GPU's side.
        matched: what the reader of the trace has linked already.
        p2p: which calls are sends or receives.
        alone: which calls are in a group of one rank, and leave nothing on the GPU.
    """
    given = matched.batch_of_event[work.event]
    closing, moment, thread, of_event = _closings(trace, records, forest, work, given >= 0)
    free = matched.batch_of_call < 0
    free[work.linked[work.linked >= 0]] = False
    free &= ~alone
    busy = _linked_launches(trace, work)
    asked, who = records.ts[calls.anchor], records.tid[calls.anchor]
    at_call = np.flatnonzero(free)
    next_ = _next(
        np.concatenate([who[at_call], thread, busy[0]]),
        np.concatenate([asked[at_call], moment, busy[1]]),
        np.concatenate([none(len(at_call)), closing, np.full(len(busy[0]), _OTHER)]),
    )[: len(at_call)]
    of_call = none(len(calls.anchor))
    of_call[at_call] = np.where(next_ == _OTHER, NULL, next_)
    marked = _is_marker(records, of_call)
    of_call[~marked & ~p2p] = NULL
    of_event = _by_order(records, work, of_call, of_event)
    past = records.count + len(work.event)
    of_event = np.where(given >= 0, past + given, of_event)
    of_call = np.where(matched.batch_of_call >= 0, past + matched.batch_of_call, of_call)
    both = distinct_values(of_call[(of_call >= 0) & np.isin(of_call, of_event)])
    return Batches(
        np.where(np.isin(of_call, both), of_call, NULL),
        np.where(np.isin(of_event, both), of_event, NULL),
    )


_OTHER = -2
"""Ends the reach of a batch without being one: the launch of another call."""


def _markers(records: Records) -> Ints:
    return np.flatnonzero(records.layer("annotation") & ~records.spans & records.role("batch"))


def _is_marker(records: Records, number: Ints) -> Bools:
    """Whether a batch was closed by an annotation: its number is that of the record."""
    return np.asarray((number >= 0) & (number < records.count), dtype=np.bool_)


def _closings(
    trace: RankTrace, records: Records, forest: Forest, work: GpuWork, given: Bools
) -> tuple[Ints, Ints, Ints, Ints]:
    """What closes a batch: its number, when and on which thread; and the number of each event's batch.

    Annotations of coalescing blocks are numbered as their records; launches of unlinked point-to-point kernels outside
    of them come after all records. Events whose batch is given have none here.
    """
    markers = _markers(records)
    is_marker = np.zeros(records.count, dtype=np.bool_)
    is_marker[markers] = True
    of_event = np.where((work.linked < 0) & ~given, nesting.nearest(forest.parent, work.node, is_marker), NULL)
    says = np.array([*(_may_be_p2p(c.primitive) for c in work.classes), False])[work.kind]
    loose = (work.linked < 0) & (of_event < 0) & (work.launch >= 0) & says & (work.metadata < 0) & ~work.replayed
    loose &= ~given
    of_event[loose] = records.count + np.flatnonzero(loose)
    ts, tid = ints(trace.launches, "ts_ns"), ints(trace.launches, "tid")
    return (
        np.concatenate([markers, of_event[loose]]),
        np.concatenate([records.ts[markers], ts[work.launch[loose]]]),
        np.concatenate([records.tid[markers], tid[work.launch[loose]]]),
        of_event,
    )


def _may_be_p2p(primitive: str | None) -> bool:
    return primitive is None or primitive == PRIMITIVES[SEND_RECV]


def _linked_launches(trace: RankTrace, work: GpuWork) -> tuple[Ints, Ints]:
    rows = work.launch[(work.linked >= 0) & (work.launch >= 0)]
    return ints(trace.launches, "tid")[rows], ints(trace.launches, "ts_ns")[rows]


def _next(thread: Ints, moment: Ints, number: Ints) -> Ints:
    """For every row, the number of the next row of its thread that has one."""
    order = np.lexsort((number != NULL, moment, thread))
    rows = np.arange(len(order))
    marked = np.where(number[order] != NULL, rows, len(rows))
    following = np.minimum.accumulate(marked[::-1])[::-1] if len(rows) else marked
    found = np.minimum(following, max(len(rows) - 1, 0))
    fits = (following < len(rows)) & (thread[order][found] == thread[order]) if len(rows) else np.zeros(0, np.bool_)
    out = none(len(order))
    out[order] = np.where(fits, number[order][found], NULL)
    return out


def _by_order(records: Records, work: GpuWork, of_call: Ints, of_event: Ints) -> Ints:
    """Where launches were not recorded: the k-th GPU span of a coalescing block is the k-th block of the thread."""
    lost = np.flatnonzero((of_event < 0) & (work.linked < 0) & (work.launch < 0))
    batch_span = records.role("batch") & records.layer("gpu_annotation")
    lost = lost[at(batch_span.astype(np.int64), work.annotation[lost], 0) > 0]
    blocks = distinct_values(of_call[_is_marker(records, of_call)])
    blocks = blocks[np.argsort(records.ts[blocks], kind="stable")]
    if not len(lost) or len(distinct_values(records.tid[blocks])) != 1:
        return of_event
    used = distinct_values(work.annotation[lost])
    used = used[np.argsort(records.ts[used], kind="stable")]
    place = np.full(records.count, NULL, dtype=np.int64)
    place[used] = np.arange(len(used))
    order = place[work.annotation[lost]]
    out = of_event.copy()
    out[lost] = np.where(order < len(blocks), blocks[np.minimum(order, len(blocks) - 1)], NULL)
    return out


def slices(batch: Ints, start: Ints, end: Ints, weight: Ints) -> tuple[Ints, Ints]:
    """Divide each batch's interval among its calls, one after the other, in proportion to their weights.

    The slices of a batch add up to its interval, so that no time is counted twice.

    Args:
        batch: per call, the number of its batch, in the order in which the calls were asked for.
        start: per call, when its batch started, ns.
        end: when it ended.
        weight: bytes; zero or less counts as one.

    Returns:
        Start and end of each call's slice.
    """
    order = np.argsort(batch, kind="stable")
    number, share = batch[order], np.maximum(weight[order], 1).astype(np.float64)
    _, first, inverse = np.unique(number, return_index=True, return_inverse=True)
    upto = np.cumsum(share)
    before = (upto - share)[first][inverse]
    total = np.bincount(inverse, weights=share)[inverse]
    length = (end - start)[order]
    high = start[order] + np.rint((upto - before) / total * length).astype(np.int64)
    low = np.concatenate([[0], high[:-1]]) if len(high) else high
    low[first] = start[order][first]
    out_low, out_high = none(len(batch)), none(len(batch))
    out_low[order], out_high[order] = low, high
    return out_low, out_high

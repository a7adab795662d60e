"""The steps of a rank: marked by the profiler, or inferred; which of them are whole; which step a call belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL, ints
from heuristics.columns import Bools, Ints, array, distinct
from heuristics.labelled import Steps
from heuristics.step_inference import inferred_steps
from parsers import tables

if TYPE_CHECKING:
    import pyarrow as pa

    from heuristics.evidence import Evidence
    from parsers.tables import RankTrace


def find_steps(trace: RankTrace, seen: Evidence, signature: Ints, silent: Bools) -> tuple[Steps, Ints]:
    """Find the steps of a rank and the step of every call.

    ``ProfilerStep#`` marks win. Without them steps are inferred from what closes them on the host, or from the period
    of the calls (see `step_inference`), or there are none.

    A step is whole when the file reaches past its end, and everything it launched ran inside the window: a step with a
    call that left no kernel is cut, and one with more launches that left nothing than another step has. The first and
    the last inferred step are whole if they begin and end as the others do.

    Args:
        trace: the facts.
        seen: the evidence of each call.
        signature: per call, a number that is equal for calls that mean the same thing.
        silent: calls that should have left a kernel and did not.

    Returns:
        The steps, and per call the row of its step or `NULL`. A call belongs to the step in which it was asked for;
        where that was not recorded, to the one in which it ran; kernels that were in the queue before the first
        recorded launch of their stream belong to none.
    """
    if trace.steps.num_rows:
        source, table, held, unsure_ns = "profiler_step", trace.steps, np.ones(trace.steps.num_rows, dtype=np.bool_), 0
    else:
        edges, held, unsure_ns = inferred_steps(trace, seen, signature)
        source, table = ("inferred", _table(edges)) if len(edges) else ("none", trace.steps)
    begin = ints(table, "ts_ns")
    end = begin + np.maximum(ints(table, "dur_ns", 0), 0)
    step = step_at(begin, end, _moments(trace, seen))
    whole = (end > begin) & held
    last_good = trace.health.last_good_ts_ns
    if not trace.health.complete and last_good is not None:
        whole &= end <= last_good
    whole[step[silent & (step >= 0)]] = False
    whole &= ~_lost_launches(trace, begin, end)
    return Steps(source, table, whole, unsure_ns), step


def _lost_launches(trace: RankTrace, begin: Ints, end: Ints) -> Bools:
    """Steps in which more launches left nothing on the GPU than in the step with fewest: kernels were dropped there.

    Some calls leave nothing in any step, and events that were set aside are not lost.
    """
    asked = ints(trace.launches, "correlation")
    lost = (asked > 0) & ~np.isin(asked, ints(trace.gpu_events, "correlation"))
    if not trace.on_gpu or len(begin) < 2 or int(lost.sum()) <= trace.health.quarantined:
        return np.zeros(len(begin), dtype=np.bool_)
    step = step_at(begin, end, ints(trace.launches, "ts_ns")[lost])
    count = np.bincount(step[step >= 0], minlength=len(begin))
    return np.asarray(count > count.min(), dtype=np.bool_)


def step_at(begin: Ints, end: Ints, moment: Ints) -> Ints:
    """The row of the step around each moment; `NULL` outside of all steps and for `NULL`.

    Args:
        begin: when each step begins, ns, ascending.
        end: when it ends.
        moment: ns.
    """
    if not len(begin):
        return np.full(len(moment), NULL, dtype=np.int64)
    row = np.searchsorted(begin, moment, side="right") - 1
    inside = (row >= 0) & (moment < end[np.maximum(row, 0)]) & (moment != NULL)
    return np.where(inside, row, NULL)


def _moments(trace: RankTrace, seen: Evidence) -> Ints:
    """When each call counts as made: when it was asked for, else when it ran; `NULL` if before the window."""
    if not trace.launches.num_rows:
        return np.where(seen.asked == NULL, seen.start, seen.asked)
    gpu = trace.gpu_events
    where = np.maximum(seen.event, 0)
    on_gpu = (seen.event >= 0) & (seen.start >= 0)
    launched = on_gpu & (seen.asked != NULL)
    if not on_gpu.any():
        return seen.asked
    device, stream = ints(gpu, "device")[where], ints(gpu, "stream")[where]
    _, lane = distinct(device, stream)
    first = np.full(int(lane.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, lane[launched], seen.start[launched])
    silent_stream = first[lane] == np.iinfo(np.int64).max
    ran = np.where(on_gpu & (silent_stream | (seen.start >= first[lane])), seen.start, NULL)
    return np.where(seen.asked == NULL, ran, seen.asked)


def _table(edges: Ints) -> pa.Table:
    import pyarrow as pa

    columns = [np.arange(len(edges)), edges[:, 0], edges[:, 1] - edges[:, 0]]
    return pa.Table.from_arrays([array(column) for column in columns], schema=tables.STEPS)

"""Steps where nobody marked them: from what closes a step on the host, else from the period of the communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import code_of, codes, ints
from heuristics.columns import Bools, Ints
from heuristics.host_line import most_used, rank_line
from heuristics.step_cuts import Closings, StepCuts, cut_steps
from heuristics.step_period import by_period

if TYPE_CHECKING:
    from heuristics.evidence import Evidence
    from parsers.tables import RankTrace

_MODEL_CALL = "DistributedDataParallel.forward"
_CLEARS = "zero_grad"
"""Clearing gradients is the optimizer's, but may as well come before a step's work as after it."""


def inferred_steps(trace: RankTrace, seen: Evidence, signature: Ints) -> StepCuts:
    """The inferred steps; none where the trace does not show any.

    Args:
        trace: the facts.
        seen: the evidence of each call.
        signature: per call, a number that is equal for calls that mean the same thing.
    """
    for closings in (_optimizer_steps(trace), _model_calls(trace)):
        if closings is not None:
            window = trace.metadata.get("window_ns")
            start = window[0] if isinstance(window, tuple) else None
            return cut_steps(rank_line(trace, closings.tid), closings, start)
    return by_period(trace, seen, signature)


def _optimizer_steps(trace: RankTrace) -> Closings | None:
    """A step's work ends with the last optimizer step that follows its backward work."""
    kind, kinds = codes(trace.cpu_marks, "kind")
    ts, dur, tid = (ints(trace.cpu_marks, column, 0) for column in ("ts_ns", "dur_ns", "tid"))
    steps = (kind == code_of(kinds, "optimizer")) & ~_named(trace, _CLEARS)
    backward = np.sort(ts[kind == code_of(kinds, "autograd")])
    if not steps.any() or not len(backward):
        return None
    ends = np.sort((ts + dur)[steps])
    # Optimizer steps with the same amount of backward work before them belong to the same step.
    done = np.searchsorted(backward, ends)
    last = np.flatnonzero(np.r_[done[1:] != done[:-1], True])
    if len(last) < 2:
        return None
    return Closings(most_used(tid[steps]), int(backward[0]), ends[last], _next(backward, done[last]))


def _model_calls(trace: RankTrace) -> Closings | None:
    """Where nothing runs backward, each call of the wrapped model is a step."""
    kind, kinds = codes(trace.cpu_marks, "kind")
    calls = _named(trace, _MODEL_CALL)
    if calls.sum() < 2 or (kind == code_of(kinds, "autograd")).any():
        return None
    ts, dur, tid = (ints(trace.cpu_marks, column, 0)[calls] for column in ("ts_ns", "dur_ns", "tid"))
    order = np.argsort(ts, kind="stable")
    begin, end = ts[order], (ts + dur)[order]
    if (begin[1:] < end[:-1]).any():
        return None
    return Closings(most_used(tid), int(begin[0]), end, _next(begin, np.arange(1, len(begin) + 1)))


def _named(trace: RankTrace, words: str) -> Bools:
    """Marks in whose names the words occur."""
    name, names = codes(trace.cpu_marks, "name")
    return np.array([*(words in text for text in names), False], dtype=np.bool_)[name]


def _next(moments: Ints, row: Ints) -> Ints:
    """The moment at each row; the end of time behind the last."""
    return np.append(moments, np.iinfo(np.int64).max - 1)[row]

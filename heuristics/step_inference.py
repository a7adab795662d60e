"""Steps where nobody marked them: from the optimizer's marks, else from the period of the communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.columns import Ints

if TYPE_CHECKING:
    from heuristics.evidence import Evidence
    from parsers.tables import RankTrace

NOT_EQUAL = 0.1
"""Repetitions whose lengths differ from the median by more than this share are not taken for steps."""

_NO_EDGES = np.empty((0, 2), dtype=np.int64)


def inferred_edges(trace: RankTrace, seen: Evidence, signature: Ints) -> Ints:
    """Begin and end of each inferred step in ns, ``(n, 2)``; no rows where the trace does not show any.

    Args:
        trace: the facts.
        seen: the evidence of each call.
        signature: per call, a number that is equal for calls that mean the same thing.
    """
    edges = _by_optimizer(trace, seen)
    return edges if len(edges) else _by_period(trace, seen, signature)


def _by_optimizer(trace: RankTrace, seen: Evidence) -> Ints:
    """A step ends with the last optimizer step that follows its backward work."""
    kind, kinds = codes(trace.cpu_marks, "kind")
    name, names = codes(trace.cpu_marks, "name")
    ts, dur = ints(trace.cpu_marks, "ts_ns"), ints(trace.cpu_marks, "dur_ns", 0)
    is_step = np.array([*(text.startswith("Optimizer.step") for text in names), False], dtype=np.bool_)[name]
    backward = np.sort(ts[kind == code_of(kinds, "autograd")])
    ends = np.sort((ts + dur)[is_step])
    if len(ends) < 2 or not len(backward):
        return _NO_EDGES
    # Optimizer steps with the same amount of backward work before them belong to the same step.
    done = np.searchsorted(backward, ends)
    last = np.flatnonzero(np.r_[done[1:] != done[:-1], True] & (done > 0))
    if len(last) < 2:
        return _NO_EDGES
    first = min([int(backward[0]), *seen.asked[seen.asked != NULL].tolist()[:1]])
    begin = np.concatenate([[first], ends[last[:-1]]])
    return np.stack([begin, ends[last]], axis=1)


def _by_period(trace: RankTrace, seen: Evidence, signature: Ints) -> Ints:
    """Steps that repeat the same calls at equal distances, with the rank's longest pause before each.

    The calls must repeat without exception, and the pause must be longer than any other: layers repeat as well, but
    nothing pauses between them. Work replayed from one graph is never cut.
    """
    rows = np.flatnonzero((seen.event >= 0) & (seen.start != NULL))
    rows = rows[np.argsort(seen.start[rows], kind="stable")]
    start, kinds = seen.start[rows], signature[rows]
    period = _period(start, kinds)
    if not period:
        return _NO_EDGES
    pauses = _pauses(trace)
    if not len(pauses):
        return _NO_EDGES
    whole = len(start) // period
    longest = pauses[np.argsort(pauses[:, 0] - pauses[:, 1], kind="stable")[: whole - 1]]
    resumed = np.sort(longest[:, 1])
    shorter = np.sort(pauses[:, 1] - pauses[:, 0])[::-1]
    if len(shorter) >= whole and shorter[whole - 1] == shorter[whole - 2]:
        return _NO_EDGES
    # Every step but the first resumes after one of the longest pauses, and holds one period of calls.
    place = np.searchsorted(start, resumed)
    if (np.diff(place) != period).any() or place[0] > period or len(start) - place[-1] > period:
        return _NO_EDGES
    if _cuts_a_graph(trace, seen, rows, place):
        return _NO_EDGES
    # The CPU runs ahead: a step begins where its first work was launched, or its first call asked for.
    asked = seen.asked[rows[np.minimum(place, len(rows) - 1)]]
    moments = _launch_of_first(trace, resumed)
    moments = np.where(asked == NULL, moments, np.minimum(moments, asked))
    length = int(np.median(np.diff(moments))) if len(moments) > 1 else int(np.median(np.diff(start[::period])))
    begin = np.concatenate([[moments[0] - length], moments])
    return np.stack([begin, np.append(moments, moments[-1] + length)], axis=1)


def _period(start: Ints, kinds: Ints) -> int:
    """The fewest calls after which everything repeats at equal distances; 0 if nothing does twice."""
    n = len(start)
    candidates: list[int] = (np.flatnonzero(kinds[1 : n // 2 + 1] == kinds[0]) + 1).tolist() if n else []
    for period in candidates:
        # Most periods fail within the first calls.
        if all(_repeats(start[:end], kinds[:end], period) for end in (min(n, period + 64), n)):
            return period
    return 0


def _repeats(start: Ints, kinds: Ints, period: int) -> bool:
    if (kinds[period:] != kinds[:-period]).any():
        return False
    distance = start[period:] - start[:-period]
    middle = np.median(distance)
    return bool(middle > 0 and (np.abs(distance - middle) <= NOT_EQUAL * middle).all())


def _pauses(trace: RankTrace) -> Ints:
    """Begin and end of every time in which the GPU has nothing to do."""
    kind, kinds = codes(trace.gpu_events, "kind")
    busy = np.isin(kind, [code_of(kinds, k) for k in ("kernel", "memcpy", "memset")])
    start = ints(trace.gpu_events, "ts_ns")[busy]
    end = start + ints(trace.gpu_events, "dur_ns", 0)[busy]
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order]) if len(start) else end
    gap = np.flatnonzero(start[1:] > reach[:-1])
    return np.stack([reach[:-1][gap], start[1:][gap]], axis=1)


def _cuts_a_graph(trace: RankTrace, seen: Evidence, rows: Ints, place: Ints) -> bool:
    correlation = ints(trace.gpu_events, "correlation")[seen.event[rows]]
    before = correlation[np.maximum(place - 1, 0)]
    after = correlation[np.minimum(place, len(rows) - 1)]
    return bool(((before == after) & (place > 0) & (place < len(rows))).any())


def _launch_of_first(trace: RankTrace, resumed: Ints) -> Ints:
    """When the CPU launched the event that starts at each moment; the moment itself where that is not recorded."""
    start = ints(trace.gpu_events, "ts_ns")
    order = np.argsort(start, kind="stable")
    event = order[np.minimum(np.searchsorted(start[order], resumed), len(order) - 1)]
    known, ts = ints(trace.launches, "correlation"), ints(trace.launches, "ts_ns")
    if not len(known):
        return resumed
    by = np.argsort(known, kind="stable")
    wanted = ints(trace.gpu_events, "correlation")[event]
    row = np.minimum(np.searchsorted(known[by], wanted), len(known) - 1)
    return np.where((known[by][row] == wanted) & (wanted >= 0), ts[by][row], resumed)

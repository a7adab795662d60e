"""Steps from the period of the communication, with the longest pause of the GPU before each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.columns import Bools, Ints
from heuristics.host_line import GPU_WORK, HostLine, host_line, most_used
from heuristics.step_cuts import NO_CUTS, StepCuts, boundaries

if TYPE_CHECKING:
    from heuristics.evidence import Evidence
    from parsers.tables import RankTrace

NOT_EQUAL = 0.1
"""Repetitions whose lengths differ from the median by more than this share are not taken for steps."""


def by_period(trace: RankTrace, seen: Evidence, signature: Ints) -> StepCuts:
    """Steps that repeat the same calls at equal distances, with the rank's longest pause before each.

    The calls must repeat without exception, and the pause must be longer than any other: layers repeat as well, but
    nothing pauses between them. Work replayed from one graph is never cut. Where kernels were lost, the host is
    looked at instead of the GPU: when it asked for each call, and the pauses between what it did.

    Args:
        trace: the facts.
        seen: the evidence of each call.
        signature: per call, a number that is equal for calls that mean the same thing.
    """
    line = host_line(trace, most_used(ints(trace.launches, "tid")))
    ran = (seen.event >= 0) & (seen.start != NULL)
    asked = seen.asked != NULL
    if trace.on_gpu and asked.all() and not ran.all():
        found = _after_pauses(seen.asked, signature, _host_pauses(line), np.arange(len(asked)))
        return NO_CUTS if found is None else _settled(line, found.resumed, found)
    found = _after_pauses(seen.start, signature, _gpu_pauses(trace), np.flatnonzero(ran))
    if found is None or _cuts_a_graph(trace, seen, found.rows, found.place):
        return NO_CUTS
    # The CPU runs ahead: a step begins where its first work was launched, or its first call asked for.
    first = seen.asked[found.rows[np.minimum(found.place, len(found.rows) - 1)]]
    moments = _launch_of_first(trace, found.resumed)
    return _settled(line, np.where(first == NULL, moments, np.minimum(moments, first)), found)


class _Found(NamedTuple):
    rows: Ints  # the calls, in order of time
    place: Ints  # the first call of each step but the first, as a place in ``rows``
    resumed: Ints  # when work went on after the pause before each step but the first, ns
    length_ns: int
    whole: Bools  # whether each step holds all calls


def _after_pauses(moment: Ints, signature: Ints, pauses: Ints, rows: Ints) -> _Found | None:
    """Steps that hold one period of calls each, and resume after one of the longest pauses."""
    rows = rows[np.argsort(moment[rows], kind="stable")]
    start = moment[rows]
    period = _period(start, signature[rows])
    if not period or not len(pauses):
        return None
    length = pauses[:, 1] - pauses[:, 0]
    order = np.argsort(-length, kind="stable")
    whole = len(start) // period
    # The record may begin and end within a step.
    for cuts in (whole + 1, whole, whole - 1):
        if not 0 < cuts <= len(order) or (cuts < len(order) and length[order[cuts]] == length[order[cuts - 1]]):
            continue
        resumed = np.sort(pauses[order[:cuts], 1])
        place = np.searchsorted(start, resumed)
        held = np.diff(np.concatenate([[0], place, [len(start)]]))
        if held.min() > 0 and held.max() <= period and (held[1:-1] == period).all():
            return _Found(rows, place, resumed, int(np.median(np.diff(start[::period]))), held == period)
    return None


def _settled(line: HostLine, shown: Ints, found: _Found) -> StepCuts:
    """Steps of equal length around the moments at which all but the first show themselves."""
    length_ns = int(np.median(np.diff(shown))) if len(shown) > 1 else found.length_ns
    moments, _, unsure_ns = boundaries(line, shown, length_ns)
    begin = np.concatenate([[moments[0] - length_ns], moments])
    edges = np.stack([begin, np.append(moments, moments[-1] + length_ns)], axis=1)
    return StepCuts(edges, found.whole, unsure_ns)


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


def _gpu_pauses(trace: RankTrace) -> Ints:
    """Begin and end of every time in which the GPU has nothing to do, and the host does not stand still for it."""
    events, marks = trace.gpu_events, trace.cpu_marks
    kind, kinds = codes(events, "kind")
    mark, marked = codes(marks, "kind")
    works = np.isin(kind, [code_of(kinds, text) for text in GPU_WORK])
    waits = mark == code_of(marked, "sync")
    start, length = (
        np.concatenate([ints(events, column)[works], ints(marks, column)[waits]]) for column in ("ts_ns", "dur_ns")
    )
    order = np.argsort(start, kind="stable")
    start, end = start[order], (start + np.maximum(length, 0))[order]
    reach = np.maximum.accumulate(end) if len(end) else end
    gap = np.flatnonzero(start[1:] > reach[:-1])
    return np.stack([reach[:-1][gap], start[1:][gap]], axis=1)


def _host_pauses(line: HostLine) -> Ints:
    """Begin and end of every time in which the thread did nothing."""
    length = line.paused(line.begin)
    return np.stack([line.begin - length, line.begin], axis=1)[length > 0]


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

"""What the ranks did between the collectives in which they meet: their own doing, without what they stood still for.

Collectives of the same ranks, of whatever kind and on whatever stream, are put in one order. Between two of them each
rank spends the time from one arrival to the next. Its own part is that less exposed communication, of which nothing but
what a slow link takes longer is the rank's own: its transfers are those of others as well, its waiting is their doing.

Stretches follow each other and never overlap, so that what a rank loses is counted once, however many collectives
wait for it at the same time (gathers and reduce-scatters of sharded parameters do, on streams of their own).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer import intervals
from analyzer.intervals import Bools, Floats, Ints, Spans
from analyzer.matching import Meetings
from analyzer.measured import Measured
from analyzer.work import work_of_calls
from heuristics.arrays import NULL

COMPUTE, IDLE, SLOW_LINK, OWN = "slower compute", "host gap before launch", "slow link", "own"
"""What a stretch is made of, beside the named activity of hosts; the last is all of it but exposed communication."""


@dataclass(frozen=True, eq=False)
class Stretches:
    """Per entry of the meetings, the stretch before it.

    Attributes:
        chain: number of the ranks' set; stretches of one chain follow each other.
        spent: ns by what they were spent on.
        usual: the same of the middle one of the other ranks in the same meeting.
        work: how much work there was (`analyzer.work.KINDS`).
        usual_work: of the middle one of the others.
    """

    chain: Ints
    spent: Mapping[str, Floats]
    usual: Mapping[str, Floats]
    work: Mapping[str, Floats]
    usual_work: Mapping[str, Floats]


def stretches(ranks: Sequence[Measured], met: Meetings, sets: Ints, slower_ns: Sequence[Ints] | None) -> Stretches:
    """Divide up what each rank did between the meetings of the same ranks.

    Args:
        ranks: measured ranks.
        met: their meetings, with the moments at which the ranks were ready for them.
        sets: per meeting, a number that is equal for those of the same ranks.
        slower_ns: per rank and call, what its transfer took longer than on other links.
    """
    chain = sets[met.key]
    before = _entry_before(met, chain)
    names = sorted({name for rank in ranks for name in rank.source.host.names})
    spent = {name: np.zeros(len(met.key)) for name in (OWN, COMPUTE, IDLE, SLOW_LINK, *names)}
    work: dict[str, Floats] = {}
    for place, rank in enumerate(ranks):
        mine = np.flatnonzero(met.rank == place)
        if not len(mine):
            continue
        first = before[mine] == NULL
        row = met.row[mine]
        last = np.where(first, row, met.row[before[mine]])
        now, then = ready(rank)[row], ready(rank)[last]
        then = np.where(first, np.minimum(step_begin(rank, row), now), then)
        line, held = rank.source.line, rank.source.host
        busy = intervals.union_of([line.compute, line.memcpy, intervals.union(line.comm_start, line.comm_end)])
        # A chain begins with how late the ranks are for it: clocks are aligned, beginnings of steps need not be.
        length = met.start[mine] - np.where(first, 0, met.start[before[mine]])
        spent[COMPUTE][mine] = _within(line.compute, then, now)
        spent[IDLE][mine] = now - then - _within(busy, then, now)
        if slower_ns is not None:
            spent[SLOW_LINK][mine] = between(line.call_start, slower_ns[place], then - 1, now)
        still = intervals.without(intervals.union(line.comm_start, line.comm_end), line.compute)
        spent[OWN][mine] = length - _within(still, then, now) + spent[SLOW_LINK][mine]
        for i, name in enumerate(held.names):
            spent[name][mine] = held.at_start[i, row] - np.where(first, 0, held.at_start[i, last])
        for name, amounts in work_of_calls(rank).items():
            had = between(line.call_end, amounts, then - 1, now)
            work.setdefault(name, np.zeros(len(met.key)))[mine] = had
    return Stretches(
        chain=chain,
        spent=spent,
        usual={name: middle_of_the_others(values, met) for name, values in spent.items()},
        work=work,
        usual_work={name: middle_of_the_others(values, met) for name, values in work.items()},
    )


def waited_for(ranks: Sequence[Measured], met: Meetings, mine: Bools) -> float:
    """The longest that any one rank waited in some of the meetings, each moment counted once; ns.

    Args:
        ranks: measured ranks.
        met: meetings of these ranks.
        mine: which of the meetings.
    """
    most = 0.0
    for place, rank in enumerate(ranks):
        row = met.row[(met.rank == place) & mine[met.key]]
        begin = rank.source.line.call_start[row]
        waits = intervals.union(begin, begin + np.maximum(rank.wait_ns[row], 0))
        most = max(most, float((waits.end - waits.start).sum()))
    return most


def middle_of_the_others(values: Floats, met: Meetings) -> Floats:
    """Per entry, the median over the other entries of its meeting."""
    order = np.lexsort((values, met.key))
    ordered, place = values[order], np.empty(len(order), dtype=np.int64)
    first, others = met.first[met.key], (np.diff(np.append(met.first, len(met.key))) - 1)[met.key]
    place[order] = np.arange(len(order)) - met.first[met.key[order]]
    # The middle one or two of the others: those behind the entry itself move up by one.
    low, high = (others - 1) // 2, others // 2
    middle: Floats = (ordered[first + low + (low >= place)] + ordered[first + high + (high >= place)]) / 2
    return middle


def ready(rank: Measured) -> Ints:
    """When each call could have begun, had its stream been free."""
    known = rank.source.host.ready_ns
    return known if len(known) else rank.source.line.call_start


def step_begin(rank: Measured, row: Ints) -> Ints:
    """When the step of each call began."""
    edges = rank.window.edges[:, 0]
    at = np.searchsorted(edges, rank.source.line.call_start[row], side="right") - 1
    return np.where(at >= 0, edges[np.maximum(at, 0)], rank.source.line.first)


def between(at: Ints, amounts: Ints, after: Ints, upto: Ints) -> Floats:
    """Sum of the amounts whose moment is later than ``after`` and not later than ``upto``."""
    order = np.argsort(at, kind="stable")
    total = np.concatenate(([0], np.cumsum(amounts[order])))
    moments = at[order]
    found: Floats = (
        total[np.searchsorted(moments, upto, side="right")] - total[np.searchsorted(moments, after, side="right")]
    ).astype(np.float64)
    return found


def _entry_before(met: Meetings, chain: Ints) -> Ints:
    """Per entry, the rank's entry in the meeting before it of the same ranks, -1 for the first.

    Meetings are in the order of their middle arrival: on one rank streams may change places.
    """
    order = np.lexsort((met.start, met.key))
    count = np.diff(np.append(met.first, len(met.key)))
    at = met.start[order][met.first + count // 2]
    ordered = np.lexsort((at[met.key], chain, met.rank))
    follows = (np.diff(met.rank[ordered], prepend=-1) == 0) & (np.diff(chain[ordered], prepend=-1) == 0)
    out = np.full(len(met.key), NULL, dtype=np.int64)
    out[ordered[1:]] = np.where(follows[1:], ordered[:-1], NULL)
    return out


def _within(spans: Spans, then: Ints, now: Ints) -> Ints:
    """Time of the spans between two moments; below 0 where the second comes first."""
    return intervals.covered_before(spans, now) - intervals.covered_before(spans, then)

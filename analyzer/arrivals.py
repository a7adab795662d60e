"""When ranks arrive at the collectives in which they meet, and who comes last."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analyzer import intervals
from analyzer.capture_edge import at_edge, counted
from analyzer.intervals import Bools, Floats, Ints
from analyzer.matching import Meetings
from analyzer.measured import Measured
from analyzer.progress import between, middle_of_the_others, ready, step_begin
from heuristics.arrays import NULL, codes, ints


def symmetric(ranks: Sequence[Measured], meetings: Meetings) -> Meetings:
    """Symmetric collectives in the measured steps of all their ranks, without the one at the edge of the capture."""
    met = counted(ranks, meetings)
    keep = np.ones(met.count, dtype=np.bool_)
    if (edge := at_edge(ranks, met)) != NULL:
        keep[edge] = False
    return met.where(keep) if met.count else met


def last_of_each(met: Meetings) -> tuple[Ints, Floats]:
    """Per collective: the entry of the last to arrive, and how much later than the middle of the others it is, ns."""
    order = np.lexsort((met.start, met.key))
    ends = np.append(met.first[1:], len(met.key)) - 1
    last = order[ends]
    gap = met.start[last] - middle_of_the_others(met.start.astype(np.float64), met)[last]
    return last, gap


def waited_since(ranks: Sequence[Measured], met: Meetings, free: Bools) -> Floats:
    """What each rank waited since the end of its last call on the same group (else the begin of its step), ns.

    Where the ranks were free of that call (`free_of_the_one_before`), since they were ready for it.
    """
    out = np.zeros(len(met.key))
    for place, rank in enumerate(ranks):
        mine = np.flatnonzero(met.rank == place)
        row = met.row[mine]
        arrived, before, alike = ready(rank), _previous(rank)[row], _previous(rank, alike=True)[row]
        now = arrived[row]
        begun = np.minimum(np.where(before != NULL, rank.source.line.call_end[before], step_begin(rank, row)), now)
        begun = np.where(free[met.key[mine]] & (alike != NULL), arrived[alike], begun)
        out[mine] = between(rank.source.line.call_start, np.maximum(rank.wait_ns, 0), begun - 1, now - 1)
    return out


def when_ready(ranks: Sequence[Measured], met: Meetings) -> Meetings:
    """The meetings with the moments at which the ranks were ready in place of those at which their kernels began.

    A call that stands in its stream behind another begins when that is over, however early its data was there.
    """
    early = [np.append(rank.source.line.call_start - ready(rank), 0) for rank in ranks]
    base = np.concatenate(([0], np.cumsum([len(e) for e in early])))
    return replace(met, start=met.start - np.concatenate(early)[base[met.rank] + met.row])


def entry_before(ranks: Sequence[Measured], met: Meetings) -> Ints:
    """Per entry, the rank's entry in the meeting of its last call of that kind on the same group, -1 without one."""
    out = np.full(len(met.key), NULL, dtype=np.int64)
    for place, rank in enumerate(ranks):
        mine = np.flatnonzero(met.rank == place)
        entry = np.full(len(rank.counted) + 1, NULL, dtype=np.int64)
        entry[met.row[mine]] = mine
        before = _previous(rank, alike=True)[met.row[mine]]
        out[mine] = np.where(before != NULL, entry[before], NULL)
    return out


def free_of_the_one_before(ranks: Sequence[Measured], met: Meetings) -> Bools:
    """Per meeting, whether the last call of its kind left the compute of half of its ranks or more alone.

    It did where a rank computed beside it for half of its time, or was ready for this one before it was over
    (asynchronous buckets). Who was late for it still is: that is no new lateness.
    """
    before = entry_before(ranks, met)
    beside = np.zeros(len(met.key), dtype=np.bool_)
    for place, rank in enumerate(ranks):
        line, mine = rank.source.line, met.rank == place
        low, high = line.call_start[met.row[mine]], line.call_end[met.row[mine]]
        beside[mine] = 2 * intervals.covered(line.compute, low, high) >= high - low
    free = (before != NULL) & ((met.start < met.end[before]) | beside[before])
    found: Bools = 2 * np.bincount(met.key, weights=free, minlength=met.count) >= np.bincount(met.key)
    return found


def lateness_of(met: Meetings) -> Floats:
    """Per entry, by how much the rank was later (earlier, below 0) than the middle of the others, in ns."""
    start = met.start.astype(np.float64)
    late: Floats = start - middle_of_the_others(start, met)
    return late


def _previous(rank: Measured, *, alike: bool = False) -> Ints:
    """Per call, the row of a call before it on the same group, -1 for none.

    The last one of the same primitive (``alike``), or the last of any that the rank did not compute beside: such a call
    may have held it up.
    """
    line = rank.source.line
    group = ints(rank.source.collectives, "group")
    kind = codes(rank.source.collectives, "primitive")[0] if alike else np.zeros(len(group), dtype=np.int64)
    rows = np.flatnonzero(line.call_end > line.call_start)
    rows = rows[np.lexsort((line.call_start[rows], kind[rows], group[rows]))]
    out = np.full(len(group), NULL, dtype=np.int64)
    if not len(rows):
        return out
    low, high = line.call_start[rows], line.call_end[rows]
    counts = (
        np.ones(len(rows), dtype=np.bool_) if alike else 2 * intervals.covered(line.compute, low, high) < high - low
    )
    at = np.arange(len(rows))
    new = np.concatenate(([True], (group[rows][1:] != group[rows][:-1]) | (kind[rows][1:] != kind[rows][:-1])))
    first = np.maximum.accumulate(np.where(new, at, 0))
    before = np.concatenate(([-1], np.maximum.accumulate(np.where(counts, at, -1))[:-1]))
    known = before >= first
    out[rows[known]] = rows[before[known]]
    return out


def sets_of_ranks(met: Meetings) -> Ints:
    """A number per collective, equal for those of the same ranks."""
    order = np.lexsort((met.rank, met.key))
    rank, first = met.rank[order], met.first
    bounds = np.append(first, len(rank)).tolist()
    seen: dict[tuple[int, ...], int] = {}
    found = [seen.setdefault(tuple(rank[a:b].tolist()), len(seen)) for a, b in itertools.pairwise(bounds)]
    return np.array(found, dtype=np.int64)


def step_of(rank: Measured, row: Ints) -> Ints:
    """The measured step that each call is in: its place in the window."""
    return np.searchsorted(rank.window.edges[:, 0], rank.source.line.call_start[row], side="right") - 1

"""Who the others wait for, how often, and why.

The last to arrive at a collective is the one that waits least. It is a culprit only for what it did itself: the part of
its lateness that it spent waiting for somebody else, in another collective since the same ranks last met, is that
other's doing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzer import intervals
from analyzer.capture_edge import at_edge, counted
from analyzer.intervals import Bools, Floats, Ints
from analyzer.matching import Matching, Meetings
from analyzer.measured import Measured
from analyzer.model import Straggler
from analyzer.progress import (
    COMPUTE,
    IDLE,
    OWN,
    SLOW_LINK,
    Stretches,
    middle_of_the_others,
    ready,
    step_begin,
    stretches,
    waited_for,
)
from analyzer.work import more_work
from heuristics.arrays import NULL, codes, ints

EXPLAINS = 0.8
"""Share of its lateness that one cause must cover to be named; below it several things are at work."""

HABIT = 0.5
"""Share of its lateness that must be left when the times it came early are taken off: ranks whose steps merely vary are
last by turns, each as often as the others."""

IMPACT = 0.1
"""Share of all waiting that a rank must cause to be called a straggler: with less, fixing it changes nothing much."""

NOISE = 0.01
"""Share of a step below which a rank is not late: steps of a healthy job vary by that much (Llama 3, 3.3.4)."""

OFTEN = 0.5
"""Share of the steps in which a rank must be last to be late as a habit."""


@dataclass(frozen=True)
class Lateness:
    """One rank that others wait for.

    Attributes:
        rank: global rank.
        late_us_per_step: how much later than the middle one of the others it arrives, by its own doing.
        share_of_waits: of all waiting in collectives.
        cause: in words, None where no single one explains it.
        steps: in how many steps it was late, of how many.
        last: in how many collectives it came last, of how many.
        caused_us_per_step: waiting of all others together.
    """

    rank: int
    late_us_per_step: float
    share_of_waits: float
    cause: str | None
    steps: tuple[int, int]
    last: tuple[int, int]
    caused_us_per_step: float


def stragglers(ranks: Sequence[Measured], matching: Matching, link: SlowLink | None = None) -> list[Lateness]:
    """The ranks that cause a notable share of all waiting, worst first; none where arrivals cannot be compared.

    Args:
        ranks: measured ranks.
        matching: of the same ranks.
        link: where transfers are slow: that is no fault of the rank's compute.
    """
    met = _counted(ranks, matching.meetings)
    residual = (matching.clock.residual_us or 0.0) * 1000
    if not met.count:
        return []
    sets = _members(met)
    _, _, others = _last_of_each(met)
    arrived = met
    met = _when_ready(ranks, met)
    free = _free_of_the_one_before(ranks, met)
    last, gap, _ = _last_of_each(met)
    waited = _since_last_meeting(ranks, met, free)
    lateness, before = _lateness(met), _entry_before(ranks, met)
    goes_on = free & (before[last] != NULL)
    own = gap - np.maximum((waited - middle_of_the_others(waited, met))[last], 0.0)
    own -= np.where(goes_on, lateness[before[last]], 0.0)
    # Of a lateness that goes on, what comes on top counts.
    late = (gap > residual) & (free | (own > max(residual, gap.max(initial=0.0) * 1e-6)))
    done = stretches(ranks, met, sets, None if link is None else link.slower_ns)
    steps = max(rank.window.count for rank in ranks)
    everything = float(others.sum())
    step_ns = float(np.mean([rank.window.total / rank.window.count for rank in ranks if rank.window.count]))
    out = []
    for place in np.unique(met.rank[last[late]]).tolist():
        mine = late & (met.rank[last] == place)
        behind = _behind(done, met.rank == place, last[mine])
        whole = min(behind.ns, waited_for(ranks, arrived, met.rank[last] == place))
        share = float((others * own / np.maximum(gap, 1.0))[mine].sum()) / everything if everything else 0.0
        rank = ranks[place].source.rank
        if share < IMPACT or whole / steps < NOISE * step_ns or rank is None:
            continue
        if float(lateness[met.rank == place].sum()) < HABIT * float(gap[mine].sum()):
            continue
        in_steps = np.unique(_step_of(ranks[place], met.row[last[mine]]))
        out.append(
            Lateness(
                rank=rank,
                late_us_per_step=round(whole / steps / 1000, 3),
                share_of_waits=round(share, 6),
                cause=behind.cause,
                steps=(len(in_steps), steps),
                last=(int(mine.sum()), int((met.rank == place).sum())),
                caused_us_per_step=round(float(others[mine].sum()) / steps / 1000, 3),
            )
        )
    return sorted(out, key=lambda item: -item.share_of_waits)


@dataclass(frozen=True)
class _Behind:
    """How far a rank falls behind the others by its own doing, in ns over all steps, and the one cause of it."""

    ns: float
    cause: str | None


def _behind(done: Stretches, entries: Bools, last: Ints) -> _Behind:
    """Against the ranks that it falls behind most: what it loses against others is the same loss.

    Args:
        done: what all ranks did between meetings.
        entries: those of the rank.
        last: entries of the rank where it was the last to arrive.
    """
    found = _Behind(0.0, None)
    for one in np.unique(done.chain[last]).tolist():
        mine = entries & (done.chain == one)
        beyond = {name: float((values - done.usual[name])[mine].sum()) for name, values in done.spent.items()}
        late = beyond.pop(OWN)
        if late <= found.ns:
            continue
        cause = _cause(beyond, late)
        if cause == COMPUTE:
            ratios = {name: _ratio(values[mine], done.usual_work[name][mine]) for name, values in done.work.items()}
            cause = more_work(ratios, float(done.usual[COMPUTE][mine].sum()), beyond[COMPUTE]) or cause
        found = _Behind(late, cause)
    return found


def document(found: Sequence[Lateness]) -> list[Straggler]:
    """As the contract has them."""
    return [
        Straggler(
            rank=item.rank,
            late_us_per_step=item.late_us_per_step,
            share_of_waits=item.share_of_waits,
            cause=item.cause,
        )
        for item in found
    ]


def _counted(ranks: Sequence[Measured], meetings: Meetings) -> Meetings:
    """Symmetric collectives in the measured steps of all their ranks, without the one at the edge of the capture."""
    met = counted(ranks, meetings)
    keep = np.ones(met.count, dtype=np.bool_)
    if (edge := at_edge(met)) != NULL:
        keep[edge] = False
    return met.where(keep) if met.count else met


def _last_of_each(met: Meetings) -> tuple[Ints, Floats, Ints]:
    """Per collective: the entry of the last to arrive, how much later than the middle of the others, all waits."""
    order = np.lexsort((met.start, met.key))
    ends = np.append(met.first[1:], len(met.key)) - 1
    last = order[ends]
    gap = met.start[last] - _middle_of_others(met.start.astype(np.float64), met, last)
    waits = np.add.reduceat(met.start[last][met.key] - met.start, met.first)
    return last, gap, waits


def _middle_of_others(values: Floats, met: Meetings, without: Ints) -> Floats:
    """Median over the entries of each collective, one of them left out."""
    rest = np.ones(len(values), dtype=np.bool_)
    rest[without] = False
    key, value = met.key[rest], values[rest]
    order = np.lexsort((value, key))
    first = np.flatnonzero(np.diff(key, prepend=-1))
    count = np.diff(np.append(first, len(key)))
    ordered = value[order].astype(np.float64)
    middle: Floats = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    return middle


def _since_last_meeting(ranks: Sequence[Measured], met: Meetings, free: Bools) -> Floats:
    """What each rank waited since the end of its last call on the same group (else the begin of its step), ns.

    Where the ranks were free of that call (`_free_of_the_one_before`), since they were ready for it.
    """
    out = np.zeros(len(met.key))
    for place, rank in enumerate(ranks):
        mine = np.flatnonzero(met.rank == place)
        row = met.row[mine]
        arrived, before, alike = ready(rank), _previous(rank)[row], _previous(rank, alike=True)[row]
        now = arrived[row]
        begun = np.minimum(np.where(before != NULL, rank.source.line.call_end[before], step_begin(rank, row)), now)
        begun = np.where(free[met.key[mine]] & (alike != NULL), arrived[alike], begun)
        out[mine] = _waited(rank, begun, now)
    return out


def _ratio(own: Floats, others: Floats) -> float | None:
    """How many times the work of the others; None where there is nothing to compare."""
    return float(own.sum() / others.sum()) if others.sum() > 0 else None


def _when_ready(ranks: Sequence[Measured], met: Meetings) -> Meetings:
    """The meetings with the moments at which the ranks were ready in place of those at which their kernels began.

    A call that stands in its stream behind another begins when that is over, however early its data was there.
    """
    early = [np.append(rank.source.line.call_start - ready(rank), 0) for rank in ranks]
    base = np.concatenate(([0], np.cumsum([len(e) for e in early])))
    return replace(met, start=met.start - np.concatenate(early)[base[met.rank] + met.row])


def _entry_before(ranks: Sequence[Measured], met: Meetings) -> Ints:
    """Per entry, the rank's entry in the meeting of its last call of that kind on the same group, -1 without one."""
    out = np.full(len(met.key), NULL, dtype=np.int64)
    for place, rank in enumerate(ranks):
        mine = np.flatnonzero(met.rank == place)
        entry = np.full(len(rank.counted) + 1, NULL, dtype=np.int64)
        entry[met.row[mine]] = mine
        before = _previous(rank, alike=True)[met.row[mine]]
        out[mine] = np.where(before != NULL, entry[before], NULL)
    return out


def _free_of_the_one_before(ranks: Sequence[Measured], met: Meetings) -> Bools:
    """Per meeting, whether the last call of its kind left the compute of half of its ranks or more alone.

    It did where a rank computed beside it for half of its time, or was ready for this one before it was over
    (asynchronous buckets). Who was late for it still is: that is no new lateness.
    """
    before = _entry_before(ranks, met)
    beside = np.zeros(len(met.key), dtype=np.bool_)
    for place, rank in enumerate(ranks):
        line, mine = rank.source.line, met.rank == place
        low, high = line.call_start[met.row[mine]], line.call_end[met.row[mine]]
        beside[mine] = 2 * intervals.covered(line.compute, low, high) >= high - low
    free = (before != NULL) & ((met.start < met.end[before]) | beside[before])
    found: Bools = 2 * np.bincount(met.key, weights=free, minlength=met.count) >= np.bincount(met.key)
    return found


def _lateness(met: Meetings) -> Floats:
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


def _step_of(rank: Measured, row: Ints) -> Ints:
    return np.searchsorted(rank.window.edges[:, 0], rank.source.line.call_start[row], side="right") - 1


def _waited(rank: Measured, begun: Ints, now: Ints) -> Floats:
    """Known waiting in calls that began between the two moments."""
    line = rank.source.line
    order = np.argsort(line.call_start, kind="stable")
    upto = np.concatenate(([0], np.cumsum(np.maximum(rank.wait_ns[order], 0))))
    at = line.call_start[order]
    found: Floats = (upto[np.searchsorted(at, now)] - upto[np.searchsorted(at, begun)]).astype(np.float64)
    return found


def _cause(excess: dict[str, float], late: float) -> str | None:
    """What explains most of the lateness: named host activity first, then compute, then an idle GPU."""
    named = {name: ns for name, ns in excess.items() if name not in (COMPUTE, IDLE, SLOW_LINK)}
    for choices in ({SLOW_LINK: excess[SLOW_LINK]}, named, {COMPUTE: excess[COMPUTE]}, {IDLE: excess[IDLE]}):
        if choices:
            name = max(choices, key=lambda n: choices[n])
            if choices[name] >= EXPLAINS * late > 0:
                return name
    return None


@dataclass(frozen=True, eq=False)
class SlowLink:
    """Where groups are slower than their equals.

    Attributes:
        ranks: what all slow groups have in common and no sound one has.
        slower_ns: per rank and call, how much longer its transfer took than the usual one.
        lost_us_per_step: the same per collective, summed.
    """

    ranks: tuple[int, ...]
    slower_ns: tuple[Ints, ...]
    lost_us_per_step: float


def slow_link(ranks: Sequence[Measured], meetings: Meetings) -> SlowLink | None:
    """The ranks that all slow groups have in common and no other group has; None where nothing stands out.

    Groups that move the same payload with the same primitive are compared by transfer alone, from the last arrival to
    the first departure. (Where slow groups meet is the slow link: the reasoning of C4, Dong et al. 2024, section 4.)
    """
    met = _counted(ranks, meetings)
    if not met.count:
        return None
    first = met.first
    moved = np.minimum.reduceat(met.end, first) - np.maximum.reduceat(met.start, first)
    members = _members(met)
    kind = np.stack((met.kind[first], _payloads(ranks, met), np.diff(np.append(first, len(met.key)))), axis=1)
    of_kind = np.unique(kind, axis=0, return_inverse=True)[1].ravel()
    slow, sound, slower = set[int](), set[int](), np.zeros(met.count, dtype=np.int64)
    for one in np.unique(of_kind).tolist():
        mine = of_kind == one
        typical = {g: float(np.median(moved[mine & (members == g)])) for g in np.unique(members[mine]).tolist()}
        if len(typical) < _GROUPS:
            continue
        usual = float(np.median(list(typical.values())))
        bad = [g for g, ns in typical.items() if ns > SLOW * usual]
        slow |= set(bad)
        sound |= set(typical) - set(bad)
        late = mine & np.isin(members, bad)
        slower[late] = np.maximum(moved[late] - round(usual), 0)
    ranks_of = {g: set(met.rank[members[met.key] == g].tolist()) for g in slow | sound}
    if not slow:
        return None
    common = set.intersection(*(ranks_of[g] for g in slow)) - set().union(*(ranks_of[g] for g in sound - slow))
    named = tuple(sorted(r for p in common if (r := ranks[p].source.rank) is not None))
    per_rank = tuple(np.zeros(len(rank.counted), dtype=np.int64) for rank in ranks)
    for place, values in enumerate(per_rank):
        here = met.rank == place
        values[met.row[here]] = slower[met.key[here]]
    lost = float(slower.sum()) / max(rank.window.count for rank in ranks) / 1000
    return SlowLink(named, per_rank, round(lost, 3)) if named else None


SLOW = 1.5
"""A group is slow when it takes this many times what its equals take: healthy links of one kind differ by far less."""

_GROUPS = 3
"""Groups of a kind that must be there: of two, nobody can say which one is out of order."""


def _payloads(ranks: Sequence[Measured], met: Meetings) -> Ints:
    sizes = [ints(rank.source.collectives, "size_bytes") for rank in ranks]
    first = met.first
    return np.array(
        [sizes[p][r] for p, r in zip(met.rank[first].tolist(), met.row[first].tolist(), strict=True)], dtype=np.int64
    )


def _members(met: Meetings) -> Ints:
    """A number per collective, equal for those of the same ranks."""
    order = np.lexsort((met.rank, met.key))
    rank, first = met.rank[order], met.first
    bounds = np.append(first, len(rank)).tolist()
    seen: dict[tuple[int, ...], int] = {}
    found = [seen.setdefault(tuple(rank[a:b].tolist()), len(seen)) for a, b in itertools.pairwise(bounds)]
    return np.array(found, dtype=np.int64)


def late_steps(found: Lateness) -> str:
    """How its lateness recurs, in words."""
    late, steps = found.steps
    if steps <= 1:
        return "in the one step there is"
    if late == steps:
        return "in every step"
    if late == 1:
        return f"in one of {steps} steps"
    habit = "often" if late >= OFTEN * steps else "now and then"
    return f"{habit}: in {late} of {steps} steps"

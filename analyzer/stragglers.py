"""Who the others wait for, how often, and why.

The last to arrive at a collective is the one that waits least. It is a culprit only for what it did itself: the part of
its lateness that it spent waiting for somebody else, in another collective since the same ranks last met, is that
other's doing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.arrivals import (
    entry_before,
    free_of_the_one_before,
    last_of_each,
    lateness_of,
    sets_of_ranks,
    step_of,
    symmetric,
    waited_since,
    when_ready,
)
from analyzer.caused import own_lateness, shares_of_waits
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
    stretches,
    waited_for,
)
from analyzer.work import more_work
from heuristics.arrays import NULL, ints

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
        share_of_waits: of all waiting of all ranks in collectives, each moment counted once (see `analyzer.caused`).
        cause: in words, None where no single one explains it.
        steps: in how many steps it was late, of how many.
        last: in how many collectives it came last, of how many.
    """

    rank: int
    late_us_per_step: float
    share_of_waits: float
    cause: str | None
    steps: tuple[int, int]
    last: tuple[int, int]


def stragglers(ranks: Sequence[Measured], matching: Matching, link: SlowLink | None = None) -> list[Lateness]:
    """The ranks that cause a notable share of all waiting, worst first; none where arrivals cannot be compared.

    Args:
        ranks: measured ranks.
        matching: of the same ranks.
        link: where transfers are slow: that is no fault of the rank's compute.
    """
    met = symmetric(ranks, matching.meetings)
    residual = (matching.clock.residual_us or 0.0) * 1000
    if not met.count:
        return []
    sets = sets_of_ranks(met)
    arrived = met
    met = when_ready(ranks, met)
    free = free_of_the_one_before(ranks, met)
    last, gap = last_of_each(met)
    waited = waited_since(ranks, met, free)
    waited_more = waited - middle_of_the_others(waited, met)
    lateness, before = lateness_of(met), entry_before(ranks, met)
    goes_on = free & (before[last] != NULL)
    own = gap - np.maximum(waited_more[last], 0.0) - np.where(goes_on, lateness[before[last]], 0.0)
    # Of a lateness that goes on, what comes on top counts.
    late = (gap > residual) & (free | (own > max(residual, gap.max(initial=0.0) * 1e-6)))
    done = stretches(ranks, met, sets, None if link is None else link.slower_ns)
    steps = max(rank.window.count for rank in ranks)
    to_blame = own_lateness(met, lateness, waited_more, np.where(free[met.key], before, NULL))[last]
    shares = shares_of_waits(ranks, arrived, met.rank[last], np.where(gap > residual, to_blame, 0.0), IMPACT)
    step_ns = float(np.mean([rank.window.total / rank.window.count for rank in ranks if rank.window.count]))
    out = []
    for place, share in shares.items():
        rank, mine = ranks[place].source.rank, late & (met.rank[last] == place)
        if rank is None or not mine.any():
            continue
        behind = _behind(done, met.rank == place, last[mine])
        whole = min(behind.ns, waited_for(ranks, arrived, met.rank[last] == place))
        if whole / steps < NOISE * step_ns:
            continue
        if float(lateness[met.rank == place].sum()) < HABIT * float(gap[mine].sum()):
            continue
        in_steps = np.unique(step_of(ranks[place], met.row[last[mine]]))
        out.append(
            Lateness(
                rank=rank,
                late_us_per_step=round(whole / steps / 1000, 3),
                share_of_waits=round(share, 6),
                cause=behind.cause,
                steps=(len(in_steps), steps),
                last=(int(mine.sum()), int((met.rank == place).sum())),
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


def _ratio(own: Floats, others: Floats) -> float | None:
    """How many times the work of the others; None where there is nothing to compare."""
    return float(own.sum() / others.sum()) if others.sum() > 0 else None


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
    met = symmetric(ranks, meetings)
    if not met.count:
        return None
    first = met.first
    moved = np.minimum.reduceat(met.end, first) - np.maximum.reduceat(met.start, first)
    members = sets_of_ranks(met)
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

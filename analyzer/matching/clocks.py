"""How far the clocks of the ranks are apart, from collectives that all their ranks leave together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.intervals import Bools, Floats, Ints
from analyzer.matching.calls import BY_ENDS, Meetings
from analyzer.matching.collectives import SYMMETRIC
from parsers.columns import distinct_values

ENOUGH = 3
"""Matched collectives a rank must have: with fewer, nothing is left to check its clock offset against."""

ENOUGH_FOR_DRIFT = 12
"""Matched collectives a rank must have before a slope is drawn: four in each third of the window."""

CLEAR = 3.0
"""A drift is believed when it moves a clock, over the window, this many times farther than its offsets scatter."""

COINCIDE = 0.1
"""Collectives known from nothing but their ends must end together to within this share of their median duration: what
does not meet ends anywhere within the time between two calls."""

_ROUNDS = 50


@dataclass(frozen=True, eq=False)
class Clocks:
    """Corrections of the ranks' clocks.

    Attributes:
        offset: ns at ``origin``, against the first rank that is known.
        drift: ns per ns.
        origin: ns since the epoch of the traces.
        known: which ranks are tied to the first, directly or through others.
        residual_ns: 90th percentile of what the corrections leave between the ends of a collective.
    """

    offset: Floats
    drift: Floats
    origin: int
    known: Bools
    residual_ns: float

    def at_origin(self, rank: int) -> float:
        """How far a clock is off when the common one shows ``origin``, ns."""
        return float(self.offset[rank] * (1 + self.drift[rank]))

    def correct(self, times: Ints, rank: Ints, base: int) -> Ints:
        """Times (ns since ``base``) of the given ranks on the common axis."""
        since = times + (base - self.origin)
        return times - np.round(self.offset[rank] + self.drift[rank] * since).astype(np.int64)


def synchronise(meetings: Meetings, exchanged: Meetings, ranks: int) -> Clocks | None:
    """Clocks from the ends of matched collectives; None where a rank that takes part has too few of them.

    Symmetric collectives let all their ranks go together. Ranks that share none with the others are tied to them by the
    messages they exchange, whose two ends finish close together; the residual shows how close.
    """
    key, rank, end = _ends(meetings, exchanged, ranks)
    counts = np.bincount(rank, minlength=ranks)
    if not len(key) or counts[counts > 0].min() < ENOUGH:
        return None
    origin = meetings.base if len(meetings.key) else exchanged.base
    part = _parts(key, rank, ranks)
    offset = _offsets(key, rank, end.astype(np.float64), part)
    drift = np.zeros(ranks)
    left = end - offset[rank]
    left = left - _medians(left, key)[key]
    drift = _drift(rank, end, left, ranks)
    if drift.any():
        bent = end - drift[rank] * end
        offset = _offsets(key, rank, bent, part)
        left = bent - offset[rank]
        left = left - _medians(left, key)[key]
    known = (counts > 0) & (part == part[int(rank.min())])
    return Clocks(np.round(offset), drift, origin, known, float(np.percentile(np.abs(left), 90)))


def borne_out(meetings: Meetings, ranks: int) -> Meetings:
    """Without collectives that are only guessed to be such, where the ends of their calls do not coincide."""
    guessed = meetings.where(meetings.source[meetings.first] == BY_ENDS)
    if not guessed.count:
        return meetings
    if guessed.count >= ENOUGH:
        offset = _offsets(guessed.key, guessed.rank, guessed.end.astype(np.float64), np.zeros(ranks, dtype=np.int64))
        left = guessed.end - offset[guessed.rank]
        left = np.abs(left - _medians(left, guessed.key)[guessed.key])
        length = float(np.median(guessed.end - guessed.start))
        if float(np.percentile(left, 90)) <= COINCIDE * length:
            return meetings
    return meetings.where(meetings.source[meetings.first] != BY_ENDS)


def _ends(meetings: Meetings, exchanged: Meetings, ranks: int) -> tuple[Ints, Ints, Ints]:
    """Key, rank and end of the calls whose ends are compared, in order of key."""
    chosen = meetings.kind < len(SYMMETRIC)
    key, rank, end = meetings.key[chosen], meetings.rank[chosen], meetings.end[chosen]
    key = np.unique(key, return_inverse=True)[1].ravel().astype(np.int64)
    part = _parts(key, rank, ranks)
    across = part[exchanged.rank] != part[exchanged.rank[np.arange(len(exchanged.key)) ^ 1]]
    if not across.any():
        return key, rank, end
    shift = exchanged.base - (meetings.base if len(meetings.key) else exchanged.base)
    more = np.unique(exchanged.key[across], return_inverse=True)[1].ravel()
    return (
        np.concatenate((key, more + (int(key[-1]) + 1 if len(key) else 0))).astype(np.int64),
        np.concatenate((rank, exchanged.rank[across])),
        np.concatenate((end, exchanged.end[across] + shift)),
    )


def _parts(key: Ints, rank: Ints, ranks: int) -> Ints:
    """A number per rank, equal for ranks that meet, directly or through others."""
    part = np.arange(ranks)
    if not len(key):
        return part
    first = np.flatnonzero(np.diff(key, prepend=-1))
    for _ in range(ranks):
        lowest = np.minimum.reduceat(part[rank], first)
        before = part.copy()
        np.minimum.at(part, rank, lowest[key])
        if (part == before).all():
            break
    return part


def _offsets(key: Ints, rank: Ints, end: Floats, part: Ints) -> Floats:
    """Clock offset of each rank in ns, against the first rank of its part.

    Alternating medians: a collective ended when the middle one of its corrected ranks says so; a rank is off by the
    middle one of its differences to that.
    """
    offset = np.zeros(len(part))
    by_rank = np.argsort(rank, kind="stable")
    present, positions = np.unique(rank[by_rank], return_inverse=True)
    for _ in range(_ROUNDS):
        late = end - _medians(end - offset[rank], key)[key]
        update = offset.copy()
        update[present] = _medians(late[by_rank], positions.ravel().astype(np.int64))
        moved = float(np.abs(update - offset).max())
        offset = update
        if moved < 1:
            break
    return offset - offset[part]


def _drift(rank: Ints, end: Ints, left: Floats, ranks: int) -> Floats:
    """ns per ns by which each clock runs fast, against the clocks in the middle; 0 where it does not stand out."""
    slope, seen = np.zeros(ranks), np.zeros(ranks, dtype=np.bool_)
    for one in distinct_values(rank).tolist():
        mine = np.flatnonzero(rank == one)
        if len(mine) < ENOUGH_FOR_DRIFT:
            continue
        mine = mine[np.argsort(end[mine], kind="stable")]
        third = len(mine) // 3
        early, late = mine[:third], mine[-third:]
        apart = float(np.median(end[late]) - np.median(end[early]))
        moved = float(np.median(left[late]) - np.median(left[early]))
        scatter = np.concatenate((left[early] - np.median(left[early]), left[late] - np.median(left[late])))
        # A clock that drifts moves within each third as well: by a third of a window, a half of the distance.
        spread = max(float(np.median(np.abs(scatter))) - abs(moved) / 8, 1.0)
        seen[one] = True
        if apart > 0 and abs(moved) > CLEAR * spread and abs(moved) > 1000:
            slope[one] = moved / apart
    return slope - float(np.median(slope[seen])) if slope.any() else slope


def _medians(values: Floats, key: Ints) -> Floats:
    """Median of the values of each key; keys are 0, 1, 2, ... in order."""
    order = np.lexsort((values, key))
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    count = np.diff(np.append(first, len(key)))
    ordered = values[order]
    middle: Floats = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    return middle

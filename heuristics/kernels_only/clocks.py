"""Clocks of different hosts put right by what ends together: members of a group finish a call at one moment.

Two ranks that share a group have pairs of ends that differ by one constant, the offset of their clocks. Among the
differences of all their ends that constant stands out as a narrow peak over what falls together by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from heuristics.kernels_only.ends import MEMBER, SURE, apart, differences, log_odds

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.kernels_only.calls import Calls

HOST_REACH_NS, REACH_NS = 200_000, 6_000_000
"""Clocks of files of one host are this close (within 34 µs in published traces), and those of one job: NTP keeps them
within milliseconds."""

SHORT_CALL_NS = 100_000
"""Ends of calls that take no longer scatter by a few microseconds, and show a clock best."""

WINDOW = 5
SURROUNDINGS, PEAK = 61, 13
"""In bins: a peak is this wide; what is around it, as far as this, is chance, but for its own flanks."""

STANDS_OUT = 15.0
"""Log likelihood from which on a peak is none by chance: 3e-7 for one place, 1e-3 for all within reach."""

PEAKS = 6
"""Peaks of one pair that are tried; and no difference, which is likeliest within a host."""

COMPARABLE = 0.3
"""Links this much weaker than the strongest wait for the next round, where less falls together by chance."""

ALONE = 3.0
"""A call that no rank on the same clock ends within so many times the usual scatter has its partners elsewhere."""

FEW_RANKS = 16
"""So many ranks are each held against all others."""

REFINEMENTS = 3
"""Rounds in which offsets settle."""


@dataclass(frozen=True)
class _Look:
    """How clocks are looked for: how far, in bins of what width, by calls of which one side took how long at most."""

    reach_ns: int
    bin_ns: int
    longest_ns: int | None


_LOOKS = (
    _Look(HOST_REACH_NS, 1_000, SHORT_CALL_NS),
    _Look(HOST_REACH_NS, 5_000, None),
    _Look(REACH_NS, 1_000, SHORT_CALL_NS),
    _Look(REACH_NS, 5_000, None),
)


@dataclass(frozen=True)
class Clocks:
    """Offsets in ns per rank, to be taken from its times; ranks of one component can be compared."""

    offset_ns: npt.NDArray[np.int64]
    component: npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Link:
    """Two components whose ends coincide: how clearly, and what the offset of the second against the first may be."""

    clear: float
    one: int
    other: int
    shifts_ns: tuple[int, ...]


@lru_cache(maxsize=8)
def neighbours(ranks: int) -> tuple[tuple[int, ...], ...]:
    """Per rank, the others to hold it against: of few ranks all, else those next to it along any axis of a mesh.

    An axis has a step that divides the number of ranks, so that n ranks have far less than n neighbours.
    """
    if ranks <= FEW_RANKS:
        return tuple(tuple(other for other in range(ranks) if other != one) for one in range(ranks))
    steps = [step for step in range(1, ranks) if ranks % step == 0]
    sides = [{one + way * step for step in steps for way in (-1, 1)} for one in range(ranks)]
    return tuple(tuple(sorted(side for side in own if 0 <= side < ranks)) for own in sides)


def align(ranks: Sequence[Calls]) -> Clocks:
    """Put all clocks on that of the first rank they are linked to, the clearest links first."""
    clocks = _looked_for(ranks, Clocks(np.zeros(len(ranks), dtype=np.int64), np.arange(len(ranks))))
    if (clocks.component != clocks.component[0]).any():  # further off than within reach, perhaps
        coarse = _coarse(ranks)[clocks.component]
        clocks = _looked_for(ranks, Clocks(clocks.offset_ns + coarse, clocks.component))
    return clocks


def _looked_for(ranks: Sequence[Calls], clocks: Clocks) -> Clocks:
    """Clocks linked in every way in which they are looked for."""
    for look in _LOOKS:
        clocks = _linked(ranks, clocks, look)
    return clocks


def _linked(ranks: Sequence[Calls], clocks: Clocks, look: _Look) -> Clocks:
    offset, component = clocks.offset_ns.copy(), clocks.component.copy()
    while links := _links(ranks, offset, component, look) or _links(ranks, offset, component, look, every=True):
        linked = False
        for link in links:
            if link.clear < COMPARABLE * links[0].clear and linked:
                break
            first, second = component[link.one], component[link.other]
            if first == second:
                continue
            shift = _confirmed(ranks, Clocks(offset, component), link)
            if shift is not None:
                moved = component == second
                offset[moved] += shift + offset[link.one] - offset[link.other]
                component[moved] = first
                linked = True
        if not linked:
            break
        offset = _refined(ranks, offset, component, look)
    return Clocks(offset, component)


def _confirmed(ranks: Sequence[Calls], clocks: Clocks, link: _Link) -> int | None:
    """The offset of a link at which most calls of whole channels end together; None where none do at any.

    Ranks that work in step have peaks as well, but of a part of their calls.
    """
    first, others = (np.flatnonzero(clocks.component == clocks.component[i]) for i in (link.one, link.other))
    near, second = neighbours(len(ranks)), set(others.tolist())
    pairs = [(a, b) for a in first.tolist() for b in near[a] if b in second]
    moved = clocks.offset_ns + 0
    best, found = 0.0, None
    for shift in link.shifts_ns:
        moved[others] = clocks.offset_ns[others] + shift + clocks.offset_ns[link.one] - clocks.offset_ns[link.other]
        total = sum(_shared(ranks[a], ranks[b], int(moved[b] - moved[a])) for a, b in pairs)
        if total > best:
            best, found = total, shift
    return found


def _shared(one: Calls, other: Calls, shift_ns: int) -> float:
    """Log odds of the channels of which two ranks end all calls together; of messages, of which they end a part so."""
    if not len(one) or not len(other):
        return 0.0
    odds = log_odds(apart(one, other, shift_ns)[1])
    messages = one.primitives == "send_recv"
    sums = np.bincount(one.channel, weights=np.where(messages, np.maximum(odds, 0.0) / 2, odds))
    count = np.bincount(one.channel)
    return float(sums[(sums >= MEMBER * count) & (sums >= SURE)].sum())


def _coarse(ranks: Sequence[Calls]) -> npt.NDArray[np.int64]:
    """Offsets beyond reach, from the k-th call of a kind on one rank against the k-th on the first."""
    found = np.zeros(len(ranks), dtype=np.int64)
    for place, calls in enumerate(ranks[1:], 1):
        best = REACH_NS / 4
        for kind in np.intersect1d(ranks[0].kind, calls.kind):
            first = np.flatnonzero(ranks[0].kind == kind)
            mine, theirs = ranks[0].end_ns[first], calls.end_ns[calls.kind == kind]
            if len(mine) != len(theirs) or ranks[0].primitive(int(first[0])) == "send_recv":
                continue  # messages of two stages may be as many without being the same
            apart = np.sort(theirs) - np.sort(mine)
            low, middle, high = np.quantile(apart, [0.25, 0.5, 0.75])
            if high - low < best:
                best, found[place] = high - low, int(middle) if abs(middle) > REACH_NS else 0
    return found


def _links(
    ranks: Sequence[Calls],
    offset: npt.NDArray[np.int64],
    component: npt.NDArray[np.int64],
    look: _Look,
    *,
    every: bool = False,
) -> list[_Link]:
    """Pairs of components whose ends coincide, clearest first; the evidence of all pairs of ranks adds up.

    Calls of channels on which a rank ends together with others of its own component say little about the other ones;
    they count with ``every``.
    """
    alone = [np.ones(len(calls), dtype=bool) for calls in ranks] if every else _alone(ranks, offset, component)
    sums: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
    bins = 2 * look.reach_ns // look.bin_ns + 1
    for one, near in enumerate(neighbours(len(ranks))):
        for other in near:
            pair = (int(component[one]), int(component[other]))
            if pair[0] < pair[1]:
                shift = int(offset[other] - offset[one])
                apart = differences(
                    ranks[one], ranks[other], look.reach_ns, shift, alone[one], alone[other], look.longest_ns
                )
                counts = np.bincount((apart + look.reach_ns) // look.bin_ns, minlength=bins)
                sums[pair] = sums.get(pair, 0) + counts[:bins]
    found = []
    for (one, other), counts in sums.items():
        # `one` and `other` are the first ranks of their components, whose offsets are those of the components
        peaks = _peaks(counts.astype(np.float64))
        if peaks:
            base = int(offset[other] - offset[one])
            shifts = tuple(int((at + 0.5) * look.bin_ns) - look.reach_ns + base for _, at in peaks)
            found.append(_Link(peaks[0][0], one, other, (*shifts, base)))
    return sorted(found, key=lambda link: -link.clear)


def _alone(
    ranks: Sequence[Calls], offset: npt.NDArray[np.int64], component: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.bool_]]:
    """Per rank, calls that no other rank of its component ends as a member does; all, where that leaves too few."""
    found = []
    for (one, calls), near in zip(enumerate(ranks), neighbours(len(ranks)), strict=True):
        alone = np.ones(len(calls), dtype=bool)
        for other in near:
            if component[other] == component[one] and len(calls):
                off = apart(calls, ranks[other], int(offset[other] - offset[one]))[1]
                usual = np.bincount(calls.channel, weights=log_odds(off)) / np.maximum(np.bincount(calls.channel), 1)
                alone &= (off > ALONE) | (usual < MEMBER)[calls.channel]
        found.append(alone if alone.sum() >= 2 else np.ones(len(calls), dtype=bool))
    return found


def _peaks(counts: npt.NDArray[np.float64]) -> list[tuple[float, float]]:
    """The windows of bins that stand out of their surroundings: how clearly, and the middle of what is in each."""
    sums = [_around(counts, width) for width in (WINDOW, PEAK, SURROUNDINGS)]
    expected = (sums[2] - sums[1]) * WINDOW / (SURROUNDINGS - PEAK)
    expected = np.maximum(np.maximum(expected, counts.sum() * WINDOW / len(counts)), 1e-3)
    above = np.maximum(sums[0], expected)
    clear = above * np.log(above / expected) - (above - expected)
    found: list[tuple[float, float]] = []
    while len(found) < PEAKS and clear.max() >= STANDS_OUT:
        place = int(np.argmax(clear))
        bins = np.arange(max(place - WINDOW // 2, 0), min(place + WINDOW // 2 + 1, len(counts)))
        weight = np.maximum(counts[bins] - expected[place] / WINDOW, 0.0)
        middle = float((bins * weight).sum() / weight.sum()) if weight.sum() else float(place)
        found.append((float(clear[place]), middle))
        clear[max(place - WINDOW, 0) : place + WINDOW + 1] = 0.0
    return found


def _around(counts: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.float64]:
    """Per bin, the sum of as many bins around it."""
    return np.convolve(counts, np.ones(width), mode="same")


def _refined(
    ranks: Sequence[Calls], offset: npt.NDArray[np.int64], component: npt.NDArray[np.int64], look: _Look
) -> npt.NDArray[np.int64]:
    """Offsets with every rank in the middle of what it ends together with: bins are too coarse for that."""
    exact = offset.copy()
    for _ in range(REFINEMENTS):
        for (one, mine), others in zip(enumerate(ranks), neighbours(len(ranks)), strict=True):
            near = [np.empty(0, dtype=np.int64)]
            for other in others:
                if component[other] == component[one]:
                    theirs, shift = ranks[other], int(exact[other] - exact[one])
                    near.append(differences(mine, theirs, WINDOW * look.bin_ns, shift, longest_ns=look.longest_ns))
            close = np.concatenate(near)
            exact[one] -= int(np.median(close)) if len(close) else 0
    return exact

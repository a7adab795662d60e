"""Clocks of different hosts put right by what ends together: members of a group finish a call at one moment.

Two ranks that share a group have pairs of ends that differ by one constant, the offset of their clocks. Among the
differences of all their ends that constant stands out as a narrow peak over what falls together by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics.kernels_only.ends import differences, distance

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.kernels_only.calls import Calls

REACH_NS = 6_000_000
"""Clocks of one job are this close (NTP keeps them within milliseconds)."""

BIN_NS = 1_000
WINDOW = 3
SURROUNDINGS = 41
"""A peak is a few microseconds wide; what is around it, up to some tens of microseconds away, is chance."""

STANDS_OUT = 15.0
"""Log likelihood from which on a peak is none by chance: 3e-7 for one place, 1e-3 for all within reach."""

SAME_HOST = 0.3
"""How clear a peak at no difference must be, against the clearest, for the two to share a clock."""

COMPARABLE = 0.3
"""Links this much weaker than the strongest wait for the next round, where less falls together by chance."""

ALONE_NS = 5_000
"""A call that no rank on the same clock ends within this time has its partners elsewhere."""

ALL, FEWEST = 0.95, 3
"""Share of the calls of a channel that show one clock, and how many there must be."""

REFINEMENTS = 3
"""Rounds in which offsets settle."""


@dataclass(frozen=True)
class Clocks:
    """Offsets in ns per rank, to be taken from its times; ranks of one component can be compared."""

    offset_ns: npt.NDArray[np.int64]
    component: npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Link:
    """Two components whose ends coincide: how clearly, and the offset of the second against the first."""

    clear: float
    one: int
    other: int
    shift_ns: int


def align(ranks: Sequence[Calls]) -> Clocks:
    """Put all clocks on that of the first rank they are linked to, the clearest links first."""
    offset, component = _linked(ranks, np.zeros(len(ranks), dtype=np.int64), _of_one_host(ranks))
    apart = component != component[0]
    if apart.any():  # further off than within reach, perhaps
        offset[apart] += _coarse(ranks)[component[apart]]
        offset, component = _linked(ranks, offset, component)
    return Clocks(offset, component)


def _of_one_host(ranks: Sequence[Calls]) -> npt.NDArray[np.int64]:
    """Components of ranks that share a clock: one ends all calls of a stream and kind with the other, as times are."""
    component = np.arange(len(ranks))
    for one, calls in enumerate(ranks):
        channel = np.unique(np.stack([calls.streams, calls.kind], axis=1), axis=0, return_inverse=True)[1].ravel()
        size = np.bincount(channel)
        for other in range(len(ranks)):
            if component[one] != component[other]:
                near = distance(calls, ranks[other], 0) <= ALONE_NS / 2
                share = np.bincount(channel, weights=near) / np.maximum(size, 1)
                if ((share >= ALL) & (size >= FEWEST)).any():
                    component[component == component[other]] = component[one]
    return component


def _linked(
    ranks: Sequence[Calls], offset: npt.NDArray[np.int64], component: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    while links := _links(ranks, offset, component):
        for link in links:
            if link.clear < COMPARABLE * links[0].clear:
                break
            first, second = component[link.one], component[link.other]
            if first != second:
                moved = component == second
                offset[moved] += link.shift_ns + offset[link.one] - offset[link.other]
                component[moved] = first
        offset = _refined(ranks, offset, component)
    return offset, component


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


def _links(ranks: Sequence[Calls], offset: npt.NDArray[np.int64], component: npt.NDArray[np.int64]) -> list[_Link]:
    """Pairs of components whose ends coincide, clearest first; the evidence of all pairs of ranks adds up.

    A rank's calls that end together with others of its own component say nothing about the other components.
    """
    alone = _alone(ranks, offset, component)
    sums: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
    bins = 4 * REACH_NS // BIN_NS + 1
    for one in range(len(ranks)):
        for other in range(len(ranks)):
            pair = (int(component[one]), int(component[other]))
            if pair[0] < pair[1]:
                shift = int(offset[other] - offset[one])
                apart = differences(ranks[one], ranks[other], REACH_NS, shift, alone[one], alone[other])
                counts = np.bincount((apart + 2 * REACH_NS) // BIN_NS, minlength=bins)
                sums[pair] = sums.get(pair, 0) + counts[:bins]
    found = []
    for (one, other), counts in sums.items():
        clear, at = _peak(counts.astype(np.float64))
        if clear >= STANDS_OUT:
            # `one` and `other` are the first ranks of their components, whose offsets are those of the components
            found.append(
                _Link(clear, one, other, int((at + 0.5) * BIN_NS) - 2 * REACH_NS + int(offset[other] - offset[one]))
            )
    return sorted(found, key=lambda link: -link.clear)


def _alone(
    ranks: Sequence[Calls], offset: npt.NDArray[np.int64], component: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.bool_]]:
    """Per rank, the calls that no other rank of its component ends; all, where that leaves too few."""
    found = []
    for one, calls in enumerate(ranks):
        alone = np.ones(len(calls), dtype=bool)
        for other in np.flatnonzero(component == component[one]).tolist():
            if other != one:
                alone &= distance(calls, ranks[other], int(offset[other] - offset[one])) > ALONE_NS
        found.append(alone if alone.sum() >= 2 else np.ones(len(calls), dtype=bool))
    return found


def _peak(counts: npt.NDArray[np.float64]) -> tuple[float, float]:
    """How clearly the best window of bins stands out of its surroundings, and the middle of what is in it, in bins.

    Hosts mostly hold several ranks: a peak at no difference is preferred to others that are not much clearer.
    """
    inside = np.convolve(counts, np.ones(WINDOW), mode="same")
    around = np.convolve(counts, np.ones(SURROUNDINGS), mode="same") - np.convolve(counts, np.ones(9), mode="same")
    expected = np.maximum(around * WINDOW / (SURROUNDINGS - 9), counts.sum() * WINDOW / len(counts))
    expected = np.maximum(expected, 1e-3)
    above = np.maximum(inside, expected)
    clear = above * np.log(above / expected) - (above - expected)
    place, middle = int(np.argmax(clear)), len(counts) // 2
    near_zero = middle - 2 + int(np.argmax(clear[middle - 2 : middle + 3]))
    if clear[near_zero] >= max(STANDS_OUT, SAME_HOST * clear[place]):
        place = near_zero
    bins = np.arange(max(place - WINDOW // 2, 0), min(place + WINDOW // 2 + 1, len(counts)))
    weight = np.maximum(counts[bins] - expected[place] / WINDOW, 0.0)
    return float(clear[place]), float((bins * weight).sum() / weight.sum()) if weight.sum() else float(place)


def _refined(
    ranks: Sequence[Calls], offset: npt.NDArray[np.int64], component: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Offsets with every rank in the middle of what it ends together with: bins are too coarse for that."""
    exact = offset.copy()
    for _ in range(REFINEMENTS):
        for one, mine in enumerate(ranks):
            near = [np.empty(0, dtype=np.int64)]
            for other, theirs in enumerate(ranks):
                if other != one and component[other] == component[one]:
                    near.append(differences(mine, theirs, ALONE_NS, int(exact[other] - exact[one])))
            apart = np.concatenate(near)
            exact[one] -= int(np.median(apart)) if len(apart) else 0
    return exact

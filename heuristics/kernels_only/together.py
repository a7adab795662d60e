"""Which ranks end a call at the same moment, and where in the model they stand then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics.kernels_only.ends import distance, matching

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.kernels_only.calls import Calls
    from heuristics.kernels_only.clocks import Clocks

Group = tuple[int, ...]
"""Places of the members among the ranks given, in order."""

NEAR_US = 40
"""An end further from all others than this has its partners elsewhere, and says nothing about how ends scatter."""

FIRST_TOLERANCE_US, LAST_TOLERANCE_US = 3, 100
"""Ends that differ by less belong together whatever the job looks like; by more, they never do."""

SPREAD = 3
"""The last of many members ends this many times later than the nearest one."""


def tolerance_ns(ranks: Sequence[Calls], clocks: Clocks) -> int:
    """How far apart the ends of one call may be, from how far the nearest of the other ranks' ends are."""
    nearest = [np.empty(0, dtype=np.int64)]
    for place, calls in enumerate(ranks):
        best = np.full(len(calls), 1000 * NEAR_US, dtype=np.int64)
        for other, theirs in enumerate(ranks):
            if other != place and clocks.component[other] == clocks.component[place]:
                shift = int(clocks.offset_ns[other] - clocks.offset_ns[place])
                best = np.minimum(best, distance(calls, theirs, shift))
        nearest.append(best[best < 1000 * NEAR_US])
    spread = np.concatenate(nearest)
    usual = float(np.quantile(spread, 0.95)) if len(spread) else 0.0
    return int(min(max(SPREAD * usual, 1000 * FIRST_TOLERANCE_US), 1000 * LAST_TOLERANCE_US))


@dataclass(frozen=True)
class Together:
    """One rank's calls against the ends of every rank: shape (calls, ranks).

    Attributes:
        apart_ns: to the nearest end of a call of the kind.
        layers: attention kernels between where the two ranks stood then.
        seen: whether that is near enough for one call.
    """

    apart_ns: npt.NDArray[np.int64]
    layers: npt.NDArray[np.int64]
    seen: npt.NDArray[np.bool_]


def together(ranks: Sequence[Calls], clocks: Clocks, tolerance: int) -> list[Together]:
    """Which ranks end a call of the kind at the same moment, per rank and call."""
    found = []
    for place, calls in enumerate(ranks):
        apart = np.full((len(calls), len(ranks)), np.iinfo(np.int64).max, dtype=np.int64)
        layers = np.zeros((len(calls), len(ranks)), dtype=np.int64)
        for other, theirs in enumerate(ranks):
            if other == place:
                apart[:, other] = 0
            elif clocks.component[other] == clocks.component[place] and len(theirs):
                match = matching(calls, theirs, shift := int(clocks.offset_ns[other] - clocks.offset_ns[place]))
                distance = np.abs(theirs.end_ns[match] - shift - calls.end_ns)
                apart[:, other] = np.where(match < 0, apart[:, other], distance)
                layers[:, other] = np.abs(theirs.progress[match] - calls.progress).sum(axis=1)
        found.append(Together(apart, layers, apart <= tolerance))
    return found

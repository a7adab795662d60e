"""Which ranks end a call at the same moment, and where in the model they stand then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics.kernels_only.clocks import Clocks, neighbours
from heuristics.kernels_only.ends import apart, log_odds

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.kernels_only.calls import Calls

Group = tuple[int, ...]
"""Places of the members among the ranks given, in order."""

NEAR = 10.0
"""An end further from all others than so many times the usual scatter has its partners elsewhere, and says nothing."""

TOLERANCE = 6.0
"""Ends further apart than so many times the usual scatter never belong together: 199 of 200 ends of members are within
(`ends.log_odds`)."""


def usual_scatter(ranks: Sequence[Calls], clocks: Clocks) -> float:
    """How far off the nearest of the other ranks' ends is in nearly all calls, in the scatter of published traces."""
    nearest = [np.empty(0)]
    for (place, calls), near in zip(enumerate(ranks), neighbours(len(ranks)), strict=True):
        best = np.full(len(calls), np.inf)
        for other in near:
            if clocks.component[other] == clocks.component[place]:
                shift = int(clocks.offset_ns[other] - clocks.offset_ns[place])
                best = np.minimum(best, apart(calls, ranks[other], shift)[1])
        nearest.append(best[best < NEAR])
    spread = np.concatenate(nearest)
    return float(np.quantile(spread, 0.95)) if len(spread) else 0.0


@dataclass(frozen=True)
class Together:
    """One rank's calls against the ends of every rank: shape (calls, ranks).

    Attributes:
        apart: to the nearest end of a call of the kind, in the scatter that is usual for calls that took as long.
        odds: logarithm of how much likelier that is for members.
        layers: attention kernels between where the two ranks stood then.
        seen: whether that is near enough for one call.
    """

    apart: npt.NDArray[np.float64]
    odds: npt.NDArray[np.float64]
    layers: npt.NDArray[np.int64]
    seen: npt.NDArray[np.bool_]


def together(ranks: Sequence[Calls], clocks: Clocks, scale: float) -> list[Together]:
    """Which ranks end a call of the kind at the same moment, per rank and call.

    ``scale``: how much the ends of the job scatter against those of published traces.
    """
    found = []
    for place, calls in enumerate(ranks):
        off = np.full((len(calls), len(ranks)), np.inf)
        layers = np.zeros((len(calls), len(ranks)), dtype=np.int64)
        for other, theirs in enumerate(ranks):
            if other == place:
                off[:, other] = 0
            elif clocks.component[other] == clocks.component[place] and len(theirs):
                match, off[:, other] = apart(calls, theirs, int(clocks.offset_ns[other] - clocks.offset_ns[place]))
                off[:, other] /= scale
                layers[:, other] = np.abs(theirs.progress[match] - calls.progress).sum(axis=1)
        found.append(Together(off, log_odds(off), layers, off <= TOLERANCE))
    return found

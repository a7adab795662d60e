"""Which step a call belongs to."""

from __future__ import annotations

import numpy as np

from heuristics.arrays import NULL, ints
from heuristics.columns import Ints
from parsers.tables import RankTrace


def step_of(trace: RankTrace, launch: Ints, start: Ints) -> Ints:
    """The row of ``trace.steps`` in which each call was launched, else in which it ran; `NULL` outside of all steps.

    Args:
        trace: the facts.
        launch: when the CPU asked for each call, ns; `NULL` where not recorded.
        start: when each call started, ns.
    """
    begin = ints(trace.steps, "ts_ns")
    end = begin + ints(trace.steps, "dur_ns")
    moment = np.where(launch == NULL, start, launch)
    if not len(begin):
        return np.full(len(moment), NULL, dtype=np.int64)
    row = np.searchsorted(begin, moment, side="right") - 1
    inside = (row >= 0) & (moment < end[np.maximum(row, 0)])
    return np.where(inside, row, NULL)

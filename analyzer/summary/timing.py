"""`RankView.timing` as columns of a summary, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analyzer.summary.columns import TIMING, Rows
from heuristics.arrays import numpy
from heuristics.timing import Timing

if TYPE_CHECKING:
    import numpy.typing as npt


def packed_timing(timing: Timing | None) -> dict[str, npt.NDArray[np.int64]]:
    """Values per column of `TIMING`; empty without times."""
    if timing is None:
        return {name: np.empty(0, dtype=np.int64) for name in TIMING}
    values = (timing.phase, timing.landmark, timing.landmark_ns, timing.landmark_dur_ns)
    return dict(zip(TIMING, values, strict=True))


def unpacked_timing(rows: Rows, row: int) -> Timing:
    """The times of one rank; those of its calls are columns of its collectives."""
    phase, landmark, start, length = (rows.ints(name, row) for name in TIMING)
    return Timing(
        start_ns=rows.ints("collectives.ts_ns", row),
        dur_ns=numpy(rows.values("collectives.dur_ns", row), 0),
        stream=rows.ints("collectives.stream", row),
        step=rows.ints("collectives.step", row),
        phase=phase,
        landmark=landmark,
        landmark_ns=start,
        landmark_dur_ns=length,
    )

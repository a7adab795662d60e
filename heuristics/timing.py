"""Times of a rank's calls and of the work around them, kept where the calls say nothing else about themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL, codes, ints
from heuristics.work_names import is_attention, is_attention_backward, is_expert, is_optimizer

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.labelled import LabelledRank

ATTENTION, ATTENTION_BACKWARD, EXPERTS, OPTIMIZER = range(4)
"""Kernels that show where in a step one is: landmarks."""


@dataclass(frozen=True)
class Timing:
    """Columns per call of one rank (row for row with its collectives), and landmarks among its other kernels.

    Attributes:
        start_ns, dur_ns: of the kernel.
        stream: it ran on.
        step: row of the rank's steps, -1 outside of all.
        phase: position in `heuristics.view.PHASES`.
        landmark: kinds of landmark kernels in order of time.
        landmark_ns, landmark_dur_ns: when each of them started, and how long it ran.
    """

    start_ns: npt.NDArray[np.int64]
    dur_ns: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    phase: npt.NDArray[np.int64]
    landmark: npt.NDArray[np.int64]
    landmark_ns: npt.NDArray[np.int64]
    landmark_dur_ns: npt.NDArray[np.int64]


def timing_of(rank: LabelledRank, phase: npt.NDArray[np.int64]) -> Timing:
    """The times of a labelled rank; ``phase`` is per call, a position in `heuristics.view.PHASES`."""
    table, source = rank.collectives, rank.trace.gpu_events
    column, names = codes(source, "name")
    kinds = np.array([*(_landmark(name) for name in names), NULL], dtype=np.int64)[column]
    rows = np.flatnonzero(kinds != NULL)
    times = ints(source, "ts_ns")[rows]
    order = np.argsort(times, kind="stable")
    return Timing(
        start_ns=ints(table, "ts_ns"),
        dur_ns=ints(table, "dur_ns", 0),
        stream=ints(table, "stream"),
        step=ints(table, "step"),
        phase=phase,
        landmark=kinds[rows][order],
        landmark_ns=times[order],
        landmark_dur_ns=ints(source, "dur_ns", 0)[rows][order],
    )


def _landmark(name: str) -> int:
    if is_attention_backward(name, kernel=True):
        return ATTENTION_BACKWARD
    if is_attention(name, kernel=True):
        return ATTENTION
    if is_expert(name, kernel=True) or "groupedgemm" in name.lower():
        return EXPERTS
    return OPTIMIZER if is_optimizer(name) else NULL

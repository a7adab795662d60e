"""How a rank was captured, and what only its events can tell about the side that launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from analyzer import intervals
from analyzer.exposure import GpuWork, Timeline
from analyzer.intervals import NOTHING, Ints, Spans
from heuristics.arrays import NULL, ints
from heuristics.labelled import GpuRole, LabelledRank

PROFILER_FLAGS = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")
"""Options of the PyTorch profiler that cost time; those that are on are in the file (profiler_kineto.cpp)."""

_VERSION = ("version", "Version")
_FORMATS = ("schemaVersion",)
"""Versions of the file's own format: they change no measurement."""


@dataclass(frozen=True, eq=False)
class Capture:
    """What a measurement depends on beside the job itself.

    Attributes:
        libraries: versions that the file names, by its own names for them.
        flags: which profiler options were on; empty where the format does not say.
        graphs: whether kernels were replayed from CUDA graphs; None where no GPU ran.
        launch_gap_ns: int64 ns, one per row of the rank's steps: time in which the GPU had nothing to do because its
            next work had not been launched yet; None where launches are not recorded.
    """

    libraries: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)
    graphs: bool | None = None
    launch_gap_ns: Ints | None = None


def capture(rank: LabelledRank, work: GpuWork, line: Timeline, edges: Ints) -> Capture:
    """Read off how a rank was captured.

    Args:
        rank: the labelled rank.
        work: from `analyzer.exposure.gpu_work`.
        line: the rank's full timeline.
        edges: ``(steps, 2)`` int64 ns.
    """
    metadata = rank.trace.metadata
    kineto = rank.trace.format == "kineto"
    graph = ints(rank.trace.gpu_events, "graph")
    return Capture(
        libraries={k: str(v) for k, v in sorted(metadata.items()) if k.endswith(_VERSION) and k not in _FORMATS},
        flags={name: bool(metadata.get(name)) for name in PROFILER_FLAGS} if kineto else {},
        graphs=bool((graph != NULL).any()) if len(graph) else None,
        launch_gap_ns=_launch_gaps(rank, work, line, edges),
    )


def _launch_gaps(rank: LabelledRank, work: GpuWork, line: Timeline, edges: Ints) -> Ints | None:
    """Idle time per step that ended with work that was launched only after the GPU had run dry."""
    launches = rank.trace.launches
    if not line.on_gpu or not launches.num_rows:
        return None
    gaps = _gaps(line, edges)
    busy = work.role != GpuRole.IGNORE
    start = work.start[busy]
    launch = _launched(ints(launches, "correlation"), ints(launches, "ts_ns"), _correlation(rank)[busy])
    order = np.lexsort((launch, start))
    row = np.minimum(np.searchsorted(start[order], gaps.end), len(order) - 1)
    known = (start[order][row] == gaps.end) & (launch[order][row] != NULL)
    until = np.where(known, np.clip(launch[order][row], gaps.start, gaps.end), gaps.start)
    late = intervals.union(gaps.start, until)
    return intervals.covered(late, edges[:, 0], edges[:, 1])


def _correlation(rank: LabelledRank) -> Ints:
    return ints(rank.trace.gpu_events, "correlation")


def _gaps(line: Timeline, edges: Ints) -> Spans:
    """When nothing ran, from the first step to the last event."""
    busy = intervals.union_of([line.compute, line.memcpy, intervals.union(line.comm_start, line.comm_end)])
    if not len(edges) or not len(busy.start):
        return NOTHING
    first = min(int(edges[0, 0]), line.first)
    return intervals.without(intervals.union(np.array([first]), np.array([line.last])), busy)


def _launched(known: Ints, at: Ints, correlation: Ints) -> Ints:
    """When each event was launched, -1 where no launch is recorded."""
    order = np.argsort(known, kind="stable")
    row = np.minimum(np.searchsorted(known[order], correlation), len(known) - 1)
    found = (known[order][row] == correlation) & (correlation > 0)
    return np.where(found, at[order][row], NULL)

"""From a labelled rank, with all its events, to its summary."""

from __future__ import annotations

import numpy as np

from analyzer.exposure import gpu_work, timeline
from analyzer.occupancy import condensed
from analyzer.step_marks import step_marks
from analyzer.summary.capture import capture
from analyzer.summary.columns import compact_words
from analyzer.summary.host import compute_streams, host
from analyzer.summary.model import RankSummary
from analyzer.summary.turns import turns
from analyzer.summary.witness import kept
from heuristics.account import apart
from heuristics.arrays import code_of, codes, ints
from heuristics.labelled import GpuRole, LabelledRank
from heuristics.observe import view
from parsers.tables import RankTrace


def summarize(rank: LabelledRank) -> RankSummary:
    """Reduce a rank to what the rest of the analysis needs; the events are not referred to any more."""
    trace = rank.trace
    work = gpu_work(rank)
    steps = step_marks(rank, work)
    line = timeline(rank, work)
    witness, log = apart(trace.witness)
    return RankSummary(
        path=trace.path,
        format=trace.format,
        identity=trace.identity,
        health=trace.health,
        devices=trace.devices,
        span=_span(trace),
        stats=rank.stats,
        groups=rank.groups,
        collectives=compact_words(rank.collectives),
        steps=steps,
        line=condensed(line, steps.edges),
        view=view(rank),
        nccl_ns=_nccl_on_compute_streams(rank),
        capture=capture(rank, work, line, steps.edges),
        host=host(rank, work, line, steps.edges),
        turns=turns(rank, work, steps.edges),
        witness=kept(witness),
        log=log,
    )


def _span(trace: RankTrace) -> tuple[int, int] | None:
    """From the first step (else GPU event) to the last, where the file's clock is that of the day."""
    times = trace.steps if trace.steps.num_rows else trace.gpu_events
    if not times.num_rows or "baseTimeNanoseconds" not in trace.metadata:
        return None
    start = times.column("ts_ns")
    first, last = int(start[0].as_py()), int(start[-1].as_py()) + int(times.column("dur_ns")[-1].as_py() or 0)
    return min(first, last), max(first, last)


def _nccl_on_compute_streams(rank: LabelledRank) -> tuple[int, int]:
    """NCCL time on streams that mostly compute, and NCCL time in all, in ns."""
    library, names = codes(rank.collectives, "library")
    mine = library == code_of(names, "nccl")
    if not mine.any():
        return 0, 0
    events = rank.trace.gpu_events
    stream, length = ints(events, "stream"), np.maximum(ints(events, "dur_ns", 0), 0)
    nccl = (rank.gpu_role == GpuRole.COMM) & np.append(mine, False)[rank.gpu_call]
    return int(length[nccl & np.isin(stream, compute_streams(rank))].sum()), int(length[nccl].sum())

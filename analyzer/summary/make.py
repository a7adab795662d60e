"""From a labelled rank, with all its events, to its summary."""

from __future__ import annotations

import numpy as np

from analyzer.exposure import gpu_work, timeline
from analyzer.occupancy import condensed
from analyzer.step_marks import step_marks
from analyzer.summary.capture import capture
from analyzer.summary.columns import compact_words
from analyzer.summary.host import host
from analyzer.summary.model import RankSummary
from analyzer.summary.turns import turns
from analyzer.summary.witness import kept
from heuristics.account import apart
from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.labelled import GpuRole, LabelledRank
from heuristics.observe import view
from parsers.tables import RankTrace

MAIN = 0.1
"""Share of all compute that a stream must run to be a compute stream: FSDP runs the copies around its collectives on
the very streams of those collectives (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py)."""


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
    compute = (rank.gpu_role == GpuRole.COMPUTE) & (stream != NULL)
    nccl = (rank.gpu_role == GpuRole.COMM) & np.append(mine, False)[rank.gpu_call]
    streams, at = np.unique(stream[compute], return_inverse=True)
    busy = np.bincount(at.ravel(), weights=length[compute], minlength=len(streams))
    computing = streams[busy >= MAIN * busy.sum()]
    return int(length[nccl & np.isin(stream, computing)].sum()), int(length[nccl].sum())

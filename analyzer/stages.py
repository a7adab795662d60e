"""The mean step of each stage of a pipeline: computing, waiting for its neighbours, moving data, or idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from analyzer.bubble import Observed, Stage, messages
from analyzer.causes import BUBBLE
from analyzer.exposure import measure_parts
from analyzer.intervals import apportion
from analyzer.measured import Measured
from analyzer.model import Pipeline, StageTime
from heuristics.arrays import NULL

_PARTS = ("compute", "waiting", "transfer", "other_exposed", "memcpy", "idle")
"""What a stage's step divides into."""


def with_stage_times(
    pipeline: Pipeline | None,
    ranks: Sequence[Measured],
    charged: Sequence[Mapping[tuple[str, str], float]],
    found: Observed | None,
) -> Pipeline | None:
    """The document's part with the step of each stage divided up, where stages are known and ranks have time.

    Args:
        pipeline: as inferred or measured.
        ranks: measured ranks.
        charged: exposed ns of each rank per dimension and cause over its whole window (`analyzer.causes.charged`).
        found: the bubble as measured.
    """
    if pipeline is None:
        return None
    measured = {} if found is None or found.fraction is None else {stage.rank: stage for stage in found.stages}
    stage_of = {int(rank): stage for rank, stage in pipeline.stage_of_rank.items()}
    members: dict[int, list[int]] = {}
    for place, rank in enumerate(ranks):
        if rank.window.total and rank.source.rank in stage_of:
            members.setdefault(stage_of[rank.source.rank], []).append(place)
    times = [
        _stage_time(stage, [ranks[p] for p in places], [charged[p] for p in places], measured)
        for stage, places in sorted(members.items())
    ]
    return Pipeline(bubble_fraction=pipeline.bubble_fraction, stage_of_rank=pipeline.stage_of_rank, by_stage=times)


def _stage_time(
    stage: int,
    ranks: Sequence[Measured],
    charged: Sequence[Mapping[tuple[str, str], float]],
    measured: Mapping[int, Stage],
) -> StageTime:
    """The mean over the stage's ranks, in whole nanoseconds that sum to the step."""
    parts = np.mean([_parts(rank, of) for rank, of in zip(ranks, charged, strict=True)], axis=0)
    step = round(float(np.mean([rank.window.total / rank.window.count for rank in ranks])))
    us = dict(zip(_PARTS, (apportion(parts, step) / 1000).tolist(), strict=True))
    numbers = sorted(r.source.rank for r in ranks if r.source.rank is not None)
    of_stage = [measured[n] for n in numbers if n in measured]
    whole = bool(of_stage) and len(of_stage) == len(numbers)
    bubble, span = (sum(getattr(s, name) for s in of_stage) for name in ("bubble_us", "span_us"))
    return StageTime(
        stage=stage,
        ranks=numbers,
        step_us=step / 1000,
        compute_us=us["compute"],
        waiting_us=us["waiting"],
        transfer_us=us["transfer"] if all(map(_told_apart, ranks)) else None,
        other_exposed_us=us["other_exposed"],
        memcpy_us=us["memcpy"],
        idle_us=us["idle"],
        bubble_us=round(bubble / len(of_stage), 3) if whole else None,
        bubble_fraction=round(bubble / span, 6) if whole and span else None,
    )


def _parts(rank: Measured, charged: Mapping[tuple[str, str], float]) -> list[float]:
    """ns per step, in the order of `_PARTS`: of the pipeline's messages, what is no bubble is transfer."""
    waiting = sum(ns for (_, cause), ns in charged.items() if cause == BUBBLE)
    transfer = max(_exposed_messages(rank) - waiting, 0.0)
    time = rank.time
    other = max(float(time.exposed.sum()) - waiting - transfer, 0.0)
    whole = (time.compute.sum(), waiting, transfer, other, time.memcpy.sum(), time.idle.sum())
    return [float(ns) / rank.window.count for ns in whole]


def _exposed_messages(rank: Measured) -> float:
    """Exposed ns of the pipeline's messages, beside those of every dimension that share their time."""
    dims = sorted(set(rank.dims))
    part = np.array([2 * dims.index(dim) for dim in rank.dims], dtype=np.int64) + messages(rank)
    _, exposed = measure_parts(rank.source.line, rank.window, part, [n // 2 for n in range(2 * len(dims))])
    return float(exposed[1::2].sum())


def _told_apart(rank: Measured) -> bool:
    """Whether waiting and transfer of every message are known."""
    return not bool((messages(rank) & (rank.wait_ns == NULL)).any())

"""The step of every rank as parts that sum to it."""

from __future__ import annotations

import numpy as np

from analyzer.causes import BUBBLE, EDGE, WAIT
from analyzer.details.model import Anatomy, Missing
from analyzer.pipeline import Examined
from analyzer.rows import DIM_ORDER


def anatomy(job: Examined) -> Anatomy | Missing:
    """Compute, transfer in the open by dimension, waiting in the open, bubble, copies and idle time."""
    exposure = job.analysis.exposure
    timed = [place for place, rank in enumerate(job.ranks) if rank.window.total > 0]
    if exposure is None or not timed:
        return Missing("there is no time to divide")
    idle_bubble = {s.rank: s.bubble_us - s.waiting_us for s in job.timing.bubble.stages} if job.timing.bubble else {}
    every = []
    for place, time in zip(timed, exposure.by_rank, strict=True):
        parts = {"compute": time.compute_us, "memcpy": time.memcpy_us, "wait": 0.0, "bubble": 0.0}
        found = job.timing.charged[place]
        whole = sum(found.values())
        for (dim, cause), ns in found.items():
            part = {WAIT: "wait", EDGE: "wait", BUBBLE: "bubble"}.get(cause, dim)
            parts[part] = parts.get(part, 0.0) + (time.exposed_us * ns / whole if whole else 0.0)
        idle = min(max(idle_bubble.get(time.rank if time.rank is not None else -1, 0.0), 0.0), time.idle_us)
        parts["bubble"] += idle
        every.append(parts | {"idle": time.idle_us - idle})
    names = [n for n in ("compute", *DIM_ORDER, "wait", "bubble", "memcpy", "idle") if any(p.get(n) for p in every)]
    return Anatomy(
        ranks=tuple(rank.rank for rank in exposure.by_rank),
        parts=tuple(names),
        us=np.array([[parts.get(name, 0.0) for name in names] for parts in every]).reshape(len(every), len(names)),
        waits_known=job.matching.clock.aligned,
    )

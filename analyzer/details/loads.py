"""How the tokens of a mixture of experts spread over its ranks, layer by layer."""

from __future__ import annotations

import numpy as np

from analyzer.details.model import ExpertLoads, Missing
from analyzer.experts import loads
from analyzer.pipeline import Examined


def expert_loads(job: Examined) -> ExpertLoads | Missing:
    """Mean load per layer and rank, over the mean of the rank's group."""
    if job.analysis.experts is None:
        return Missing("no dispatch of tokens to experts names its split sizes")
    found = loads(job.ranks, job.matching.meetings)
    per_batch = _layers_per_batch(job, 1 + max(layer for layer, _, _ in found))
    of_group = any(places is None for _, places, _ in found)
    sums: dict[tuple[int, int], list[float]] = {}
    for layer, places, load in found:
        named = range(len(load)) if places is None else [job.ranks[p].source.rank for p in places]
        for rank, value in zip(named, load.tolist(), strict=True):
            if rank is not None:
                sums.setdefault((layer % per_batch, rank), []).append(value)
    layers, ranks = sorted({layer for layer, _ in sums}), sorted({rank for _, rank in sums})
    out = np.full((len(layers), len(ranks)), np.nan)
    for (layer, rank), values in sums.items():
        out[layers.index(layer), ranks.index(rank)] = np.mean(values)
    return ExpertLoads(tuple(layers), tuple(ranks), out, of_group)


def _layers_per_batch(job: Examined, dispatches: int) -> int:
    """How many of a step's dispatches belong to one microbatch; all of them where microbatches do not come whole."""
    layout = job.analysis.layout
    batches = layout.microbatches or 1
    whole = (layout.virtual_stages or 1) == 1 and dispatches % batches == 0
    return dispatches // batches if whole else dispatches

"""All that is said about time beyond how it divides: waiting, its culprits, causes of exposure, bubble, balance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer import bubble, stragglers
from analyzer.causes import Charge, charges
from analyzer.experts import experts
from analyzer.links_fit import Fit, fit_links
from analyzer.matching import Difference, Matching
from analyzer.measured import Measured
from analyzer.model import Experts, Exposure
from analyzer.summary.host import Tax
from heuristics.arrays import NULL, codes, ints

SAME = 3
"""Calls of one kind that must be there before the best of them bounds the waiting of the others."""


@dataclass(frozen=True, eq=False)
class Timing:
    """What was found out; times in µs per step.

    Attributes:
        late: ranks that others wait for.
        link: where groups are slower than their equals.
        charges: exposed time per dimension and cause; they sum to the exposed time.
        bubble: of the pipeline, None without one.
        experts: balance of the experts, None without any.
        bound: per dimension, waiting that there must have been at least, where it could not be measured.
        differences: collectives on which the ranks do not agree.
        taxes: kernels that communication slows down, over all ranks and steps.
        tax_us: what that costs a rank per step.
        refused: why waiting is not known, None where it is.
        fits: latency and bandwidth of the job's own transfers.
    """

    late: Sequence[stragglers.Lateness] = ()
    link: stragglers.SlowLink | None = None
    charges: Sequence[Charge] = ()
    bubble: bubble.Observed | None = None
    experts: Experts | None = None
    bound: Mapping[str, float] | None = None
    differences: Sequence[Difference] = ()
    taxes: Sequence[Tax] = ()
    tax_us: float = 0.0
    refused: str | None = None
    fits: Sequence[Fit] = ()


def timing(
    ranks: Sequence[Measured], matching: Matching, exposure: Exposure | None, stage_of_rank: Mapping[int, int]
) -> Timing:
    """Find out.

    Args:
        ranks: measured ranks, in the order in which they were matched.
        matching: of the same ranks.
        exposure: how their time divides.
        stage_of_rank: of the pipeline, as inferred.
    """
    link = stragglers.slow_link(ranks, matching.meetings)
    taxes = [tax for rank in ranks for tax in rank.source.host.taxes]
    steps = sum(max(len(rank.source.steps.number), 1) for rank in ranks)
    return Timing(
        late=stragglers.stragglers(ranks, matching),
        link=link,
        charges=charges(ranks, exposure, None if link is None else link.slower_ns),
        bubble=bubble.observed(ranks, stage_of_rank),
        experts=experts(ranks, matching.meetings),
        bound=_bounds(ranks),
        differences=matching.differences,
        taxes=taxes,
        tax_us=sum(tax.extra_ns for tax in taxes) / max(steps, 1) / 1000,
        refused=matching.refused,
        fits=fit_links(ranks, matching.meetings),
    )


def _bounds(ranks: Sequence[Measured]) -> dict[str, float]:
    """Waiting per dimension that a rank must have done, from its own trace alone: a lower bound, µs per step.

    Calls of one primitive, payload and group transfer the same, and the shortest of them took at least that: what the
    others took longer was waiting. Where waiting was measured there is no need for it.
    """
    out: dict[str, float] = {}
    for rank in ranks:
        table, line = rank.source.collectives, rank.source.line
        length = line.call_end - line.call_start
        primitive, _ = codes(table, "primitive")
        size, group = ints(table, "size_bytes"), ints(table, "group")
        rows = np.flatnonzero(rank.counted & (length > 0) & (rank.wait_ns == NULL) & (size != NULL))
        if not len(rows) or not rank.window.count or not rank.source.on_gpu:
            continue
        columns = np.stack((primitive[rows], size[rows], group[rows]), axis=1)
        kind = np.unique(columns, axis=0, return_inverse=True)[1].ravel()
        best = np.full(int(kind.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(best, kind, length[rows])
        longer = np.where(np.bincount(kind)[kind] >= SAME, length[rows] - best[kind], 0)
        for row, ns in zip(rows.tolist(), longer.tolist(), strict=True):
            out[rank.dims[row]] = out.get(rank.dims[row], 0.0) + ns / rank.window.count / len(ranks) / 1000
    return {dim: round(us, 3) for dim, us in out.items()}

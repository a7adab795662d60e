"""All that is said about time beyond how it divides: waiting, its culprits, causes of exposure, bubble, balance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer import bubble, stragglers
from analyzer.causes import Charge, charged, charges
from analyzer.experts import experts
from analyzer.least_waits import least_waits
from analyzer.links_fit import Fit, fit_links
from analyzer.matching import Difference, Matching
from analyzer.measured import Measured
from analyzer.model import Experts, Exposure
from analyzer.summary.host import Tax


@dataclass(frozen=True, eq=False)
class Timing:
    """What was found out; times in µs per step.

    Attributes:
        late: ranks that others wait for.
        link: where groups are slower than their equals.
        charges: exposed time per dimension and cause; they sum to the exposed time.
        charged: the same in ns of each rank, over its whole window.
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
    charged: Sequence[Mapping[tuple[str, str], float]] = ()
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
    each = [charged(rank, None if link is None else link.slower_ns[place]) for place, rank in enumerate(ranks)]
    taxes = [tax for rank in ranks for tax in rank.source.host.taxes]
    steps = sum(max(len(rank.source.steps.number), 1) for rank in ranks)
    return Timing(
        late=stragglers.stragglers(ranks, matching, link),
        link=link,
        charges=charges(ranks, exposure, each),
        charged=each,
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
    """Waiting per dimension that a rank must have done, from its own trace alone: a lower bound, µs per step."""
    out: dict[str, float] = {}
    for rank in ranks:
        longer = least_waits(rank)
        dims = np.array([*rank.dims, ""], dtype=object)[:-1]
        for dim in sorted(set(rank.dims)) if longer.any() else ():
            out[dim] = out.get(dim, 0.0) + float(longer[dims == dim].sum()) / rank.window.count / len(ranks) / 1000
    return {dim: round(us, 3) for dim, us in out.items()}

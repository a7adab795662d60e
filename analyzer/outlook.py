"""Exposed time per dimension: observed, predicted, and the least there can be; and what of each cause is avoidable.

With T the sum of a dimension's transfers per step (`analyzer.call_speed`), of whose bytes the ledger says that compute
can hide the share y, perhaps the share p, and not the share n (y + p + n = 1), and C the measured compute of a step:

    predicted   = (n + p)·T + max(y·T - C, edge)
    lower bound = n·T' + max((y + p)·T' - C, 0)

T' is T at the least each call can take. *edge* is what has no compute beside it however well the schedule works: the
first gather of parameters and the last reduction of gradients of a step, at most y·T. Waiting for other ranks is in the
observed time and in neither of the others; the bubble of a pipeline is waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from analyzer import causes
from analyzer.call_speed import SOURCES, CallSpeeds, call_speeds
from analyzer.causes import Charge
from analyzer.intervals import Floats
from analyzer.measured import Measured
from analyzer.model import DimensionTime, ExposedCause, Exposure, ExposurePrediction, OverlapTax, TaxedKernel
from analyzer.timing import Timing
from heuristics.arrays import codes
from heuristics.columns import distinct
from heuristics.links import Nodes
from ledger.clusters import Cluster

HIDDEN_BY_DESIGN = ("dp",)
"""Dimensions whose communication frameworks run beside compute, where no ledger says more."""

HIDEABLE = ("yes", "partial", "no")
UNKNOWN = "unknown"

_WAITS = (causes.WAIT, causes.EDGE, causes.BUBBLE)
_FIRST = (
    causes.LATE,
    causes.PREFETCH,
    causes.STREAM,
    causes.SERIAL,
    causes.OTHER,
    causes.LATENCY,
    causes.UNDIVIDED,
    causes.BUCKET,
    causes.DESIGN,
)
"""Which causes the time beyond the prediction is taken from, the most avoidable first."""


@dataclass(frozen=True, eq=False)
class _Sums:
    """One dimension on one rank, ns per step."""

    expected: float
    least: float
    edge: float
    sources: frozenset[int]
    unknown: int


def explained(
    exposure: Exposure | None,
    ranks: Sequence[Measured],
    said: Timing,
    hideable: Mapping[str, Mapping[str, float]],
    cluster: Cluster | None,
    nodes: Nodes,
    ideal_bubble: float | None,
) -> Exposure | None:
    """The exposed time with its causes, what was to be expected, and the price of overlap.

    Args:
        exposure: as measured.
        ranks: measured ranks.
        said: everything else that was found out about time.
        hideable: per dimension, the shares of its bytes that compute can hide, as the ledger says.
        cluster: link speeds, where the user gave them.
        nodes: which ranks share a host.
        ideal_bubble: of the pipeline's schedule, as a share of its time.
    """
    if exposure is None:
        return None
    speeds = call_speeds(ranks, said.fits, cluster, nodes)
    seen = None if said.bubble is None else said.bubble.fraction
    outlook, causes_found = predictions(ranks, speeds, exposure, said.charges, hideable, (seen, ideal_bubble))
    return msgspec.structs.replace(exposure, causes=causes_found, prediction=outlook, overlap_tax=_tax(said))


def _tax(said: Timing) -> OverlapTax | None:
    if not said.taxes:
        return None
    return OverlapTax(
        us_per_step=round(said.tax_us, 3),
        kernels=[
            TaxedKernel(
                name=tax.name,
                alone_us=tax.alone_ns / 1000,
                beside_us=tax.beside_ns / 1000,
                slowdown=round(tax.beside_ns / tax.alone_ns, 6),
                count=tax.count,
            )
            for tax in sorted(said.taxes, key=lambda tax: -tax.extra_ns)
        ],
    )


def predictions(
    ranks: Sequence[Measured],
    speeds: Sequence[CallSpeeds],
    exposure: Exposure,
    charges: Sequence[Charge],
    overlap: Mapping[str, Mapping[str, float]],
    bubble: tuple[float | None, float | None],
) -> tuple[list[ExposurePrediction], list[ExposedCause]]:
    """Hold each dimension's exposed time against what it should be.

    Args:
        ranks: measured ranks.
        speeds: of their calls.
        exposure: the observed time.
        charges: its causes.
        overlap: per dimension, the shares of its bytes that compute can hide (`HIDEABLE`), as the ledger says.
        bubble: share of the pipeline's time, as observed and by its schedule.
    """
    timed = [(rank, speed) for rank, speed in zip(ranks, speeds, strict=True) if rank.window.total > 0]
    each = [_sums(rank, speed) for rank, speed in timed]
    outlook, causes_found = [], []
    for dim, time in exposure.by_dimension.items():
        mine = [charge for charge in charges if charge.dim == dim]
        share = overlap.get(dim) or {"yes" if dim in HIDDEN_BY_DESIGN else "no": 1.0}
        shares = {kind: float(share.get(kind, 0.0)) for kind in HIDEABLE}
        if dim == UNKNOWN:
            shares = {"yes": 0.0, "partial": 1.0, "no": 0.0}
        found = [sums[dim] for sums in each if dim in sums]
        predicted, least, transfers, reason = _times(found, len(each), shares, exposure.compute_us * 1000)
        if dim == UNKNOWN:
            predicted, reason = None, "which dimension these calls belong to is not known, nor what can hide them"
        if predicted is None and not all(rank.source.on_gpu for rank, _ in timed):
            reason = "CPU operators do not say how long a transfer takes; give --cluster"
        parts = _avoidable(mine, predicted, bubble)
        causes_found += parts
        known = [part.avoidable_us for part in parts if part.avoidable_us is not None]
        outlook.append(
            ExposurePrediction(
                dim=dim,
                observed_us=time.exposed_us,
                waiting_us=_waiting(mine, time),
                predicted_us=predicted,
                lower_bound_us=least,
                transfer_us=None if transfers is None else transfers[0],
                least_transfer_us=None if transfers is None else transfers[1],
                hideable=shares,
                avoidable_us=round(sum(known), 3) if len(known) == len(parts) else None,
                speeds="+".join(SOURCES[i] for i in sorted({s for sums in found for s in sums.sources})) or None,
                reason=reason,
            )
        )
    return outlook, sorted(causes_found, key=lambda item: -item.exposed_us)


def _waiting(charges: Sequence[Charge], time: DimensionTime) -> float | None:
    """Exposed waiting; None where arrivals are not known and no call took longer than its like."""
    waits = sum(charge.exposed_us for charge in charges if charge.cause in _WAITS)
    return round(waits, 3) if waits or time.wait_us is not None else None


def _times(
    found: Sequence[_Sums], ranks: int, shares: Mapping[str, float], compute_ns: float
) -> tuple[float | None, float | None, tuple[float, float] | None, str | None]:
    """Predicted and least exposed time and (expected, least) transfers in µs, or why not; means over all ranks."""
    unknown = sum(sums.unknown for sums in found)
    if not found or unknown:
        calls = "1 call" if unknown == 1 else f"{unknown} calls"
        return None, None, None, f"nothing says how long {calls} should take: payload or links are not known"
    expected, least, edge = (sum(getattr(s, name) for s in found) / ranks for name in ("expected", "least", "edge"))
    yes, perhaps, no = (shares[kind] for kind in HIDEABLE)
    predicted = (no + perhaps) * expected + max(yes * expected - compute_ns, min(edge, expected) * yes)
    bound = no * least + max((yes + perhaps) * least - compute_ns, 0.0)
    times = (round(expected / 1000, 3), round(least / 1000, 3))
    return round(predicted / 1000, 3), round(min(bound, predicted) / 1000, 3), times, None


def _sums(rank: Measured, speed: CallSpeeds) -> dict[str, _Sums]:
    """Per dimension of one rank."""
    line, steps = rank.source.line, rank.window.count
    dims = np.array([*rank.dims, ""], dtype=object)[:-1]
    calls = rank.counted & (line.call_end > line.call_start)
    edges = _edges(rank, speed.expected_ns)
    out = {}
    for dim in sorted(set(rank.dims)):
        mine = calls & (dims == dim)
        if not mine.any():
            continue
        out[dim] = _Sums(
            expected=float(np.nansum(speed.expected_ns[mine])) / steps,
            least=float(np.nansum(speed.least_ns[mine])) / steps,
            edge=float(np.nansum(edges[mine])) / steps,
            sources=frozenset(speed.source[mine][speed.source[mine] >= 0].tolist()),
            unknown=int(np.isnan(speed.expected_ns[mine]).sum()),
        )
    return out


def _edges(rank: Measured, expected: Floats) -> Floats:
    """The expected time of the first gather and of the last reduction of each step and dimension, 0 elsewhere."""
    line = rank.source.line
    primitive, primitives = codes(rank.source.collectives, "primitive")
    names = [*primitives, ""]
    step = np.searchsorted(rank.window.edges[:, 0], line.call_start, side="right")
    dims = sorted(set(rank.dims))
    dim = np.array([dims.index(d) for d in rank.dims], dtype=np.int64)
    out = np.zeros(len(expected))
    calls = rank.counted & (line.call_end > line.call_start)
    for kinds, last in ((causes.GATHERS, False), (causes.REDUCES, True)):
        rows = np.flatnonzero(calls & np.isin(primitive, [i for i, name in enumerate(names) if name in kinds]))
        if not len(rows):
            continue
        order = rows[np.argsort(-line.call_start[rows] if last else line.call_start[rows], kind="stable")]
        first, _ = distinct(dim[order], step[order])
        chosen = order[first]
        out[chosen] = np.nan_to_num(expected[chosen])
    return out


def _avoidable(
    charges: Sequence[Charge], predicted_us: float | None, bubble: tuple[float | None, float | None]
) -> list[ExposedCause]:
    """What of each cause goes beyond the prediction.

    Waiting for another rank is avoidable as a whole, the bubble as far as it exceeds that of the schedule, and so is
    what a slow link takes longer. Of the rest only what exceeds the prediction is, taken from the causes in the order
    of `_FIRST`.
    """
    rest = sum(c.exposed_us for c in charges if c.cause in _FIRST)
    left = None if predicted_us is None else max(rest - predicted_us, 0.0)
    amounts: dict[str, float | None] = {}
    for charge in sorted(charges, key=lambda c: _FIRST.index(c.cause) if c.cause in _FIRST else -1):
        if charge.cause == causes.BUBBLE:
            seen, ideal = bubble
            amounts[charge.cause] = (
                charge.exposed_us * max(1 - ideal / seen, 0.0) if seen and ideal is not None else None
            )
        elif charge.cause not in _FIRST:
            amounts[charge.cause] = charge.exposed_us
        elif left is None:
            amounts[charge.cause] = None
        else:
            amounts[charge.cause] = min(left, charge.exposed_us)
            left -= min(left, charge.exposed_us)
    return [
        ExposedCause(
            dim=charge.dim,
            cause=causes.SLUGS[charge.cause],
            exposed_us=charge.exposed_us,
            avoidable_us=None if (us := amounts[charge.cause]) is None else round(us, 3),
        )
        for charge in charges
    ]

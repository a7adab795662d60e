"""The exposure part of the document: the mean step of each rank, and of all ranks together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.intervals import Floats, Ints, apportion
from analyzer.measured import Measured
from analyzer.model import DimensionTime, Exposure, RankExposure
from analyzer.rows import DIM_ORDER

_PARTS = ("compute", "exposed", "memcpy", "idle")
"""What a step divides into."""


def exposure(ranks: Sequence[Measured]) -> Exposure | None:
    """The mean step, divided up; None where no rank has any time to divide."""
    timed = [rank for rank in ranks if rank.window.total > 0]
    if not timed:
        return None
    each = [_mean_step(rank) for rank in timed]
    by_rank = [_document(rank.source.rank, *step, _waits(rank)) for rank, step in zip(timed, each, strict=True)]
    parts = {key: float(np.mean([step[0][key] for step in each])) for key in each[0][0]}
    dims = _mean_dims([step[1] for step in each])
    waits = _mean_waits([_waits(rank) for rank in timed], list(dims))
    whole = _document(None, parts, dims, waits)
    return Exposure(
        step_us=whole.step_us,
        compute_us=whole.compute_us,
        exposed_us=whole.exposed_us,
        overlapped_us=whole.overlapped_us,
        memcpy_us=whole.memcpy_us,
        idle_us=whole.idle_us,
        by_dimension=whole.by_dimension,
        by_rank=by_rank,
    )


def _mean_step(rank: Measured) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Mean ns per step of each part, and (busy, exposed) of each dimension."""
    time, steps = rank.time, rank.window.count
    parts = {key: float(getattr(time, key).sum()) / steps for key in (*_PARTS, "overlapped", "window")}
    busy, exposed = time.busy.sum(axis=0) / steps, time.exposed_of.sum(axis=0) / steps
    return parts, {dim: (float(b), float(e)) for dim, b, e in zip(time.dims, busy, exposed, strict=True)}


def _mean_dims(each: Sequence[dict[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """Mean over ranks; a rank without a dimension counts as zero."""
    names = sorted({dim for dims in each for dim in dims}, key=DIM_ORDER.index)
    return {
        name: (
            sum(dims.get(name, (0.0, 0.0))[0] for dims in each) / len(each),
            sum(dims.get(name, (0.0, 0.0))[1] for dims in each) / len(each),
        )
        for name in names
    }


def _waits(rank: Measured) -> dict[str, tuple[float, float] | None]:
    """Mean ns per step of (wait, transfer) summed over the calls of each dimension; None where one is not known."""
    line, out = rank.source.line, {}
    dims = np.array(rank.dims, dtype=object)
    length = line.call_end - line.call_start
    for dim in sorted(set(rank.dims)):
        mine = rank.counted & (dims == dim)
        wait = rank.wait_ns[mine]
        known = bool(len(wait)) and bool((wait >= 0).all())
        steps = rank.window.count
        out[dim] = (float(wait.sum()) / steps, float((length[mine] - wait).sum()) / steps) if known else None
    return out


def _mean_waits(
    each: Sequence[dict[str, tuple[float, float] | None]], dims: Sequence[str]
) -> dict[str, tuple[float, float] | None]:
    out: dict[str, tuple[float, float] | None] = {}
    for dim in dims:
        found = [waits.get(dim, (0.0, 0.0)) for waits in each]
        known = [pair for pair in found if pair is not None]
        whole = len(known) == len(found)
        out[dim] = (sum(w for w, _ in known) / len(each), sum(t for _, t in known) / len(each)) if whole else None
    return out


def _document(
    rank: int | None,
    parts: dict[str, float],
    dims: dict[str, tuple[float, float]],
    waits: dict[str, tuple[float, float] | None],
) -> RankExposure:
    """Round to whole nanoseconds so that the parts still sum to the step and the dimensions to the exposed time."""
    step = round(parts["window"])
    of_step = dict(zip(_PARTS, _whole([parts[key] for key in _PARTS], step), strict=True))
    order = sorted(dims, key=DIM_ORDER.index)
    exposed = dict(zip(order, _whole([dims[d][1] for d in order], of_step["exposed"]), strict=True))
    return RankExposure(
        rank=rank,
        step_us=step / 1000,
        compute_us=of_step["compute"] / 1000,
        exposed_us=of_step["exposed"] / 1000,
        overlapped_us=round(parts["overlapped"]) / 1000,
        memcpy_us=of_step["memcpy"] / 1000,
        idle_us=of_step["idle"] / 1000,
        by_dimension={dim: _dimension(dims[dim][0], exposed[dim], waits.get(dim)) for dim in order},
    )


def _whole(values: Sequence[float], total: int) -> list[int]:
    weights: Floats = np.array(values, dtype=np.float64)
    whole: Ints = apportion(weights, total) if weights.sum() > 0 else np.zeros(len(weights), dtype=np.int64)
    return [int(v) for v in whole]


def _dimension(busy: float, exposed: int, waits: tuple[float, float] | None) -> DimensionTime:
    whole = max(round(busy), exposed)
    return DimensionTime(
        busy_us=whole / 1000,
        exposed_us=exposed / 1000,
        overlapped_us=(whole - exposed) / 1000,
        wait_us=None if waits is None else round(waits[0]) / 1000,
        transfer_us=None if waits is None else round(waits[1]) / 1000,
    )

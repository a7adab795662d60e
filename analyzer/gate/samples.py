"""Single steps: what the document gives as a mean, per step, averaged over the ranks that were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analyzer import intervals
from analyzer.intervals import Bools, Ints
from analyzer.measured import Measured
from analyzer.rows import DIM_ORDER, bus_factor
from heuristics.arrays import NULL, codes, ints

Floats = npt.NDArray[np.float64]
RowName = tuple[str, str]
"""Dimension and primitive."""


@dataclass(frozen=True, eq=False)
class DimSamples:
    """One dimension, float64 ns per step; None where waiting cannot be told from moving data."""

    busy: Floats
    exposed: Floats
    exposed_wait: Floats | None
    wait: Floats | None
    transfer: Floats | None
    bus_bytes: Floats | None  # bytes as the bus bandwidth of nccl-tests counts them


@dataclass(frozen=True, eq=False)
class Traffic:
    """Calls of one dimension and primitive, per step.

    Attributes:
        calls: mean over ranks.
        sent: bytes a rank sends, mean over ranks; None where they are not known.
        elements: the distinct sizes, in elements of the whole array.
        total: elements per step, mean over ranks.
        dtypes: as they occur.
        groups: the sizes of the groups, as they occur; -1 for one that is not known.
    """

    calls: Floats
    sent: Floats | None
    elements: frozenset[int]
    total: float
    dtypes: frozenset[str]
    groups: frozenset[int]


@dataclass(frozen=True, eq=False)
class Samples:
    """The steps that every rank has, float64 ns each.

    Attributes:
        numbers: the steps' own numbers; empty where the trace has no steps and the only sample is its whole span.
        parts: step, compute, exposed, memcpy, idle.
        launch_gap: see `analyzer.summary.capture`; None where launches are not recorded.
    """

    numbers: tuple[int, ...]
    parts: Mapping[str, Floats]
    launch_gap: Floats | None
    dims: Mapping[str, DimSamples]
    traffic: Mapping[RowName, Traffic]


def samples_of(ranks: Sequence[Measured]) -> Samples | None:
    """Take the steps apart; None where no time was measured."""
    timed = [rank for rank in ranks if rank.window.total > 0]
    if not timed:
        return None
    numbers = _common(timed)
    picks = [_pick(rank, numbers) for rank in timed]
    parts = {
        name: _mean([getattr(rank.time, field)[pick] for rank, pick in zip(timed, picks, strict=True)])
        for name, field in (("step", "window"), *((n, n) for n in ("compute", "exposed", "memcpy", "idle")))
    }
    gaps = [rank.source.capture.launch_gap_ns for rank in timed]
    late = None
    if numbers and all(gap is not None for gap in gaps):
        rows = [np.array(rank.window.steps)[pick] for rank, pick in zip(timed, picks, strict=True)]
        late = _mean([gap[row] for gap, row in zip(gaps, rows, strict=True) if gap is not None])
    names = sorted({d for rank in timed for d in rank.time.dims}, key=DIM_ORDER.index)
    return Samples(
        numbers=numbers,
        parts=parts,
        launch_gap=late,
        dims={name: _dimension(name, timed, picks) for name in names},
        traffic=_traffic(timed, picks),
    )


def _common(ranks: Sequence[Measured]) -> tuple[int, ...]:
    """Numbers of the steps that were measured on every rank."""
    each = [set(rank.source.steps.number[list(rank.window.steps)].tolist()) for rank in ranks]
    return tuple(sorted(set.intersection(*each)))


def _pick(rank: Measured, numbers: Sequence[int]) -> Ints:
    """The windows of a rank that hold these steps, in their order; the only window where there are no steps."""
    if not numbers:
        return np.arange(1 if not rank.window.steps else 0)
    own = rank.source.steps.number[list(rank.window.steps)]
    return np.searchsorted(own, numbers) if np.all(np.diff(own) > 0) else _search(own, numbers)


def _search(own: Ints, numbers: Sequence[int]) -> Ints:
    return np.array([int(np.flatnonzero(own == number)[0]) for number in numbers], dtype=np.int64)


def _mean(each: Sequence[npt.NDArray[np.generic]]) -> Floats:
    mean: Floats = np.mean(np.stack([e.astype(np.float64) for e in each]), axis=0)
    return mean


def _place_of_call(rank: Measured, pick: Ints) -> Ints:
    """Which of the picked windows each counted call belongs to, -1 for none."""
    place = np.full(rank.window.count + 1, NULL, dtype=np.int64)
    place[pick] = np.arange(len(pick))
    if not rank.window.steps:
        window = np.zeros(len(rank.counted), dtype=np.int64)
    else:
        of_row = np.full(len(rank.source.steps.number) + 1, rank.window.count, dtype=np.int64)
        of_row[list(rank.window.steps)] = np.arange(rank.window.count)
        window = of_row[ints(rank.source.collectives, "step")]
    return np.where(rank.counted, place[window], NULL)


def _dimension(name: str, ranks: Sequence[Measured], picks: Sequence[Ints]) -> DimSamples:
    busy, exposed = [], []
    hidden: list[Ints | None] = []
    wait: list[Floats | None] = []
    transfer: list[Floats | None] = []
    moved: list[Floats | None] = []
    for rank, pick in zip(ranks, picks, strict=True):
        column = rank.time.dims.index(name) if name in rank.time.dims else None
        zero = np.zeros(len(pick), dtype=np.int64)
        busy.append(zero if column is None else rank.time.busy[pick, column])
        exposed.append(zero if column is None else rank.time.exposed_of[pick, column])
        mine = np.array([d == name for d in rank.dims], dtype=np.bool_) & rank.counted
        place = np.where(mine, _place_of_call(rank, pick), NULL)
        mine = place != NULL
        known = bool((rank.wait_ns[mine] != NULL).all()) and (column is None or bool(mine.any()))
        length = rank.source.line.call_end - rank.source.line.call_start
        wait.append(_sum(place, rank.wait_ns, len(pick)) if known else None)
        transfer.append(_sum(place, length - rank.wait_ns, len(pick)) if known else None)
        if not known:
            hidden.append(None)
        else:
            hidden.append(zero if column is None else _exposed_wait(rank, name, mine, pick))
        moved.append(_bus_bytes(rank, place, len(pick)))
    return DimSamples(
        busy=_mean(busy),
        exposed=_mean(exposed),
        exposed_wait=_mean_known(hidden),
        wait=_mean_known(wait),
        transfer=_mean_known(transfer),
        bus_bytes=_mean_known(moved),
    )


def _mean_known(each: Sequence[npt.NDArray[np.generic] | None]) -> Floats | None:
    known = [e for e in each if e is not None]
    return _mean(known) if len(known) == len(each) else None


def _sum(place: Ints, values: npt.NDArray[np.generic], steps: int) -> Floats:
    mine = place != NULL
    sums: Floats = np.bincount(place[mine], weights=values[mine].astype(np.float64), minlength=steps).astype(np.float64)
    return sums


def _exposed_wait(rank: Measured, name: str, mine: Bools, pick: Ints) -> Ints:
    """Exposed time of one dimension in which a call of it was waiting for the last participant.

    Compute beside a call is taken to hide the waiting first.
    """
    line, dims = rank.source.line, rank.time.dims
    of_call = np.array([dims.index(d) if d in dims else len(dims) for d in rank.dims] + [dims.index(name)])
    if "unknown" in dims:
        of_call[-1] = dims.index("unknown")
    of_piece = of_call[line.comm_call]
    parts = [intervals.union(line.comm_start[of_piece == i], line.comm_end[of_piece == i]) for i, _ in enumerate(dims)]
    start = line.call_start[mine]
    waiting = intervals.intersection(intervals.union(start, start + rank.wait_ns[mine]), parts[dims.index(name)])
    others = [part for i, part in enumerate(parts) if i != dims.index(name)]
    rest = intervals.without(parts[dims.index(name)], waiting)
    shared = intervals.share([waiting, rest, *others], line.compute, rank.window.edges)[:, 0]
    return np.minimum(shared, rank.time.exposed_of[:, dims.index(name)])[pick]


def _bus_bytes(rank: Measured, place: Ints, steps: int) -> Floats | None:
    table = rank.source.collectives
    mine = place != NULL
    size, group = ints(table, "size_bytes"), ints(table, "group_size")
    primitive, names = codes(table, "primitive")
    if bool((size[mine] == NULL).any()):
        return None
    factor = np.ones(len(size))
    for code, n in np.unique(np.stack((primitive[mine], group[mine]), axis=1), axis=0).tolist():
        value = bus_factor(names[code] if code >= 0 else "", n if n > 0 else None)
        if value is None:
            return None
        factor[(primitive == code) & (group == n)] = value
    return _sum(place, size * factor, steps)


def _traffic(ranks: Sequence[Measured], picks: Sequence[Ints]) -> dict[RowName, Traffic]:
    """Calls and bytes of every dimension and primitive; a rank without such calls counts as zero."""
    steps, many = len(picks[0]), len(ranks)
    calls: dict[RowName, Floats] = {}
    sent: dict[RowName, Floats | None] = {}
    elements: dict[RowName, set[int]] = {}
    total: dict[RowName, float] = {}
    dtypes: dict[RowName, set[str]] = {}
    groups: dict[RowName, set[int]] = {}
    for rank, pick in zip(ranks, picks, strict=True):
        table = rank.source.collectives
        place = _place_of_call(rank, pick)
        primitive, primitives = codes(table, "primitive")
        dtype, of_dtype = codes(table, "dtype")
        names = sorted(set(rank.dims))
        dim = np.array([names.index(d) for d in rank.dims], dtype=np.int64)
        count = np.maximum(ints(table, "in_nelems"), ints(table, "out_nelems"))
        bytes_ = ints(table, "sent_bytes")
        for d, p in np.unique(np.stack((dim, primitive), axis=1)[place != NULL], axis=0).tolist():
            mine = np.where((dim == d) & (primitive == p), place, NULL)
            which = mine != NULL
            key = (names[d], primitives[p] if p >= 0 else "unknown")
            calls[key] = calls.get(key, np.zeros(steps)) + _sum(mine, np.ones(len(mine)), steps) / many
            before = sent.get(key, np.zeros(steps))
            known = before is not None and bool((bytes_[which] != NULL).all())
            sent[key] = before + _sum(mine, bytes_, steps) / many if known and before is not None else None
            elements.setdefault(key, set()).update(np.unique(count[which]).tolist())
            total[key] = total.get(key, 0.0) + float(count[which].sum()) / max(steps, 1) / many
            groups.setdefault(key, set()).update(np.unique(ints(table, "group_size")[which]).tolist())
            dtypes.setdefault(key, set()).update(of_dtype[c] if c >= 0 else "?" for c in np.unique(dtype[which]))
    return {
        key: Traffic(
            calls=calls[key],
            sent=sent[key],
            elements=frozenset(elements[key]),
            total=total[key],
            dtypes=frozenset(dtypes[key]),
            groups=frozenset(groups[key]),
        )
        for key in sorted(calls, key=lambda k: (DIM_ORDER.index(k[0]), k[1]))
    }

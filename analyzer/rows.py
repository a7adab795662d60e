"""The table of collectives: calls that mean the same thing, folded into one row over steps and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from analyzer.exposure import measure_parts
from analyzer.intervals import Bools, Ints
from analyzer.measured import Measured
from analyzer.model import CollectiveRow, Sizes
from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.columns import distinct

DIM_ORDER = ("tp", "cp", "pp", "dp", "ep", "control", "unknown")
"""How dimensions are ordered wherever they are listed."""

_TEXTS = ("primitive", "dtype", "op", "phase")


@dataclass(frozen=True)
class Key:
    """What calls of one row have in common."""

    dim: str
    primitive: str
    group_size: int | None
    link: str | None
    link_type: str | None
    dtype: str | None
    op: str | None
    phase: str


@dataclass
class _Tally:
    """Sums over ranks of per-step means, while they are being made."""

    calls: float = 0.0
    sent: float = 0.0
    time: float = 0.0
    wait: float = 0.0
    busy: float = 0.0
    exposed: float = 0.0
    moved_bytes: float = 0.0  # total-array bytes of all calls
    size_known: bool = True
    sent_known: bool = True
    wait_known: bool = True
    timed: bool = False
    divided: bool = False
    sizes: list[Ints] = field(default_factory=list)
    classified: dict[str, int] = field(default_factory=dict)


def collect(ranks: Sequence[Measured]) -> list[CollectiveRow]:
    """Fold the calls of all ranks into rows, largest exposed time first within each dimension.

    Counts, bytes and times are means per step of each rank, then means over all ranks given: a rank without such calls
    counts as zero.
    """
    tallies: dict[Key, _Tally] = {}
    for rank in ranks:
        _add(rank, tallies)
    rows = [_row(key, tally, len(ranks)) for key, tally in tallies.items()]
    return sorted(
        rows,
        key=lambda r: (DIM_ORDER.index(r.dim), -(r.exposed_us_per_step or 0), -(r.time_us_per_step or 0), r.primitive),
    )


def bus_factor(primitive: str, n: int | None) -> float | None:
    """What turns algorithm into bus bandwidth (nccl-tests, doc/PERFORMANCE.md); null when ``n`` is not known."""
    if primitive in ("broadcast", "reduce", "send_recv"):
        return 1.0
    if not n:
        return None
    if primitive == "all_reduce":
        return 2 * (n - 1) / n
    if primitive in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (n - 1) / n
    return None


def _add(rank: Measured, tallies: dict[Key, _Tally]) -> None:
    table = rank.source.collectives
    if not table.num_rows:
        return
    keys, of_call = _keys(rank)
    of_call = np.where(rank.counted, of_call, NULL)
    line = rank.source.line
    dims = sorted({key.dim for key in keys})
    busy, exposed = measure_parts(line, rank.window, of_call, [dims.index(key.dim) for key in keys])
    length = line.call_end - line.call_start
    sent, size = ints(table, "sent_bytes"), ints(table, "size_bytes")
    source, sources = codes(table, "classified_by")
    steps = rank.window.count or 1
    for i, key in enumerate(keys):
        mine = of_call == i
        if not mine.any():
            continue
        tally = tallies.setdefault(key, _Tally())
        tally.calls += int(mine.sum()) / steps
        tally.size_known &= bool((size[mine] != NULL).all())
        tally.sent_known &= bool((sent[mine] != NULL).all())
        tally.sent += float(sent[mine].sum()) / steps
        tally.moved_bytes += float(size[mine].sum()) / steps
        tally.time += float(length[mine].sum()) / steps
        tally.timed |= rank.source.on_gpu or bool(length[mine].any())
        tally.divided |= rank.window.total > 0
        tally.wait_known &= bool((rank.wait_ns[mine] != NULL).all())
        tally.wait += float(rank.wait_ns[mine].sum()) / steps
        tally.busy += float(busy[i]) / steps
        tally.exposed += float(exposed[i]) / steps
        tally.sizes.append(size[mine & (size != NULL)])
        for code, count in zip(*np.unique(source[mine], return_counts=True), strict=True):
            name = sources[code] if code >= 0 else "unknown"
            tally.classified[name] = tally.classified.get(name, 0) + int(count)


def _keys(rank: Measured) -> tuple[list[Key], Ints]:
    """The distinct keys of a rank's calls, and which of them each call has."""
    table = rank.source.collectives
    dims = sorted(set(rank.dims))
    unknown: tuple[str | None, str | None] = (None, None)
    links = [unknown, *sorted({pair for pair in rank.links_of_group if pair != unknown}, key=str)]
    of_group = np.array([links.index(pair) for pair in rank.links_of_group] + [0], dtype=np.int64)
    texts = {name: codes(table, name) for name in _TEXTS}
    columns = [
        np.array([dims.index(d) for d in rank.dims], dtype=np.int64),
        ints(table, "group_size"),
        of_group[ints(table, "group")],
        *(texts[name][0] for name in _TEXTS),
    ]
    first, key_of_call = distinct(*columns)
    keys = []
    for dim, size, link, *of_text in np.stack(columns, axis=1)[first].tolist():
        said = {name: texts[name][1][code] if code >= 0 else None for name, code in zip(_TEXTS, of_text, strict=True)}
        keys.append(
            Key(
                dim=dims[dim],
                primitive=said["primitive"] or "unknown",
                group_size=size if size > 0 else None,
                link=links[link][0],
                link_type=links[link][1],
                dtype=said["dtype"],
                op=said["op"],
                phase=said["phase"] or "unknown",
            )
        )
    return keys, key_of_call


def _row(key: Key, tally: _Tally, ranks: int) -> CollectiveRow:
    def mean_us(ns: float) -> float:
        return round(ns / ranks / 1000, 3)

    wait = tally.wait if tally.wait_known else None
    moving = tally.time - tally.wait if tally.wait_known else 0.0
    algbw = tally.moved_bytes / moving if tally.size_known and moving > 0 else None
    factor = bus_factor(key.primitive, key.group_size)
    sizes = np.concatenate(tally.sizes)
    return CollectiveRow(
        dim=key.dim,
        primitive=key.primitive,
        op=key.op,
        group_size=key.group_size,
        link=key.link,
        link_type=key.link_type,
        dtype=key.dtype,
        phase=key.phase,
        calls_per_step=round(tally.calls / ranks, 6),
        size_bytes=_spread(sizes) if tally.size_known and len(sizes) else None,
        sent_bytes_per_step=round(tally.sent / ranks) if tally.sent_known else None,
        time_us_per_step=mean_us(tally.time) if tally.timed else None,
        wait_us_per_step=None if wait is None else mean_us(wait),
        transfer_us_per_step=mean_us(moving) if tally.wait_known else None,
        exposed_us_per_step=mean_us(tally.exposed) if tally.divided else None,
        overlapped_us_per_step=mean_us(tally.busy - tally.exposed) if tally.divided else None,
        algbw_gbps=None if algbw is None else round(algbw, 3),  # bytes per ns are decimal GB per s
        busbw_gbps=None if algbw is None or factor is None else round(algbw * factor, 3),
        classified_by=dict(sorted(tally.classified.items())),
    )


def _spread(sizes: Ints) -> Sizes:
    """Smallest, median and largest; the median is one of the sizes (the lower of the two middle ones)."""
    ordered = np.sort(sizes)
    return Sizes(min=int(ordered[0]), p50=int(ordered[(len(ordered) - 1) // 2]), max=int(ordered[-1]))


def counted_calls(table: pa.Table, steps: Sequence[int]) -> Bools:
    """Which calls are counted: those of the measured steps (all where none are named) that talk to another rank.

    Kernels that only arrange data on their own GPU before or after a call are compute.
    """
    role, roles = codes(table, "role")
    talks: Bools = role != code_of(roles, "pack")
    if not steps:
        return talks
    return talks & np.isin(ints(table, "step"), np.array(steps, dtype=np.int64))

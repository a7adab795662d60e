"""Bytes that were sent, by everything the ledger tells apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.measured import Measured
from heuristics.arrays import NULL, codes, ints
from heuristics.columns import distinct
from heuristics.dtypes import itemsize


@dataclass(frozen=True)
class Flow:
    """Calls that move the same: dimension, primitive, phase, data type, whole-array bytes and group size."""

    dim: str
    primitive: str
    phase: str
    dtype: str
    size_bytes: int
    group_size: int


@dataclass(frozen=True)
class Sent:
    """Calls and bytes per step, mean over the ranks read."""

    calls: float
    bytes: float


Traffic = Mapping[Flow, Sent]


def traffic(ranks: Sequence[Measured]) -> Traffic:
    """Everything the ranks sent in the measured steps; calls whose bytes are not known are left out."""
    calls: dict[Flow, float] = defaultdict(float)
    sent: dict[Flow, float] = defaultdict(float)
    for rank in ranks:
        share = 1 / ((rank.window.count or 1) * len(ranks))
        for flow, n, total in _of_rank(rank):
            calls[flow] += n * share
            sent[flow] += total * share
    return {flow: Sent(calls[flow], sent[flow]) for flow in calls}


def _of_rank(rank: Measured) -> Iterable[tuple[Flow, int, int]]:
    table = rank.source.collectives
    sent, size = ints(table, "sent_bytes"), ints(table, "size_bytes")
    chosen = rank.counted & (sent != NULL)
    if not chosen.any():
        return
    texts = [codes(table, name) for name in ("primitive", "phase", "dtype")]
    dims = sorted(set(rank.dims))
    dim = np.array([dims.index(d) for d in rank.dims], dtype=np.int64)
    columns = [c[chosen] for c in (dim, *(code for code, _ in texts), size, ints(table, "group_size"))]
    first, of_call = distinct(*columns)
    totals = np.zeros(len(first), dtype=np.int64)
    np.add.at(totals, of_call, sent[chosen])
    counts = np.bincount(of_call, minlength=len(first))
    unique = np.stack(columns, axis=1)[first].tolist()
    for (d, *said, bytes_of_call, n), count, total in zip(unique, counts.tolist(), totals.tolist(), strict=True):
        primitive, phase, dtype = (names[c] if c >= 0 else "" for c, (_, names) in zip(said, texts, strict=True))
        yield Flow(dims[d], primitive, phase or "unknown", dtype, bytes_of_call, n), count, total


def elements(flow: Flow, sent: Sent) -> float:
    """Elements sent; 0 where the data type is not known."""
    width = itemsize(flow.dtype)
    return sent.bytes / width if width else 0.0

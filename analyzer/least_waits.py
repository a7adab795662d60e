"""What a rank must have waited at least, from its own trace alone.

Calls of one primitive, payload and group transfer the same, and the shortest of them took at least that: what the
others took longer was waiting. So it is with kernels of one name that exchange counts or signals and no payload
(DeepEP's notify, barriers). It is a lower bound, for the shortest may have waited too.
"""

from __future__ import annotations

import numpy as np

from analyzer.intervals import Ints
from analyzer.measured import Measured
from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.columns import distinct

SAME = 3
"""Calls of one kind that must be there before the best of them bounds the waiting of the others."""


def least_waits(rank: Measured) -> Ints:
    """Per call, ns it waited at least; 0 where that is not known, or where waiting was measured.

    Only of GPU ranks: the duration of a CPU operator says when its caller was let go.
    """
    table, line = rank.source.collectives, rank.source.line
    length = line.call_end - line.call_start
    out = np.zeros(len(length), dtype=np.int64)
    size, group = ints(table, "size_bytes"), ints(table, "group")
    role, roles = codes(table, "role")
    name, _ = codes(table, "name")
    signals = (size == NULL) & (role == code_of(roles, "sync"))
    rows = np.flatnonzero(rank.counted & (length > 0) & (rank.wait_ns == NULL) & ((size != NULL) | signals))
    if not len(rows) or not rank.window.count or not rank.source.on_gpu:
        return out
    primitive, _ = codes(table, "primitive")
    kernel = np.where(signals, name, NULL)
    _, kind = distinct(primitive[rows], size[rows], group[rows], kernel[rows])
    best = np.full(int(kind.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(best, kind, length[rows])
    out[rows] = np.where(np.bincount(kind)[kind] >= SAME, length[rows] - best[kind], 0)
    return out

"""What repetition within one trace says of kernels that nobody named.

Kernels that were launched before the window, or replayed from a graph, have nothing but their name, and some names do
not tell (SendRecv, Generic). What the same name stood for elsewhere in the trace, and the order in which a stream
repeats its work from step to step, often do.
"""

from __future__ import annotations

import numpy as np

from heuristics.arrays import NULL
from heuristics.columns import Ints, none
from parsers.columns import distinct_values

_LONGEST_PERIOD = 4096
"""Calls in one repetition of a stream's work that are looked for."""


def believed(name: Ints, by_name: Ints, known: Ints) -> Ints:
    """What each kernel's name says, corrected by how the trace uses that name.

    Where better evidence finds the name on several primitives, or on one that the name does not say, the name is not
    believed for the rest: it then means the one primitive that it stood for (if it stood for it more often than it is
    left unexplained), or nothing.

    Args:
        name: per call, a number per distinct kernel name; `NULL` without a kernel.
        by_name: per call, the primitive that the name says, or `NULL`.
        known: per call, the primitive that better evidence gives, or `NULL`.

    Returns:
        Per call, a primitive or `NULL`.
    """
    out = by_name.copy()
    for number in distinct_values(name[(known == NULL) & (name != NULL)]):
        mine = name == number
        stood_for, count = np.unique(known[mine & (known != NULL)], return_counts=True)
        left = mine & (known == NULL)
        if len(stood_for) > 1:
            out[left] = NULL
        elif len(stood_for) == 1 and count[0] >= left.sum():
            out[left] = stood_for[0]
    return out


def by_period(lane: Ints, start: Ints, name: Ints, primitive: Ints) -> Ints:
    """Fill in primitives from the order that each stream repeats.

    A stream is taken to repeat its work with the smallest period for which every two calls one period apart that are
    known are alike, names included, provided that at least one whole period is known twice.

    Args:
        lane: per call, a number per stream; `NULL` for calls without a kernel, which are left out.
        start: when each call's kernel started, ns.
        name: a number per distinct kernel name.
        primitive: what is known so far, `NULL` where nothing is.

    Returns:
        Per call, the primitive that its repetitions have, for those not known so far; else `NULL`.
    """
    out = none(len(primitive))
    for number in distinct_values(lane[(lane != NULL) & (primitive == NULL)]):
        rows = np.flatnonzero(lane == number)
        rows = rows[np.argsort(start[rows], kind="stable")]
        found = _filled(name[rows], primitive[rows])
        out[rows] = np.where(primitive[rows] == NULL, found, NULL)
    return out


def _filled(name: Ints, primitive: Ints) -> Ints:
    n = len(primitive)
    for period in range(1, min(n // 2, _LONGEST_PERIOD) + 1):
        # Most periods fail within the first calls.
        if not _repeats(name, primitive, period, min(n, period + 256)) or not _repeats(name, primitive, period, n):
            continue
        if ((primitive[:-period] != NULL) & (primitive[period:] != NULL)).sum() < period:
            continue
        table = np.concatenate([primitive, none(-n % period)]).reshape(-1, period)
        return np.resize(table.max(axis=0), n)
    return none(n)


def _repeats(name: Ints, primitive: Ints, period: int, n: int) -> bool:
    """Whether the first ``n`` calls are like those one period later, as far as they are known."""
    early, late = primitive[: n - period], primitive[period:n]
    if (name[: n - period] != name[period:n]).any():
        return False
    return not ((early != late) & (early != NULL) & (late != NULL)).any()

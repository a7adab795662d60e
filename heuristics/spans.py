"""When a call on a CPU backend really ran: its record matched with the annotation that lasts for the execution.

ProcessGroupGloo queues collectives for its own threads; the annotation ``gloo:<operation>`` covers the execution there
(waiting for the other ranks included), without arguments but the input's size. The k-th record of an operation and
size belongs to the k-th annotation of the same operation and size that starts after it.
"""

from __future__ import annotations

import numpy as np

from heuristics.calls import Records
from heuristics.columns import Ints, none
from heuristics.kernel_table import PRIMITIVES

_WORDS = {"reduce_scatter": "all_reduce"}
"""Gloo has no reduce-scatter: it runs an all-reduce (c10d/ProcessGroupGloo.cpp)."""

_ANY = -2


def match(records: Records, spans: Ints, span_nelems: Ints, primitive: Ints, asked: Ints, nelems: Ints) -> Ints:
    """The annotation of each call.

    Args:
        records: all records.
        spans: rows of the annotations, in order of time.
        span_nelems: elements of each annotation's input, `NULL` if not recorded.
        primitive: per call, the position in `PRIMITIVES`, with send and recv told apart by `SEND` and `RECV`.
        asked: per call, when it was asked for, ns.
        nelems: per call, the elements handed in, `NULL` if not known.

    Returns:
        Per call, a row of ``records`` or `NULL`.
    """
    out = none(len(asked))
    start = records.ts[spans]
    word = _span_words(records, spans)
    taken = np.zeros(len(spans), dtype=np.bool_)
    for exact in (True, False):
        left = out < 0
        open_ = ~taken
        size = np.where(nelems < 0, _ANY, nelems) if exact else np.full(len(nelems), _ANY)
        span_size = np.where(span_nelems < 0, _ANY, span_nelems) if exact else np.full(len(spans), _ANY)
        if not exact:
            left &= nelems < 0
        for key in {(p, n) for p, n in zip(primitive[left].tolist(), size[left].tolist(), strict=True)}:
            mine = np.flatnonzero(left & (primitive == key[0]) & (size == key[1]))
            theirs = np.flatnonzero(open_ & (word == _wire(key[0])) & (span_size == key[1]))
            mine = mine[np.argsort(asked[mine], kind="stable")]
            place = np.searchsorted(start[theirs], asked[mine])
            step = np.arange(len(mine))
            place = step + np.maximum.accumulate(place - step) if len(mine) else place
            fits = place < len(theirs)
            hit = theirs[place[fits]]
            out[mine[fits]] = spans[hit]
            taken[hit] = True
    return out


SEND, RECV = len(PRIMITIVES), len(PRIMITIVES) + 1


def _wire(primitive: int) -> int:
    """What the backend calls the primitive."""
    name = PRIMITIVES[primitive] if 0 <= primitive < len(PRIMITIVES) else None
    return PRIMITIVES.index(_WORDS[name]) if name in _WORDS else primitive


def _span_words(records: Records, spans: Ints) -> Ints:
    word = none(len(records.names) + 1)
    for number, operator in enumerate(records.operators):
        if operator is not None and operator.primitive is not None:
            word[number] = {"send": SEND, "recv": RECV}.get(
                operator.direction or "", PRIMITIVES.index(operator.primitive)
            )
    return word[records.name[spans]]

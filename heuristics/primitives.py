"""Which collective is it, and how much does it move: the order of evidence.

A call may be named by several sources, and they may disagree: NCCL 2.13 runs every collective under a kernel called
SendRecv (NVIDIA/nccl#714), RCCL under one called Generic. The caller's own words come first: the collective's metadata
(Kineto's `Collective name`), then the operator, then the annotation, then the NVTX range, then the kernel's name, and
last what repeats in the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heuristics.arrays import NULL
from heuristics.columns import Bools, Ints, distinct, none
from heuristics.kernel_table import PRIMITIVES, Operator
from ledger.parallel import collective_bytes

SOURCES = ("metadata", "operator", "annotation", "nvtx", "kernel_name", "period")
"""Kinds of evidence, strongest first; the values of `COLLECTIVES.classified_by`."""

DIRECTIONS = ("send", "recv")
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND_RECV, BROADCAST, REDUCE, GATHER, SCATTER, BARRIER = range(
    len(PRIMITIVES)
)

UNKNOWN = -2
"""Of an uneven all-to-all: part of what was handed in stays here, but how much is not known."""

ROOTED = (BROADCAST, REDUCE, GATHER, SCATTER)

# What a library may run a primitive as without anybody being wrong: NCCL builds all-to-all, gather and scatter from
# sends (src/collectives.cc), and PyTorch builds barriers from all-reduces (ProcessGroupNCCL.cpp `barrier`).
_SAME = frozenset(
    {
        (ALL_TO_ALL, SEND_RECV),
        (GATHER, SEND_RECV),
        (SCATTER, SEND_RECV),
        (BARRIER, ALL_REDUCE),
    }
)


@dataclass(frozen=True, eq=False)
class Decision:
    """Per call: the primitive (position in `PRIMITIVES`, or `NULL`), what said so, and whether others disagreed."""

    primitive: Ints
    source: Ints
    conflict: Bools
    conflicts: tuple[tuple[str, int], ...]


def codes_of(operators: Sequence[Operator | None]) -> tuple[Ints, Ints]:
    """Primitive and direction of each row of a list of operators, as numbers; one `NULL` more at the end."""
    primitive, direction = none(len(operators) + 1), none(len(operators) + 1)
    for i, operator in enumerate(operators):
        if operator is not None and operator.primitive is not None:
            primitive[i] = PRIMITIVES.index(operator.primitive)
        if operator is not None and operator.direction is not None:
            direction[i] = DIRECTIONS.index(operator.direction)
    return primitive, direction


def decide(said: Sequence[Ints]) -> Decision:
    """Take the strongest source that names a primitive.

    Args:
        said: per source of `SOURCES`, the primitive that it names for each call, or `NULL`.
    """
    table = np.stack(said)
    speaks = table != NULL
    source = np.where(speaks.any(axis=0), speaks.argmax(axis=0), NULL)
    chosen = np.where(source >= 0, np.take_along_axis(table, np.maximum(source, 0)[None], axis=0)[0], NULL)
    other = speaks & (table != chosen)
    for mine, theirs in _SAME:
        other &= ~((chosen == mine) & (table == theirs))
    counts: Counter[str] = Counter()
    for weak, row in enumerate(other):
        if row.any():
            pairs = np.stack([source[row], chosen[row], table[weak][row]], axis=1)
            for (strong, mine, theirs), n in zip(*_counted(pairs), strict=True):
                text = f"{_say(weak)} says {PRIMITIVES[theirs]}, {_say(strong)} says {PRIMITIVES[mine]}"
                counts[text] += int(n)
    return Decision(chosen, source, other.any(axis=0), tuple(counts.most_common()))


def _counted(pairs: Ints) -> tuple[Ints, Ints]:
    values, count = np.unique(pairs, axis=0, return_counts=True)
    return values, count


def _say(source: int) -> str:
    return SOURCES[source].replace("_", " ")


@dataclass(frozen=True, eq=False)
class Payload:
    """Per call, `NULL` where not known: elements handed in and out, group size, total-array bytes, bytes sent."""

    in_nelems: Ints
    out_nelems: Ints
    group_size: Ints
    size_bytes: Ints
    sent_bytes: Ints


def implied_size(primitive: Ints, in_nelems: Ints, out_nelems: Ints) -> Ints:
    """The group size that the two sides of an all-gather or reduce-scatter imply; `NULL` for the rest."""
    n = none(len(primitive))
    for kind, whole, part in ((ALL_GATHER, out_nelems, in_nelems), (REDUCE_SCATTER, in_nelems, out_nelems)):
        both = np.flatnonzero((primitive == kind) & (whole > 0) & (part > 0))
        both = both[whole[both] % part[both] == 0]
        n[both] = whole[both] // part[both]
    return n


def payload(
    primitive: Ints, direction: Ints, in_nelems: Ints, out_nelems: Ints, group_size: Ints, itemsize: Ints, kept: Ints
) -> Payload:
    """Sizes in the conventions of nccl-tests, and what one rank sends by the ledger's `collective_bytes`.

    An all-gather's two sides and the size of its group imply each other, and so do a reduce-scatter's: what the trace
    leaves out of the three is filled in.

    Args:
        primitive: position in `PRIMITIVES`, or `NULL`.
        direction: position in `DIRECTIONS`, or `NULL`.
        in_nelems: elements handed in, `NULL` if not recorded; so for all that follow.
        out_nelems: elements handed out.
        group_size: ranks in the group.
        itemsize: bytes per element.
        kept: of an uneven all-to-all, the elements that stay on this rank, or `UNKNOWN`; else `NULL`.
    """
    ins, outs, n = in_nelems.copy(), out_nelems.copy(), group_size
    for kind, whole, part in ((ALL_GATHER, outs, ins), (REDUCE_SCATTER, ins, outs)):
        of_kind = primitive == kind
        lacks_whole = of_kind & (whole == NULL) & (part >= 0) & (n > 0)
        whole[lacks_whole] = part[lacks_whole] * n[lacks_whole]
        lacks_part = of_kind & (part == NULL) & (whole >= 0) & (n > 0)
        lacks_part[lacks_part] = whole[lacks_part] % n[lacks_part] == 0
        part[lacks_part] = whole[lacks_part] // n[lacks_part]
    same = np.isin(primitive, (ALL_REDUCE, SEND_RECV, BROADCAST, REDUCE))
    for mine, other in ((ins, outs), (outs, ins)):
        fill = same & (mine == NULL)
        mine[fill] = other[fill]
    elements = np.where(np.isin(primitive, (ALL_GATHER, GATHER)), outs, ins)
    elements = np.where(primitive == SCATTER, np.maximum(ins, outs), elements)
    elements = np.where(primitive == BARRIER, 0, elements)
    whole_known = (elements >= 0) & ((itemsize > 0) | (elements == 0))
    size = np.where(whole_known, elements * np.maximum(itemsize, 0), NULL)
    sent = _sent(primitive, n, size)
    uneven = (primitive == ALL_TO_ALL) & (kept != NULL) & (size >= 0)
    sent[uneven] = np.where(kept == UNKNOWN, NULL, (ins - kept) * itemsize)[uneven]
    sent[(primitive == SEND_RECV) & (direction == DIRECTIONS.index("recv"))] = 0
    sent[n == 1] = 0
    return Payload(ins, outs, n, size, sent)


def with_message_bytes(known: Payload, primitive: Ints, direction: Ints, message: Ints, itemsize: Ints) -> Payload:
    """Sizes of calls of which the bytes are known, not the elements; and the elements where their type is.

    Args:
        known: what elements and types give; what is there stays.
        primitive: position in `PRIMITIVES`, or `NULL`.
        direction: position in `DIRECTIONS`, or `NULL`.
        message: bytes of the argument that NCCL counts (nccl.h): what one rank hands in, of a reduce-scatter what it
            gets, of an all-to-all what goes to one peer; `NULL` where not recorded.
        itemsize: bytes per element, `NULL` where the type is not known.
    """
    rows = (known.size_bytes == NULL) & (message >= 0)
    if not rows.any():
        return known
    n = known.group_size
    whole = np.where((n > 0) & (message >= 0), message * np.maximum(n, 1), NULL)
    ins = np.where(np.isin(primitive, (REDUCE_SCATTER, ALL_TO_ALL, SCATTER)), whole, message)
    outs = np.where(np.isin(primitive, (ALL_GATHER, ALL_TO_ALL, GATHER)), whole, message)
    said = payload(primitive, direction, ins, outs, n, np.ones_like(n), none(len(n)))
    counted = [
        np.where((itemsize > 0) & (x >= 0), x // np.maximum(itemsize, 1), NULL)
        for x in (said.in_nelems, said.out_nelems)
    ]
    return replace(
        known,
        in_nelems=np.where(rows & (known.in_nelems == NULL), counted[0], known.in_nelems),
        out_nelems=np.where(rows & (known.out_nelems == NULL), counted[1], known.out_nelems),
        size_bytes=np.where(rows, said.size_bytes, known.size_bytes),
        sent_bytes=np.where(rows, said.sent_bytes, known.sent_bytes),
    )


def _sent(primitive: Ints, n: Ints, size: Ints) -> Ints:
    """`collective_bytes` of every call, asked once per distinct triple."""
    out = none(len(size))
    ready = (primitive != NULL) & (size >= 0) & ((n > 0) | (primitive == SEND_RECV) | (primitive == BARRIER))
    if not ready.any():
        return out
    triples = np.stack([primitive, np.maximum(n, 1), size], axis=1)[ready]
    example, kind = distinct(*triples.T)
    answers = [collective_bytes(PRIMITIVES[p], ranks, moved) for p, ranks, moved in triples[example].tolist()]
    out[ready] = np.array(answers, dtype=np.int64)[kind]
    return out

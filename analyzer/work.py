"""How much work a rank was given, as its messages show: rows for its experts, activations of its sequences.

A rank that computes longer because it was given more is no slow GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from analyzer.intervals import Ints
from analyzer.measured import Measured
from heuristics.arrays import code_of, codes, ints, lists

EXPERTS, SEQUENCES = KINDS = ("expert imbalance", "longer sequences")

EXPLAINS = 0.8
"""Share of the longer compute that the larger work must account for."""

SAME = 0.02
"""By how much two amounts of work may differ and count as equal: padding to multiples of 128 of 8,192 tokens."""

_ACTIVATIONS = ("tp", "cp", "pp")
_SAID = {
    EXPERTS: "receives {:.2f} times the rows of the others",
    SEQUENCES: "moves {:.2f} times the activations of the others",
}


def work_of_calls(rank: Measured) -> dict[str, Ints]:
    """Per call, the rows (else bytes) that its experts receive, and the bytes of activations it moves."""
    table = rank.source.collectives
    dims = np.array([*rank.dims, ""], dtype=object)[:-1]
    primitive, primitives = codes(table, "primitive")
    size = np.maximum(ints(table, "size_bytes"), 0)
    offsets, flat = lists(table, "out_split")
    upto = np.concatenate(([0], np.cumsum(flat)))
    rows = upto[offsets[1:]] - upto[offsets[:-1]]
    dispatch = (dims == "ep") & (primitive == code_of(primitives, "all_to_all"))
    split = np.diff(offsets) > 0
    return {
        EXPERTS: np.where(dispatch & split, rows, np.where(dispatch & ~split.any(), size, 0)).astype(np.int64),
        SEQUENCES: np.where(np.isin(dims, _ACTIVATIONS), size, 0).astype(np.int64),
    }


def more_work(ratios: Mapping[str, float | None], compute_ns: float, longer_ns: float) -> str | None:
    """Which kind of work explains that a rank computed longer, in words; None where neither does.

    Experts take time in proportion to their rows. What a sequence takes grows with its length, in attention with the
    square of it: the square is the most that its length accounts for.

    Args:
        ratios: work of the rank over that of the others.
        compute_ns: what the others computed.
        longer_ns: how much longer the rank did.
    """
    for kind in KINDS:
        ratio = ratios.get(kind)
        if ratio is None or ratio <= 1 + SAME:
            continue
        most = compute_ns * (ratio - 1 if kind == EXPERTS else ratio**2 - 1)
        if most >= EXPLAINS * longer_ns:
            return f"{kind}: {_SAID[kind].format(ratio)}"
    return None

"""How unevenly a mixture of experts loads its ranks: the largest share over the mean, per layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.intervals import Floats, Ints
from analyzer.matching import Meetings
from analyzer.matching.collectives import KINDS
from analyzer.measured import Measured
from analyzer.model import ExpertLayer, Experts, Imbalance
from heuristics.arrays import code_of, codes, ints, lists

_NONE = np.empty(0, dtype=np.int64)


def experts(ranks: Sequence[Measured], meetings: Meetings) -> Experts | None:
    """Imbalance of the ranks' loads; None where no dispatch tells them.

    The rows that a rank receives in a dispatch are its experts' load. With all ranks of a group there, the load of each
    is the sum of what it receives; from one rank alone, its own sends (`in_split`) stand for everybody's: they show how
    the tokens of this rank spread over the group. Capacity-padded dispatches come out as 1: they carry padding, not
    load.

    A layer's dispatch and combine mirror each other; only the dispatch, the first of a pair, is counted. Layers are
    numbered in the order of the step's forward pass.
    """
    found = [item for rank in ranks if (item := _loads(rank)) is not None]
    if not found:
        return None
    every: list[float] = []
    layers: dict[int, list[float]] = {}
    for place, row, rho in _together(ranks, meetings) or [
        (place, row, rho) for place, rank in enumerate(ranks) for row, rho in _alone(rank)
    ]:
        every.append(rho)
        layers.setdefault(_layer(ranks[place], row), []).append(rho)
    if not every:
        return None
    return Experts(
        imbalance=Imbalance(mean=round(float(np.mean(every)), 6), max=round(max(every), 6)),
        by_layer=[
            ExpertLayer(layer=layer, imbalance=round(float(np.mean(rhos)), 6)) for layer, rhos in sorted(layers.items())
        ],
    )


def _loads(rank: Measured) -> Ints | None:
    """Rows of the dispatches: every second expert all-to-all with splits of a step, in order."""
    table = rank.source.collectives
    primitive, primitives = codes(table, "primitive")
    offsets, _ = lists(table, "in_split")
    dims = np.array([*rank.dims, ""], dtype=object)[:-1]
    mine = (primitive == code_of(primitives, "all_to_all")) & (np.diff(offsets) > 0) & rank.counted & (dims == "ep")
    rows = np.flatnonzero(mine)
    if not len(rows):
        return None
    order = np.lexsort((ints(table, "launch_ts_ns")[rows], ints(table, "step")[rows]))
    rows = rows[order]
    # A dispatch is undone by its combine: what one sends the other receives.
    given, taken = _splits(rank, "in_split"), _splits(rank, "out_split")
    kept: list[int] = []
    open_: list[int] = []
    for row in rows.tolist():
        if open_ and np.array_equal(given.get(row, _NONE), taken.get(open_[-1], _NONE)):
            open_.pop()
            continue
        kept.append(row)
        open_.append(row)
    return np.array(kept, dtype=np.int64)


def _splits(rank: Measured, name: str) -> dict[int, Ints]:
    offsets, flat = lists(rank.source.collectives, name)
    rows = np.flatnonzero(np.diff(offsets) > 0)
    return {int(row): flat[offsets[row] : offsets[row + 1]] for row in rows}


def _alone(rank: Measured) -> list[tuple[int, float]]:
    """Imbalance of each dispatch as one rank sees it."""
    rows = _loads(rank)
    given = _splits(rank, "in_split")
    return [] if rows is None else [(row, _rho(given[row])) for row in rows.tolist() if given[row].sum() > 0]


def _together(ranks: Sequence[Measured], meetings: Meetings) -> list[tuple[int, int, float]]:
    """Imbalance of each dispatch whose ranks are all there: the first rank's place and row, and rho."""
    chosen = meetings.kind == KINDS.index("all_to_all")
    taken = [_splits(rank, "out_split") for rank in ranks]
    dispatches = [set() if (rows := _loads(rank)) is None else set(rows.tolist()) for rank in ranks]
    out = []
    keys = np.unique(meetings.key[chosen]).tolist()
    for key in keys:
        lo, hi = np.searchsorted(meetings.key, [key, key + 1])
        pairs = list(zip(meetings.rank[lo:hi].tolist(), meetings.row[lo:hi].tolist(), strict=True))
        if not all(row in dispatches[place] and row in taken[place] for place, row in pairs):
            continue
        loads = np.array([int(taken[place][row].sum()) for place, row in pairs])
        if loads.sum() > 0:
            out.append((*pairs[0], _rho(loads)))
    return out


def _rho(loads: Ints | Floats) -> float:
    return float(loads.max() / loads.mean())


def _layer(rank: Measured, row: int) -> int:
    """Place of a dispatch among those of its step's forward pass; those of backward mirror it."""
    rows = _loads(rank)
    if rows is None:
        return 0
    step = ints(rank.source.collectives, "step")
    mine = rows[step[rows] == step[row]]
    phase, phases = codes(rank.source.collectives, "phase")
    back = phase[mine] == code_of(phases, "backward")
    place = int(np.flatnonzero(mine == row)[0])
    if not back[place]:
        return int(np.count_nonzero(~back[:place]))
    return int(np.count_nonzero(back[place + 1 :]))

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
    numbers = [_layers(rank) for rank in ranks]
    layers: dict[int, list[float]] = {}
    for places, row, load in _together(ranks, meetings) or [
        ((place,), row, load) for place, rank in enumerate(ranks) for row, load in _alone(rank)
    ]:
        rho = float(load.max() / load.mean())
        every.append(rho)
        layers.setdefault(numbers[places[0]].get(row, 0), []).append(rho)
    if not every:
        return None
    return Experts(
        imbalance=Imbalance(mean=round(float(np.mean(every)), 6), max=round(max(every), 6)),
        by_layer=[
            ExpertLayer(layer=layer, imbalance=round(float(np.mean(rhos)), 6)) for layer, rhos in sorted(layers.items())
        ],
    )


def loads(ranks: Sequence[Measured], meetings: Meetings) -> list[tuple[int, tuple[int, ...] | None, Floats]]:
    """Every dispatch: its layer, the places of its ranks in ``ranks`` (None: as one rank sees them), their loads.

    Loads are rows received by each rank of the group, over their mean; see `experts` for what they are taken from.
    """
    numbers = [_layers(rank) for rank in ranks]
    found: list[tuple[int, tuple[int, ...] | None, Floats]] = [
        (numbers[places[0]].get(row, 0), places, load / load.mean()) for places, row, load in _together(ranks, meetings)
    ]
    return found or [(numbers[0].get(row, 0), None, load / load.mean()) for row, load in _alone(ranks[0])]


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


def _alone(rank: Measured) -> list[tuple[int, Ints]]:
    """Row and loads of each dispatch as one rank sees it."""
    rows = _loads(rank)
    given = _splits(rank, "in_split")
    return [] if rows is None else [(row, given[row]) for row in rows.tolist() if given[row].sum() > 0]


def _together(ranks: Sequence[Measured], meetings: Meetings) -> list[tuple[tuple[int, ...], int, Ints]]:
    """Each dispatch whose ranks are all there: their places, the first one's row, and their loads."""
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
            out.append((tuple(place for place, _ in pairs), pairs[0][1], loads))
    return out


def _layers(rank: Measured) -> dict[int, int]:
    """Place of each dispatch among those of its step's forward pass; those of backward mirror it."""
    rows = _loads(rank)
    if rows is None:
        return {}
    step = ints(rank.source.collectives, "step")
    phase, phases = codes(rank.source.collectives, "phase")
    out: dict[int, int] = {}
    for one in np.unique(step[rows]).tolist():
        mine = rows[step[rows] == one]
        back = phase[mine] == code_of(phases, "backward")
        before, after = np.cumsum(~back) - ~back, back.sum() - np.cumsum(back)
        out |= dict(zip(mine.tolist(), np.where(back, after, before).tolist(), strict=True))
    return out

"""Order within a step, as evidence: who comes before whom, what alternates, what comes in pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.view import RankView

FOUR_PER_ATTENTION = 1 / 3
"""Share of exchanges with attention before them: a quarter where q, k, v and the output of a layer are exchanged, a
half where tokens go to experts and back. This lies between."""

MIN_SHARE_CALLS = 12
"""Fewer exchanges have no share of their own. Of n exchanges with experts, forward and backward, n/2 - 2 have attention
between them and the one before: not the first, nor the one after forward turns into backward. (n/2 - 2)/(n - 1) lies
above `FOUR_PER_ATTENTION` from 12 on."""


def positions(view: RankView, families: frozenset[int]) -> npt.NDArray[np.int64]:
    """Where in `RankView.sequence` the calls of some families stand."""
    return np.flatnonzero(np.isin(view.sequence, list(families)))


def pieces_before(view: RankView, first: frozenset[int], second: frozenset[int]) -> int:
    """Calls of ``first`` before the earliest call of ``second``."""
    later = positions(view, second)
    return int((positions(view, first) < later[0]).sum()) if len(later) else 0


def alternates(view: RankView, one: frozenset[int], other: frozenset[int]) -> float:
    """Share of neighbouring calls, among those of both sets, that change from one set to the other."""
    where = positions(view, one | other)
    if len(where) < 2:
        return 0.0
    which = np.isin(view.sequence[where], list(one))
    return float((which[1:] != which[:-1]).mean())


def adjacent_pairs(view: RankView, one: frozenset[int], other: frozenset[int]) -> float:
    """Share of calls of ``one`` that have a call of ``other`` directly before or after them."""
    mine = positions(view, one)
    if not len(mine):
        return 0.0
    padded = np.concatenate([[-1], view.sequence, [-1]])
    beside = np.isin(padded[mine], list(other)) | np.isin(padded[mine + 2], list(other))
    return float(beside.mean())


def all_after(view: RankView, one: frozenset[int], other: frozenset[int]) -> bool:
    """Whether every call of ``one`` comes after the last call of ``other`` (both must occur)."""
    mine, theirs = positions(view, one), positions(view, other)
    return bool(len(mine) and len(theirs) and mine[0] > theirs[-1])


def attention_between(view: RankView, opening: frozenset[int], closing: frozenset[int]) -> float | None:
    """Share of the calls of ``closing`` that have attention between them and the last call of ``opening`` before.

    None where no attention is seen in the step, or no call of ``opening`` comes before one of ``closing``.
    """
    first, second = positions(view, opening), positions(view, closing)
    before = np.searchsorted(first, second) - 1
    if not view.attention_before.any() or not (before >= 0).any():
        return None
    total = np.cumsum(view.attention_before)
    inside = total[second[before >= 0]] - total[first[before[before >= 0]]] > 0
    return float(inside.mean())


def begins_after_attention(view: RankView, families: frozenset[int]) -> bool | None:
    """Whether attention runs before the first call of the families in a step.

    None where no attention is seen, or where steps are not marked or not even found: then any call may be the first.
    """
    since = attention_since(view, families)
    if not view.steps or not view.steps_marked or not len(since) or not view.attention_before.any():
        return None
    return bool(since[0] > 0)


def attention_share(view: RankView, families: frozenset[int]) -> float | None:
    """Share of the calls of some families that have attention since the one before; None for too few calls."""
    since = attention_since(view, families)[1:]
    return float((since > 0).mean()) if len(since) >= MIN_SHARE_CALLS - 1 and view.attention_before.any() else None


def attention_since(view: RankView, families: frozenset[int]) -> npt.NDArray[np.int64]:
    """Per call of the families: attention since their call before, for the first since the step's start."""
    total = np.cumsum(view.attention_before)
    return np.diff(total[positions(view, families)], prepend=0)

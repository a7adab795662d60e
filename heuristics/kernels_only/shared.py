"""What all ranks together show of the calls in one place of a step: which division of the ranks they are on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from heuristics.kernels_only.candidates import ALWAYS
from heuristics.kernels_only.ends import MEMBER, SURE
from heuristics.kernels_only.together import Group, Together

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy.typing as npt

    Rows: TypeAlias = Sequence[npt.NDArray[np.int64]]
    """Per rank, its calls in one place."""


AS_CLOSE = 0.75
"""Members next to each other on a ring end a call the closest. Parts of one group are as close where they touch, up to
this share of the log odds inside of them; groups that only work in step are nowhere closer than half."""

AS_CLOSE_STILL, STRICTER = 0.9, 2.0
"""The same, and so many times the log odds, for what a few calls say against all of their channel."""


@dataclass(frozen=True)
class _Place:
    """The calls in one place of a step: per rank and other rank, what they say of both being members.

    Attributes:
        there: the ranks that have the calls.
        calls: how many the rank with the fewest has.
        odds: mean log odds, shape (ranks, ranks).
        share: share of calls that end together.
    """

    there: frozenset[int]
    calls: int
    odds: npt.NDArray[np.float64]
    share: npt.NDArray[np.float64]


def axes(ranks: int) -> set[Group]:
    """All groups of one size and stride that divide the ranks as an axis of a mesh does."""
    shapes = [(size, step) for size in range(2, ranks + 1) for step in range(1, ranks) if ranks % (size * step) == 0]
    return {
        tuple(range(block + first, block + first + size * step, step))
        for size, step in shapes
        for block in range(0, ranks, size * step)
        for first in range(step)
    }


def shared(rows: Rows, seen: Sequence[Together], groups: set[Group], base: Sequence[Group] = ()) -> list[Group]:
    """The groups that end all calls of one place together, on all ranks that have it.

    Of ways to divide the ranks that cut across each other, the right one ends calls the closest. A coarser one is right
    if those whom only it puts together end their calls about as closely as the others. ``base`` is what stands where
    too few calls say otherwise.
    """
    place = _place(rows, seen)
    ways = [way for size in sorted({len(g) for g in groups}) for way in _ways(groups, size, place.there)]
    best = [g for g in base if place.there.issuperset(g)]
    best = best if best in ways else []
    as_close, sure = (AS_CLOSE_STILL, STRICTER * SURE) if best else (AS_CLOSE, SURE)
    for way in ways:
        inner, pairs = (_pairs(tuple(own), len(rows)) for own in (best, way))
        more = pairs & ~inner
        if not more.any():
            continue
        close, odds = _mean(place.odds, inner), _mean(place.odds, more)
        if not (inner & ~pairs).any():
            fits = odds >= MEMBER and _touching(place, best, more) >= as_close * close
        else:
            odds -= close
            fits = odds >= MEMBER
        if fits and odds * place.calls * len(way) >= sure and _mean(place.share, pairs) >= ALWAYS:
            best = way
    return best


def consistent(rows: Rows, seen: Sequence[Together], groups: Sequence[Group]) -> bool:
    """Whether groups end all calls of one place together as members do."""
    place, pairs = _place(rows, seen), _pairs(tuple(groups), len(rows))
    return _mean(place.odds, pairs) >= MEMBER and _mean(place.share, pairs) >= ALWAYS


def _touching(place: _Place, parts: Sequence[Group], more: npt.NDArray[np.bool_]) -> float:
    """Mean over the parts of groups of the log odds with that rank of another part which is the closest."""
    closest = np.where(more, place.odds, -np.inf).max(axis=1)
    return float(np.mean([closest[list(part)].max() for part in parts])) if parts else np.inf


def _place(rows: Rows, seen: Sequence[Together]) -> _Place:
    there = frozenset(place for place, own in enumerate(rows) if len(own))
    odds, share = (np.zeros((len(rows), len(rows))) for _ in range(2))
    for rank in there:
        odds[rank] = seen[rank].odds[rows[rank]].mean(axis=0)
        share[rank] = seen[rank].seen[rows[rank]].mean(axis=0)
    return _Place(there, min((len(rows[place]) for place in there), default=0), odds, share)


@lru_cache(maxsize=256)
def _pairs(groups: tuple[Group, ...], ranks: int) -> npt.NDArray[np.bool_]:
    """Which two ranks are members of one group: shape (ranks, ranks)."""
    found = np.zeros((ranks, ranks), dtype=bool)
    for group in groups:
        found[np.ix_(group, group)] = True
    np.fill_diagonal(found, val=False)
    return found


def _mean(values: npt.NDArray[np.float64], pairs: npt.NDArray[np.bool_]) -> float:
    return float(values[pairs].mean()) if pairs.any() else 0.0


def _ways(groups: set[Group], size: int, there: frozenset[int]) -> list[list[Group]]:
    """The ways to divide some ranks into groups of a size: those of one shape, or all if there is but one way."""
    found = sorted(g for g in groups if len(g) == size and there.issuperset(g))
    shapes: dict[Group, list[Group]] = {}
    for g in found:
        shapes.setdefault(tuple(member - g[0] for member in g), []).append(g)
    ways = [own for own in [*shapes.values(), found] if _divides(own, there)]
    return [way for number, way in enumerate(ways) if way not in ways[:number]]


def _divides(groups: Sequence[Group], there: frozenset[int]) -> bool:
    return sum(map(len, groups)) == len(there) and {m for g in groups for m in g} == there

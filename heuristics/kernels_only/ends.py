"""Ends of calls on two ranks held against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.kernels_only.calls import Calls


SHORT_NS, SHARE = 2_000, 0.05
"""Members of a group end a call within about this, and within this share of the time that it took the last to come.

Calls of 6 to 20 µs of the published traces end within 2 µs, and clocks are set to one; calls of 100 µs and more end
within 1 to 7 % of the transfer at the median, 20 % at the ninth decile (benchmarks/end_scatter.py).
"""


_MEMBERS, _OTHERS = (3.0, 1.2), (1.0, 5.0)
"""Lomax laws (shape, scale) of how far off ends are, in the usual scatter. Members: half within 0.3, nine tenths within
1.4, as published traces show. Ranks that only work in step: anything, half of them within 5."""

LEAST, MEMBER, WORST = 0.0, 0.35, -3.0
"""Mean log odds over calls of one place of the step: below the first others are likelier than members, from the second
on members are; in between it is open. Members have 0.9. One call says no more against a rank than the last."""

SURE = 3.0
"""Sum of log odds over the calls of one rank from which on members are told from ranks that work in step."""


def matching(one: Calls, other: Calls, shift_ns: int) -> npt.NDArray[np.int64]:
    """Per call of the one, the call of its kind of the other that ends nearest; -1 where there is none.

    ``shift_ns`` is taken from the other's times.
    """
    found = np.full(len(one), -1, dtype=np.int64)
    for kind, own in one.by_kind.items():
        theirs = other.by_kind.get(kind)
        if theirs is None:
            continue
        ends, mine = other.end_ns[theirs] - shift_ns, one.end_ns[own]
        after = np.minimum(np.searchsorted(ends, mine), len(ends) - 1)
        before = np.maximum(after - 1, 0)
        nearer = np.abs(ends[before] - mine) < np.abs(ends[after] - mine)
        found[own] = theirs[np.where(nearer, before, after)]
    return found


def apart(one: Calls, other: Calls, shift_ns: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Per call of the one: the nearest of the other (-1: none), and how far off its end is in `scatter_ns`.

    Infinitely far where one of the two is over before the other starts: nobody leaves before the last has come.
    """
    match = matching(one, other, shift_ns)
    if not len(other):
        return match, np.full(len(one), np.inf)
    end, start = other.end_ns[match] - shift_ns, other.start_ns[match] - shift_ns
    unit = scatter_ns(one.transfer_ns, other.transfer_ns[match])
    left = np.minimum(end, one.end_ns) < np.maximum(start, one.start_ns) - SHORT_NS
    return match, np.where((match < 0) | left, np.inf, np.abs(end - one.end_ns) / unit)


def scatter_ns(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """How far apart two members may well end a call that took them so long: the last to come waits for nobody."""
    return SHORT_NS + SHARE * np.minimum(one, other)


def log_odds(apart: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Per end, how much likelier it is off by as much for a member than for another rank."""
    (shape, scale), (broad, wide) = _MEMBERS, _OTHERS
    with np.errstate(invalid="ignore"):
        odds = np.log(shape / scale * wide / broad) - (shape + 1) * np.log1p(apart / scale)
        odds += (broad + 1) * np.log1p(apart / wide)
    return np.maximum(np.where(np.isinf(apart), WORST, odds), WORST)


def differences(
    one: Calls,
    other: Calls,
    reach_ns: int,
    shift_ns: int = 0,
    own: npt.NDArray[np.bool_] | None = None,
    theirs: npt.NDArray[np.bool_] | None = None,
    longest_ns: int | None = None,
) -> npt.NDArray[np.int64]:
    """Ends of the other (less the shift) minus ends of the one, over all pairs of a kind within reach, in ns.

    ``own`` and ``theirs`` say which calls count; None: all. With ``longest_ns`` only pairs of which one took no longer.
    """
    found = [np.empty(0, dtype=np.int64)]
    for kind, mine in one.by_kind.items():
        rest = other.by_kind.get(kind)
        if rest is None:
            continue
        mine = mine if own is None else mine[own[mine]]
        rest = rest if theirs is None else rest[theirs[rest]]
        ends, other_ends = one.end_ns[mine], other.end_ns[rest] - shift_ns
        first = np.searchsorted(other_ends, ends - reach_ns)
        count = np.searchsorted(other_ends, ends + reach_ns) - first
        inner = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        left, right = np.repeat(np.arange(len(mine)), count), np.repeat(first, count) + inner
        if longest_ns is not None:
            taken = np.minimum(one.transfer_ns[mine][left], other.transfer_ns[rest][right])
            left, right = left[taken <= longest_ns], right[taken <= longest_ns]
        found.append(other_ends[right] - ends[left])
    return np.concatenate(found)

"""Keys and values among the gathers of a group, told from units of sharded parameters.

Both are gathered in forward and their gradients scattered in backward, by the same operations. Keys and values come two
by two, a pair for each attention, keep an activation's shape, and are gathered once; parameters come unit by unit, as
flat buffers, mostly again in backward, and from all ranks among which gradients are reduced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from heuristics.dimensions.claim import FAIR, STRONG, SURE, Test, indices, of, per_step
from heuristics.dimensions.expert import DISPATCH_LIBRARIES
from heuristics.dimensions.order import attention_since, positions
from heuristics.view import SCALARS

if TYPE_CHECKING:
    from heuristics.view import Family, RankView

MIN_PAIRED_CALLS = 8
"""Four pairs: fewer may fall around attention by chance."""

FEW_PAIRED_CALLS = 4
"""Two pairs show that attention lies between pairs and not inside of them; one pair shows nothing."""


def in_pairs(view: RankView, floats: Iterable[Family]) -> dict[int, list[Test]]:
    """Sizes that are gathered two by two, with attention between one pair and the next, and what speaks for each.

    The two of a pair follow each other directly, and their gradients are scattered in the dtype they were gathered in;
    units of sharded parameters are gathered one by one, and their gradients mostly travel in float32.
    """
    listed = list(floats)
    reduced = {(f.size, f.dtype) for f in view.families if f.primitive == "reduce_scatter"}
    by_size: dict[int, list[Family]] = {}
    for family in of(listed, "all_gather"):
        if family.size > 0 and (family.size, family.dtype) in reduced:
            by_size.setdefault(family.size, []).append(family)
    found = {size: _tests(view, own, listed) for size, own in by_size.items() if _paired(view, own)}
    return {size: tests for size, tests in found.items() if tests}


def certain(pairs: Mapping[int, list[Test]]) -> frozenset[int]:
    """Of the sizes of `in_pairs` those that leave no other reading."""
    return frozenset(size for size, tests in pairs.items() if max(test.weight for test in tests) >= SURE)


def _paired(view: RankView, families: list[Family]) -> bool:
    where, since = positions(view, indices(families)), attention_since(view, indices(families))
    if not len(since) or len(since) % 2:
        return False
    beside = (where[1::2] - where[::2] == 1).mean() >= 0.9
    return bool(beside and (since[2::2] > 0).sum() >= 0.9 * len(since[2::2]) and (since[1::2] > 0).mean() <= 0.1)


def _tests(view: RankView, families: list[Family], beside: Sequence[Family]) -> list[Test]:
    tests, calls = [], len(positions(view, indices(families)))
    if calls >= MIN_PAIRED_CALLS:
        tests.append(Test(SURE, "they come in pairs, one pair for each attention: keys and values"))
    elif calls >= FEW_PAIRED_CALLS:
        tests.append(Test(FAIR, "the few there are come in pairs, one pair for each attention: keys and values"))
    again = [f for f in of(beside, "all_gather") if f.group == families[0].group and f.backward and f.forward]
    if again and not any(f.backward for f in families) and view.attention_before.any():
        said = f"{len(again)} {'sizes are' if len(again) > 1 else 'size is'} gathered again in backward, these are not"
        tests.append(Test(STRONG, said))
    return tests


def shaped(families: Sequence[Family]) -> list[Family]:
    """Those of an activation's shape, where others are flat buffers; none where all are alike or nothing is known."""
    known = {f.ndim for f in families if f.ndim}
    return [f for f in families if f.ndim >= 3] if known and min(known) == 1 < max(known) else []


def among_more(view: RankView, group: int) -> int:
    """Ranks among which gradients are reduced, where those of a group are a part of them; else 0.

    Gradients of experts go to a part of those ranks as well, so nothing may send tokens to experts.
    """
    inside = view.group(group).ranks
    if inside is None or _tokens_travel(view) or not view.attention_before.any():
        return 0
    gradients = [f for f in of(view.families, "all_reduce", "reduce_scatter") if _is_gradient(f)]
    groups = {f.group for f in gradients if f.group != group}
    wider = [ranks for g in groups if (ranks := view.group(g).ranks) is not None and len(ranks) > len(inside)]
    return max((len(ranks) for ranks in wider if set(inside) <= set(ranks)), default=0)


def _is_gradient(family: Family) -> bool:
    often = family.backward > 0 and not family.forward
    return often and family.is_tensor and (family.size < 0 or family.size > SCALARS)


def _tokens_travel(view: RankView) -> bool:
    """Whether something may be sent to experts: by exchange, by a library, or as sums scattered in forward."""
    floats = [f for f in view.families if f.is_tensor]
    exchanged = of(floats, "all_to_all") or [f for f in of(floats, "reduce_scatter") if f.forward]
    return bool(exchanged) or view.runs_experts or any(f.library in DISPATCH_LIBRARIES for f in floats)


def all_even(families: Sequence[Family]) -> bool:
    """Whether calls come an even number of times, twice at least."""
    calls = per_step(families)
    return calls >= 2 and calls % 2 == 0

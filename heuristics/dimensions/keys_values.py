"""Keys and values among the gathers of a group, told from units of sharded parameters.

Both are gathered in forward and their gradients scattered in backward, by the same operations. Keys and values come two
by two, a pair for each attention, keep an activation's shape, and are gathered once; parameters come unit by unit, as
flat buffers, mostly again in backward, and from all ranks among which gradients are reduced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from heuristics.dimensions.claim import FAIR, STRONG, SURE, WEAK, Test, indices, of, per_step
from heuristics.dimensions.expert import DISPATCH_LIBRARIES
from heuristics.dimensions.norms import is_statistic
from heuristics.dimensions.order import attention_between, attention_since, positions
from heuristics.view import within

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

    Gradients of experts go to a part of those ranks as well: to ranks that hold the same experts, none of which sends
    tokens to another.
    """
    inside = view.group(group).ranks
    if inside is None or _may_hold_experts(view, inside) or not view.attention_before.any():
        return 0
    late = [f for f in of(view.families, "all_reduce", "reduce", "reduce_scatter") if f.is_tensor and not f.forward]
    groups = {f.group for f in late if f.group != group and f.calls_per_step and not is_statistic(view, f)}
    wider = [ranks for g in groups if (ranks := view.group(g).ranks) is not None and len(ranks) > len(inside)]
    return max((len(ranks) for ranks in wider if within(inside, ranks)), default=0)


def _may_hold_experts(view: RankView, ranks: Sequence[int]) -> bool:
    """Whether some ranks may hold the same experts: something sends tokens, and not among these ranks.

    Tokens go by an exchange, a library, or gathers and sums without attention.
    """
    floats = [f for f in view.families if f.is_tensor]
    sending = {f.group for f in floats if f.primitive == "all_to_all" or f.library in DISPATCH_LIBRARIES}
    sending |= {group for group in _summed_in_forward(floats) if not _around_attention(view, group, floats)}
    among = [view.group(group).ranks for group in sending]
    if not among:
        return view.runs_experts
    return any(members is None or len(set(members) & set(ranks)) <= 1 for members in among)


def _summed_in_forward(floats: Sequence[Family]) -> set[int]:
    return {f.group for f in of(floats, "reduce_scatter") if f.forward}


def _around_attention(view: RankView, group: int, floats: Sequence[Family]) -> bool:
    """Whether attention runs between the gathers and the sums of a group, as it does where ranks share a layer."""
    own = [f for f in floats if f.group == group]
    share = attention_between(view, indices(of(own, "all_gather")), indices(of(own, "reduce_scatter")))
    return share is not None and share > 0.0


def speaks_for_keys(view: RankView, pairs: Mapping[int, list[Test]]) -> float:
    """How much `among_more` weighs: little where ranks that share a layer may share experts, unless pairs show."""
    shared = _summed_in_forward([f for f in view.families if f.is_tensor])
    return STRONG if pairs or not shared else WEAK


def all_even(families: Sequence[Family]) -> bool:
    """Whether calls come an even number of times, twice at least."""
    calls = per_step(families)
    return calls >= 2 and calls % 2 == 0

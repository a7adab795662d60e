"""Data parallelism: gradients reduced in or after backward, and parameters gathered where they are sharded."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from heuristics.dimensions.claim import (
    FAIR,
    STRONG,
    SURE,
    WEAK,
    Claim,
    Test,
    count,
    elements,
    indices,
    of,
    per_step,
)
from heuristics.dimensions.keys_values import MIN_PAIRED_CALLS, among_more, certain, in_pairs, shaped
from heuristics.dimensions.norms import STATISTICS_ELEMENTS, is_statistic
from heuristics.dimensions.order import all_after, attention_since, pieces_before

if TYPE_CHECKING:
    from heuristics.view import Family, RankView

SAME_ELEMENTS = 0.02
"""Gathered buckets are padded to a multiple of the ranks, so parameters may have a little more than their gradients."""

REGATHERED = 0.5
"""Gathers after forward per reduction of a unit: one where parameters are freed after forward, fewer where the root,
the last units or the last microbatch keep theirs (of two units and more, half at least), none where they are kept."""


def claims(view: RankView, group: int) -> list[Claim]:
    """Data-parallel readings of the calls on one group."""
    if view.has_backward is False:
        return []
    floats = [f for f in view.on_group(group) if f.is_tensor and not is_statistic(view, f)]
    floats = _without_keys(view, floats)
    packed = [f for f in view.on_group(group) if f.dtype == "uint8" and f.primitive == "all_gather"]  # fp8 parameters
    scatters = [f for f in of(floats, "reduce_scatter") if not f.forward]
    reduces = [f for f in of(floats, "all_reduce", "reduce") if not f.forward]
    gathers = of(floats, "all_gather") + [f for f in packed if f.size > STATISTICS_ELEMENTS]
    gathers += [f for f in _gathers_on_other_streams(view, group) if f.size in {unit.size for unit in scatters}]
    found = []
    if not scatters and not reduces:
        found += _regathered(view, group, gathers)
    if scatters:
        found.append(_scattered(view, group, scatters, gathers))
    if reduces:
        found.append(_reduced(view, group, reduces, gathers, of(floats, "broadcast")))
    return [claim for claim in found if claim.weight > 0]


def _without_keys(view: RankView, floats: list[Family]) -> list[Family]:
    """Without keys and values of context parallelism; what may be such only where other units are left."""
    keys = in_pairs(view, floats)
    floats = [f for f in floats if f.size not in certain(keys)]
    activations = {f.index for f in shaped(of(floats, "all_gather", "reduce_scatter"))}
    rest = [f for f in floats if f.size not in keys and f.index not in activations]
    return rest if of(rest, "reduce_scatter") else floats


def _gathers_on_other_streams(view: RankView, group: int) -> list[Family]:
    """Gathers of tensors by unnamed groups of as many ranks; none where the calls do not say how many."""
    if not view.group(group).size:
        return []
    return [f for f in of(view.on_other_streams(group), "all_gather") if f.is_tensor]


def _when_tests(view: RankView, families: list[Family], what: str) -> list[Test]:
    calls = sum(f.calls_per_step for f in families)
    late = sum(f.calls_per_step - f.forward - f.by_phase[3] for f in families)
    sized = all(f.size >= 0 for f in families)
    amount = f"{elements(families):,.0f} elements" if sized else f"{count(calls)} tensors of unknown size"
    total = f"{amount} per step are {what}"
    if view.has_backward and late >= 0.5 * calls:
        return [Test(STRONG, f"{total} in or after backward, none in forward: gradients")]
    if view.has_backward:
        return [Test(FAIR, f"{total}, none of it in forward")]
    return [Test(WEAK, f"{total}")]


def _scattered(view: RankView, group: int, scatters: list[Family], gathers: list[Family]) -> Claim:
    """Sharded data parallelism: reduce-scatter of gradients, all-gather of parameters (Rajbhandari et al. 2020)."""
    tests = _when_tests(view, scatters, "reduce-scattered")
    tests += _whole_tests(view, group, scatters)
    if more := among_more(view, group):
        tests.append(Test(-SURE, f"gradients are reduced among {more} ranks, of which these are a part"))
    scattered, gathered = {f.size for f in scatters}, {f.size for f in gathers}
    if -1 in scattered & gathered:
        tests += _unsized_tests(view, scatters, gathers)
    elif scattered & gathered:
        shared = sorted(scattered & gathered, reverse=True)
        units = ", ".join(f"{size:,}" for size in shared[:3])
        tests.append(Test(FAIR, f"the same units are gathered as parameters and scattered as gradients: {units}"))
        if not view.has_backward:
            leading = pieces_before(view, indices(gathers), indices(scatters))
            if leading > 2 or all_after(view, indices(gathers), indices(scatters)):
                sentence = f"{leading} gathers come before the first reduce-scatter: parameters first, gradients last"
                tests.append(Test(STRONG, sentence))
    tests += _tensor_tests(scatters, gathers)
    parameters = [f for f in gathers if f.size in scattered or not scattered & gathered]
    return Claim("dp", "gradient_scatter", group, indices(scatters + parameters), tuple(tests), MappingProxyType({}))


def _whole_tests(view: RankView, group: int, scatters: list[Family]) -> list[Test]:
    """Ranks that all-reduce most of their gradients hold parameters whole; what they scatter is something else.

    Some may be kept whole where the others are sharded: small ones (DeepSpeed), those that are ignored (FSDP).
    """
    tensors = [f for f in of(view.families, "all_reduce", "reduce") if f.is_tensor and f.calls_per_step > 0]
    reduces = [f for f in tensors if not f.forward and not is_statistic(view, f) and view.same_ranks(group, f.group)]
    if not reduces:
        return []
    said = "are all-reduced among the same ranks in or after backward: these hold parameters whole"
    if any(f.size < 0 for f in scatters + reduces):
        return [Test(-STRONG, f"{count(per_step(reduces))} tensors of unknown size {said}")]
    whole, parts = elements(reduces), elements(scatters)
    return [Test(-SURE, f"{whole:,.0f} elements per step {said}")] if whole >= parts else []


def _unsized_tests(view: RankView, scatters: list[Family], gathers: list[Family]) -> list[Test]:
    """Order and number alone: parameters come before the first gradient leaves, and mostly come again in backward."""
    leading = pieces_before(view, indices(gathers), indices(scatters))
    if not leading:
        return []
    tests = [Test(WEAK, f"{leading} gathers come before the first reduce-scatter")]
    gathered, scattered = per_step(gathers), per_step(scatters)
    if gathered >= 1.5 * scattered:
        said = f"{count(gathered)} gathers for {count(scattered)} reduce-scatters: parameters are gathered again"
        tests.append(Test(WEAK, said))
    again = sum(f.backward for f in gathers)
    if 0 < again < REGATHERED * scattered:
        said = f"{count(again)} of {count(scattered)} units are gathered again: the others may be keys and values"
        tests.append(Test(-STRONG, said))
    since = attention_since(view, indices(f for f in gathers if f.forward))[:leading]
    if len(since) >= MIN_PAIRED_CALLS and (since[2::2] > 0).all() and not since[1::2].any():
        tests.append(Test(-STRONG, "attention runs after every second gather: keys and values look the same"))
    return tests


def _regathered(view: RankView, group: int, gathers: list[Family]) -> list[Claim]:
    """Units freed after forward to a part of their group, and gathered from it in backward.

    Source: torch/distributed/fsdp/_fully_shard, ``reshard_after_forward`` given as a number.
    """
    units = {f.size for f in view.families if f.primitive == "reduce_scatter" and not f.forward}
    again = [f for f in gathers if f.size in units and not f.forward and f.backward]
    if not again:
        return []
    members = view.group(group).size
    said = f"units are gathered again in backward, from {members} ranks: parameters are freed to a smaller group"
    return [Claim("dp", "parameter_regather", group, indices(again), (Test(SURE, said),), MappingProxyType({}))]


def _tensor_tests(reduces: list[Family], gathers: list[Family]) -> list[Test]:
    tests = []
    if (
        {f.dtype for f in reduces} == {"float32"}
        and gathers
        and {f.dtype for f in gathers} <= {"bfloat16", "float16", "uint8"}
    ):
        tests.append(Test(FAIR, "gradients travel in float32, parameters in the model's dtype"))
    dims = {f.ndim for f in reduces if f.ndim}
    if dims == {1}:
        tests.append(Test(FAIR, "the buffers are flat"))
    elif dims and min(dims) >= 3:
        tests.append(Test(-STRONG, "the tensors keep an activation's shape"))
    return tests


def _reduced(
    view: RankView, group: int, reduces: list[Family], gathers: list[Family], broadcasts: list[Family]
) -> Claim:
    """Replicated parameters: all-reduce of gradients; gathers or broadcasts of as much mean a sharded optimizer."""
    tests = _when_tests(view, reduces, "all-reduced")
    once = len({f.size for f in reduces}) == sum(round(f.calls_per_step) for f in reduces)
    if once:
        several = len(reduces) > 1
        said = f"{'each of ' if several else ''}{len(reduces)} bucket{'s' if several else ''}"
        tests.append(Test(WEAK, f"{said} is reduced once per step"))
    tests += _tensor_tests(reduces, [])
    claimed = indices(reduces)
    total, parameters = elements(reduces), one_pass(reduces)
    elsewhere = _gathers_on_other_streams(view, group)
    for kind, late in (("gathered", gathers), ("gathered", elsewhere), ("broadcast", broadcasts)):
        amount = elements(late)
        if (
            amount
            and abs(amount - parameters) <= SAME_ELEMENTS * parameters
            and (after := _one_after_the_other(view, indices(late), indices(reduces))) is not None
        ):
            when = "after the last" if after else "before the first"
            sentence = f"as many elements as the gradients have ({amount:,.0f}) are {kind} {when} reduction"
            tests.append(Test(SURE, f"{sentence}: the optimizer is sharded"))
            claimed |= indices(late)
    facts = {"gradient_elements": total, "parameter_elements": parameters}
    return Claim("dp", "gradient_reduce", group, claimed, tuple(tests), MappingProxyType(facts))


def _one_after_the_other(view: RankView, late: frozenset[int], reduces: frozenset[int]) -> bool | None:
    """Whether parameters come back after the last reduction (True) or before the first (False), where a step that is
    not marked may begin with what ended the one before; None where the two are mixed.
    """
    if all_after(view, late, reduces):
        return True
    return False if all_after(view, reduces, late) else None


def one_pass(calls: list[Family]) -> int:
    """Elements of one pass over gradients or parameters: buckets that come back every microbatch count once."""
    times = {round(f.calls_per_step) for f in calls}
    repeated = min(times) if times else 1
    return round(elements(calls) / max(repeated, 1))

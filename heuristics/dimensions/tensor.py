"""Tensor parallelism: activations reduced inside every layer, in forward as well as in backward."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

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
from heuristics.dimensions.keys_values import certain, in_pairs
from heuristics.dimensions.norms import is_statistic
from heuristics.dimensions.order import alternates, attention_between, attention_since, pieces_before

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.view import Family, RankView

INFERENCE_LIBRARIES = frozenset({"custom_all_reduce", "quick_reduce", "trtllm"})
"""Latency-optimised all-reduces of inference servers (vLLM, SGLang, TensorRT-LLM); training uses none of them."""

MIN_LAYER_CALLS = 8
"""Four layers of two all-reduces: fewer may alternate with attention by chance."""

LARGE = 0.1
"""A payload of this share of the largest tensor of the rank is no vector of statistics."""

IN_TURN = 0.9
"""Share of all-reduces that alternate with attention as two per layer do; a window may cut a layer or two."""

MIN_INFERENCE_CALLS = 2
"""Two all-reduces per layer (attention output, MLP output): fewer show no layer."""


def claims(view: RankView, group: int) -> list[Claim]:
    """Tensor-parallel readings of the calls on one group."""
    tensors = [f for f in view.on_group(group) if f.is_tensor]
    quantised = [f for f in of(view.on_group(group), "all_gather") if f.dtype == "uint8"]  # fp8 travels as bytes
    return [
        *_with_sequence_parallelism(view, group, tensors + quantised),
        *_reductions(view, group, [f for f in tensors if not is_statistic(view, f)]),
        *_received_slices(view, group, tensors),
    ]


def _with_sequence_parallelism(view: RankView, group: int, tensors: list[Family]) -> list[Claim]:
    """All-gather before and reduce-scatter after each sublayer (Korthikanti et al. 2022, section 4.2.2)."""
    if not view.group(group).identified:  # keys and values of another dimension may be mixed in
        keys = certain(in_pairs(view, tensors))
        tensors = [f for f in tensors if f.size not in keys]
    scatters, gathers = of(tensors, "reduce_scatter"), of(tensors, "all_gather")
    sizes = {f.size for f in scatters} & {f.size for f in gathers}
    if not sizes:
        return []
    main = max(sizes, key=lambda size: elements(f for f in scatters if f.size == size))
    scatter, gather = [f for f in scatters if f.size == main], [f for f in gathers if f.size == main]
    tests = _forward_scatter_tests(view, scatter, gather)
    if view.runs_embedding_bags and not view.attention_before.any():
        tests.append(Test(-SURE - STRONG, "embedding tables are looked up: the exchanges carry their rows"))
    if not any(test.weight >= FAIR for test in tests):
        return []
    tests += _shape_tests(scatter + gather)
    inside = attention_between(view, indices(gather), indices(scatter))
    if inside == 0.0:
        sentence = "attention never runs between gather and reduce-scatter: this group does not split it"
        tests.append(Test(-SURE - STRONG, sentence))
    facts = {"sequence_parallel": True, "activation_elements": main, **_regather(gather, scatter)}
    # On an unnamed group other dimensions may be mixed in; a framework writes those with another operation.
    ops = {f.op for f in scatter + gather if f.op}
    own = [f for f in scatters + gathers if f.forward and (view.group(group).identified or f.op in ops)]
    own += [f for f in scatters + gathers if f.size in sizes]
    claimed = indices(own) | indices(_on_other_streams(view, group, own))
    return [Claim("tp", "activation_exchange", group, claimed, tuple(tests), MappingProxyType(facts))]


def _on_other_streams(view: RankView, group: int, families: list[Family]) -> list[Family]:
    """The same calls where an unnamed group of as many ranks shows up on another stream (backward's, say).

    Every primitive must be there: gathers of that size without reduce-scatters bring together keys and values.
    """
    members = view.group(group).size
    same, primitives = {_said(f, members) for f in families}, {f.primitive for f in families}
    elsewhere: dict[int, list[Family]] = {}
    for f in view.on_other_streams(group):
        if f.role == "payload" and _said(f, members) in same:
            elsewhere.setdefault(f.group, []).append(f)
    return [f for found in elsewhere.values() if {f.primitive for f in found} == primitives for f in found]


def _said(family: Family, members: int) -> tuple[object, ...]:
    """What calls of one group have in common; where sizes are not recorded (copies), the operation they are part of."""
    said = (family.primitive, family.size, family.dtype)
    return said if members else (*said, family.op, family.library)


def _forward_scatter_tests(view: RankView, scatter: list[Family], gather: list[Family]) -> list[Test]:
    forward = sum(f.forward for f in scatter)
    if forward:
        said = f"{count(forward)} reduce-scatters of {scatter[0].size:,} elements per step lie in forward"
        return [
            Test(SURE, f"{said}: partial activations are reduced there, gradients never are"),
            Test(FAIR if sum(f.backward for f in gather) else 0.0, "the same size is gathered in backward as well"),
        ]
    if view.has_backward:
        return []
    share = alternates(view, indices(gather), indices(scatter))
    leading = pieces_before(view, indices(gather), indices(scatter))
    if share >= 0.5 and leading <= 2 and per_step(scatter) >= 2 * MIN_INFERENCE_CALLS:
        return [
            Test(
                STRONG,
                f"gathers and reduce-scatters of {scatter[0].size:,} elements alternate from the start of the step; "
                "sharded parameters would all be gathered before the first gradient is reduced",
            )
        ]
    return []


def _regather(gather: list[Family], scatter: list[Family]) -> dict[str, object]:
    """Megatron gathers column-parallel inputs again in backward: half as many gathers again as reduce-scatters."""
    gathers, scatters = sum(f.backward for f in gather), sum(f.backward for f in scatter)
    return {"backward_gathers": gathers, "backward_scatters": scatters}


def _shape_tests(families: list[Family]) -> list[Test]:
    dims = {f.ndim for f in families if f.ndim}
    if dims and min(dims) >= 2:
        return [Test(WEAK, "the tensors keep their activation shape")]
    return []


def _reductions(view: RankView, group: int, tensors: list[Family]) -> list[Claim]:
    """Without sequence parallelism: an all-reduce of the layer's output (Shoeybi et al. 2019, section 3)."""
    reduces = of(tensors, "all_reduce")
    if not reduces:
        return []
    by_size: dict[int, list[Family]] = {}
    for family in reduces:
        by_size.setdefault(family.size, []).append(family)
    inside = {size: fs for size, fs in by_size.items() if sum(f.forward for f in fs)}
    if inside and view.has_backward:
        inside = {size: fs + _on_other_streams(view, group, fs) for size, fs in inside.items()}
        return _training_reduction(view, group, inside)
    if view.has_backward is True:
        return []
    return _unphased_reduction(view, group, by_size)


def _training_reduction(view: RankView, group: int, inside: dict[int, list[Family]]) -> list[Claim]:
    main = max(inside, key=lambda size: elements(inside[size]))
    families = inside[main]
    forward, backward = sum(f.forward for f in families), sum(f.backward for f in families)
    if main < 0 and (forward < MIN_LAYER_CALLS or backward > 2 * forward):
        return []  # of unknown size: a loss or a norm may be among them, gradients as well
    amount = f"{main:,} elements" if main >= 0 else "tensors of unknown size"
    calls = f"{amount} are all-reduced {count(forward)} times in forward"
    if backward:
        both = f"{calls} and {count(backward)} times in backward: activations; gradients are not reduced in forward"
        tests = [Test(SURE, both)]
    elif forward >= MIN_INFERENCE_CALLS and main >= LARGE * max(f.size for f in view.families if f.is_float):
        tests = [Test(FAIR, f"{calls}, large as the largest tensors: activations, for statistics are small")]
    else:
        tests = [Test(WEAK, f"{calls}: activations, or statistics of a layer")]
    if forward + backward >= 4:
        tests.append(Test(WEAK, "one size, over and over: the layer boundary"))
    facts = {
        "sequence_parallel": False,
        "activation_elements": main,
        "forward_reduces": forward,
        "backward_reduces": backward,
    }
    claimed = indices(f for fs in inside.values() for f in fs)
    return [Claim("tp", "activation_reduce", group, claimed, tuple(tests), MappingProxyType(facts))]


def _unphased_reduction(view: RankView, group: int, by_size: dict[int, list[Family]]) -> list[Claim]:
    """No mark tells forward from backward: inference, or a trace without operators."""
    main = max(by_size, key=lambda size: per_step(by_size[size]))
    families, everything = by_size[main], [f for fs in by_size.values() for f in fs]
    calls, total = per_step(families), per_step(everything)
    layered = _per_attention(view, everything)
    if layered is not None:
        families, calls = everything, total
    elif calls < MIN_INFERENCE_CALLS or calls < 0.75 * total:
        return []
    size = f"{main:,} elements" if main > 0 else "unrecorded size"
    said = f"{count(calls)} of {count(total)} all-reduces are of one size ({size})"
    if view.has_backward is False:
        test = Test(STRONG, f"{said} and no backward runs: the layer outputs of inference")
    else:
        test = Test(FAIR if calls >= 8 else WEAK, f"{said}: layer boundaries; gradient buckets differ in size")
    tests = [test, *([layered] if layered is not None else [])]
    fused = sorted({f.library for f in families} & INFERENCE_LIBRARIES)
    if fused:
        tests.append(Test(FAIR, f"{', '.join(fused)} kernels reduce layer outputs of inference servers"))
    facts = {"sequence_parallel": False, "activation_elements": main}
    return [Claim("tp", "activation_reduce", group, indices(families), tuple(tests), MappingProxyType(facts))]


def _received_slices(view: RankView, group: int, tensors: list[Family]) -> list[Claim]:
    """What a stage of inference receives in slices, one per tensor-parallel rank, is gathered at once.

    Source: vllm/distributed/parallel_state.py, ``send_tensor_dict`` with an all-gather group.
    """
    if view.has_backward is not False:
        return []
    received = {f.size: f.calls_per_step for f in view.families if f.direction == "recv" and f.size > 0}
    gathers = [f for f in of(tensors, "all_gather") if f.members > 1 and f.size // f.members in received]
    calls = [(f.calls_per_step, received[f.size // f.members]) for f in gathers]
    if not gathers or any(made != got for made, got in calls):
        return []
    said = f"{count(per_step(gathers))} gathers per step put together what messages brought in slices"
    facts = {"sequence_parallel": False}
    return [
        Claim("tp", "stage_input", group, indices(gathers), (Test(STRONG, said),), MappingProxyType(facts)),
    ]


def _per_attention(view: RankView, reduces: list[Family]) -> Test | None:
    """Two all-reduces for each attention, in turn: its output and that of the MLP after it.

    A third starts or ends a pass over all layers: that of the vocabulary. Passes are not looked for where gradients may
    be among the calls.
    """
    since = attention_since(view, indices(reduces))
    if len(since) < MIN_LAYER_CALLS:
        return None
    in_turn = _in_turn_but_for_passes(since) if view.has_backward is False else _in_turn(since)
    said = f"attention runs before every second of {len(since)} all-reduces: two per layer"
    return Test(STRONG, said) if in_turn else None


def _in_turn(since: npt.NDArray[np.int64]) -> bool:
    """Whether calls with attention before them and calls without alternate."""
    between = since[1:] > 0
    return float((between[1:] != between[:-1]).mean()) >= IN_TURN


def _in_turn_but_for_passes(since: npt.NDArray[np.int64]) -> bool:
    """The same, where some calls have one more between them."""
    apart = np.diff(np.flatnonzero(since > 0))
    two, three = (float((apart == calls).mean()) if len(apart) else 0.0 for calls in (2, 3))
    return two >= three and two + three >= IN_TURN

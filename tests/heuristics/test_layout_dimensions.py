"""Each dimension is told from the one it is most easily taken for, on ranks written down by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heuristics.layout import infer_views
from tests.heuristics.jobs import exchange, gather, group, rank, recv, reduce, scatter, send

A = 8 * 1024 * 512  # tokens x hidden of one microbatch
UNIT, ROOT = 3_000_000, 500_000  # parameters of a layer and of the rest


def tp_sp_step(layers: int) -> list:
    """Megatron with sequence parallelism: 2 AG + 2 RS forward, 4 AG + 2 RS backward (layers.py)."""
    forward = [gather(A, "F"), scatter(A, "F")] * 2 * layers
    backward = [gather(A, "B"), gather(A, "B"), scatter(A, "B")] * 2 * layers
    return forward + backward


def fsdp_step(layers: int, *, reshard: bool) -> list:
    """FSDP2: units gathered in forward (again in backward if resharded) and reduced in backward."""
    forward = [gather(ROOT, "F"), *[gather(UNIT, "F") for _ in range(layers)]]
    backward = []
    for _ in range(layers):
        backward += ([gather(UNIT, "B")] if reshard else []) + [scatter(UNIT, "B", dtype="float32")]
    return [*forward, *backward, scatter(ROOT, "O", dtype="float32")]


def test_reduce_scatter_in_forward_is_sequence_parallelism() -> None:
    layout = infer_views([rank(tp_sp_step(4), [group(0, 1, 2, 3)], world=4)]).layout
    assert (layout.tp, layout.dp, layout.sequence_parallel) == (4, 1, True)
    assert layout.confidence >= 0.9


def test_sharded_parameters_are_not_sequence_parallelism() -> None:
    layout = infer_views([rank(fsdp_step(4, reshard=True), [group(0, 1, 2, 3)], world=4)]).layout
    assert (layout.tp, layout.dp, layout.zero_stage, layout.dp_shard) == (1, 4, 3, 4)


def test_units_gathered_once_and_kept_are_stage_two() -> None:
    named = [replace(call, op="_allgather_base") for call in fsdp_step(4, reshard=False)]
    assert infer_views([rank(named, [group(0, 1, 2, 3)], world=4)]).layout.zero_stage == 2


def accumulating_fsdp_step(layers: int, micro: int, *, reshard: bool) -> list:
    """FSDP2 that keeps gradients to itself (`set_requires_gradient_sync(False)`) on all microbatches but the last."""
    unit = gather(UNIT, "F", op="_allgather_base", ndim=1)
    again = [replace(unit, phase="B")] if reshard else []
    quiet = [unit, *[unit] * (layers - 1), *again * layers]
    last = [*[unit] * layers, *[*again, scatter(UNIT, "B", op="_reduce_scatter_base", ndim=1)] * layers]
    return quiet * (micro - 1) + last


@pytest.mark.parametrize(("reshard", "stage"), [(True, 3), (False, 2)])
@pytest.mark.parametrize("micro", [2, 4, 16])
def test_gathers_of_many_microbatches_show_the_stage_by_their_phase(micro: int, reshard: bool, stage: int) -> None:
    calls = accumulating_fsdp_step(4, micro, reshard=reshard)
    layout = infer_views([rank(calls, [group(0, 1, 2, 3)], world=4)]).layout
    assert (layout.tp, layout.cp, layout.dp, layout.zero_stage) == (1, 1, 4, stage)


def test_a_pipeline_gathers_units_for_every_microbatch_and_scatters_once() -> None:
    """FSDP2 inside a stage of GPipe: gathered for each forward, once for all backwards, reduced after the last."""
    forward = [gather(UNIT, "F", group=1, ndim=1), send(A, 2, "F")] * 4
    backward = [recv(A, 2), gather(UNIT, "B", group=1, ndim=1), *[recv(A, 2, autograd=True)] * 3]
    calls = [*forward, *backward, scatter(UNIT, "B", group=1, ndim=1)]
    layout = infer_views([rank(calls, [group(0, 2), group(0, 1)], world=4)]).layout
    assert (layout.pp, layout.dp, layout.zero_stage) == (2, 2, 3)


def test_stage_is_null_when_nothing_tells_a_kept_unit_from_an_early_optimizer_gather() -> None:
    layout = infer_views([rank(fsdp_step(4, reshard=False), [group(0, 1)], world=2)]).layout
    assert layout.zero_stage is None
    assert layout.dp == 2


def test_gather_after_the_last_reduction_is_a_sharded_optimizer() -> None:
    calls = [scatter(UNIT, "B", dtype="float32"), gather(UNIT, "O")]
    assert infer_views([rank(calls, [group(0, 1)], world=2)]).layout.zero_stage == 1


def test_activations_reduced_in_both_phases_are_tensor_parallelism_not_buckets() -> None:
    calls = [reduce(A, "F")] * 8 + [reduce(A, "B")] * 8
    layout = infer_views([rank(calls, [group(0, 1)], world=2)]).layout
    assert (layout.tp, layout.dp, layout.sequence_parallel) == (2, 1, False)


@pytest.mark.parametrize("layers", [3, 40])
def test_passes_of_inference_over_more_and_more_tokens_are_tensor_parallelism(layers: int) -> None:
    """Vocabulary-parallel embedding, then two all-reduces a layer; no pass has as many tokens as the one before."""
    passes = [
        [reduce(n * 512, "?"), *[reduce(n * 512, "?", attention=1), reduce(n * 512, "?")] * layers] for n in (8, 9, 10)
    ]
    view = rank([call for one in passes for call in one], [group(0, 1)], world=2)
    layout = infer_views([view]).layout
    assert not view.has_backward
    assert (layout.tp, layout.dp, layout.sequence_parallel) == (2, 1, False)


def test_gradient_buckets_are_data_parallelism() -> None:
    calls = [reduce(size, "B", dtype="float32") for size in (UNIT, UNIT + 64, ROOT)]
    layout = infer_views([rank(calls, [group(0, 1, 2, 3)], world=4)]).layout
    assert (layout.tp, layout.dp, layout.zero_stage, layout.data_parallel) == (1, 4, 0, "ddp")
    assert layout.grad_reduce_dtype == "float32"


@pytest.mark.parametrize(("microbatches", "stage"), [(1, None), (2, 2)])
def test_reduced_and_gathered_gradients_show_their_stage_only_with_microbatches(
    microbatches: int, stage: int | None
) -> None:
    """DeepSpeed reduces in every microbatch from stage 2 on, once before (stage_1_and_2.py)."""
    calls = [reduce(UNIT, "B")] * microbatches + [gather(UNIT, "O")]
    layout = infer_views([rank(calls, [group(0, 1)], world=2)]).layout
    assert layout.zero_stage == stage
    assert layout.dp == 2


def test_hybrid_sharding_multiplies_its_two_groups() -> None:
    calls = [gather(UNIT, "F"), gather(UNIT, "B"), scatter(UNIT, "B"), reduce(UNIT // 2, "B", group=1)]
    layout = infer_views([rank(calls, [group(0, 1), group(0, 2)], world=4)]).layout
    assert (layout.tp, layout.dp, layout.dp_shard, layout.dp_replicate) == (1, 4, 2, 2)
    assert layout.data_parallel == "hsdp"


def test_messages_between_passes_are_a_pipeline() -> None:
    calls = [send(A, 1), send(A, 1), recv(A, 1), send(A, 1, autograd=True), recv(A, 1), recv(A, 1, autograd=True)]
    layout = infer_views([rank(calls, [group(0, 1)], world=2, backward_after=True)]).layout
    assert (layout.pp, layout.cp, layout.pp_schedule, layout.microbatches) == (2, 1, "1f1b", 3)


def test_messages_inside_backward_are_a_ring() -> None:
    hop = [send(A, 1, "F"), recv(A, 3, "F")] * 3
    back = [send(A, 1, "B"), recv(A, 3, "B")] * 6
    sync = [reduce(UNIT, "O")]
    layout = infer_views([rank(hop + back + sync, [group(0, 1, 2, 3)], world=4)]).layout
    assert (layout.cp, layout.pp, layout.dp, layout.cp_kind) == (4, 1, 1, "ring")


def test_exchanges_before_attention_are_ulysses_and_after_it_experts() -> None:
    layer = [exchange(A, "F"), exchange(A, "F"), exchange(A, "F"), exchange(A, "F", attention=1)]
    sync = [reduce(UNIT, "O")]
    back = [exchange(A, "B")] * 8
    ulysses = infer_views([rank(layer * 2 + back + sync, [group(0, 1)], world=2)]).layout
    assert (ulysses.cp, ulysses.ep, ulysses.dp, ulysses.cp_kind) == (2, 1, 1, "ulysses")
    moe = [exchange(A, "F", attention=1), exchange(A, "F")] * 2 + [exchange(A, "B")] * 4
    experts = infer_views([rank(moe + sync, [group(0, 1)], world=2)]).layout
    assert (experts.cp, experts.ep, experts.dp) == (1, 2, 2)


def padded_experts(layers: int) -> list:
    """Tokens to experts and back in every layer, and their gradients; attention before each layer's two."""
    forward = [exchange(A, "F", attention=1), exchange(A, "F")] * layers
    backward = [exchange(A, "B", attention=int(n > 0 and n % 2 == 0)) for n in range(2 * layers)]
    return forward + backward


@pytest.mark.parametrize("layers", [2, 3, 8])
def test_padded_exchanges_of_few_layers_are_not_taken_for_attention(layers: int) -> None:
    calls = [*padded_experts(layers), reduce(UNIT, "O")]
    view = replace(rank(calls, [group(0, 1)], world=2), steps_marked=False, runs_experts=True)
    layout = infer_views([view]).layout
    assert (layout.cp, layout.ep, layout.dp) == (1, 2, 2)


def test_the_first_exchange_of_a_window_says_nothing_where_no_step_is_found() -> None:
    """The window opens in the middle of a layer, after its attention."""
    step = [*padded_experts(4), reduce(UNIT, "O")]
    view = replace(rank([replace(step[0], attention=0), *step[1:]], [group(0, 1)], world=2), steps=0)
    layout = infer_views([view]).layout
    assert layout.cp != 2
    assert layout.ep != 1


def test_reductions_and_gathers_of_several_steps_in_one_window_leave_the_stage_open() -> None:
    """DeepSpeed's ZeRO-2, two microbatches: the same calls are stage 2 where a step is found."""
    step = [reduce(UNIT, "B"), reduce(UNIT, "B"), gather(UNIT, "O")]
    found = rank(step, [group(0, 1)], world=2)
    assert infer_views([found]).layout.zero_stage == 2
    lost = replace(rank(step * 3, [group(0, 1)], world=2), steps=0)
    assert infer_views([lost]).layout.zero_stage is None


def test_uneven_exchanges_are_experts_inside_the_data_parallel_ranks() -> None:
    counts = exchange(8, "F", dtype="int64")
    moe = [counts, exchange(A, "F", "uneven", attention=1), exchange(A, "F", "uneven")] * 2
    back = [exchange(A, "B", "uneven")] * 4
    sync = [reduce(UNIT, "O", group=1), reduce(2 * UNIT, "O", group=2)]
    layout = infer_views([rank(moe + back + sync, [group(0, 1), group(0, 1, 2, 3), group(0, 2)], world=4)]).layout
    assert (layout.ep, layout.dp, layout.tp, layout.cp) == (2, 4, 1, 1)


def test_gathered_tokens_are_experts_when_attention_lies_outside() -> None:
    """Megatron's all-gather dispatcher: routing map, probabilities, tokens; one reduce-scatter per layer."""
    moe = [gather(96, "F", dtype="bool", attention=1), gather(A // 64, "F"), gather(A, "F"), scatter(A, "F")] * 2
    back = [gather(A, "B"), scatter(A, "B")] * 2
    sync = [reduce(UNIT, "O", group=1, dtype="float32")]
    layout = infer_views([rank(moe + back + sync, [group(0, 1), group(0, 1)], world=2)]).layout
    assert (layout.ep, layout.tp, layout.dp, layout.sequence_parallel) == (2, 1, 2, None)


def test_attention_between_gather_and_scatter_is_sequence_parallelism() -> None:
    layer = [gather(A, "F"), scatter(A, "F", attention=1), gather(A, "F"), scatter(A, "F")]
    layout = infer_views([rank(layer * 2 + tp_sp_step(2)[8:], [group(0, 1)], world=2)]).layout
    assert (layout.tp, layout.ep, layout.dp) == (2, 1, 1)


def test_one_hot_exchanges_are_hops_of_a_ring() -> None:
    ring = [exchange(A, "F", "one_hot")] * 3 + [exchange(A, "B", "one_hot")] * 7
    layout = infer_views([rank([*ring, reduce(UNIT, "O")], [group(0, 1, 2, 3)], world=4)]).layout
    assert (layout.cp, layout.ep, layout.cp_kind) == (4, 1, "ring")


def test_tied_embeddings_are_not_data_parallelism() -> None:
    calls = [send(A, 1), recv(A, 1), reduce(ROOT, "O", group=1, dtype="float32")]
    layout = infer_views([rank(calls, [group(0, 1, 2, 3), group(0, 3)], world=4, backward_after=True)]).layout
    assert (layout.pp, layout.dp) == (4, 1)


def test_data_parallelism_spans_the_context_ranks() -> None:
    ring = [exchange(A, "F", "one_hot")] * 2 + [exchange(A, "B", "one_hot")] * 2
    calls = [*ring, reduce(UNIT, "O", group=1)]
    view = rank(calls, [group(0, 1), group(0, 1, 2, 3)], world=4)
    layout = infer_views([view]).layout
    assert (layout.cp, layout.dp) == (2, 2)
    assert layout.dimensions["dp"].groups == ((0, 2),)
    assert layout.rank_order == "cp-dp"

"""Calls that only their stream and the size of their group tell apart: which of them belong together, which do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heuristics.layout import infer_views
from heuristics.view import GroupView, RankView
from tests.heuristics.jobs import Call, exchange, gather, group, rank, recv, reduce, scatter, send

A, K, UNIT, TAIL = 4_194_304, 1_048_576, 3_000_064, 5_000_192


def sized(size: int) -> GroupView:
    """A group of which only the size is recorded."""
    return GroupView(size, None, "", "", declared=False)


def sharded_step(gathers: int, scatters: int) -> list[Call]:
    """FSDP: units are gathered in forward and again in backward, where their gradients are scattered."""
    units = (UNIT, UNIT, TAIL)
    forward = [gather(unit, "F", group=gathers, attention=1) for unit in units]
    backward = [
        call
        for unit in reversed(units)
        for call in (gather(unit, "B", group=gathers), scatter(unit, "B", group=scatters, dtype="float32"))
    ]
    return forward + backward


def test_units_gathered_on_one_stream_and_scattered_on_another_are_one_group() -> None:
    layout = infer_views([rank(sharded_step(0, 1), [sized(4), sized(4)], world=4)]).layout
    assert (layout.tp, layout.cp, layout.dp, layout.ep, layout.zero_stage) == (1, 1, 4, 1, 3)
    assert layout.confidence >= 0.9


def test_gathers_of_other_sizes_on_the_other_stream_stay_unexplained() -> None:
    calls = sharded_step(0, 1) + [gather(7 * UNIT, "B", group=0)] * 6
    layout = infer_views([rank(calls, [sized(4), sized(4)], world=4)]).layout
    assert (layout.cp, layout.dp) == (None, None)


def tensor_and_replicas(parameters: int) -> list[Call]:
    """Forward on the caller's stream, with the optimizer's gather; backward and gradients on streams of their own."""
    forward = [reduce(A, "F", group=0, attention=1), reduce(A, "F", group=0)] * 4
    backward = [reduce(A, "B", group=1)] * 8
    return [*forward, *backward, reduce(UNIT, "B", group=2), gather(parameters, "O", group=0)]


def test_tensor_calls_of_forward_and_backward_on_two_streams_are_one_group() -> None:
    view = rank(tensor_and_replicas(UNIT), [sized(2), sized(2), sized(2)], world=4)
    layout = infer_views([view]).layout
    assert (layout.tp, layout.dp, layout.zero_stage) == (2, 2, None)  # stage 1 and 2 send the same
    assert layout.dimensions["dp"].evidence[-2].startswith("one reduction and one gather per step")


def test_a_gather_of_another_amount_is_not_the_optimizers() -> None:
    view = rank(tensor_and_replicas(3 * UNIT), [sized(2), sized(2), sized(2)], world=4)
    assert infer_views([view]).layout.zero_stage is None
    assert infer_views([view]).layout.dp is None


def tensor_layers_with_keys() -> list[Call]:
    """TP with SP, and context parallelism that gathers keys and values, all on one stream."""
    layer = [
        gather(A, "F"),
        gather(K, "F"),
        gather(K, "F"),
        scatter(A, "F", attention=1),
        gather(A, "F"),
        scatter(A, "F"),
    ]
    back = [gather(A, "B"), scatter(A, "B"), gather(A, "B"), scatter(K, "B", attention=1), scatter(K, "B")]
    return layer * 4 + back * 4 + [reduce(UNIT, "B", group=1, dtype="float32")]


def test_keys_and_values_on_the_stream_of_tensor_calls_are_context_parallel() -> None:
    layout = infer_views([rank(tensor_layers_with_keys(), [sized(2), sized(4)], world=8)]).layout
    assert (layout.tp, layout.cp, layout.dp, layout.cp_kind) == (2, 2, 2, "all_gather")


def ring_calls(on: int) -> list[Call]:
    hop = [send(A, -1, "F", group=on, attention=1), recv(A, -1, "F", group=on)]
    back = [send(A, -1, "B", group=on), recv(A, -1, "B", group=on)]
    between = [replace(call, phase="?") for call in hop]  # forward of the second microbatch, right after backward
    return hop * 4 + back * 8 + between * 4 + back * 8


def test_a_ring_and_a_pipeline_on_streams_of_their_own() -> None:
    passes = [send(A, -1, group=1), recv(A, -1, group=1, autograd=True)]
    calls = ring_calls(0)
    calls = calls[:8] + passes[:1] + calls[8:24] + passes[1:] + calls[24:32] + passes[:1] + calls[32:] + passes[1:]
    layout = infer_views([rank([*calls, reduce(UNIT, "B", group=2)], [sized(2), sized(2), sized(4)], world=8)]).layout
    assert (layout.cp, layout.pp) == (2, 2)


def with_ends(view: RankView, partner: int) -> RankView:
    """Pairs finish within a nanosecond of each other; the two pairs drift apart by more and more."""
    calls = np.arange(len(view.family_of_call), dtype=np.int64)
    return replace(view, ends_ns=calls * 1_000_000 + partner * calls * calls * 5 + view.rank)


def test_no_more_ranks_than_the_calls_state_are_taken_for_a_group() -> None:
    calls = [reduce(A, "F", attention=1), reduce(A, "F"), reduce(A, "B"), reduce(A, "B")] * 2
    ranks = [with_ends(rank(calls, [sized(2)], world=4, number=own), own // 2) for own in range(4)]
    layout = infer_views(ranks).layout
    assert layout.tp == 2
    assert layout.dimensions["tp"].groups == ((0, 1), (2, 3))


def test_the_logits_of_inference_are_no_dimension() -> None:
    layers = [reduce(A, "?", attention=1), reduce(A, "?")] * 12
    calls = [*layers, gather(-1, "?", group=1)]
    layout = infer_views([rank(calls, [group(0, 1, 2, 3), GroupView(0, None, "", "", declared=False)], world=4)]).layout
    assert (layout.tp, layout.cp, layout.dp, layout.ep) == (4, 1, 1, 1)


def test_a_gather_in_every_layer_of_inference_is_left_open() -> None:
    layers = [reduce(A, "?", attention=1), gather(-1, "?", group=1), reduce(A, "?")] * 12
    view = rank(layers, [group(0, 1), GroupView(0, None, "", "", declared=False)], world=4)
    assert infer_views([view]).layout.cp is None


def test_messages_that_go_one_way_in_inference_are_stages() -> None:
    layers = [reduce(A, "?", attention=1), reduce(A, "?")] * 4
    first = rank([*layers, send(K, -1, group=1)] * 3, [group(0, 1), sized(2)], world=4)
    layout = infer_views([first]).layout
    assert (layout.tp, layout.pp, layout.dp) == (2, 2, 1)


def test_what_a_stage_receives_in_slices_is_gathered_by_its_tensor_ranks() -> None:
    layers = [reduce(A, "?", attention=1), reduce(A, "?")] * 4
    calls = [recv(K, -1, group=1), replace(gather(2 * K, "?", group=2)), *layers] * 3
    view = rank(calls, [group(2, 3), sized(2), sized(2)], world=4, number=2)
    view = replace(view, families=tuple(replace(f, members=view.group(f.group).size) for f in view.families))
    layout = infer_views([view]).layout
    assert (layout.tp, layout.cp, layout.pp, layout.dp) == (2, 1, 2, 1)


def routed(maps_per_layer: int) -> list[Call]:
    """TP with SP, whose second sublayer holds experts: tokens are gathered and their sums scattered among as many."""
    maps = [gather(32_768, "F", dtype="bool")] * maps_per_layer
    layer = [gather(A, "F"), scatter(A, "F", attention=1), *maps, gather(A, "F"), scatter(A, "F")]
    back = [gather(A, "B"), scatter(A, "B", attention=1)] * 2
    return layer * 4 + back * 4 + [reduce(UNIT, "B", group=1, dtype="float32")]


def test_routing_maps_among_tensor_ranks_leave_experts_open() -> None:
    layout = infer_views([rank(routed(1), [sized(2), sized(2)], world=4)]).layout
    assert (layout.tp, layout.dp, layout.ep) == (2, 2, None)
    assert "either different experts or slices of each" in " ".join(layout.dimensions["ep"].evidence)
    assert layout.confidence <= 0.8


def test_without_routing_maps_no_experts_are_seen() -> None:
    layout = infer_views([rank(routed(0), [sized(2), sized(2)], world=4)]).layout
    assert (layout.tp, layout.dp, layout.ep) == (2, 2, 1)


def test_padded_exchanges_are_not_taken_for_routing_maps() -> None:
    layer = [reduce(A, "F", attention=1), exchange(A, "F", group=1), exchange(A, "F", group=1)]
    back = [exchange(A, "B", group=1), exchange(A, "B", group=1, attention=1), reduce(A, "B")]
    view = rank(layer * 4 + back * 4 + [reduce(UNIT, "B", group=2)], [sized(2), sized(4), sized(4)], world=8)
    assert infer_views([view]).layout.ep == 4


def test_gathers_alone_on_another_stream_are_not_tensor_calls() -> None:
    """Torch's ring brings keys and values together on the stream of its hops; their size is an activation's."""
    layer = [gather(A, "F"), gather(A, "F", group=1), scatter(A, "F", attention=1), gather(A, "F"), scatter(A, "F")]
    hop = exchange(A // 2, "B", split="one_hot", group=1)
    back = [gather(A, "B"), scatter(A, "B"), gather(A, "B"), gather(A, "B", group=1), hop, scatter(A, "B", attention=1)]
    calls = layer * 4 + back * 4 + [reduce(UNIT, "B", group=2, dtype="float32")]
    layout = infer_views([rank(calls, [sized(2), sized(2), sized(4)], world=8)]).layout
    assert (layout.tp, layout.cp, layout.dp, layout.ep, layout.cp_kind) == (2, 2, 2, 1, "ring")


def exchanges_around_attention(before: int, after: int, begin: int) -> RankView:
    """Layers that exchange before and after attention, in a step that is not marked: it may begin in the middle."""
    layer = [exchange(A, "F")] * before + [exchange(A, "F", attention=1)] + [exchange(A, "F")] * (after - 1)
    back = [exchange(A, "B")] * after + [exchange(A, "B", attention=1)] + [exchange(A, "B")] * (before - 1)
    calls = layer * 6 + back * 6 + [reduce(UNIT, "O", group=1, dtype="float32")]
    view = rank(calls[begin:] + calls[:begin], [group(0, 1), group(0, 1)], world=2)
    return replace(view, steps_marked=False)


def test_four_exchanges_for_each_attention_are_its_own_wherever_the_step_begins() -> None:
    for begin in (0, 3, 4, 30):
        layout = infer_views([exchanges_around_attention(3, 1, begin)]).layout
        assert (layout.cp, layout.ep, layout.cp_kind) == (2, 1, "ulysses"), begin


def test_two_exchanges_for_each_attention_promise_nothing_where_the_step_begins_anywhere() -> None:
    layout = infer_views([exchanges_around_attention(1, 1, 7)]).layout
    assert (layout.cp, layout.ep) == (None, None)


def test_replicas_of_inference_hold_their_own_parameters() -> None:
    layer = [exchange(A, "?", "uneven", group=0, attention=1), exchange(A, "?", "uneven", group=0)]
    view = replace(rank(layer * 8, [group(0, 1, 2, 3)], world=4), runs_experts=True)
    layout = infer_views([view]).layout
    assert (layout.ep, layout.dp, layout.zero_stage) == (4, 4, 0)

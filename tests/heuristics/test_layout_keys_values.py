"""Keys and values that are gathered for attention, told from units of sharded parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heuristics.layout import infer_views
from tests.heuristics.jobs import Call, exchange, gather, group, rank, reduce, scatter

if TYPE_CHECKING:
    from heuristics.verdict import Layout

KEYS, BLOCK, ROOT = 6_144, 96_960, 27_744
"""Elements of one layer's keys, of one block's parameters, and of the embedding with the last norm."""


def forward(layers: int, ndim: int = 0, into: int = 0) -> list[Call]:
    """Keys and values of every layer, gathered before its attention."""
    pair = [gather(KEYS, "F", ndim=ndim, group=into), gather(KEYS, "F", ndim=ndim, group=into)]
    first, second = pair
    later = [gather(KEYS, "F", ndim=ndim, group=into, attention=1), second]
    return [first, second, *later * (layers - 1)]


def backward(layers: int, ndim: int = 0, into: int = 0) -> list[Call]:
    """Their gradients."""
    first = scatter(KEYS, "B", ndim=ndim, group=into, attention=1)
    return [first, scatter(KEYS, "B", ndim=ndim, group=into)] * layers


def on_one_group(layers: int, ndim: int, flat: int, again: bool = True) -> Layout:
    """FSDP over the ranks that split the sequence: root and blocks are gathered, the blocks in backward again."""
    calls = [gather(ROOT, "F", ndim=flat)]
    keys = forward(layers, ndim)
    for layer in range(layers):
        calls += [gather(BLOCK, "F", ndim=flat, attention=int(layer > 0))]
        calls += [Call(**{**vars(call), "attention": 0}) for call in keys[2 * layer : 2 * layer + 2]]
    grads = backward(layers, ndim)
    for layer in range(layers):
        calls += [gather(BLOCK, "B", ndim=flat)] if again else []
        calls += [*grads[2 * layer : 2 * layer + 2], scatter(BLOCK, "B", ndim=flat)]
    calls += [scatter(ROOT, "B", ndim=flat)]
    return infer_views([rank(calls, [group(0, 1)], world=2, number=number) for number in range(2)]).layout


def test_tensors_of_an_activation_s_shape_are_no_units_of_parameters() -> None:
    for layers in (1, 2, 3):
        layout = on_one_group(layers, ndim=4, flat=1)
        assert (layout.cp, layout.dp, layout.cp_kind, layout.zero_stage) == (2, 1, "all_gather", 3), layers


def test_what_is_gathered_once_beside_units_that_are_gathered_again_is_not_kept_by_fsdp() -> None:
    for layers in (1, 2, 3):
        layout = on_one_group(layers, ndim=0, flat=0)
        assert (layout.cp, layout.dp) == (2, 1), layers
        said = " ".join(layout.dimensions["cp"].evidence)
        assert "1 size is gathered again in backward, these are not" in said


def test_one_pair_beside_units_that_are_kept_shows_nothing() -> None:
    layout = on_one_group(1, ndim=0, flat=0, again=False)
    assert layout.cp != 2 or layout.confidence < 0.9


def inside(layers: int, *more: Call) -> Layout:
    """Keys and values among pairs of four ranks, all of which reduce their gradients in one bucket."""
    calls = [*more, *forward(layers, into=1), *backward(layers, into=1), reduce(ROOT + layers * BLOCK, "B")]
    pairs = [(0, 1), (0, 1), (2, 3), (2, 3)]
    views = [rank(calls, [group(0, 1, 2, 3), group(*pairs[n])], world=4, number=n) for n in range(4)]
    return infer_views(views).layout


def test_parameters_are_gathered_from_all_ranks_that_reduce_their_gradients() -> None:
    for layers in (1, 2, 3):
        layout = inside(layers)
        assert (layout.cp, layout.dp) == (2, 2), layers
        assert "gradients are reduced among 4 ranks, of which these are a part" in " ".join(
            layout.dimensions["cp"].evidence
        )


def test_two_groups_of_the_same_ranks_are_one() -> None:
    # A mesh makes a group for the sequence and, for the gradients, one of both dimensions: of the same two ranks.
    calls = [*forward(2, into=1), *backward(2, into=1), reduce(ROOT + 2 * BLOCK, "B")]
    views = [rank(calls, [group(0, 1), group(0, 1)], world=2, number=number) for number in range(2)]
    layout = infer_views(views).layout
    assert (layout.cp, layout.dp) == (2, 1)


def test_the_part_may_hold_the_same_experts_if_tokens_go_elsewhere() -> None:
    said = "of which these are a part"
    tokens = [exchange(8192, "F", group=g, split="uneven", attention=1) for g in (1, 2)]
    pairs, across = [(0, 1), (0, 1), (2, 3), (2, 3)], [(0, 2), (1, 3), (0, 2), (1, 3)]
    layouts = []
    for token in tokens:
        calls = [*[token] * 4, *forward(2, into=1), *backward(2, into=1), reduce(ROOT + 2 * BLOCK, "B")]
        groups = [[group(0, 1, 2, 3), group(*pairs[n]), group(*across[n])] for n in range(4)]
        layouts.append(infer_views([rank(calls, groups[n], world=4, number=n) for n in range(4)]).layout)
    among, elsewhere = layouts
    assert (among.cp, among.ep, among.dp) == (2, 2, 2)
    assert said in " ".join(among.dimensions["cp"].evidence)
    assert said not in " ".join(elsewhere.dimensions["cp"].evidence)


def test_beside_tensor_parallelism_pairs_decide() -> None:
    # Tensor-parallel ranks sum in forward as ranks that share experts do, but attention lies between.
    layer = [gather(4096, "F", group=2), scatter(4096, "F", group=2, attention=1)]
    keys = forward(2, into=1)
    calls = [*keys[:2], *layer, *keys[2:], *layer, *[gather(4096, "B", group=2), scatter(4096, "B", group=2)] * 2]
    for layers, expected in ((2, 2), (1, None)):
        own = calls if layers == 2 else [*keys[:2], *layer, gather(4096, "B", group=2), scatter(4096, "B", group=2)]
        own = [*own, *backward(layers, into=1), reduce(ROOT + layers * BLOCK, "B")]
        views = []
        for number in range(8):
            tp, cp, replicas = number % 2, number // 2 % 2, number // 4
            copies = group(*(n for n in range(8) if n % 2 == tp))
            part = group(tp + 4 * replicas, tp + 4 * replicas + 2)
            shared = group(4 * replicas + 2 * cp, 4 * replicas + 2 * cp + 1)
            views.append(rank(own, [copies, part, shared], world=8, number=number))
        layout = infer_views(views).layout
        assert (layout.tp, layout.cp) == (2, expected), layers
        assert layout.dp == (2 if expected else None)

"""What the ranks given do not decide is null, with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heuristics.degrees import Degree, Degrees, _checked
from heuristics.layout import infer_views
from heuristics.view import GroupView, RankView
from tests.heuristics.jobs import exchange, gather, group, rank, recv, reduce, scatter, send

A, UNIT = 4_194_304, 3_000_000


def test_unexplained_exchanges_leave_experts_open() -> None:
    embedding = replace(
        rank([exchange(A, "F", "uneven"), exchange(A, "B", "uneven"), reduce(UNIT, "B")], [group(0, 1)], world=2),
        runs_embedding_bags=True,
    )
    layout = infer_views([embedding]).layout
    assert layout.ep is None
    assert layout.dp == 2
    assert "unexplained" in " ".join(layout.dimensions["ep"].evidence)


def test_experts_without_exchange_are_open_where_ranks_share_layers() -> None:
    calls = [reduce(A, "F")] * 8
    view = replace(rank(calls, [group(0, 1)], world=2), has_backward=False, runs_experts=True)
    layout = infer_views([view]).layout
    assert (layout.tp, layout.ep) == (2, None)


def test_no_gradient_reduction_leaves_replicas_open() -> None:
    calls = [reduce(A, "F")] * 8 + [reduce(A, "B")] * 8
    layout = infer_views([rank(calls, [group(0, 1)], world=4)]).layout
    assert (layout.tp, layout.dp) == (2, None)
    assert "replicas or separate jobs" in " ".join(layout.dimensions["dp"].evidence)
    assert layout.confidence <= 0.8


def test_degrees_that_do_not_multiply_to_the_world_are_withdrawn() -> None:
    calls = [reduce(A, "F")] * 8 + [reduce(A, "B")] * 8 + [reduce(UNIT, "O", group=1, dtype="float32")]
    layout = infer_views([rank(calls, [group(0, 1), group(0, 2)], world=8)]).layout
    assert layout.dp is None
    assert layout.confidence <= 0.5
    assert "not the world of 8" in " ".join(layout.dimensions["dp"].evidence)


def test_a_first_stage_with_few_microbatches_cannot_tell_gpipe_from_1f1b() -> None:
    calls = [send(A, 1), send(A, 1), recv(A, 1), recv(A, 1, autograd=True)]
    view = rank(calls, [group(0, 1, 2, 3)], world=4, backward_after=True)
    layout = infer_views([view]).layout
    assert (layout.pp, layout.pp_schedule, layout.microbatches) == (4, None, 2)
    assert "give the trace of the last stage" in " ".join(layout.dimensions["pp"].evidence)


def test_more_forward_passes_than_stages_is_gpipe() -> None:
    calls = [send(A, 1)] * 6 + [recv(A, 1)] + [recv(A, 1, autograd=True)] * 5
    layout = infer_views([rank(calls, [group(0, 1, 2, 3)], world=4, backward_after=True)]).layout
    assert (layout.pp_schedule, layout.microbatches, layout.virtual_stages) == ("gpipe", 6, 1)


def test_names_raise_confidence_but_decide_nothing() -> None:
    forward = [gather(A, "F"), scatter(A, "F")] * 4
    backward = [gather(A, "B"), scatter(A, "B")] * 4
    plain = infer_views([rank(forward + backward, [group(0, 1)], world=2)])
    misnamed = infer_views([rank(forward + backward, [group(0, 1, desc="mesh_dp")], world=2)])
    assert plain.layout.tp == misnamed.layout.tp == 2
    assert plain.dims == misnamed.dims == (["tp"] * 16,)


def _one_of_four(number: int, peer: int) -> RankView:
    """A rank of tp 2 x dp 2, whose groups are known by size, that swaps something with one other rank of the job."""
    layers = [reduce(A, "F", group=1)] * 4 + [reduce(A, "B", group=1)] * 4
    swap = [send(-1, peer, group=0), recv(-1, peer, group=0)]
    gradients = [scatter(UNIT, "B", group=2, dtype="float32")] * 2
    pairs = [GroupView(2, None, name, "", declared=True) for name in ("0x1", "0x2")]
    return rank([*swap, *layers, *gradients, *swap], [group(0, 1, 2, 3), *pairs], world=4, number=number)


@pytest.mark.parametrize(("number", "peer"), [(0, 3), (1, 2), (2, 1), (3, 0)])
def test_messages_over_all_ranks_are_no_pipeline_where_other_groups_take_every_rank(number: int, peer: int) -> None:
    found = infer_views([_one_of_four(number, peer)])
    layout = found.layout
    assert (layout.tp, layout.dp) == (2, 2)
    assert layout.pp in (None, 1)
    assert (layout.pp_schedule, layout.microbatches) == (None, None)
    assert "pp" not in (layout.rank_order or "")
    assert set(found.dims[0]) == {"tp", "dp", "unknown"}


def test_messages_over_all_ranks_are_a_pipeline_where_nothing_else_splits_them() -> None:
    calls = [recv(A, 0), send(A, 2), recv(A, 2), send(A, 0, autograd=True)] * 2
    found = infer_views([rank(calls, [group(0, 1, 2, 3)], world=4, number=1, backward_after=True)])
    assert found.layout.pp == 4
    assert set(found.dims[0]) == {"pp"}


def test_of_contradicting_degrees_none_stands_because_it_was_looked_at_first() -> None:
    # 2 x 2 claimed with the same weight in a world of 8: neither is better than the other.
    equal = {dim: Degree(value, 0.9) for dim, value in (("tp", 2), ("cp", 1), ("pp", 2), ("dp", 4), ("ep", 1))}
    found = _checked(Degrees(**equal, shard=None, replicate=None, replicated=True), 8)
    assert (found.tp.value, found.pp.value, found.dp.value) == (None, None, None)
    assert (found.tp.rivals, found.pp.rivals, found.dp.rivals) == ((2,), (2,), (4,))
    assert (found.cp.value, found.cp.confidence) == (1, 0.5)

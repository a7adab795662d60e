"""Jobs whose traces list the groups and say no size: what is told apart there, and what is left open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heuristics.layout import infer_views
from heuristics.view import GroupView
from tests.heuristics.jobs import Call, exchange, gather, group, rank, reduce, scatter

if TYPE_CHECKING:
    from heuristics.verdict import Layout

ALL = group(0, 1, 2, 3)


def job(calls: list[Call], *groups: GroupView, world: int = 4) -> Layout:
    """The layout of a job all of whose ranks make the same calls."""
    return infer_views([rank(calls, groups or (ALL,), world=world, number=n) for n in range(4)]).layout


def sharded(units: int, into: int = 0) -> list[Call]:
    """FSDP: units gathered in forward, again in backward, and scattered there, none with a size."""
    again = [gather(-1, "B", group=into), scatter(-1, "B", group=into, dtype="float32")]
    return [gather(-1, "F", group=into, attention=1)] * units + again * units


def test_norms_after_the_last_gradient_has_left_do_not_hide_sharding() -> None:
    layout = job([*sharded(8), *[reduce(-1, "O", dtype="float32")] * 3])
    assert (layout.dp, layout.zero_stage, layout.data_parallel) == (4, 3, "zero3")


def test_norms_over_all_ranks_are_not_the_gradients_of_all() -> None:
    # Megatron: gradients are scattered among the replicas, their norm is summed over all ranks.
    calls = [gather(-1, "F", group=1)] * 4 + [scatter(-1, "B", group=1)] * 4 + [reduce(-1, "O", group=0)]
    views = [rank(calls, (ALL, group(n % 2, n % 2 + 2)), world=4, number=n) for n in range(4)]
    assert infer_views(views).layout.dp != 4


def test_hybrid_sharding_reduces_as_often_as_it_scatters() -> None:
    shard, replica = [(0, 1), (2, 3)], [(0, 2), (1, 3)]
    calls = sharded(8)
    calls = [c for call in calls for c in ([call, reduce(-1, "B", group=1)] if call.phase == "B" else [call])]
    views = [rank(calls, (group(*shard[n // 2]), group(*replica[n % 2])), world=4, number=n) for n in range(4)]
    assert infer_views(views).layout.dp in (None, 4)


def test_gathers_beside_reductions_may_be_those_of_a_sharded_optimizer() -> None:
    layout = job([reduce(-1, "B")] * 2 + [gather(-1, "O")])
    assert (layout.dp, layout.zero_stage, layout.data_parallel) == (4, None, None)
    assert "whether they bring parameters back does not show" in " ".join(layout.dimensions["dp"].evidence)
    assert job([reduce(-1, "B")] * 2).zero_stage == 0


def test_exchanges_that_lie_in_backward_alone_send_no_tokens() -> None:
    # Context parallelism of torch: keys are gathered in forward, their gradients come back by all-to-all.
    gathers = [gather(-1, "F", attention=1)] * 4
    layout = job([*gathers, *[gather(-1, "B"), *[exchange(-1, "B", attention=1)] * 4] * 4, reduce(-1, "B")])
    assert layout.ep is None
    assert layout.cp is None
    both = [call for phase in "FB" for call in [exchange(-1, phase, attention=1), exchange(-1, phase)] * 4]
    assert job([*both, reduce(-1, "B")]).ep == 4


def test_exchanged_integers_are_counts_of_tokens() -> None:
    # q, k and v are exchanged before attention and the output after it, but without counts.
    forward, back = ([*[exchange(-1, phase)] * 3, exchange(-1, phase, attention=1)] for phase in "FB")
    counts = [exchange(-1, "F", dtype="int64")] * 2
    assert job([*forward * 4, *back * 4, reduce(-1, "B")]).cp == 4
    with_counts = job([*[*counts, *forward] * 4, *back * 4, reduce(-1, "B")])
    assert with_counts.cp != 4
    assert "exchanges of integers per step go with them: tokens" in " ".join(with_counts.dimensions["cp"].against)


def test_units_of_one_group_on_two_streams_are_counted_together() -> None:
    # gloo's threads: of six units each thread happens to carry some; together they are gathered twice per reduction.
    one, two = (GroupView(0, None, "", "", declared=False) for _ in range(2))
    forward = [gather(4096, "F")] * 4 + [gather(4096, "F", group=1)] * 2
    backward = [gather(4096, "B"), gather(4096, "B", group=1)] * 2 + [gather(4096, "B", group=1)] * 2
    scatters = [scatter(4096, "B")] * 2 + [scatter(4096, "B", group=1)] * 4
    assert job(forward + backward + scatters, one, two).zero_stage == 3
    unsized = [Call(**{**vars(call), "size": -1}) for call in forward + backward + scatters]
    assert job(unsized, one, two).zero_stage == 3  # all on the group of all ranks, for there is no other
    assert job(unsized, one, two, world=0).zero_stage is None


def test_ranks_that_reduce_whole_gradients_do_not_scatter_any() -> None:
    # The keys and values of two layers are gathered, their gradients scattered; all parameters leave in one bucket.
    forward = [*[gather(6144, "F")] * 2, gather(6144, "F", attention=1), gather(6144, "F")]
    layout = job([*forward, *[scatter(6144, "B")] * 4, reduce(221_664, "B")])
    assert (layout.cp, layout.dp) == (4, 1)
    small = job([*forward, *[scatter(6144, "B")] * 4, reduce(3_000, "B")])  # parameters too small to be sharded
    assert small.dp == 4


def test_what_another_dimension_may_have_made_is_no_lesser_call_of_the_group_s_owner() -> None:
    # One layer: a pair of gathers shows nothing. They may be keys and values, so neither cp nor dp is certain.
    layout = job([gather(6144, "F"), gather(6144, "F"), *[scatter(6144, "B", attention=1)] * 2, reduce(221_664, "B")])
    assert layout.cp is None
    assert layout.dp is None

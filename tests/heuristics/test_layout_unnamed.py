"""Groups that calls do not name: told by size, by exclusion, by who finishes together, or left open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heuristics.layout import infer_views
from heuristics.view import GroupView, RankView
from tests.heuristics.jobs import Call, gather, group, rank, recv, reduce, scatter, send

A, UNIT = 4_194_304, 3_000_000

UNNAMED = GroupView(0, None, "", "", declared=False)


def sized(size: int) -> GroupView:
    """A group of which only the size is recorded."""
    return GroupView(size, None, "", "", declared=False)


def finishing_at(view: RankView, ends: list[int]) -> RankView:
    """The view with these ends of its calls."""
    return replace(view, ends_ns=np.array(ends, dtype=np.int64))


def tensor_calls(on: int) -> list[Call]:
    return [reduce(A, "F", group=on)] * 4 + [reduce(A, "B", group=on)] * 4


def test_the_only_listed_group_takes_the_calls() -> None:
    layout = infer_views([rank(tensor_calls(1), [group(0, 1), UNNAMED], world=2)]).layout
    assert (layout.tp, layout.dp) == (2, 1)
    assert layout.dimensions["tp"].groups == ((0, 1),)


def test_the_sides_of_a_gather_show_the_size_of_its_group() -> None:
    calls = [gather(A, "F", group=2), scatter(A, "F", group=2)] * 4 + [
        gather(A, "B", group=2),
        scatter(A, "B", group=2),
    ] * 4
    view = rank(calls, [group(0, 1), group(0, 2, 4, 6), UNNAMED], world=8)
    members = {"all_gather": 2, "reduce_scatter": 2}
    shown = replace(view, families=tuple(replace(f, members=members[f.primitive]) for f in view.families))
    layout = infer_views([shown]).layout
    assert layout.dimensions["tp"].groups == ((0, 1),)


def job_of_four(own: int, listed: bool) -> RankView:
    """Ranks 0,1 and 2,3 share layers; their calls name no group. Partners finish within 1 us, others drift apart."""
    groups = [group(own, own ^ 1), group(own, own ^ 2), UNNAMED] if listed else [UNNAMED]
    view = rank(tensor_calls(len(groups) - 1), groups, world=4, number=own)
    pair = own // 2
    ends = [number * 1_000_000 + pair * number * number * 50_000 + own for number in range(8)]
    return finishing_at(view, ends)


def test_members_of_a_listed_group_finish_together() -> None:
    layout = infer_views([job_of_four(own, listed=True) for own in range(4)]).layout
    assert layout.tp == 2
    assert layout.dimensions["tp"].groups == ((0, 1), (2, 3))


def test_without_any_list_those_who_finish_together_are_the_group() -> None:
    layout = infer_views([job_of_four(own, listed=False) for own in range(4)]).layout
    assert layout.tp == 2
    assert layout.dimensions["tp"].groups == ((0, 1), (2, 3))


def test_one_rank_without_names_sizes_or_partners_cannot_tell() -> None:
    calls = [*tensor_calls(0), *(reduce(UNIT + 64 * n, "O", group=1, dtype="float32") for n in range(3))]
    layout = infer_views([rank(calls, [UNNAMED, UNNAMED], world=4)]).layout
    assert (layout.tp, layout.dp) == (None, None)


def test_two_dimensions_on_groups_of_one_size_are_told_apart_by_stream() -> None:
    calls = [
        *tensor_calls(0),
        reduce(UNIT, "O", group=1, dtype="float32"),
        reduce(UNIT + 64, "O", group=1, dtype="float32"),
    ]
    layout = infer_views([rank(calls, [sized(2), sized(2)], world=4)]).layout
    assert (layout.tp, layout.dp, layout.confidence >= 0.9) == (2, 2, True)


def test_messages_of_two_dimensions_on_one_unnamed_group_are_left_open() -> None:
    ring = [send(A, -1, "F", attention=1), recv(A, -1, "F")] * 4 + [send(A, -1, "B"), recv(A, -1, "B")] * 8
    stage = [send(A, -1, "?"), recv(A, -1, "?", autograd=True)]
    layout = infer_views([rank(ring[:8] + stage + ring[8:], [sized(2)], world=4)]).layout
    assert (layout.cp, layout.pp) == (None, None)


def test_a_description_alone_makes_no_promise() -> None:
    """Two groups of two fit; only `mesh_tp` tells which."""
    named = [group(0, 1, desc="mesh_tp"), group(0, 2, desc="mesh_dp"), UNNAMED]
    layout = infer_views([rank(tensor_calls(2), named, world=4)]).layout
    assert layout.tp == 2
    assert layout.confidence <= 0.8


def test_the_rank_that_would_decide_is_named_and_decides() -> None:
    """Rank 0 of four with two groups of two: rank 1 makes the same calls at the same moments, so it is the partner."""
    alone = infer_views([job_of_four(0, listed=True)]).layout
    assert alone.tp is None
    assert "give the trace of rank 1 to decide" in " ".join(alone.dimensions["tp"].evidence)
    ranks = [job_of_four(0, listed=True), job_of_four(1, listed=True), job_of_four(2, listed=True)]
    assert infer_views(ranks).layout.tp == 2

"""Schedules, microbatches and stages from the order of messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heuristics.dimensions.pipeline import annotated, simple_schedule
from heuristics.layout import infer_views
from tests.heuristics.jobs import group, rank, recv, reduce, send

A = 4_194_304


def one_f_one_b(stage: int, stages: int, micro: int) -> list:
    """Messages of one stage of 1F1B (Narayanan et al. 2021): a warm-up, pairs, a cool-down."""
    calls = []

    def forward() -> None:
        calls.extend([recv(A, stage - 1)] if stage else [])
        calls.extend([send(A, stage + 1)] if stage < stages - 1 else [])

    def backward() -> None:
        calls.extend([recv(A, stage + 1)] if stage < stages - 1 else [])
        calls.extend([send(A, stage - 1, autograd=True)] if stage else [])

    warm = min(stages - stage - 1, micro)
    for _ in range(warm):
        forward()
    for _ in range(micro - warm):
        forward()
        backward()
    for _ in range(warm):
        backward()
    return calls


@pytest.mark.parametrize("micro", [4, 8, 13])
def test_every_stage_of_1f1b_gives_its_place_and_the_microbatches(micro: int) -> None:
    ranks = [
        rank(one_f_one_b(stage, 4, micro), [group(0, 1, 2, 3)], world=4, number=stage, backward_after=stage == 0)
        for stage in range(4)
    ]
    layout = infer_views(ranks).layout
    assert (layout.pp, layout.pp_schedule, layout.microbatches, layout.virtual_stages) == (4, "1f1b", micro, 1)
    assert dict(layout.stage_of_rank) == {0: 0, 1: 1, 2: 2, 3: 3}


def test_a_middle_stage_alone_knows_its_place() -> None:
    view = rank(one_f_one_b(2, 8, 8), [group(*range(8))], world=8, number=2)
    layout = infer_views([view]).layout
    assert (layout.pp, layout.microbatches) == (8, 8)
    assert dict(layout.stage_of_rank) == {2: 2}


@pytest.mark.parametrize(
    ("order", "position", "ranks", "expected"),
    [
        ("FFFFBBBB", "last", 2, ("gpipe", 4, None)),
        ("FFFFBBBB", "first", 4, (None, 4, None)),
        ("FFBFBFBB", "first", 2, ("1f1b", 4, 1)),
        ("FBFBFBFB", "last", 2, ("1f1b", 4, 0)),
        ("FBFFBB", "middle", 4, (None, None, None)),
        ("FFBFBFBB" + "FFFF", "first", 2, ("1f1b", 4, 1)),  # evaluation after the step's last backward
        ("FBFBFB" + "FF", "last", 3, ("1f1b", 3, 0)),
        ("FFFFFF" + "BF" * 6 + "B" * 6, "middle", 3, (None, None, None)),  # 2 chunks of 6: further ahead than 1F1B goes
    ],
)
def test_order_of_passes(order: str, position: str, ranks: int, expected: tuple) -> None:
    assert simple_schedule(order, position, ranks) == expected


def test_chunks_per_rank_follow_from_messages_and_passes() -> None:
    """m(2v-1) sends and m·v backward passes on an end rank: 3 chunks, 2 microbatches."""
    rounds = [send(A, 1), recv(A, 1)] * 5 + [send(A, 1, autograd=True), recv(A, 1, autograd=True)] * 2
    calls = [*rounds, send(A, 1, autograd=True), send(A, 1), send(A, 1), recv(A, 1, autograd=True)]
    assert sum(c.direction == "send" for c in calls) == 2 * (2 * 3 - 1)
    assert sum(bool(c.autograd) for c in calls) == 2 * 3
    layout = infer_views([rank(calls, [group(0, 1)], world=2)]).layout
    assert (layout.virtual_stages, layout.microbatches) == (3, 2)


def interleaved(stage: int, stages: int, micro: int, chunks: int) -> list:
    """Messages of one rank of interleaved 1F1B (Megatron-LM, `forward_backward_pipelining_with_interleaving`)."""
    last = stages * chunks - 1
    following, previous = (stage + 1) % stages, (stage - 1) % stages
    calls = []

    def at(number: int, *, backward: bool) -> int:
        chunk = number % (stages * chunks) // stages
        return stage + stages * (chunks - 1 - chunk if backward else chunk)

    def forward(number: int) -> None:
        part = at(number, backward=False)
        calls.extend([recv(A, previous)] if part else [])
        calls.extend([send(A, following)] if part < last else [])

    def backward(number: int) -> None:
        part = at(number, backward=True)
        calls.extend([recv(A, following)] if part < last else [])
        calls.extend([send(A, previous, autograd=True)] if part else [])

    total = micro * chunks
    warm = min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages)
    for number in range(warm):
        forward(number)
    for number in range(total - warm):
        forward(warm + number)
        backward(number)
    for number in range(total - warm, total):
        backward(number)
    return calls


@pytest.mark.parametrize(
    ("stage", "expected"), [(1, (3, None, None, None)), (2, (3, "interleaved_1f1b", 6, 2))], ids=["middle", "last"]
)
def test_chunks_of_a_rank_are_not_taken_for_microbatches(stage: int, expected: tuple) -> None:
    """The rank in the middle of three sends and receives as if it had one chunk and twice the microbatches."""
    view = rank(interleaved(stage, 3, 6, 2), [group(0, 1, 2)], world=3, number=stage)
    layout = infer_views([view]).layout
    assert (layout.pp, layout.pp_schedule, layout.microbatches, layout.virtual_stages) == expected


def test_a_last_stage_alone_does_not_count_the_microbatches_of_several_steps_as_one() -> None:
    view = rank(one_f_one_b(3, 4, 5) * 3, [group(0, 1, 2, 3)], world=4, number=3)
    layout = infer_views([replace(view, steps=0)]).layout
    assert (layout.pp, layout.pp_schedule, layout.microbatches) == (4, "1f1b", None)
    assert infer_views([view]).layout.microbatches == 15


def test_middle_stages_cannot_tell_gpipe_from_chunks_that_all_run_forward_first() -> None:
    """Four microbatches in two chunks over four stages, all ahead of the first backward pass, or eight in one."""
    calls = [recv(A, 0), send(A, 2)] * 8 + [recv(A, 2), send(A, 0, autograd=True)] * 8
    layout = infer_views([rank(calls, [group(0, 1, 2, 3)], world=4, number=1)]).layout
    assert (layout.pp, layout.pp_schedule, layout.microbatches) == (4, None, None)
    assert "give the trace of the first stage" in " ".join(layout.dimensions["pp"].evidence)


@pytest.mark.parametrize(
    ("actions", "ranks", "schedule", "micro", "virtual"),
    [
        (("0F0", "4F0", "4B0", "0F1", "0B0", "4F1", "4B1", "0B1"), 4, "interleaved_1f1b", 2, 2),
        (("0F0", "0F1", "4F0", "4F1", "4B0", "4B1", "0B0", "0B1"), 4, None, 2, 2),
        (("0F0", "4F0", "4I0", "0I0", "4W0", "0W0"), 4, "interleaved_zero_bubble", 1, 2),
        (("0F0", "7F0", "7I0", "7W0", "0I0", "0W0"), 4, "zbv", 1, 2),
        (("0F0", "7F0", "(0F1;7B0)OVERLAP_F_B", "0B0"), 4, "dualpipe", 2, 2),
    ],
)
def test_marked_actions_name_the_schedule(
    actions: tuple[str, ...], ranks: int, schedule: str | None, micro: int, virtual: int
) -> None:
    found = annotated(actions, ranks)
    assert found is not None
    assert (found.schedule, found.microbatches, found.virtual_stages) == (schedule, micro, virtual)


def test_messages_over_the_world_group_leave_the_length_to_the_other_degrees() -> None:
    """DeepSpeed sends over the world group: neighbours two apart and two data-parallel ranks make two stages."""
    calls = [send(A, 2), recv(A, 2), send(A, 2, autograd=True), recv(A, 2, autograd=True)]
    view = rank(
        [*calls, reduce(3_000_000, "O", group=1)], [group(0, 1, 2, 3), group(0, 1)], world=4, backward_after=True
    )
    layout = infer_views([view]).layout
    assert (layout.pp, layout.dp, layout.microbatches) == (2, 2, 2)


def test_messages_to_everybody_and_oneself_can_be_read() -> None:
    calls = [call for peer in (0, 1, 2, 3) for call in (send(A, peer), recv(A, peer))]
    layout = infer_views([rank(calls, [group(0, 1, 2, 3)], world=4, number=number) for number in range(4)]).layout
    assert layout.tp == 1

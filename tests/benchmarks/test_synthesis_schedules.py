"""Pipeline schedules: who sends how often, and in which order work is done.

Sends per rank with p stages, m microbatches and v chunks were measured with torch 2.13's own schedules: m at the ends
and 2m between them (GPipe, 1F1B), m(2v-1) and 2mv (interleaved), 2m and 4m on a V of two chunks.
"""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.synthesis.schedules import ORDERS, Act, Step, single_stage, stages_of, with_transfers

P, M = 4, 8


def sends(acts: list[Act]) -> int:
    return sum(act.kind.startswith("SEND") for act in acts)


def flat(steps: list[Step]) -> list[Act]:
    return [act for step in steps for act in step]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1"])
def test_sends_of_single_stage_schedules(schedule: str) -> None:
    assert [sends(flat(single_stage(schedule, r, P, M))) for r in range(P)] == [M, 2 * M, 2 * M, M]


@pytest.mark.parametrize("schedule", ["interleaved_1f1b", "interleaved_zb", "looped_bfs"])
def test_sends_of_looped_schedules(schedule: str) -> None:
    v = 2
    expected = [M * (2 * v - 1), 2 * M * v, 2 * M * v, M * (2 * v - 1)]
    assert [sends(acts) for acts in with_transfers(schedule, P, v, M)] == expected


@pytest.mark.parametrize("schedule", ["zbv", "dualpipev"])
def test_sends_of_v_shaped_schedules(schedule: str) -> None:
    assert [sends(acts) for acts in with_transfers(schedule, P, 2, M)] == [2 * M, 4 * M, 4 * M, 2 * M]


@pytest.mark.parametrize("schedule", sorted(ORDERS))
def test_every_microbatch_passes_every_stage_once_each_way(schedule: str) -> None:
    v = 2 if schedule in ("interleaved_1f1b", "interleaved_zb", "looped_bfs", "zbv", "dualpipev") else 1
    for rank in range(P):
        acts = [part for act in ORDERS[schedule](rank, P, v, M) for part in (act.parts or (act,))]
        own = stages_of(schedule, rank, P, v)
        expected = {(stage, i) for stage in own for i in range(M)}
        forward = Counter((a.stage, a.microbatch) for a in acts if a.kind == "F")
        inputs = Counter((a.stage, a.microbatch) for a in acts if a.kind in "BI")
        weights = Counter((a.stage, a.microbatch) for a in acts if a.kind in "BW")
        assert forward == inputs == weights == Counter(expected)


def test_gpipe_finishes_forward_first_and_1f1b_alternates() -> None:
    assert [a.kind for a in ORDERS["gpipe"](1, P, 1, 4)] == list("FFFFBBBB")
    assert [a.kind for a in ORDERS["1f1b"](1, P, 1, 4)] == list("FFFBFBBB")
    assert [a.kind for a in ORDERS["1f1b"](3, P, 1, 4)] == list("FBFBFBFB")


def test_the_steady_state_of_1f1b_sends_and_receives_together() -> None:
    fused = [step for step in single_stage("1f1b", 1, P, M) if len(step) == 2]
    assert {tuple(act.kind for act in step) for step in fused} == {("SEND_F", "RECV_B"), ("SEND_B", "RECV_F")}
    assert all(len(step) == 1 for step in single_stage("gpipe", 1, P, M))


def test_warm_up_of_the_v_schedules() -> None:
    """ZBV fills 2(p-r)-1 forwards of the first chunk, DualPipeV 2(p-r-1) and then one of each chunk in turn."""
    for rank in range(P):
        for schedule, ahead in (("zbv", 2 * (P - rank) - 1), ("dualpipev", 2 * (P - rank - 1) + 1)):
            acts = ORDERS[schedule](rank, P, 2, M)
            first_of_second = next(i for i, a in enumerate(acts) if a.stage == 2 * P - 1 - rank)
            assert first_of_second == ahead


def test_overlapped_actions_are_named_as_torch_names_them() -> None:
    names = {str(a) for a in ORDERS["dualpipev"](0, 2, 2, 4) if a.parts}
    assert "(0F3;3B1)OVERLAP_F_B" in names


def test_both_sides_of_a_pair_see_the_same_order() -> None:
    plan = with_transfers("interleaved_1f1b", P, 2, M)

    def between(mine: int, other: int, forward: str, back: str) -> list[tuple[str, int]]:
        kinds = {forward: "F", back: "B"}
        own = plan[mine]
        return [(kinds[a.kind], a.microbatch) for a in own if a.kind in kinds and _peer(a, mine) == other]

    assert between(1, 2, "SEND_F", "RECV_B") == between(2, 1, "RECV_F", "SEND_B")


def _peer(act: Act, rank: int) -> int:
    step = 1 if act.kind in ("SEND_F", "RECV_B") else -1
    return (rank + step) % P


def test_dualpipe_needs_two_microbatches_a_stage() -> None:
    with pytest.raises(ValueError, match="at least 8 microbatches"):
        ORDERS["dualpipev"](0, 4, 2, 6)

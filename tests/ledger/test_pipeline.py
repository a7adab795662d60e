import json
from fractions import Fraction

import pytest

from ledger.errors import LedgerError
from ledger.pipeline import PassCosts, bubble, chunks_of_rank, microbatches_in_flight, sends_per_rank


def both(schedule, p, m, v=1):
    idle = bubble(schedule, p, m, v)
    return round(idle.share_of_total, 3), round(idle.relative_to_ideal, 3)


@pytest.mark.parametrize(
    ("p", "m", "relative"), [(4, 4, 0.75), (8, 8, 0.875), (8, 32, 0.219), (8, 64, 0.109), (16, 128, 0.117)]
)
def test_bubble_relative_to_the_work_itself(p, m, relative):
    # the second document's table prints 75, 88, 22, 11 and 12 per cent
    assert both("gpipe", p, m)[1] == relative
    assert both("1f1b", p, m) == both("gpipe", p, m)


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v", "share"),
    [
        ("1f1b", 16, 16, 1, 0.484),
        ("1f1b", 16, 32, 1, 0.319),
        ("1f1b", 8, 32, 1, 0.179),
        ("interleaved_1f1b", 4, 16, 2, 0.086),
        ("interleaved_1f1b", 16, 16, 8, 0.105),
        ("1f1b", 1, 16, 1, 0.0),
    ],
)
def test_bubble_as_a_share_of_the_step(schedule, p, m, v, share):
    assert both(schedule, p, m, v)[0] == share


def test_the_self_test_question_on_both_conventions():
    assert both("1f1b", 8, 16) == (0.304, 0.438)  # 30 per cent of the step, 44 of the ideal
    assert both("interleaved_1f1b", 8, 16, 4)[1] == 0.109  # 7/64


def test_ten_per_cent_needs_nine_times_as_many_microbatches():
    assert bubble("1f1b", 16, 135).share_of_total == pytest.approx(0.1)
    assert bubble("1f1b", 16, 134).share_of_total > 0.1


def test_gradient_accumulation_of_16_and_32_at_four_stages():
    assert both("1f1b", 4, 16)[1] == 0.188
    assert both("1f1b", 4, 32)[1] == 0.094


def test_zero_bubble_schedules():
    one_f_one_b = bubble("1f1b", 8, 32).relative_to_ideal
    assert bubble("zero_bubble", 8, 32).relative_to_ideal == pytest.approx(one_f_one_b / 3)
    assert bubble("zbv", 8, 32, 2).relative_to_ideal == 0
    # (p/2-1)(F&B + B - 3W) = 3 x 2 units against 32 x 3
    assert bubble("dualpipe", 8, 32).relative_to_ideal == pytest.approx(6 / 96)
    # the cut-in-half form has 2p stages: (p-1) x 2 units of half chunks against 64 x 3
    assert bubble("dualpipev", 4, 32, 2).relative_to_ideal == pytest.approx(6 / 192)


def test_zero_bubble_depends_on_the_cost_of_the_passes():
    costs = PassCosts(Fraction(1), Fraction(1), Fraction(1, 2))
    # (p-1)(F+B-W) / m(F+B+W)
    assert bubble("zero_bubble", 5, 10, costs=costs).relative_to_ideal == pytest.approx(4 * 1.5 / (10 * 2.5))
    with pytest.raises(LedgerError, match="zbv"):
        bubble("zbv", 5, 10, 2, costs)


def test_every_bubble_names_its_source():
    for schedule, v in (("gpipe", 1), ("interleaved_1f1b", 2), ("zero_bubble", 1), ("zbv", 2), ("dualpipe", 1)):
        idle = bubble(schedule, 4, 8, v)
        assert idle.source
        assert idle.formula


@pytest.mark.parametrize(
    ("schedule", "v", "ends", "middle"),
    [
        ("gpipe", 1, 8, 16),
        ("1f1b", 1, 8, 16),
        ("interleaved_1f1b", 2, 24, 32),
        ("interleaved_1f1b", 3, 40, 48),
        ("looped_bfs", 2, 24, 32),
        ("zero_bubble", 2, 24, 32),
        ("zbv", 2, 16, 32),
        ("dualpipev", 2, 16, 32),
        ("dualpipe", 1, 8, 16),
    ],
)
def test_sends_by_schedule_and_stage(schedule, v, ends, middle):
    sends = [sends_per_rank(schedule, 4, v, 8, stage).total for stage in range(4)]
    assert sends == [ends, middle, middle, ends]


def test_forward_and_backward_sends_balance_over_the_pipeline():
    for schedule, v in (("1f1b", 1), ("interleaved_1f1b", 2), ("zbv", 2), ("dualpipe", 1)):
        sends = [sends_per_rank(schedule, 4, v, 8, stage) for stage in range(4)]
        assert sum(each.forward for each in sends) == sum(each.backward for each in sends)


def test_a_pipeline_of_one_sends_nothing():
    assert sends_per_rank("interleaved_1f1b", 1, 2, 8, 0).total == 0


@pytest.mark.parametrize(
    ("case", "schedule", "v"),
    [
        ("pp4_gpipe", "gpipe", 1),
        ("pp4_1f1b", "1f1b", 1),
        ("pp4_interleaved_v2", "interleaved_1f1b", 2),
        ("pp4_izb_v2", "zero_bubble", 2),
        ("pp4_zbv", "zbv", 2),
    ],
)
def test_sends_match_captured_pipelines(shared, case, schedule, v):
    truth = json.loads((shared / "data" / "captures" / case / "truth.json").read_text())
    for stage in range(4):
        calls = [row["calls_per_step"] for row in truth["observed_per_step"][str(stage)] if row["collective"] == "send"]
        assert sum(calls) == sends_per_rank(schedule, 4, v, truth["microbatches"], stage).total


def test_chunks_are_placed_in_a_loop_or_a_v():
    assert [chunks_of_rank("interleaved_1f1b", 2, 2, rank) for rank in (0, 1)] == [(0, 2), (1, 3)]
    assert [chunks_of_rank("zbv", 2, 2, rank) for rank in (0, 1)] == [(0, 3), (1, 2)]


def test_microbatches_in_flight():
    assert [microbatches_in_flight("1f1b", 4, 8, 1, stage) for stage in range(4)] == [4, 3, 2, 1]
    assert microbatches_in_flight("gpipe", 4, 8, 1, 0) == 8
    # Megatron's interleaved warm-up: 2(p-1) + (v-1)p + 1 chunks of half the rank
    assert microbatches_in_flight("interleaved_1f1b", 4, 8, 2, 0) == Fraction(11, 2)
    assert microbatches_in_flight("zbv", 4, 8, 2, 3) == 4
    assert microbatches_in_flight("dualpipe", 4, 8, 1, 0) == 5
    assert microbatches_in_flight("gpipe", 1, 8, 1, 0) == 1


@pytest.mark.parametrize("arguments", [("fifo", 4, 1, 8, 0), ("1f1b", 4, 1, 8, 4), ("1f1b", 0, 1, 8, 0)])
def test_impossible_pipelines_are_refused(arguments):
    with pytest.raises(LedgerError):
        sends_per_rank(*arguments)

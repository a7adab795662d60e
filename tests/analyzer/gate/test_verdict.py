"""Rules of the gate, on numbers made by hand."""

from __future__ import annotations

import msgspec
import pytest

from analyzer.commands.gating import ALLOWED
from analyzer.gate.budget import Budget, parse_rule
from analyzer.gate.comparable import KINDS, differences
from analyzer.gate.policy import Policy
from analyzer.gate.record import LedgerBytes, ModelFacts
from analyzer.gate.rows import Row
from analyzer.gate.verdict import Comparison, compare
from analyzer.reporters.comparison import comparison_sections
from tests.analyzer.gate.runs import run, series

FIVE = [100.0, 101, 102, 103, 104]


def row(comparison: Comparison, metric: str) -> Row:
    return next(row for row in comparison.rows if row.metric == metric)


def test_five_per_cent_more_in_five_steps_is_a_regression() -> None:
    found = compare(run(FIVE), run([t * 1.05 for t in FIVE]))
    assert (found.exit_code, found.verdict) == (1, "regression")
    assert row(found, "step_us").change == pytest.approx(0.05)
    assert row(found, "step_us").cost_us == pytest.approx(5.0)


def test_two_per_cent_more_is_noise() -> None:
    assert compare(run(FIVE), run([t * 1.02 for t in FIVE])).exit_code == 0


def test_one_lucky_step_of_the_baseline_is_no_evidence() -> None:
    lucky = [90.0, 101, 102, 103, 104]
    # best: 98 over 90 is +8.9 %, but the mean of the two best is 98.5 over 95.5: +3.1 %, and with 97 it is below 3 %
    assert compare(run(lucky), run([98.0, 99, 102, 103, 104])).exit_code == 1
    assert compare(run(lucky), run([97.0, 99, 102, 103, 104])).exit_code == 0


def test_late_steps_hide_behind_the_best_but_not_behind_the_tail() -> None:
    before = [100.0] * 12
    after = [100.0] * 9 + [150.0] * 3
    found = compare(run(before), run(after))
    assert row(found, "step_us").status == "pass"
    assert (row(found, "step_us.p90").status, row(found, "step_us.p90").level) == ("regressed", "warn")
    assert found.exit_code == 0


def test_twenty_steps_need_more_than_a_shifted_median() -> None:
    # Both runs spread over ±40 %; the median of the second is 4 % higher by chance.
    before = [100.0 + d for d in range(-40, 40, 4)]
    after = [value + 4 for value in before]
    found = row(compare(run(before), run(after)), "step_us")
    assert found.change is not None
    assert found.change > 0.03
    assert found.p_value is not None
    assert found.p_value > 0.1
    assert found.status == "pass"
    sure = row(compare(run([100.0 + d / 10 for d in range(20)]), run([105.0 + d / 10 for d in range(20)])), "step_us")
    assert sure.status == "regressed"
    assert sure.p_value is not None
    assert sure.p_value < 1e-6


def test_change_below_the_floor_does_not_count() -> None:
    # exposed.tp doubles from 0.2 to 0.4 of a step of 100: 0.2 % of the step, under the floor of 0.5 %
    before = run(FIVE, noisy={"exposed.tp": series([0.2] * 5)})
    after = run(FIVE, noisy={"exposed.tp": series([0.4] * 5)})
    assert row(compare(before, after), "exposed.tp").status == "pass"
    assert row(compare(before, after, Policy(floor=0.001)), "exposed.tp").status == "regressed"


def test_overlap_is_worth_the_time_it_brings_into_the_open() -> None:
    # 50 µs of communication, 90 % hidden, then 80 %: 5 µs more are exposed
    before = run(FIVE, noisy={"overlap.dp": series([0.9] * 5, "share", lower=False, worth=50.0)})
    after = run(FIVE, noisy={"overlap.dp": series([0.8] * 5, "share", lower=False, worth=50.0)})
    found = row(compare(before, after), "overlap.dp")
    assert (found.status, found.level, found.cost_us) == ("regressed", "warn", 5.0)


@pytest.mark.parametrize(("before", "after"), [([100.0, 101], FIVE), (FIVE, [100.0]), ([100.0], [100.0])])
def test_fewer_than_three_steps_are_inconclusive(before: list[float], after: list[float]) -> None:
    found = compare(run(before), run(after))
    assert (found.exit_code, found.verdict) == (3, "inconclusive")
    assert "too few steps" in found.reason


def test_exact_change_decides_without_any_steps() -> None:
    found = compare(run([100.0]), run([100.0], exact={"calls.tp.all_reduce": 13}))
    assert (found.exit_code, found.reason.split(" and ")[0]) == (1, "calls.tp.all_reduce: 14 → 13")


def test_fewer_missing_collectives_are_no_regression() -> None:
    found = compare(run(FIVE, exact={"missing_collectives": 2}), run(FIVE))
    assert (found.exit_code, row(found, "missing_collectives").status) == (0, "improved")
    assert compare(run(FIVE), run(FIVE, exact={"missing_collectives": 2})).exit_code == 1


def test_trait_that_is_not_determined_any_more_is_no_failure() -> None:
    found = compare(run(FIVE), run(FIVE, exact={"layout.zero_stage": None}))
    assert (found.exit_code, row(found, "layout.zero_stage").status) == (0, "inconclusive")
    assert compare(run(FIVE), run(FIVE, exact={"layout": None})).exit_code == 3


def test_levels_turn_failures_into_warnings_or_nothing() -> None:
    slower = run([t * 1.1 for t in FIVE])
    assert compare(run(FIVE), slower, Policy(Budget(levels={"step_us": "warn"}))).exit_code == 0
    off = compare(run(FIVE), slower, Policy(Budget(levels={"*": "off"})))
    assert (off.exit_code, off.rows) == (0, [])
    assert compare(run(FIVE), slower, Policy(Budget(tolerance={"step*": 0.2}))).exit_code == 0


@pytest.mark.parametrize(
    ("fact", "value", "kind", "said"),
    [
        ("world_size", 8, "world", "8 ranks"),
        ("ranks", [0, 1], "ranks", "ranks 0, 1"),
        ("layout", {"tp": 2, "cp": 1, "pp": 1, "dp": 2, "ep": 1}, "layout", "tp2-cp1-pp1-dp2-ep1"),
        ("gpus", ["NVIDIA B200"], "gpu", "NVIDIA B200"),
        ("libraries", {"nccl_version": "2.28.3"}, "libraries", "nccl_version 2.28.3"),
        ("graphs", True, "graphs", "kernels from CUDA graphs"),
        ("profiler", {"with_stack": True}, "profiler", "with_stack on"),
        ("model", ModelFacts(name=None, hidden=128, elements={}, total={}), "model", "hidden 128"),
        ("model", ModelFacts(name=None, hidden=None, elements={"tp.x": [9]}, total={"tp": 9.0}), "model", "9 elements"),
    ],
)
def test_incomparable_runs_are_refused_with_the_reason(fact: str, value: object, kind: str, said: str) -> None:
    found = compare(run(FIVE), run(FIVE, **{fact: value}))
    assert (found.exit_code, [d.kind for d in found.differences], found.rows) == (3, [kind], [])
    assert said in found.reason
    allowed = compare(run(FIVE), run(FIVE, **{fact: value}), Policy(allow=(kind,)))
    assert allowed.exit_code == 0
    assert allowed.differences[0].allowed


def test_what_one_run_does_not_say_is_no_difference() -> None:
    silent = {"world_size": None, "gpus": [], "libraries": {}, "graphs": None, "profiler": {}, "ranks": []}
    assert differences(run(FIVE), run(FIVE, **silent)) == []


def test_the_command_offers_what_the_guard_knows() -> None:
    assert ALLOWED == KINDS


def test_layouts_are_compared_per_token() -> None:
    other = {"layout": {"tp": 2, "cp": 1, "pp": 1, "dp": 2, "ep": 1}, "tokens_per_step": 160}
    found = compare(run(FIVE), run([t * 1.9 for t in FIVE], **other), Policy(allow=("layout",)))
    # 1.9 times the time for twice the tokens
    assert (found.per_token, found.verdict) == (True, "pass")
    assert row(found, "step_us per token").change == pytest.approx(-0.05)
    slower = compare(run(FIVE), run([t * 2.2 for t in FIVE], **other), Policy(allow=("layout",)))
    assert (slower.exit_code, slower.attribution) == (1, None)
    unknown = compare(run(FIVE), run(FIVE, **other | {"tokens_per_step": None}), Policy(allow=("layout",)))
    assert unknown.exit_code == 3
    assert "--tokens" in unknown.reason


@pytest.mark.parametrize(("how", "code"), [("fail", 3), ("warn", 0), ("pass", 0)])
def test_inconclusive_may_be_allowed_but_a_regression_may_not(how: str, code: int) -> None:
    assert compare(run(FIVE), run([100.0]), Policy(inconclusive=how)).exit_code == code
    assert compare(run(FIVE), run([t * 2 for t in FIVE]), Policy(inconclusive=how)).exit_code == 1


def test_parts_sum_to_the_step_exactly() -> None:
    before = run(FIVE, anatomy={"compute": 70_001, "exposed.tp": 20_003, "other": 9_999})
    after = run(FIVE, anatomy={"compute": 69_000, "exposed.tp": 30_003, "wait": 7, "other": 1})
    found = compare(before, after).attribution
    assert found is not None
    assert [(p.name, p.difference_ns) for p in found.parts] == [
        ("compute", -1_001),
        ("exposed.tp", 10_000),
        ("wait", 7),
        ("other", -9_998),
    ]
    assert found.step.difference_ns == sum(p.difference_ns for p in found.parts) == -992


def test_parts_of_another_version_still_sum_to_the_step() -> None:
    found = compare(run(FIVE, anatomy={"compute": 70, "of old": 30}), run(FIVE, anatomy={"compute": 80})).attribution
    assert found is not None
    assert [(p.name, p.difference_ns) for p in found.parts] == [("compute", 10), ("of old", -30)]
    assert found.step.difference_ns == -20


def test_runs_that_record_neither_calls_nor_times_are_not_passed() -> None:
    silent = msgspec.structs.replace(
        run(FIVE), exact={"layout": None, "world_size": 4}, noisy={}, steps=[], anatomy_ns={}
    )
    found = compare(silent, silent)
    assert (found.verdict, found.exit_code) == ("inconclusive", 3)
    assert "nothing to compare" in found.reason
    assert [row.metric for row in found.rows] == ["world_size"]
    lines = [part for section in comparison_sections(found) if section.title == "Metrics" for part in section.parts]
    assert lines == [], "no table without rows"


LEDGER = [LedgerBytes(dim="tp", primitive="all_reduce", link="intra_node", predicted=450_000)]


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        ("step_us <= 101 us", "pass"),
        ("step_us <= 99 us", "over"),
        ("step_us < 0.1 ms", "over"),
        ("step_us <= 1.03 x baseline", "pass"),
        ("exposed.tp <= 0.5 x step", "pass"),
        ("exposed.tp <= 0.3 x step", "over"),
        # 450 kB at 10 GB/s are 45 µs; 40 µs are exposed
        ("exposed.tp <= 1.2 x ledger", "pass"),
        ("exposed.tp <= 0.8 x ledger", "over"),
        ("bytes.tp.all_reduce <= 1.0 x ledger", "over"),
        ("exposed.dp = 0", "pass"),
        ("missing_collectives = 0", "pass"),
        ("layout = tp4", "pass"),
        ("layout = tp4-dp2", "over"),
        ("layout != tp8", "pass"),
        ("dtype.tp.all_reduce = float32", "pass"),
        ("busbw.tp >= 100", "inconclusive"),
        ("ledger_residual_bytes = 0", "inconclusive"),
        ("step_us.p90 <= 1 s", "inconclusive"),
    ],
)
def test_limits(rule: str, status: str) -> None:
    now = run(FIVE, noisy={"exposed.tp": series([40.0] * 5)}, ledger=LEDGER)
    policy = Policy(Budget(rules=(parse_rule(rule),), links={"intra_node": 10.0}))
    found = compare(now, now, policy)
    assert row(found, str(policy.budget.rules[0])).status == status
    assert found.exit_code == {"pass": 0, "over": 1, "inconclusive": 3}[status]


def test_budget_alone_needs_no_baseline() -> None:
    policy = Policy(Budget(rules=(parse_rule("exposed.tp <= 1.2 x ledger"),)))
    found = compare(None, run(FIVE, noisy={"exposed.tp": series([40.0] * 5)}, ledger=LEDGER), policy)
    assert (found.exit_code, found.baseline_fingerprint) == (3, None)
    assert "intra_node" in found.reason
    assert compare(None, run(FIVE), Policy(Budget(rules=(parse_rule("step_us <= 1.0 x baseline"),)))).exit_code == 3

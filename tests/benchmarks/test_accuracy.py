"""Answers are judged field by field; what is counted adds up; the product beats the baselines on what it is given."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType

import pytest

from benchmarks import accuracy
from benchmarks.scoring import report, tables
from benchmarks.scoring.answers import NULL, RIGHT, WRONG, Answer, answer_of, judge, schedule_name, truth_of
from benchmarks.scoring.baselines import BASELINES, everything_is_dp, group_size, kernel_names
from benchmarks.scoring.cases import Case
from benchmarks.scoring.run import Result, files, results
from benchmarks.scoring.store import append, load
from benchmarks.synthesis.generate import generate
from benchmarks.synthesis.matrix import Entry, entries
from benchmarks.synthesis.spec import Spec
from heuristics.label import label
from heuristics.labelled import LabelledRank
from heuristics.verdict import DimensionVerdict, Layout
from parsers import read


def result(truth: dict[str, set[object]], given: dict[str, object], confidence: float = 0.95) -> Result:
    allowed = {field: frozenset(values) for field, values in truth.items()}
    sure = dict.fromkeys(("tp", "cp", "pp", "dp", "ep"), confidence)
    answer = Answer(given, confidence, sure)
    guesses = dict.fromkeys(BASELINES, Answer({"tp": 1}, 0.0, {}))
    return Result("case", "generated", "layouts", "a", "all", allowed, answer, guesses)


def ranks(folder: Path) -> list[LabelledRank]:
    return [label(trace) for file in files(folder) for trace in read(file)]


def test_a_field_is_right_null_or_wrong() -> None:
    truth = {"tp": frozenset({2}), "dp": frozenset({4}), "zero": frozenset({2, 3}), "sp": frozenset({True})}
    answer = Answer({"tp": 2, "dp": 8, "zero": 3, "sp": None}, 0.9, {})
    assert judge(truth, answer) == {"tp": RIGHT, "dp": WRONG, "zero": RIGHT, "sp": NULL}


def test_truths_of_a_captured_job(tmp_path: Path) -> None:
    told = {"tp": 2, "pp": 2, "dp": 2, "zero_stage": 3, "zero_by_traffic": 2, "sp": True, "schedule": "Schedule1F1B"}
    (tmp_path / "truth.json").write_text(json.dumps({**told, "microbatches": 4}))
    truth = truth_of(tmp_path)
    assert truth["zero"] == {2, 3}
    expected = {"cp": {1}, "schedule": {"1f1b"}, "microbatches": {4}, "vp": {1}}
    assert {field: truth[field] for field in expected} == expected


def test_without_a_pipeline_microbatches_may_stay_open(tmp_path: Path) -> None:
    (tmp_path / "truth.json").write_text(json.dumps({"tp": 1, "dp": 8, "zero_stage": 0, "microbatches": 2}))
    truth = truth_of(tmp_path)
    assert truth["microbatches"] == {2, None, 1}
    assert truth["schedule"] == {None}
    assert truth["sp"] == {False, None}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ScheduleInterleaved1F1B", "interleaved_1f1b"),
        ("interleaved 1F1B", "interleaved_1f1b"),
        ("ScheduleInterleavedZeroBubble", "zero_bubble"),
        ("ZeroBubbleH1", "zero_bubble"),
        ("ScheduleZBVZeroBubble", "zbv"),
        ("DualPipeV", "dualpipe"),
        ("LoopedBFS", "gpipe"),
        ("1F1B (DeepSpeed TrainSchedule)", "1f1b"),
        (None, None),
    ],
)
def test_schedules_have_one_spelling(text: str | None, name: str | None) -> None:
    assert schedule_name(text) == name


def test_a_promise_is_broken_by_a_wrong_degree_only() -> None:
    wrong_degree = result({"tp": {2}, "zero": {1}}, {"tp": 4, "zero": 1})
    wrong_stage = result({"tp": {2}, "zero": {1}}, {"tp": 2, "zero": 3})
    unsure = result({"tp": {2}}, {"tp": 4}, confidence=0.8)
    assert [r.broken_promise for r in (wrong_degree, wrong_stage, unsure)] == [True, False, False]
    assert [r.exact for r in (wrong_degree, wrong_stage, unsure)] == [False, True, False]


def test_layouts_are_read_field_by_field() -> None:
    layout = Layout(
        tp=2,
        zero_stage=1,
        pp_schedule="interleaved_1f1b",
        virtual_stages=2,
        confidence=0.7,
        dimensions=MappingProxyType({"tp": DimensionVerdict(2, 0.9)}),
    )
    answer = answer_of(layout)
    assert (answer.fields["tp"], answer.fields["cp"], answer.fields["zero"], answer.fields["vp"]) == (2, None, 1, 2)
    assert answer.per_degree == {"tp": 0.9}


def test_baselines_guess_what_a_reader_would(tmp_path: Path) -> None:
    fsdp = ranks(generate(Spec.parse("torchtitan", "dp4", steps=1), tmp_path / "fsdp"))
    mixed = ranks(generate(Spec.parse("megatron", "tp2-pp2-dp2", steps=1), tmp_path / "mixed"))
    assert everything_is_dp(mixed).fields["dp"] == 8
    assert kernel_names(fsdp).fields["dp"] == 4
    assert kernel_names(fsdp).fields["zero"] == 3
    assert kernel_names(mixed).fields["pp"] is None
    assert group_size(mixed).fields["pp"] == 2
    assert group_size(fsdp).fields["tp"] == 4  # a group of four within a node: the guess is wrong


def test_confusion_and_stages_count_every_answer_once() -> None:
    some = [
        result({"tp": {2}, "zero": {3}}, {"tp": 2, "zero": 3}),
        result({"tp": {2}, "zero": {3}}, {"tp": 1, "zero": 1}),
        result({"tp": {2}, "zero": {1, 2}}, {"tp": None, "zero": 1}),
        result({"tp": {1}, "zero": {0}}, {"tp": 4, "zero": None}),
    ]
    assert tables.confusion(some).rows == [("tp", "1", 1, 0, 0, "–", 1), ("tp", "> 1", 3, 1, 1, 1, 0)]
    assert tables.stages(some).rows == [
        ("stage 0", 1, 0, 0, 0, 0, 1),
        ("stage 2", 1, 0, 0, 1, 0, 0),
        ("stage 3", 2, 0, 1, 0, 1, 0),
    ]


def test_reliability_holds_confidence_against_what_was_right() -> None:
    some = [
        result({"tp": {2}}, {"tp": 2}, 0.97),
        result({"tp": {2}}, {"tp": 2}, 0.97),
        result({"tp": {2}}, {"tp": 4}, 0.6),
        result({"tp": {2}}, {"tp": None}, 0.6),
    ]
    assert tables.reliability(some).rows == [
        ("0.50 – 0.70", 1, "0 %", 1, "0 %"),
        ("0.95 – 1.00", 2, "100 %", 2, "100 %"),
    ]


def test_baselines_stand_beside_the_product() -> None:
    some = [result({"tp": {2}, "dp": {4}}, {"tp": 2, "dp": 4}), result({"tp": {1}, "dp": {1}}, {"tp": 1, "dp": None})]
    table = tables.by_hand(some)
    assert table.head == ("exact layout · degrees wrong", "generated")
    assert table.rows[0] == ("commlens", "50.0 % · 0 %")
    assert table.rows[-1] == ("everything is DP", "0 % · 25.0 %")


def test_a_share_is_full_only_when_nothing_is_missing() -> None:
    assert tables.percent(9999, 10_000) == "99.9 %"
    assert tables.percent(10_000, 10_000) == "100 %"
    assert tables.percent(0, 0) == "–"


def test_generated_jobs_are_answered_from_all_ranks_and_from_single_ones() -> None:
    entry = Entry(Spec.parse("megatron", "tp2-dp2", steps=2), ("a", "c"), "layouts")
    found = list(results(Case("job", "generated", entry=entry)))
    assert [(r.given, r.ranks) for r in found] == [(g, n) for g in "ac" for n in ("all", "one", "one")]
    assert all(r.exact for r in found if r.given == "a")
    assert set(found[0].guesses) == {"kernel names only", "group size only", "everything is DP"}


def test_the_report_has_every_case_and_says_what_is_wrong() -> None:
    some = [result({"tp": {2}, "zero": {1}}, {"tp": 4, "cp": 1, "pp": 1, "dp": 1, "ep": 1, "zero": 1})]
    text = report.document(some)
    assert "| case | tp2 zero1 | **wrong**: tp 4 (0.95) |" in text
    assert "wrong at ≥ 0.9" in text


def test_the_matrix_covers_every_framework_and_dimension() -> None:
    specs = [entry.spec for entry in entries()]
    assert len(specs) > 150
    assert {spec.framework for spec in specs} == {"megatron", "torchtitan", "torch", "hf", "deepspeed", "inference"}
    assert all(
        max(getattr(spec, dim) for spec in specs) > 1 for dim in ("tp", "cp", "pp", "dp", "ep", "etp", "virtual")
    )
    assert max(spec.world for spec in specs) == 16_384
    assert {spec.zero for spec in specs} == {0, 1, 2, 3}


def test_readme_is_changed_between_its_marks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("before\n<!-- accuracy:begin -->\nold\n<!-- accuracy:end -->\nafter\n")
    monkeypatch.setattr(accuracy, "ROOT", tmp_path)
    accuracy.write([result({"tp": {2}}, {"tp": 2, "cp": 1, "pp": 1, "dp": 1, "ep": 1, "zero": 0})])
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n<!-- accuracy:begin -->\n| source |")
    assert text.endswith("docs/accuracy.md).\n<!-- accuracy:end -->\nafter\n")
    assert (tmp_path / "docs" / "accuracy.md").read_text().startswith("# How often")


def test_results_come_back_from_disk_as_they_were(tmp_path: Path) -> None:
    some = [result({"tp": {2}, "zero": {1, 2}}, {"tp": 4, "zero": None}), result({"sp": {None, False}}, {"sp": False})]
    append(tmp_path / "r.jsonl", some[:1])
    append(tmp_path / "r.jsonl", some[1:])
    assert list(load(tmp_path / "r.jsonl")) == some
    assert list(load(tmp_path / "none.jsonl")) == []


def test_a_sample_of_the_simulated_jobs_says_so() -> None:
    simulated = [Case(str(n), "generated", entry=next(entries("quick"))) for n in range(9)]
    real = [Case("real", "captured")]
    assert [case.name for case in accuracy.sampled(iter([*simulated, *real]), 4)] == ["0", "4", "8", "real"]
    assert "every 4th was measured" in report.document([], 4)
    assert "was measured" not in report.document([], 1)

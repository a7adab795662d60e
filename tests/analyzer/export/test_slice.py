"""Windows: what is inside stays whole, pairs stay pairs, and a finding leads to its moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from analyzer.export.cut import Cut, Window
from tests.analyzer.export.test_trace import exported, of, run, track
from tests.analyzer.export.test_trace import job as job


def event(**fields: Any) -> dict[str, Raw]:
    return {key: Raw(msgspec.json.encode(value)) for key, value in fields.items()}


def taken(cut: Cut, start: int, length: int, **fields: Any) -> dict[str, Any] | None:
    found = cut.take(event(**fields), start, length)
    return None if found is None else msgspec.json.decode(msgspec.json.encode(found))


@pytest.mark.parametrize(
    ("start", "length", "inside"),
    [(0, 1000, False), (0, 1001, True), (2000, 5, False), (1999, 5, True), (1000, 0, True), (999, 0, False)],
)
def test_what_overlaps_is_kept(start: int, length: int, inside: bool) -> None:
    cut = Cut(Window(1000, 2000), 0)
    assert (taken(cut, start, length, ph="X", ts=start / 1000) is not None) == inside


def test_what_is_longer_than_the_window_is_shortened_and_says_so() -> None:
    found = taken(Cut(Window(10_000, 20_000), 0), 5_000, 60_000, ph="X", ts=5.0, dur=60.0, args={"a": 1})
    assert found == {
        "ph": "X", "ts": 10.0, "dur": 10.0, "args": {"full_dur_us": 60.0, "cut_to_the_window": True, "a": 1},
    }  # fmt: skip
    assert taken(Cut(Window(10_000, 20_000), 0), 5_000, 9_000, ph="X", ts=5.0, dur=9.0) == {
        "ph": "X", "ts": 5.0, "dur": 9.0,
    }  # fmt: skip


def test_begin_and_end_become_one_slice() -> None:
    cut = Cut(Window(10_000, 20_000), 0)
    assert taken(cut, 5_000, 0, ph="B", name="outer", pid=1, tid=1, ts=5) is None
    assert taken(cut, 11_000, 0, ph="B", name="inner", pid=1, tid=1, ts=11) is None
    assert taken(cut, 12_000, 0, ph="E", pid=1, tid=1, ts=12) == {
        "ph": "X", "name": "inner", "pid": 1, "tid": 1, "ts": 11, "dur": 1.0,
    }  # fmt: skip
    assert (taken(cut, 14_000, 0, ph="E", pid=1, tid=1, ts=14) or {})["dur"] == 9.0
    assert taken(cut, 15_000, 0, ph="E", pid=1, tid=1, ts=15) is None  # it began nowhere


def test_flows_are_kept_with_both_ends_only() -> None:
    cut = Cut(Window(10_000, 20_000), 0)
    for number, start, end in ((1, 11_000, 12_000), (2, 5_000, 12_000), (3, 19_000, 25_000)):
        assert taken(cut, start, 0, ph="s", id=number, cat="ac2g") is None
        assert taken(cut, end, 0, ph="f", id=number, cat="ac2g") is None
    assert [msgspec.json.decode(bytes(e["id"])) for e in cut.pairs()] == [1, 1]


def test_a_step_is_the_step_of_all_ranks(job: Path, tmp_path: Path) -> None:
    document = exported(job, "-o", tmp_path / "out.json", "--slice", "steps=2")
    assert [len(track(document, rank, "dp")) for rank in range(3)] == [1, 1, 1]
    assert {e["name"] for e in of(document, cat="user_annotation")} == {"ProfilerStep#2"}
    assert document["commlens"]["window_us"] == [45_000.0, 65_000.0]


def test_a_time_is_counted_from_the_first_event(job: Path, tmp_path: Path) -> None:
    document = exported(job / "rank0.json", "-o", tmp_path / "out.json", "--slice", "ms=3:4")
    assert len(track(document, 0, "dp")) == 1  # the first all-reduce: 3.1 ms after the first kernel
    assert exported(job / "rank0.json", "-o", tmp_path / "two.json", "--slice", "ms=7:8")["commlens"]["ranks"] == [0]


def test_a_finding_leads_to_its_costliest_call(job: Path, tmp_path: Path) -> None:
    result = run("export", job, "-o", tmp_path / "out.json", "--slice", "rank.late", "--context", "0.5")
    assert "warning: only rank.late: the call that costs most, 2,500.0 µs on rank 0 is written, 3.545 ms" in (
        result.stderr
    )
    document = exported(job, "-o", tmp_path / "again.json", "--slice", "rank.late")
    assert [len(track(document, rank, "dp")) for rank in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("rank.latte", "no finding 'rank.latte'; did you mean rank.late?"),
        ("rank.late#9", "no finding 'rank.late#9'; 1 finding has that identifier"),
        ("steps=77", "--slice steps=77: no such step; there are 0 to 3"),
        ("steps=:", "--slice steps=:: an empty range"),
        ("ms=9:3", "--slice ms=9:3: ends before it begins"),
        ("ms=1..2", "--slice ms=1..2: not a number"),
        ("ms=90000:", "--slice ms=90000:: the trace is"),
    ],
)
def test_a_window_that_is_not_there_is_refused(job: Path, tmp_path: Path, part: str, said: str) -> None:
    result = run("export", job, "-o", tmp_path / "out.json", "--slice", part, "-q")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"analyze: {said}")
    assert not list(tmp_path.iterdir())


def test_a_finding_without_a_moment_is_refused(job: Path, tmp_path: Path) -> None:
    result = run("export", job / "rank0.json", "-o", tmp_path / "out.json", "--slice", "ranks.missing", "-q")
    assert result.exit_code == 2
    assert result.stderr.startswith("analyze: --slice ranks.missing: this finding is not about a moment in time; give ")

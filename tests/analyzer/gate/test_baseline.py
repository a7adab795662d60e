"""Baseline files: small, the same bytes for the same run, and with a history."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from analyzer.gate.baseline import accept, load, now, save, whoever, with_history
from analyzer.gate.load import load_run
from analyzer.gate.record import to_json
from analyzer.options import Options
from parsers.errors import InputError
from tests.analyzer.gate.runs import run, series

FIVE = [100.0, 101, 102, 103, 104]


def test_same_run_gives_the_same_bytes_and_an_equal_file_is_not_touched(sample_traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    one, two = (load_run([str(sample_traces / "tp4")], Options(workers=n)) for n in (1, 2))
    assert to_json(one) == to_json(two)
    assert save(one, str(path))
    before = path.stat()
    assert not save(two, str(path))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert before.st_size < 20_000
    assert str(sample_traces) not in path.read_text()
    assert load(str(path)) == one


def test_baseline_holds_one_sample_per_step(sample_traces: Path) -> None:
    record = load_run([str(sample_traces / "tp4")], Options())
    assert record.steps == [2, 3, 4]
    assert {len(series.samples) for series in record.noisy.values()} == {3}
    # the parts of the mean step, in ns, sum to the mean of its samples
    step = record.noisy["step_us"].samples
    assert sum(record.anatomy_ns.values()) == pytest.approx(1000 * sum(step) / 3, abs=1)


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "base.json"
    save(run(FIVE), str(path))
    old = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(InputError, match="No space"):
        save(run([1.0, 2, 3]), str(path))
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["base.json"]


def test_accepting_moves_the_named_metric_only(tmp_path: Path) -> None:
    old = run(FIVE, noisy={"exposed.tp": series([10.0] * 5)})
    new = run([t * 2 for t in FIVE], exact={"calls.tp.all_reduce": 13}, noisy={"exposed.tp": series([20.0] * 5)})
    moved, history = accept(old, new, ["exposed.*"], reason="why not", who="ada", when="2026-01-02T03:04:05Z")
    assert moved.noisy["exposed.tp"].samples == [20.0] * 5
    assert moved.noisy["step_us"] == old.noisy["step_us"]
    assert moved.exact == old.exact
    assert msgspec.to_builtins(history) == [
        {
            "metric": "exposed.tp",
            "before": 10.0,
            "after": 20.0,
            "reason": "why not",
            "who": "ada",
            "when": "2026-01-02T03:04:05Z",
        }
    ]
    path = tmp_path / "base.json"
    save(moved, str(path))
    assert load(str(path)).accepted == history
    # a new baseline in the place of the old one keeps the history
    assert with_history(new, str(path)).accepted == history


def test_accepting_what_is_equal_changes_nothing() -> None:
    record = run(FIVE)
    assert accept(record, record, ["step_us"], reason="r", who="w", when="t") == (record, [])


def test_vanished_and_new_metrics_can_be_accepted() -> None:
    old, new = run(FIVE, exact={"calls.dp.all_reduce": 3}), run(FIVE, exact={"calls.ep.all_to_all": 2})
    moved, history = accept(old, new, ["calls.*"], reason="r", who="w", when="t")
    assert {h.metric: (h.before, h.after) for h in history} == {
        "calls.dp.all_reduce": (3, None),
        "calls.ep.all_to_all": (None, 2),
    }
    assert moved.exact == new.exact


def test_unknown_metric_is_refused() -> None:
    with pytest.raises(InputError, match="no such metric"):
        accept(run(FIVE), run(FIVE), ["step_time"], reason="r", who="w", when="t")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a baseline"),
        ("{}", "not a baseline"),
        ('{"traceEvents": []}', "not a baseline"),
        ('{"kind": "commlens.run", "schema_version": 99}', "schema 99, newer than 1"),
        ('{"kind": "commlens.run", "schema_version": 1}', "damaged baseline"),
    ],
)
def test_wrong_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "base.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load(str(path))
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_file_that_is_no_baseline_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "precious.json"
    path.write_text(json.dumps({"mine": 1}))
    with pytest.raises(InputError, match="not a baseline"):
        with_history(run(FIVE), str(path))


def test_who_and_when_come_from_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767323045")
    monkeypatch.setenv("GITHUB_ACTOR", "ada")
    assert (now(), whoever()) == ("2026-01-02T03:04:05Z", "ada")
    monkeypatch.delenv("GITHUB_ACTOR")
    monkeypatch.setenv("GITLAB_USER_LOGIN", "grace")
    assert whoever() == "grace"

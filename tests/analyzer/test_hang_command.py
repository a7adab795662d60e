"""``analyze hang`` and ``analyze formats``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from analyzer.cli import main
from parsers.known_formats import KNOWN
from tests.parsers.flight_dumps import as_pickle, dump, entry


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Three ranks; rank 2 did not come to the second all-reduce."""
    for rank in range(3):
        calls = [entry("all_reduce", 1), entry("all_reduce", 2, state="started", frames=[("step", "train.py", 5)])]
        groups = {"0": ("default_pg", range(3)), str(rank + 5): ("", (rank,))}
        path = tmp_path / f"trace_rank_{rank}"
        path.write_bytes(as_pickle(dump(calls[: 1 if rank == 2 else 2], groups)))
    return tmp_path


def test_the_hang_report_names_the_rank_to_look_at(dumps: Path) -> None:
    result = run("hang", dumps)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "Hang  look at rank 2: waits in no call: its host thread did not come to the next one"
    assert "step (train.py:5)" in result.stdout
    assert max(map(len, lines)) <= 120


def test_the_hang_report_as_a_document(dumps: Path) -> None:
    result = run("hang", dumps, "--format", "json")
    document = json.loads(result.stdout)["hang"]
    assert [suspect["rank"] for suspect in document["suspects"]] == [2]
    assert document["divergences"][0]["issued"] == {"0": 2, "1": 2, "2": 1}
    assert document["waits_for"] == {"0": [2], "1": [2]}


def test_other_files_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 0, "tid": 7}]}'
    )
    result = run("hang", path)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "none of the files is a Flight Recorder dump" in result.stderr


def test_formats_are_listed() -> None:
    text, document = run("formats").stdout, json.loads(run("formats", "--format", "json").stdout)
    assert [row["name"] for row in document["formats"]] == [known.name for known in KNOWN]
    for known in KNOWN:
        assert known.title in " ".join(text.split())
    flight = next(row for row in document["formats"] if row["name"] == "flight_recorder")
    assert flight["proves"]["link"] is None
    assert flight["proves"]["members"] == "all"


def test_injected_faults_of_a_real_job(shared: Path) -> None:
    result = run("hang", shared / "data/formats/flight_recorder/nvrx_megatron16/gpu_error_1st")
    assert result.exit_code == 0
    assert result.stdout.startswith("Hang  look at ranks 12, 14")

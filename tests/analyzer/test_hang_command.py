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


@pytest.fixture
def tensor_parallel(tmp_path: Path) -> Path:
    """Two tensor-parallel ranks of a Llama 3 8B in their third step; rank 1 did not come to its ninth call."""
    for rank in range(2):
        seqs = range(2 * CALLS + 1, 2 * CALLS + 10)
        calls = [entry("all_reduce", seq, ("3", "TENSOR_MODEL_PARALLEL_GROUP"), record_id=seq) for seq in seqs]
        calls[-1] |= {"state": "started", "retired": False}
        groups = {"3": ("TENSOR_MODEL_PARALLEL_GROUP", (0, 1)), str(rank + 5): ("", (rank,))}
        path = tmp_path / f"trace_rank_{rank}"
        path.write_bytes(as_pickle(dump(calls[: 8 if rank == 1 else 9], groups)))
    return tmp_path


CALLS = 4 * 32
"""Two all-reduces a layer in forward and two in backward (Shoeybi et al. 2019, section 3), 32 layers."""


def test_the_ledger_says_in_which_step_the_job_hangs(tensor_parallel: Path) -> None:
    options = ("--model", "llama3-8b", "--layout", "tp2-dp1", "--no-sequence-parallel")
    document = json.loads(run("hang", tensor_parallel, *options, "--format", "json").stdout)["hang"]
    (divergence,) = document["divergences"]
    assert (divergence["seq"], divergence["calls_per_step"]) == (2 * CALLS + 9, CALLS)
    assert (divergence["step"], divergence["call_in_step"]) == (2, 8)
    text = " ".join(run("hang", tensor_parallel, *options).stdout.split())
    assert "128 collectives a step are expected: #265 is call 8 of step 2, counted from the group's first call" in text


def test_without_a_model_no_step_is_named(tensor_parallel: Path) -> None:
    (divergence,) = json.loads(run("hang", tensor_parallel, "--format", "json").stdout)["hang"]["divergences"]
    assert (divergence["calls_per_step"], divergence["step"]) == (None, None)
    result = run("hang", tensor_parallel, "--model", "llama3-8b")
    assert result.exit_code == 2
    assert "--model and --layout go together" in result.stderr


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

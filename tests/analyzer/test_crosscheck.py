"""Beside HolisticTraceAnalysis: its figures, step by step, and what is said where it is missing."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from analyzer.cli import main
from analyzer.crosscheck.figures import CAUSES, figures
from analyzer.crosscheck.theirs import VARIABLE
from heuristics.label import label
from parsers import read
from tests.analyzer.kineto_files import write_job

SETS = {
    "dlrm_8rank_v100": [f"rank{r}.json.gz" for r in range(8)],
    "trace_filter_2rank": ["sampled_rank-0.json.gz", "sampled_rank-1.json.gz"],
    "df_index_resolver": ["df_index_resolver.json.gz"],
    "negative_queue_length": ["rank0.json.gz"],
    "nccl_parser_config": ["nccl_data.json.gz"],
    "trace_diff_test": ["test.json.gz"],
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("job"))


@pytest.mark.parametrize("include_last", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_the_last_step_is_what_the_other_tool_printed(shared: Path, name: str, include_last: bool) -> None:
    stored = json.loads((shared / "data" / "parity_hta" / f"{name}.061.json").read_text())
    theirs = stored[f"include_last_step={include_last}"]
    for file in SETS[name]:
        (trace,) = read(shared / "data" / "real" / "hta" / name / file)
        steps = dict(figures(label(trace), include_last_step=include_last))
        assert list(steps) == ["ours", *CAUSES]
        rank = trace.identity.rank
        (said,) = (row for row in theirs["comm_comp_overlap"]["result"] if row["rank"] == rank)
        (parts,) = (row for row in theirs["temporal_breakdown"]["result"] if row["rank"] == rank)
        found = steps["rounding"]
        assert found.overlap_percent == pytest.approx(said["comp_comm_overlap_pctg"], abs=0.0051)
        assert found.compute_us == parts["compute_time(us)"]
        assert found.idle_us == parts["idle_time(us)"]
        assert found.span_us == parts["kernel_time(us)"]


def test_without_its_rounding_its_window_gives_an_exact_recomputation(shared: Path) -> None:
    # It rounds this trace to whole microseconds and says 14.31 and 15.14.
    (trace,) = read(shared / "data" / "real" / "hta" / "nccl_parser_config" / "nccl_data.json.gz")
    rank = label(trace)
    for include_last, exact in ((False, 14.76), (True, 15.61)):
        assert dict(figures(rank, include_last_step=include_last))["names"].overlap_percent == pytest.approx(
            exact, abs=0.01
        )


def test_the_steps_of_a_job_that_is_known(job: Path) -> None:
    (trace,) = read(job / "rank0.json")
    steps = dict(figures(label(trace)))
    # Three steps of 6000 µs: 4 GEMMs of 1000 µs back to back, 4 all-reduces of 400 µs, the last after the GEMMs.
    assert (steps["ours"].span_us, steps["ours"].compute_us, steps["ours"].overlap_percent) == (18_000, 12_000, 75.0)
    # Two of them, from the first GEMM to the end of the last all-reduce.
    assert (steps["window"].span_us, steps["window"].compute_us) == (10_400, 8_000)
    assert steps["rounding"] == steps["window"]


def fake(folder: Path, answer: dict[str, Any]) -> Path:
    """An interpreter that answers."""
    script = folder / "python"
    script.write_text(f"#!{sys.executable}\nimport sys\nsys.stdin.read()\nprint({json.dumps(json.dumps(answer))})\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def answer(**changes: Any) -> dict[str, Any]:
    rank = {"rank": 0, "overlap_percent": 75.0, "compute_us": 8000.0, "idle_us": 1600.0, "span_us": 10400.0}
    return {"version": "traceinsight 0.6.1", "ranks": [{**rank, "cpu_rows": 0, "error": None, **changes}]}


def test_each_difference_has_its_cause(job: Path, tmp_path: Path) -> None:
    result = run("crosscheck", job / "rank0.json", "--hta-python", fake(tmp_path, answer()))
    assert result.exit_code == 0
    assert "Beside traceinsight 0.6.1  every difference is explained" in result.stdout
    assert "compute µs  12,000.00   8,000.00  window -4,000.00" in result.stdout
    document = json.loads(
        run("crosscheck", job / "rank0.json", "--hta-python", tmp_path / "python", "--format", "json").stdout
    )
    (rank,) = document["ranks"]
    assert [f["unexplained"] for f in rank["figures"]] == [0, 0, 0, 0]


def test_what_is_left_is_shown(job: Path, tmp_path: Path) -> None:
    other = fake(tmp_path, answer(compute_us=8100.0, cpu_rows=3))
    result = run("crosscheck", job / "rank0.json", "--hta-python", other)
    assert "some differences are not explained" in result.stdout
    assert "not explained +100.00" in result.stdout
    assert "3 CPU operators carry a stream" in result.stdout
    failed = fake(tmp_path, {"version": "x", "ranks": [{"rank": 0, "error": "IndexError: no kernels"}]})
    assert (
        "the other tool has no answer: IndexError"
        in run("crosscheck", job / "rank0.json", "--hta-python", failed).stdout
    )


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/no/such/python", "/no/such/python: cannot be run (No such file or directory); pip install 'commlens[hta]'"),
        (sys.executable, f"{sys.executable}: does not have HolisticTraceAnalysis; pip install 'commlens[hta]'"),
    ],
)
def test_without_it_there_is_one_line(job: Path, python: str, said: str) -> None:
    result = run("crosscheck", job, "--hta-python", python)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"analyze: {said}")
    assert len(result.stderr.splitlines()) == 1


def test_this_interpreter_is_asked_first(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    result = run("crosscheck", job)
    assert result.stderr.startswith("analyze: HolisticTraceAnalysis is not installed here; pip install 'commlens[hta]'")


def test_a_job_without_gpu_has_nothing_to_compare(sample_traces: Path) -> None:
    result = run("crosscheck", sample_traces / "ddp4" / "rank0.json.gz", "--hta-python", sys.executable)
    assert result.exit_code == 2
    assert "no GPU trace of the PyTorch profiler" in result.stderr


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter (./check makes one)")
def test_the_tool_itself_agrees(job: Path) -> None:
    for extra in ((), ("--include-last-step",)):
        result = run("crosscheck", job, "--format", "json", *extra)
        assert result.exit_code == 0, result.stderr
        document = json.loads(result.stdout)
        assert document["other"].startswith("traceinsight 0.6")
        assert [rank["error"] for rank in document["ranks"]] == [None, None]
        for rank in document["ranks"]:
            for figure in rank["figures"]:
                assert abs(figure["unexplained"]) <= 0.01, figure

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from analyzer.cli import COMMANDS, main
from parsers.known_formats import KNOWN
from tests.analyzer.kineto_files import ddp_trace, write_job

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("job"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def installed(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The console script in a process of its own."""
    command = [str(Path(sys.executable).with_name("analyze")), *(str(a) for a in arguments)]
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "COMMLENS_DEBUG")}
    return subprocess.run(command, capture_output=True, text=True, env={**env, **environment}, timeout=120)


def refused(result: Result, code: int = 2) -> str:
    """The one line on stderr of a failure."""
    assert result.exit_code == code
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("analyze: ")
    return line


def test_the_default_command_is_run(job: Path) -> None:
    assert run(job, "-q").stdout == run("run", job, "-q").stdout != ""


def test_without_arguments_the_help_is_shown() -> None:
    result = run()
    assert result.exit_code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in result.stdout


def test_every_command_has_help_with_an_example() -> None:
    for command in COMMANDS:
        result = run(command, "--help")
        assert result.exit_code == 0
        assert f"analyze {command}" in result.stdout
        assert "Examples:\n    analyze " in result.stdout


def test_json_is_one_document_and_nothing_else(job: Path) -> None:
    result = run(job, "--format", "json", "-v")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["schema_version"] == 1
    assert "rank0.json: kineto, rank 0" in result.stderr


def test_warnings_go_to_stderr_unless_quiet(job: Path) -> None:
    (job.parent / "copy").mkdir(exist_ok=True)
    copy = job.parent / "copy" / "other.json"
    copy.write_bytes((job / "rank0.json").read_bytes())
    assert "warning: rank 0 is there 2 times" in run(job, copy, "--format", "json").stderr
    assert run(job, copy, "--format", "json", "-q").stderr == ""


def test_sections_come_in_the_order_of_reading(job: Path) -> None:
    lines = run(job).stdout.splitlines()
    titles = [line.split("  ")[0] for line in lines if line and not line.startswith(" ")]
    assert titles == ["Trust", "Layout", "Collectives", "Step", "Exposed", "Ledger", "Findings"]


def test_a_file_gets_the_result_whole_and_stdout_nothing(job: Path, tmp_path: Path) -> None:
    target = tmp_path / "result.md"
    result = run(job, "--format", "md", "-o", target)
    assert (result.exit_code, result.stdout) == (0, "")
    assert target.read_text().startswith("# Communication of a distributed job\n\n## Trust\n")
    assert [p.name for p in tmp_path.iterdir()] == ["result.md"]


def test_an_output_that_cannot_be_written_is_one_line(job: Path, tmp_path: Path) -> None:
    assert f"there is no directory {tmp_path / 'no'}" in refused(run(job, "-q", "-o", tmp_path / "no" / "where.txt"))
    assert f"{tmp_path} is a directory; name a file in it" in refused(run(job, "-q", "-o", tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.json", b"", "empty"),
        ("text.json", b"hello, this is no JSON", "not a trace"),
        ("picture.json", PNG, "not a trace"),
        ("notes.json", b'{"answer": 42}', "not a profiler trace"),
        ("other.json.gz", gzip.compress(b"just text", mtime=0), "not a trace"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    line = refused(run(path))
    assert str(path) in line
    assert said in line


def test_a_directory_without_traces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(PNG)
    line = refused(run(tmp_path))
    assert str(tmp_path) in line
    assert "no traces in this directory" in line


def test_a_missing_file_is_refused_and_a_misspelled_command_recognised(tmp_path: Path) -> None:
    assert "no such file" in refused(run(tmp_path / "nothing.json"))
    assert "did you mean 'predict'?" in refused(run("predcit", "--model", "llama3-8b"))


def test_a_misspelled_option_is_one_line_with_a_suggestion(job: Path) -> None:
    assert "--format" in refused(run(job, "--formt", "json"))


def test_two_jobs_in_one_directory_are_one_line(tmp_path: Path) -> None:
    write_job(tmp_path)
    (tmp_path / "rank0.json").write_text(json.dumps(ddp_trace(0, 1)))
    line = refused(run(tmp_path))
    assert "2 different jobs" in line
    assert "world size 1" in line


def test_a_job_of_one_rank_is_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(ddp_trace(0, 1, comm=False)))
    result = run(path)
    assert result.exit_code == 0
    assert "one rank, no communication" in result.stdout


def test_inconclusive_input_is_exit_code_3(job: Path) -> None:
    assert "1 rank missing" in refused(run(job / "rank0.json", "--strict", "-q"), code=3)
    assert "complete are: 0, 1, 2" in refused(run(job, "--steps", "7:9", "-q"), code=3)


@pytest.mark.parametrize("steps", ["x", "6:3", ":", "-1:2"])
def test_steps_that_make_no_sense_are_refused(job: Path, steps: str) -> None:
    assert "--steps" in refused(run(job, f"--steps={steps}"))


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--model", "lama3-8b", "did you mean llama3-8b"),
        ("--layout", "tp2-xp4", "'xp4' is not a dimension"),
        ("--ledger-profile", "megatorn", "did you mean megatron"),
        ("--kernel-table", "/no/such/table.toml", "cannot read the kernel table"),
    ],
)
def test_options_that_name_nothing_are_refused_before_anything_is_read(
    tmp_path: Path, option: str, value: str, said: str
) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(ddp_trace(0)))
    assert said in refused(run(path, option, value))


def test_an_unforeseen_failure_is_one_line_and_a_traceback_only_on_demand(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("hidden\nin lines")

    monkeypatch.setattr("analyzer.pipeline.roster", broken)
    line = refused(run(job, "-q"))
    assert "internal error: ZeroDivisionError: hidden in lines" in line
    assert isinstance(run(job, "--debug", "-q").exception, ZeroDivisionError)
    monkeypatch.setenv("COMMLENS_DEBUG", "1")
    assert isinstance(run(job, "-q").exception, ZeroDivisionError)


def test_the_installed_command_is_plain_where_there_is_no_terminal(job: Path) -> None:
    result = installed(job)
    assert result.returncode == 0
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 120


def test_the_width_of_the_terminal_is_kept(job: Path) -> None:
    result = installed(job, COLUMNS="100")
    assert max(len(line) for line in result.stdout.splitlines()) <= 100


def test_a_closed_pipe_is_silent(job: Path) -> None:
    command = f"{Path(sys.executable).with_name('analyze')} {job} -q | head -1"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=120)
    assert result.stderr == ""
    assert result.stdout.startswith("Trust")


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "analyzer", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"analyze, version {version('commlens')}\n"


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_nothing_heavy_is_imported_before_it_is_needed(option: str) -> None:
    imported = _imported_by([option])
    assert not {"numpy", "pyarrow", "pandas", "matplotlib", "rich", "msgspec", "yaml"} & imported


def test_an_analysis_imports_no_more_than_it_uses(job: Path, tmp_path: Path) -> None:
    trace = sorted(job.glob("*.json*"))[0]
    imported = _imported_by([str(trace), "--format", "json", "-o", str(tmp_path / "out.json"), "--workers", "1", "-q"])
    assert {"numpy", "pyarrow", "msgspec"} <= imported
    unused = {"pandas", "matplotlib", "rich", "yaml", "sqlite3", "pyarrow.compute", "numpy.ma", "importlib.metadata"}
    assert not unused & imported
    light = {"parsers.kineto", "parsers.summary", "parsers.nsys", "parsers.straggler_parquet"}
    parsers = {known.module for known in KNOWN} - light
    assert not (parsers | {"parsers.nsys.reader", "parsers.nsys.nvtx"}) & imported


def _imported_by(arguments: list[str]) -> set[str]:
    code = """
import sys
from analyzer.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code
print(file=sys.stderr)
print(*sys.modules, file=sys.stderr)
"""
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return set(result.stderr.splitlines()[-1].split())


def test_predict_prints_the_closed_forms() -> None:
    # Llama 3 405B, TP8 PP16 DP128 (Dubey et al. 2024): 405,853,388,800 parameters, 3.17e9 on a rank.
    common = ("predict", "--model", "llama3-405b", "--layout", "tp8-pp16-dp128", "--microbatches", "16")
    text = run(*common)
    assert text.exit_code == 0
    assert "405,853,388,800 parameters" in text.stdout
    document = json.loads(run(*common, "--format", "json").stdout)
    assert document["prediction"]["memory"][0]["parameters"] == 3_170_729_600
    assert document["prediction"]["bubble"]["share_of_total"] == pytest.approx(15 / 31)
    assert run(*common, "--format", "md").stdout.startswith("# Ledger\n")


def test_predict_refuses_what_cannot_be() -> None:
    assert "--layout" in refused(run("predict", "--model", "llama3-8b"))
    assert "zero" in refused(run("predict", "--model", "llama3-8b", "--layout", "dp8", "--zero-stage", "7"))
    assert "hsdp_shard" in refused(
        run("predict", "--model", "llama3-8b", "--layout", "dp8", "--zero-stage", "3", "--hsdp-shard", "3")
    )


def test_a_file_that_a_worker_cannot_read_is_named_and_the_rest_analysed(job: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(PNG)
    result = run(job / "rank0.json", bad, "--workers", "2", "--format", "json")
    assert result.exit_code == 0
    assert f"warning: {bad} is left out" in result.stderr
    document = json.loads(result.stdout)
    assert [item["path"] for item in document["inputs"]] == [str(job / "rank0.json")]
    assert any(str(bad) in warning for warning in document["trust"]["warnings"])
    assert run(job / "rank0.json", bad, "--workers", "2", "--strict", "-q").exit_code == 3


def test_clusters_are_listed_shown_and_used_by_predict(tmp_path: Path) -> None:
    assert "h100-ndr" in run("clusters").stdout
    assert "ConnectX-7, NDR" in " ".join(run("clusters", "H100").stdout.split())
    listed = json.loads(run("clusters", "--format", "json").stdout)["clusters"]
    assert {"a100-hdr", "h100-ndr", "mi300x-ndr"} <= {item["name"] for item in listed}
    layout = ("predict", "--model", "llama3-8b", "--layout", "tp8-dp8", "--format", "json")
    found = json.loads(run(*layout, "--cluster", "h100-ndr").stdout)
    assert found["cluster"]["name"] == "h100-ndr"
    assert all(0 < time["least_us"] < time["expected_us"] for time in found["times"])
    assert json.loads(run(*layout).stdout)["times"] == []
    rack = json.loads(run(*layout, "--cluster", "gb200").stdout)
    assert rack["prediction"]["config"]["gpus_per_node"] == 72
    own = tmp_path / "own.toml"
    own.write_text('preset = "h100"\n[inter_node]\ngbps = 25\n')
    slow = json.loads(run(*layout, "--cluster", own).stdout)
    of = {t["link"]: t["least_us"] for t in found["times"] if t["dim"] == "dp"}
    halved = {t["link"]: t["least_us"] for t in slow["times"] if t["dim"] == "dp"}
    assert halved["inter_node"] == pytest.approx(2 * of["inter_node"], rel=1e-6)
    assert "Time  transfers of a step on h100-ndr" in run(*layout[:-2], "--cluster", "h100-ndr").stdout


def test_an_unknown_cluster_is_refused_before_anything_is_read(job: Path) -> None:
    assert "did you mean h100-ndr" in refused(run(job, "--cluster", "h100-nrd"))

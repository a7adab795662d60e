from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.cli import main
from tests.analyzer.kineto_files import write_job


def run(*args: object) -> int:
    """The command's exit code."""
    with pytest.raises(SystemExit) as end:
        main([str(arg) for arg in args])
    return int(str(end.value.code))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    return write_job(folder)


def test_one_file_for_all_ranks(job: Path, tmp_path: Path) -> None:
    assert run("summarize", job, "-o", tmp_path / "job.parquet", "-q") == 0
    assert run(tmp_path / "job.parquet", "--format", "json", "-o", tmp_path / "a.json", "-q") == 0
    assert run(job, "--format", "json", "-o", tmp_path / "b.json", "-q") == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_file_for_each_trace_in_a_directory(job: Path, tmp_path: Path) -> None:
    assert run("summarize", job, "-o", f"{tmp_path}/small/", "-q") == 0
    assert sorted(path.name for path in (tmp_path / "small").iterdir()) == ["rank0.parquet", "rank1.parquet"]
    assert run(tmp_path / "small", "--format", "json", "-o", tmp_path / "a.json", "-q") == 0
    assert run(job, "--format", "json", "-o", tmp_path / "b.json", "-q") == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_summaries_of_summaries_are_summaries(job: Path, tmp_path: Path) -> None:
    assert run("summarize", job, "-o", f"{tmp_path}/small/", "-q") == 0
    assert run("summarize", tmp_path / "small", "-o", tmp_path / "one.parquet", "-q") == 0
    assert run("summarize", job, "-o", tmp_path / "two.parquet", "-q") == 0
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


def test_a_bad_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text("nothing of the kind")
    assert run("summarize", tmp_path / "bad.json", "-o", tmp_path / "x.parquet") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "x.parquet").exists()


def test_a_kernel_table_comes_too_late_for_a_summary(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("summarize", job, "-o", tmp_path / "job.parquet", "-q") == 0
    (tmp_path / "k.toml").write_text("# nothing more")
    assert run(tmp_path / "job.parquet", "--kernel-table", tmp_path / "k.toml") == 2
    assert "summarize the trace with --kernel-table" in capsys.readouterr().err

"""How far the reading is: files, and bytes of those that are being read."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from analyzer.commands import progress
from analyzer.commands.progress import ProgressBar
from analyzer.options import Progress
from analyzer.pipeline import analyze
from analyzer.reading import one
from tests.parsers.made import TraceMaker, three_steps


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of several blocks, of which every one is told."""
    monkeypatch.setattr(one, "TELL_SECONDS", 0)
    path = tmp_path / "rank0.json"
    path.write_text(_of_blocks(3))
    return path


def _of_blocks(blocks: int) -> str:
    job = three_steps()
    while len(job.events) < blocks * 3000:
        job.x("python_function", "train.py(412): train_step", 1000, 1, padding="x" * 100)
    return job.text()


def test_a_file_is_told_block_by_block(large: Path) -> None:
    told: list[Progress] = []
    analyze(large, progress=told.append)
    size = large.stat().st_size
    assert [now.files for now in told] == [0] * (len(told) - 1) + [1]
    assert {(now.of_files, now.of_bytes, now.path) for now in told} == {(1, size, str(large))}
    taken = [now.read_bytes for now in told]
    assert taken == sorted(taken)
    assert 0 < taken[0] < taken[1] < size
    assert taken[-1] == size


def test_of_a_compressed_file_what_is_stored_counts(large: Path) -> None:
    packed = large.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(_of_blocks(12).encode(), 0))  # longer than what a thread unpacks ahead
    told: list[Progress] = []
    analyze(packed, progress=told.append)
    taken = [now.read_bytes for now in told]
    assert taken == sorted(taken)
    assert 0 < taken[0] < packed.stat().st_size == taken[-1]


def test_processes_tell_of_the_files_that_they_read(large: Path) -> None:
    second = large.with_name("rank1.json")
    second.write_text(TraceMaker(rank=1).text().replace('"traceEvents": []', _of_blocks(2).partition("}, ")[2][:-1]))
    told: list[Progress] = []
    analyze(large.parent, workers=2, progress=told.append)
    whole = large.stat().st_size + second.stat().st_size
    assert max(now.read_bytes for now in told) == told[-1].read_bytes == whole
    assert any(now.files == 0 < now.read_bytes < whole for now in told)
    assert [now.files for now in told if now.files] == sorted(now.files for now in told if now.files)


def test_the_lines_that_are_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([100.0, 104.0, 106.0, 107.0, 110.0])
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    with ProgressBar(bar=False, lines=True) as bar:
        for files, megabytes in ((0, 100), (0, 150), (1, 300), (1, 310)):  # 4, 6, 7 and 10 s after the beginning
            bar.report(Progress(files, 2, megabytes * 10**6, 600 * 10**6, "rank0.json"))
    assert capsys.readouterr().err.splitlines() == [
        "read 150 of 600 MB, 25 MB/s, 18 s left: rank0.json",
        "read 1 of 2: rank0.json",
    ]


def test_a_terminal_gets_a_bar_with_speed_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    clock = iter([100.0, 100.5, 102.0])
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    with ProgressBar(bar=True, lines=False) as bar:
        bar.report(Progress(0, 1, 10**8, 3 * 10**8, "rank0.json"))
        assert bar._live is None  # not for what takes less than a second
        bar.report(Progress(0, 1, 2 * 10**8, 3 * 10**8, "rank0.json"))
        (task,) = bar._live.tasks
        assert (task.completed, task.total) == (2 * 10**8, 3 * 10**8)
        drawn = [column(task) for column in bar._live.columns]
    assert "0/1 files" in map(str, drawn)
    assert {"BarColumn", "TransferSpeedColumn", "TimeRemainingColumn"} <= {type(c).__name__ for c in bar._live.columns}


def test_nothing_is_drawn_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(bar=True, lines=False) as bar:
        bar._began -= 10
        bar.report(Progress(0, 1, 10**8, 3 * 10**8, "rank0.json"))
    assert capsys.readouterr().err == ""

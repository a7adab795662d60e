from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from analyzer.model import to_json
from analyzer.pipeline import analyze
from analyzer.reading import cache
from analyzer.reading.one import Job
from parsers.errors import InputError
from tests.analyzer.kineto_files import write_job


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    return write_job(folder)


def entries(folder: Path) -> dict[str, int]:
    """The entries of a cache, by name, with the number of the file that each is."""
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


def test_the_second_run_takes_everything_from_the_cache(job: Path, tmp_path: Path) -> None:
    first = to_json(analyze(job, cache=str(tmp_path / "kept")))
    before = entries(tmp_path / "kept")
    assert len(before) == 2
    assert to_json(analyze(job, cache=str(tmp_path / "kept"))) == first == to_json(analyze(job))
    assert entries(tmp_path / "kept") == before


def test_a_file_that_changed_is_read_again(job: Path) -> None:
    path = job / "rank0.json"
    before = cache.key(Job(str(path)))
    assert cache.key(Job(str(path))) == before
    times = path.stat()
    text = path.read_text()
    middle = len(text) // 2
    swapped = text[:middle] + ("1" if text[middle] != "1" else "2") + text[middle + 1 :]
    path.write_text(swapped)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert cache.key(Job(str(path))) != before  # same size, same times, another digit
    path.write_text(text)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert cache.key(Job(str(path))) != before


def test_a_kernel_table_has_entries_of_its_own(job: Path, tmp_path: Path) -> None:
    (tmp_path / "k.toml").write_text("# nothing more")
    plain = cache.key(Job(str(job / "rank0.json")))
    extended = cache.key(Job(str(job / "rank0.json"), str(tmp_path / "k.toml")))
    assert plain != extended


def test_other_columns_and_other_code_have_entries_of_their_own(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Job(str(job / "rank0.json"))
    before = cache.key(task)
    monkeypatch.setattr(cache, "VERSION", 99)
    columns = cache.key(task)
    monkeypatch.undo()
    monkeypatch.setattr(cache, "code", lambda: "another text")
    assert len({before, columns, cache.key(task)}) == 3
    monkeypatch.undo()
    assert cache.key(task) == before


def test_the_code_that_counts_is_the_readers_the_labels_and_the_summary() -> None:
    names = {path.name for path in cache.sources()}
    assert {"kineto.py", "elements.py", "reader.py", "label.py", "kernels.toml", "make.py", "exposure.py"} <= names
    assert not {"text.py", "cli.py", "gating.py"} & names


def test_a_damaged_entry_is_made_again(job: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = to_json(analyze(job, cache=str(kept)))
    for path in kept.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert to_json(analyze(job, cache=str(kept))) == first
    assert all(path.stat().st_size > 100 for path in kept.iterdir())


def test_a_cache_that_cannot_be_made_is_one_line(job: Path) -> None:
    with pytest.raises(InputError, match="cannot be a cache"):
        analyze(job, cache=str(job / "rank0.json"))


def _analyse(folder: str, kept: str, out: str) -> None:
    Path(out).write_bytes(to_json(analyze(folder, cache=kept)))


def test_two_runs_at_once_share_a_cache(sample_traces: Path, tmp_path: Path) -> None:
    case = tmp_path / "job"
    case.mkdir()
    for path in (sample_traces / "fsdp2_4").glob("rank*.json.gz"):
        shutil.copy(path, case)
    context = multiprocessing.get_context("spawn")
    runs = [
        context.Process(target=_analyse, args=(str(case), str(tmp_path / "kept"), str(tmp_path / f"{n}.json")))
        for n in range(2)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0, 0]
    results = {(tmp_path / f"{n}.json").read_bytes() for n in range(2)}
    assert results == {to_json(analyze(case))}
    assert len(entries(tmp_path / "kept")) == 4  # whole entries only, nothing half-written left behind

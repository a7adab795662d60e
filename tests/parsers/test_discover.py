"""From what a user types to the traces of a job."""

from __future__ import annotations

import fnmatch
import gzip
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from parsers.discover import expand, natural_key
from parsers.errors import InputError
from tests.parsers.made import three_steps


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Eleven ranks, one of them compressed, with what usually lies beside them."""
    folder = tmp_path / "run"
    folder.mkdir()
    text = three_steps().text()
    for rank in range(11):
        (folder / f"rank{rank}.json").write_text(text)
    (folder / "rank11.json.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "execution_trace_et.json").write_text(
        '{"schema": "1.1.0-chakra.0.0.4", "nodes": [{"id": 1, "name": "x"}]}'
    )
    (folder / "truth.json").write_text('{"tp": 4}')
    (folder / "notes.txt").write_text("hello")
    (folder / "plot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (folder / ".hidden.json").write_text(text)
    return folder


def names(paths: tuple[str, ...]) -> list[str]:
    return [Path(path).name for path in paths]


def test_a_directory_stands_for_its_traces_in_natural_order(job: Path) -> None:
    found = expand([job])
    assert names(found.paths) == [f"rank{rank}.json" for rank in range(11)] + ["rank11.json.gz"]
    assert found.notes == (
        "1 JSON file that is no trace was left out: truth.json",
        "1 file of another format beside the profiler's traces was left out: execution_trace_et.json",
    )


def test_directories_are_walked(job: Path) -> None:
    (job / "node1").mkdir()
    (job / "rank2.json").rename(job / "node1" / "rank2.json")
    assert names(expand([job]).paths)[:3] == ["rank2.json", "rank0.json", "rank1.json"]
    assert names(expand([job.parent]).paths).count("rank2.json") == 1


def test_a_pattern_stands_for_what_it_matches(job: Path) -> None:
    assert names(expand([str(job / "rank1*.json*")]).paths) == ["rank1.json", "rank10.json", "rank11.json.gz"]
    assert names(expand([str(job.parent / "*")]).paths)[:2] == ["rank0.json", "rank1.json"]


def test_a_file_is_taken_as_it_is_and_once(job: Path) -> None:
    found = expand([job / "truth.json", job / "rank3.json", job, job / "rank3.json"])
    assert names(found.paths)[:3] == ["truth.json", "rank3.json", "rank0.json"]
    assert names(found.paths).count("rank3.json") == 1


def test_names_with_brackets_and_newlines_are_names(job: Path) -> None:
    odd = job / "rank[0]\n*.json"
    odd.write_text(three_steps().text())
    assert names(expand([odd]).paths) == ["rank[0]\n*.json"]


def test_loops_of_links_end(job: Path) -> None:
    (job / "loop").symlink_to(job, target_is_directory=True)
    (job / "up").symlink_to(job.parent, target_is_directory=True)
    (job / "again.json").symlink_to(job / "rank0.json")
    (job / "nowhere.json").symlink_to(job / "missing.json")
    found = expand([job])
    assert len(found.paths) == 12
    assert len({os.path.realpath(path) for path in found.paths}) == 12


def test_empty_and_broken_files_are_told(job: Path) -> None:
    (job / "rank4.json").write_bytes(b"")
    (job / "rank5.json").unlink()
    (job / "rank5.json.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    found = expand([job])
    assert len(found.paths) == 10
    assert "2 JSON files that are empty or cannot be opened were left out: rank4.json, rank5.json.gz" in found.notes


def test_a_pipe_is_not_read(job: Path) -> None:
    os.mkfifo(job / "rank99.json")
    assert len(expand([job]).paths) == 12


def test_a_merged_copy_is_left_out_beside_its_ranks(tmp_path: Path) -> None:
    for name in ("170-TP-0.trace.json", "170-TP-1.trace.json", "merged-170.trace.json", "merged-99.trace.json"):
        (tmp_path / name).write_text(three_steps().text())
    found = expand([tmp_path])
    assert names(found.paths) == ["170-TP-0.trace.json", "170-TP-1.trace.json", "merged-99.trace.json"]
    assert found.notes == ("merged-170.trace.json was left out: the files it was merged from are beside it",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "no such file or directory"),
        ("nowhere*.json", "no file matches this pattern"),
        ("empty", "no traces in this directory (it holds no files)"),
        ("text", "no traces in this directory (none of its 2 files is one)"),
    ],
)
def test_what_names_no_trace_is_told_in_one_line(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("x")
    (tmp_path / "text" / "b.json").write_text("{}")
    with pytest.raises(InputError) as caught:
        expand([tmp_path / name])
    assert message in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_a_url_needs_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("parsers.discover.importlib.import_module", absent)
    with pytest.raises(InputError, match="fsspec"):
        expand(["s3://bucket/run/"])


def test_numbers_sort_as_numbers() -> None:
    assert sorted(["r10", "r9", "r09", "a", "r١"], key=natural_key) == ["a", "r09", "r9", "r10", "r١"]


def test_urls_are_listed_by_their_store(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["bucket/run/rank10.json", "bucket/run/rank2.json.gz", "bucket/run/log.txt"]
    store = SimpleNamespace(
        isdir=lambda path: path == "bucket/run",
        find=lambda path: names,
        glob=lambda pattern: [name for name in names if fnmatch.fnmatch(name, pattern)],
        unstrip_protocol=lambda name: "s3://" + name,
    )
    core = SimpleNamespace(url_to_fs=lambda url: (store, url.removeprefix("s3://")))
    monkeypatch.setattr("parsers.discover.importlib.import_module", lambda name: core)
    assert expand(["s3://bucket/run"]).paths == ("s3://bucket/run/rank2.json.gz", "s3://bucket/run/rank10.json")
    assert expand(["s3://bucket/run/*2*"]).paths == ("s3://bucket/run/rank2.json.gz",)
    assert expand(["s3://bucket/other.json"]).paths == ("s3://bucket/other.json",)
    with pytest.raises(InputError, match="no traces there"):
        expand(["s3://bucket/run/*9*"])

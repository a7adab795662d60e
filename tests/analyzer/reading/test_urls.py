"""Traces behind URLs are found and read as those on disk."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from analyzer.model import to_json
from analyzer.pipeline import analyze
from parsers.errors import InputError
from tests.analyzer.kineto_files import write_job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("job"))


@pytest.fixture
def store(job: Path) -> Iterator[Any]:
    """The job in an object store in memory, one rank compressed, beside files that are no traces."""
    system = fsspec.filesystem("memory")
    for number, path in enumerate(sorted(job.iterdir())):
        data = path.read_bytes()
        name = f"/bucket/job/{path.name}"
        system.pipe(f"{name}.gz" if number else name, gzip.compress(data) if number else data)
    system.pipe("/bucket/job/README.txt", b"notes")
    yield system
    system.rm("/bucket", recursive=True)


def without_paths(document: bytes) -> Any:
    found = json.loads(document)
    for item in found["inputs"]:
        del item["path"], item["bytes"]
    return found


@pytest.mark.parametrize("url", ["memory://bucket/job", "memory://bucket/job/*.json*", "memory://bucket/job/"])
def test_a_folder_and_a_pattern_are_all_ranks_of_a_job(job: Path, store: Any, url: str) -> None:
    found = analyze(url, workers=1)
    assert [item.path for item in found.inputs] == [
        "memory:///bucket/job/rank0.json",
        "memory:///bucket/job/rank1.json.gz",
    ]
    assert without_paths(to_json(found)) == without_paths(to_json(analyze(job, workers=1)))


def test_one_object_is_one_rank(job: Path, store: Any) -> None:
    found = analyze("memory://bucket/job/rank1.json.gz", workers=1)
    assert without_paths(to_json(found)) == without_paths(to_json(analyze(job / "rank1.json", workers=1)))
    assert [item.rank for item in found.inputs] == [1]


def test_processes_read_urls(job: Path) -> None:
    urls = [path.as_uri() for path in sorted(job.iterdir())]
    assert without_paths(to_json(analyze(urls, workers=2))) == without_paths(to_json(analyze(job, workers=1)))


def test_the_cache_knows_an_object_that_was_replaced(store: Any, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    url = "memory://bucket/job/rank0.json"
    first = to_json(analyze(url, workers=1, cache=str(kept)))
    assert to_json(analyze(url, workers=1, cache=str(kept))) == first
    assert len(list(kept.iterdir())) == 1
    store.pipe("/bucket/job/rank0.json", store.cat("/bucket/job/rank0.json").replace(b"AllReduce", b"AllReduce"))
    assert to_json(analyze(url, workers=1, cache=str(kept))) == first
    assert len(list(kept.iterdir())) == 2


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("memory://bucket/job/rank9.json", "no such file"),
        ("memory://bucket/nothing/*.json", "no traces there"),
        ("nosuchstore://bucket/rank0.json", "nosuchstore"),
    ],
)
def test_what_is_not_there_is_one_line(store: Any, url: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        analyze(url, workers=1)
    assert url in str(caught.value)
    assert "\n" not in str(caught.value)

"""Summaries kept for the next time, by what the file holds.

An entry's name is a hash of everything that the summary depends on: the file as it was named (readers take ranks from
names), its size and time of change, what it holds at both ends and at places in between, the version of the summary's
columns, the code that makes summaries, the kernel tables, and what other files of the job tell of this one. The code
counts by its text: a release that leaves it alone keeps its cache, a change between two releases does not use what the
code before it made. Hashing all of a file
would cost as much as reading it, which is what a cache is there to save; the time of change alone would miss a file
that was put in place of another with its times kept (`rsync -t`, `tar`). Each of them errs towards reading again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.reading.one import Job, Loaded
from parsers.errors import InputError
from parsers.summary import VERSION

if TYPE_CHECKING:
    import pyarrow as pa

ENDS_BYTES = 256 * 1024
"""Looked at on each side of a file: headers and trailers name the job, the rank and the clock."""

SAMPLES, SAMPLE_BYTES = 16, 4096
"""Places in between."""


def prepare(directory: str) -> None:
    """Make the directory of the cache.

    Raises:
        InputError: it cannot be made or written to.
    """
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot be a cache ({error.strerror})", path=directory, hint="choose another --cache"
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InputError("cannot be a cache (no permission to write)", path=directory, hint="choose another")


def cached(job: Job, make: Callable[[Job], pa.Table]) -> Loaded:
    """The summaries of a file from the cache; where they are not there yet, made and kept.

    Several runs may do the same at the same time: an entry is put in place whole (`analyzer.summary.file.write_table`),
    and whoever comes last replaces it by its equal. A damaged entry is made again.
    """
    from analyzer.summary.file import read_table, write_table

    entry = Path(job.cache or "") / f"{key(job)}.parquet"
    if entry.exists():
        try:
            return Loaded(read_table(str(entry)))
        except InputError:
            pass  # not whole, or not ours: made again below
    table = make(job)
    try:
        write_table(table, entry)
    except InputError as error:
        return Loaded(table, (f"nothing was kept in the cache {job.cache}: {error.message}",))
    return Loaded(table)


def key(job: Job) -> str:
    """The name of a file's entry.

    Raises:
        InputError: the file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=20)
    digest.update(f"{code()}\0{VERSION}\0{job.path}\0".encode())
    digest.update(repr(job.across).encode())
    try:
        if job.kernel_table is not None:
            digest.update(Path(job.kernel_table).read_bytes())
        for part in _content(job.path):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    except OSError as error:
        raise InputError(str(error.strerror or error).lower(), path=job.path, hint="check the path") from error
    return digest.hexdigest()


@cache
def code() -> str:
    """A hash of all that decides what a summary says of a file: readers, labels and what is kept of them."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sources():
        digest.update(f"{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def sources() -> list[Traversable]:
    """The files of that code."""
    analyzer = resources.files("analyzer")
    folders = (resources.files("parsers"), resources.files("heuristics"), analyzer.joinpath("summary"))
    alone = (analyzer.joinpath(f"{name}.py") for name in ("exposure", "intervals", "occupancy", "step_marks"))
    return sorted([*(path for folder in folders for path in _below(folder)), *alone], key=str)


def _below(folder: Traversable) -> Iterator[Traversable]:
    for item in folder.iterdir():
        if item.is_dir():
            yield from _below(item)
        elif item.name.endswith((".py", ".toml")):
            yield item


def _content(path: str) -> Iterator[bytes]:
    if "://" in path:
        core: Any = import_module("fsspec.core")
        system, inside = core.url_to_fs(path)
        yield str(system.ukey(inside)).encode()  # the store's own mark of this version: ETag, size, time
        return
    root = Path(path)
    for file in sorted(child for child in root.rglob("*") if child.is_file()) if root.is_dir() else [root]:
        yield str(file.relative_to(root)).encode()
        yield from _file(file)


def _file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        info = os.fstat(file.fileno())
        yield f"{info.st_size} {info.st_mtime_ns}".encode()
        yield file.read(ENDS_BYTES)
        middle = info.st_size - 2 * ENDS_BYTES
        for sample in range(SAMPLES if middle > 0 else 0):
            file.seek(ENDS_BYTES + middle * sample // SAMPLES)
            yield file.read(SAMPLE_BYTES)
        file.seek(max(info.st_size - ENDS_BYTES, 0))
        yield file.read()

"""NVIDIA Nsight Systems: its exports (SQLite, Parquet, Arrow, JSON lines), and what `nsys stats` and recipes print."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from parsers.errors import InputError
from parsers.known_formats import NSYS_REPORTS
from parsers.nsys.detect import (
    ARROW_STREAM,
    MAGIC,
    is_arrow,
    is_export_directory,
    is_export_file,
    is_json,
    is_table,
    is_tables_directory,
    worth_a_look,
)
from parsers.source import BLOCK_BYTES, Source, open_source, peek

if TYPE_CHECKING:
    from parsers.nsys.places import Place
    from parsers.nsys.store import Store
    from parsers.tables import RankTrace

__all__ = ["belongs", "places_of", "read", "read_path", "sniff", "takes"]


def sniff(head: bytes) -> bool:
    """Whether the first block of a file may be an export, or a table that was printed from one."""
    return head.startswith(MAGIC) or is_arrow(head) or is_json(head) or is_table(head)


def belongs(path: Path, head: bytes) -> bool:
    """Whether a file with such a first block is really one: databases of other programs are not."""
    return is_export_file(path) if head.startswith(MAGIC) else True


def takes(path: Path) -> bool:
    """Whether a path is known without its content: a directory of tables, or a report in nsys's own format."""
    if path.is_dir():
        return is_export_directory(path) or is_tables_directory(path)
    return path.suffix in NSYS_REPORTS and path.is_file()


def read(source: Source) -> list[RankTrace]:
    """Read an export.

    Returns:
        One `RankTrace` per rank: a process with one of its GPUs.

    Raises:
        InputError: it is not from Nsight Systems, is damaged, or holds nothing of interest.
    """
    from parsers.nsys.reader import read_store

    with _opened(source) as store:
        return read_store(store, Path(source.name), source.name, source.file_bytes)


def read_path(path: Path, name: str) -> list[RankTrace]:
    """Read what `takes` knows.

    Args:
        path: a directory, or a report.
        name: as the user named it.

    Raises:
        InputError: as `read`; of a report, that nsys is needed, with the command to run.
    """
    if not path.is_dir():
        with open_source(_exported(path, name)) as source:
            return [replace(trace, path=name) for trace in read(source)]
    from parsers.nsys.reader import read_store

    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return read_store(_opened_directory(path, name), path, name, size)


def places_of(path: str) -> list[Place]:
    """Who is in which communicator, of any path that is an export; nothing for others.

    Raises:
        InputError: the export cannot be read.
    """
    local = Path(path)
    if "://" in path or not local.exists():
        return []
    whole = takes(local)
    if local.is_dir():
        return _places(_opened_directory(local, path), local, path) if whole else []
    file = _exported(local, path) if whole else local
    if not worth_a_look(file):
        return []
    head = peek(file)
    if not sniff(head) or not belongs(file, head):
        return []
    with open_source(file) as source, _opened(source) as store:
        return _places(store, local, path)


def _places(store: Store, path: Path, name: str) -> list[Place]:
    from parsers.nsys.reader import read_places

    return read_places(store, path, name)


def _exported(path: Path, name: str) -> Path:
    from parsers.nsys.report import exported

    return exported(path, name)


@contextmanager
def _opened(source: Source) -> Iterator[Store]:
    if is_json(source.head):
        from parsers.nsys.json_store import json_store

        yield json_store(source)
    elif is_table(source.head):
        from parsers.nsys.stats import table_store

        yield table_store(source)
    else:
        with _on_disk(source) as file:
            if source.head.startswith(ARROW_STREAM):
                from parsers.nsys.arrow_store import stream_store

                yield stream_store(file, source.name)
                return
            from parsers.nsys.sqlite_store import SqliteStore

            store = SqliteStore(file, source.name)
            try:
                yield store
            finally:
                store.close()


def _opened_directory(path: Path, name: str) -> Store:
    from parsers.nsys import arrow_store, stats

    read_tables = arrow_store.directory_store if is_export_directory(path) else stats.directory_store
    return read_tables(path, name)


@contextmanager
def _on_disk(source: Source) -> Iterator[Path]:
    """The file itself if it is there as it is, else a copy: a database cannot be read as a stream."""
    path = Path(source.name)
    if "://" not in source.name and path.is_file() and _begins_alike(path, source.head):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="commlens-") as folder:
        copy = Path(folder) / "export"
        _spool(source, copy)
        yield copy


def _begins_alike(path: Path, head: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == head[: len(MAGIC)]


def _spool(source: Source, target: Path) -> None:
    buffer = memoryview(bytearray(BLOCK_BYTES))
    try:
        with target.open("wb") as file:
            while count := source.readinto(buffer):
                file.write(buffer[:count])
    except OSError as error:
        free = shutil.disk_usage(target.parent).free >> 20
        hint = f"decompress it first ({free} MiB are free in {target.parent.parent})"
        raise InputError(f"cannot be unpacked ({error.strerror or error})", path=source.name, hint=hint) from None

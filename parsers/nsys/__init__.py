"""NVIDIA Nsight Systems: its exports (SQLite, Parquet, Arrow, JSON) and the tables of `nsys stats` and its recipes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from parsers.errors import InputError
from parsers.nsys.detect import is_export_directory
from parsers.nsys.read import FORMAT, read_store
from parsers.nsys.sqlite_store import MAGIC, SqliteStore
from parsers.source import BLOCK_BYTES, Source
from parsers.tables import RankTrace

__all__ = ["FORMAT", "is_export_directory", "read", "read_directory", "sniff"]


def sniff(head: bytes) -> bool:
    """Whether the first block of a file may be an export: `read` looks at its tables."""
    return head.startswith(MAGIC)


def read(source: Source) -> list[RankTrace]:
    """Read an export.

    Returns:
        One `RankTrace` per rank: a process with one of its GPUs.

    Raises:
        InputError: it is not from Nsight Systems, is damaged, or holds nothing of interest.
    """
    path = Path(source.name)
    if "://" not in source.name and path.is_file() and _is_plain(path):
        return _read_sqlite(path, path, source)
    with tempfile.TemporaryDirectory(prefix="commlens-") as folder:  # a database cannot be read as a stream
        copy = Path(folder) / "export.sqlite"
        _spool(source, copy)
        return _read_sqlite(copy, path, source)


def read_directory(path: Path) -> list[RankTrace]:
    """Read a directory of tables; see `read`."""
    from parsers.nsys.arrow_store import directory_store

    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return read_store(directory_store(path, str(path)), path, str(path), size)


def _read_sqlite(file: Path, path: Path, source: Source) -> list[RankTrace]:
    store = SqliteStore(file, source.name)
    try:
        return read_store(store, path, source.name, source.file_bytes)
    finally:
        store.close()


def _is_plain(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


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


def read_tables_directory(path: Path) -> list[RankTrace]:
    """Read a directory with what ``nsys stats`` and its recipes printed of one report; see `read`."""
    from parsers.nsys.stats import directory_store

    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return read_store(directory_store(path, str(path)), path, str(path), size)

"""Telling the outputs of Nsight Systems from other files and directories."""

from __future__ import annotations

from pathlib import Path

from parsers.nsys.schema import is_export
from parsers.nsys.sqlite_store import MAGIC, tables_of

ARROW_FILE, ARROW_STREAM, PARQUET, HDF5 = b"ARROW1", b"\xff\xff\xff\xff", b"PAR1", b"\x89HDF\r\n\x1a\n"
REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
_TABLE_FILES = (".parquet", ".arrow")


def is_export_file(path: Path, head: bytes) -> bool:
    """Whether a file that begins like this is an export: a database of another program is none."""
    return is_export(tables_of(path)) if head.startswith(MAGIC) else False


def is_export_directory(path: Path) -> bool:
    """Whether a directory holds one file per table (``--type parquetdir`` or ``arrowdir``)."""
    try:
        return is_export(file.stem for file in path.iterdir() if file.suffix in _TABLE_FILES)
    except OSError:
        return False

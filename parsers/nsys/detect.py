"""Telling the outputs of Nsight Systems from other files and directories. Light: it is asked for every file."""

from __future__ import annotations

import re
from pathlib import Path

from parsers.nsys.schema import is_export

MAGIC = b"SQLite format 3\x00"
"""How an SQLite database begins."""

ARROW_STREAM = b"\xff\xff\xff\xff"
"""How an Arrow stream begins; those of nsys name their table."""

_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ")
_TABLE_FILES = (".parquet", ".arrow")
_JSON = re.compile(
    rb'\A\s*\{\s*(?:"table"\s*:\s*"(?:[A-Z][A-Z0-9_]{2,80}|StringIds|ThreadNames|ProcessStreams)"|'
    rb'"Type"\s*:\s*\d{1,3}\s*,\s*"\w{3,40}Event"|"data"\s*:\s*\[\s*")'
)
_PRINTED = re.compile(rb'\A"?(?:(?:API )?Start \([^,)]{1,6}\)|Name)"?,"?(?:Duration|End|API Dur|Projected Start) \(')
_SUMMARY = re.compile(rb'\A"?Time \(%\)"?,"?Total Time \(')
_PRINTED_NAME = re.compile(r"(?:nvtx_pushpop|nvtx_gpu_proj|cuda_gpu|cuda_kern_exec)_trace\.csv(?:\.\w+)?\Z")


def is_export_file(path: Path) -> bool:
    """Whether a database is an export."""
    from parsers.nsys.sqlite_store import tables_of

    return is_export(tables_of(path))


def is_export_directory(path: Path) -> bool:
    """Whether a directory holds one file per table (``--type parquetdir`` or ``arrowdir``)."""
    return is_export(Path(name).stem for name in _names(path) if name.endswith(_TABLE_FILES))


def is_tables_directory(path: Path) -> bool:
    """Whether a directory holds the tables of one report: printed ones under their usual names, or a recipe's."""
    names = _names(path)
    of_recipe = "trace.parquet" in names and any(name.endswith(".nsys-analysis") for name in names)
    return of_recipe or any(_PRINTED_NAME.search(name) for name in names)


def worth_a_look(path: Path) -> bool:
    """Whether a file may be an export, from its first bytes alone; compressed ones by name, which Kineto's have not."""
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError:
        return False
    if start.startswith(_COMPRESSED):
        return ".json" not in path.name
    return start == MAGIC or start.startswith((ARROW_STREAM, b"{", b'"', b"Start", b"API Start", b"Name"))


def is_arrow(head: bytes) -> bool:
    """Whether a file begins like an Arrow stream of nsys."""
    return head.startswith(ARROW_STREAM) and b"table_name" in head[: 1 << 16]


def is_json(head: bytes) -> bool:
    """Whether a text begins like an export as JSON lines."""
    return bool(_JSON.match(head))


def is_table(head: bytes) -> bool:
    """Whether a text begins like a table of ``nsys stats`` with a time line, or like one of its summaries."""
    return bool(_PRINTED.match(head)) or is_summary(head)


def is_summary(head: bytes) -> bool:
    """Whether a text begins like a summary of ``nsys stats``, which has no time line."""
    return bool(_SUMMARY.match(head))


def _names(path: Path) -> list[str]:
    try:
        return [file.name for file in path.iterdir()]
    except OSError:
        return []

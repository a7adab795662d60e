"""Summaries of ranks (`analyze summarize`): told from their content here, read by the analyzer.

A summary holds no events, so there are no tables of facts to make of it.
"""

from __future__ import annotations

from pathlib import Path

from parsers.errors import InputError
from parsers.source import Source
from parsers.tables import RankTrace

KEY = "commlens_summary"
"""Key of the Parquet file's metadata; its value is `VERSION`."""

VERSION = 6
"""Of the columns; a summary of another version is not read."""

_MAGIC = b"PAR1"
_FOOTER = 8  # length of the footer's metadata, and the magic again


def sniff(head: bytes) -> bool:
    """Whether this is a Parquet file; what it holds is said at its end (see `belongs`)."""
    return head.startswith(_MAGIC)


def belongs(path: Path, head: bytes) -> bool:
    """Whether a Parquet file's own metadata name it a summary."""
    if not sniff(head):
        return False
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - _FOOTER, 0))
        footer = file.read()
        length = int.from_bytes(footer[:4], "little")
        if len(footer) < _FOOTER or footer[4:] != _MAGIC or length > size - _FOOTER:
            return False
        file.seek(size - _FOOTER - length)
        return KEY.encode() in file.read(length)


def is_summary(path: str) -> bool:
    """Whether a path is to be read as summaries: a Parquet file, wherever it is."""
    from parsers.source import peek

    return (not Path(path).is_dir() or "://" in path) and sniff(peek(path, len(_MAGIC)))


def read(source: Source) -> list[RankTrace]:
    """There is nothing to read.

    Raises:
        InputError: always.
    """
    raise InputError("is a summary: its events are gone", path=source.name, hint="give it to an analyze command")

"""Summaries of ranks (`analyze summarize`): told from their content here, read by the analyzer.

A summary holds no events, so there are no tables of facts to make of it.
"""

from __future__ import annotations

from pathlib import Path

from parsers.errors import InputError
from parsers.parquet_footer import MAGIC, footer
from parsers.source import Source
from parsers.tables import RankTrace

KEY = "commlens_summary"
"""Key of the Parquet file's metadata; its value is `VERSION`."""

VERSION = 8
"""Of the columns; a summary of another version is not read."""


def sniff(head: bytes) -> bool:
    """Whether this is a Parquet file; what it holds is said at its end (see `belongs`)."""
    return head.startswith(MAGIC)


def belongs(path: Path, head: bytes) -> bool:
    """Whether a Parquet file's own metadata name it a summary."""
    return sniff(head) and KEY.encode() in footer(path)


def is_summary(path: str) -> bool:
    """Whether a path is to be read as summaries: a Parquet file, wherever it is."""
    from parsers.source import peek

    return (not Path(path).is_dir() or "://" in path) and sniff(peek(path, len(MAGIC)))


def read(source: Source) -> list[RankTrace]:
    """There is nothing to read.

    Raises:
        InputError: always.
    """
    raise InputError("is a summary: its events are gone", path=source.name, hint="give it to an analyze command")

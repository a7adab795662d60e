"""Which format a file has, told from its content, and the one way to read any of them."""

from __future__ import annotations

import importlib
import os
from typing import Protocol, cast

from parsers.errors import InputError
from parsers.source import Limits, Source, open_source
from parsers.tables import RankTrace

_MODULES = ("parsers.kineto",)
"""Modules that know a format, asked in this order. Adding a format is adding a line here."""


class Format(Protocol):
    """What a module must offer to be a format."""

    FORMAT: str

    def sniff(self, head: bytes) -> bool:
        """Whether the first block of a file, decompressed, looks like this format."""

    def read(self, source: Source) -> list[RankTrace]:
        """Read the file; raises `InputError`."""


def formats() -> list[Format]:
    """All formats, in the order in which they are asked."""
    return [cast(Format, importlib.import_module(name)) for name in _MODULES]


def read(path: str | os.PathLike[str], limits: Limits | None = None) -> list[RankTrace]:
    """Read one trace file.

    Args:
        path: the file, plain or compressed; its content decides the format, never its name.
        limits: how far a compressed file may grow.

    Returns:
        One `RankTrace` per rank found in the file, normally one.

    Raises:
        InputError: the file cannot be used at all.
    """
    with open_source(path, limits) as source:
        known = formats()
        chosen = next((item for item in known if item.sniff(source.head)), None)
        if chosen is None:
            chosen = next((item for item in known if _is_text(source.head) and item.FORMAT == "kineto"), None)
        if chosen is None:
            raise InputError(
                f"is not a trace in a known format (it starts with {source.head[:8]!r})",
                path=source.name,
                hint="known formats: " + ", ".join(item.FORMAT for item in known),
            )
        return chosen.read(source)


def _is_text(head: bytes) -> bool:
    """Whether this may be JSON that only the reader can judge: a header longer than the first block, or damaged."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in {b"{", b"["}

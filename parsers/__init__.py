"""Parsers: bytes to tables. One file per format; a parser reports what a file says, never what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parsers.registry import read as read

__all__ = ["read"]


def __getattr__(name: str) -> object:
    """Load the readers only when one is asked for: importing this package must cost nothing (PEP 562)."""
    if name == "read":
        from parsers.registry import read

        return read
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

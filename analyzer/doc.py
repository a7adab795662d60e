"""What all parts of the result document have in common."""

from __future__ import annotations

import msgspec


class Doc(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the document's parts: immutable, every key always written."""

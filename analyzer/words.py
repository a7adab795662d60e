"""Small helpers for sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath


def plural(count: int, noun: str, many: str | None = None) -> str:
    """A count and its noun: ``1 rank``, ``3 ranks``."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """File names for sentences: without directories where that leaves them distinct."""
    bare = {path: PurePath(path).name for path in paths}
    return bare if len(set(bare.values())) == len(bare) else {path: path for path in paths}

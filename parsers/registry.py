"""Which format a file has, told from its content, and the one way to read any of them."""

from __future__ import annotations

import os
from pathlib import Path

from parsers.tables import RankTrace


def read(path: str | os.PathLike[str]) -> list[RankTrace]:
    """Read one trace file.

    Args:
        path: the file, plain or compressed; its content decides the format, never its name.

    Returns:
        One `RankTrace` per rank found in the file, normally one.

    Raises:
        InputError: the file cannot be used at all.
    """
    from parsers import kineto

    return kineto.read(Path(path))

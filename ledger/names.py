"""Names that users type: one spelling for all, and what may have been meant where there is none such."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def spelled(name: str) -> str:
    """A preset's name whatever its case; ``_`` and spaces count as ``-``."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def meant(word: str, known: Iterable[str], otherwise: str, *, most: int = 3, cutoff: float = 0.5) -> str:
    """What to say of a word that is not known: the closest of those that are, or something else without any.

    Args:
        word: as it was looked for.
        known: what could have been meant.
        otherwise: what to say where nothing comes close.
        most: names offered at most.
        cutoff: least likeness, as `difflib.get_close_matches` has it.
    """
    close = difflib.get_close_matches(word, [*known], n=most, cutoff=cutoff)
    return f"did you mean {' or '.join(close)}?" if close else otherwise

"""The words of the reports: what they mean, how they are computed, from which events (``glossary.toml``)."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from parsers.errors import InputError

SITE = "docs"
"""Where the pages are that entries refer to."""


@dataclass(frozen=True)
class Entry:
    """One term.

    Attributes:
        names: the title first; a name may end in ``.*`` for all findings of a family.
        means: what it is.
        computed: how it is found out.
        events: from what.
        see: the page of the documentation with more.
    """

    names: tuple[str, ...]
    means: str
    computed: str
    events: str
    see: str

    @property
    def title(self) -> str:
        """The name it is known by."""
        return self.names[0]


@cache
def entries() -> tuple[Entry, ...]:
    """All terms, in the order of the file."""
    rows = tomllib.loads(files("analyzer").joinpath("glossary.toml").read_text(encoding="utf-8"))["entry"]
    return tuple(Entry(**{**row, "names": tuple(row["names"])}) for row in rows)


def lookup(term: str) -> Entry | None:
    """The entry of a term, whatever its case; of a finding's family, if not of the finding itself."""
    wanted = term.strip().lower().partition("#")[0]
    family = f"{wanted.partition('.')[0]}.*"
    by_name = {name.lower(): entry for entry in reversed(entries()) for name in entry.names}
    return by_name.get(wanted) or (by_name.get(family) if "." in wanted else None)


def find(term: str) -> Entry:
    """As `lookup`.

    Raises:
        InputError: there is no such term; the message names the nearest.
    """
    entry = lookup(term)
    if entry is None:
        names = [name for one in entries() for name in one.names]
        close = difflib.get_close_matches(term.lower(), names, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"no term or finding {term!r}{meant}", hint="analyze explain --list names them all")
    return entry

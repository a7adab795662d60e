"""What a report consists of, before it becomes text or markdown: sections of facts, tables and items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Tone(Enum):
    """What a word means to the reader; a reporter may colour it."""

    PLAIN = ""
    HEAD = "head"
    GOOD = "good"
    DOUBT = "doubt"
    BAD = "bad"
    INFO = "info"
    QUIET = "quiet"


@dataclass(frozen=True)
class Cell:
    """Some words and their tone; ``bar`` (0..1) asks for a bar of that length where bars can be drawn."""

    text: str
    tone: Tone = Tone.PLAIN
    bar: float | None = None


Words = str | Cell | Sequence[str | Cell]


@dataclass(frozen=True)
class Facts:
    """Names, each with what is known."""

    rows: Sequence[tuple[str, Words]]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        header: with its unit.
        right: whether cells are aligned to the right.
        spare: 0 if it must stay; else where room is short the columns with the lowest number go first.
    """

    header: str
    right: bool = False
    spare: int = 0


@dataclass(frozen=True)
class Table:
    """Aligned columns."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Cell]]


@dataclass(frozen=True)
class Item:
    """A heading with an explanation."""

    head: Sequence[str | Cell]
    detail: str


@dataclass(frozen=True)
class Section:
    """A titled part of the report."""

    title: str
    lead: Words
    parts: Sequence[Facts | Table | Item] = ()


def cells(words: Words) -> list[Cell]:
    """Any form of words as cells."""
    if isinstance(words, (str, Cell)):
        words = [words]
    return [Cell(word) if isinstance(word, str) else word for word in words]


def without_empty(table: Table, keep: Sequence[str], empty: str) -> Table:
    """A table without the columns in which no row says anything; those named in ``keep`` stay."""
    kept = [
        i
        for i, column in enumerate(table.columns)
        if column.header in keep or any(cells(row[i])[0].text not in ("", empty) for row in table.rows)
    ]
    return Table([table.columns[i] for i in kept], [[row[i] for i in kept] for row in table.rows])

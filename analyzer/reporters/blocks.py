"""What a report consists of, before it becomes text or markdown: sections of facts, tables and items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    """Some words and their tone.

    Attributes:
        text: the words.
        tone: how they are meant.
        bar: 0..1 asks for a bar of that length where bars can be drawn.
        value: what the cell is sorted by where a table can be sorted; None: by its words.
    """

    text: str
    tone: Tone = Tone.PLAIN
    bar: float | None = None
    value: float | None = None


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
    """Aligned columns.

    Attributes:
        columns: from left to right.
        rows: a cell for each column.
        name: of a table that a reader may want to sort and filter, where that can be done; else empty.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Cell]]
    name: str = ""


@dataclass(frozen=True)
class Item:
    """A heading with an explanation."""

    head: Sequence[str | Cell]
    detail: str


@dataclass(frozen=True)
class Picture:
    """Something drawn; where nothing can be, its caption and numbers stand for it.

    Attributes:
        name: distinct within a report, of letters and dashes.
        draw: makes the figure.
        alt: what it shows, in a sentence, for those who cannot see it.
        caption: how to read it.
        numbers: what it is drawn from, as far as a table can hold it.
    """

    name: str
    draw: Callable[[], Figure]
    alt: str
    caption: str
    numbers: Table | None = None


@dataclass(frozen=True)
class Section:
    """A titled part of the report."""

    title: str
    lead: Words
    parts: Sequence[Facts | Table | Item | Picture] = ()


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
    return Table([table.columns[i] for i in kept], [[row[i] for i in kept] for row in table.rows], table.name)

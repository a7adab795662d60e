"""Sections for a terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from analyzer.escaping import printable
from analyzer.reporters.blocks import Cell, Column, Facts, Item, Section, Table, Tone, Words, cells

PLAIN_WIDTH = 120
"""Columns where the output is not a terminal."""

STYLES = {
    Tone.PLAIN: "",
    Tone.HEAD: "bold",
    Tone.GOOD: "green",
    Tone.DOUBT: "yellow",
    Tone.BAD: "red",
    Tone.INFO: "cyan",
    Tone.QUIET: "dim",
}
LONGEST_BAR = 50
_INDENT = (0, 0, 0, 2)


class _Wide(Padding):
    """A table, with the columns it needs."""

    def __init__(self, renderable: RenderableType, pad: tuple[int, int, int, int], *, needs: int) -> None:
        super().__init__(renderable, pad)
        self.needs = needs


def text(report: Sequence[Section], *, terminal: bool = False, width: int | None = None) -> str:
    """The sections one below the other.

    Args:
        report: what to show.
        terminal: whether it goes to a terminal: only then is it coloured (and not where ``NO_COLOR`` is set).
        width: columns; by default the terminal's, or 120.
    """
    if width is None and not terminal and "COLUMNS" not in os.environ:
        width = PLAIN_WIDTH
    out = io.StringIO()

    def console(columns: int | None) -> Console:
        plain = None if terminal else True
        return Console(file=out, force_terminal=terminal, width=columns, no_color=plain, highlight=False)

    page = console(width)
    for section in report:
        for part in _section(section, page.width):
            # A table that does not fit is not cut off: better a long line than a number without its digits.
            needs = part.needs if isinstance(part, _Wide) else 0
            (page if needs <= page.width else console(needs)).print(part)
        page.print()
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines()) + "\n"


def _section(section: Section, width: int) -> list[RenderableType]:
    parts: list[RenderableType] = [Text.assemble((section.title, "bold"), "  ", _words(section.lead))]
    for i, part in enumerate(section.parts):
        if isinstance(part, Item):
            parts.append(Padding(_words(part.head), _INDENT))
            if part.detail:
                parts.append(Padding(_words(part.detail), (0, 0, 0, 8)))
        elif isinstance(part, Facts):
            parts.append(_facts(part))
        elif isinstance(part, Table):
            if i and isinstance(section.parts[i - 1], Table):
                parts.append(Text())
            parts.append(_table(_fitted(part, width - 2), width))
    return parts


def _words(words: Words) -> Text:
    return Text.assemble(*((printable(cell.text), STYLES[cell.tone]) for cell in cells(words)))


def _facts(facts: Facts) -> RenderableType:
    """Names on the left, what is known on the right, wrapped under itself."""
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style=STYLES[Tone.QUIET])
    grid.add_column(overflow="fold")
    for name, said in facts.rows:
        grid.add_row(_words(name), _words(said))
    return Padding(grid, _INDENT)


def _table(table: Table, width: int) -> RenderableType:
    """A table without rules; nothing in it wraps."""
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style=STYLES[Tone.QUIET])
    for column in table.columns:
        grid.add_column(Text(column.header), justify="right" if column.right else "left", no_wrap=True)
    bar = max(10, min(LONGEST_BAR, width - 60))
    for row in table.rows:
        grid.add_row(*(_cell(cells(cell)[0], bar) for cell in row))
    return _Wide(grid, _INDENT, needs=_width(table, range(len(table.columns))) + 4)


def _cell(cell: Cell, bar: int) -> Text:
    if cell.bar is not None:
        return Text("█" * round(bar * cell.bar), STYLES[cell.tone])
    return _words(cell)


def _fitted(table: Table, width: int) -> Table:
    """As many columns as fit; spare ones go, the least needed first."""
    kept = list(range(len(table.columns)))
    for spare in sorted({c.spare for c in table.columns} - {0}):
        if _width(table, kept) <= width:
            break
        kept = [i for i in kept if table.columns[i].spare != spare]
    columns: Sequence[Column] = [table.columns[i] for i in kept]
    return Table(columns, [[row[i] for i in kept] for row in table.rows])


def _width(table: Table, kept: Sequence[int]) -> int:
    """Characters that the columns need side by side, two blanks between."""
    widest = (max(len(cells(cell)[0].text) for cell in (table.columns[i].header, *_column(table, i))) for i in kept)
    return sum(widest) + 2 * (len(kept) - 1)


def _column(table: Table, i: int) -> list[str | Cell]:
    return [row[i] for row in table.rows]

"""Sections as GitHub-flavoured markdown, for tickets and wikis."""

from __future__ import annotations

import re
from collections.abc import Sequence

from analyzer.escaping import printable
from analyzer.reporters.blocks import Cell, Facts, Item, Picture, Section, Table, Tone, Words, cells

_SPECIAL = re.compile(r"([\\`*\[\]<>#|~]|(?<!\w)_|_(?!\w))")


def markdown(report: Sequence[Section], title: str) -> str:
    """The sections under a title; every name from a trace is escaped."""
    return "\n\n".join([f"# {_escape(title)}", *(_section(section) for section in report)]) + "\n"


def _section(section: Section) -> str:
    parts = [f"## {_escape(section.title)}"]
    lead = _words(section.lead)
    if lead:
        parts.append(lead)
    items = [part for part in section.parts if isinstance(part, Item)]
    for part in section.parts:
        if isinstance(part, Facts):
            parts.append(_facts(part))
        elif isinstance(part, Table):
            parts.append(_table(part))
        elif isinstance(part, Picture):
            parts += [_words(part.alt), *([_table(part.numbers)] if part.numbers is not None else [])]
    if items:
        parts.append("\n".join(_item(item) for item in items))
    return "\n\n".join(parts)


def _words(words: Words) -> str:
    return " ".join(_escape("".join(cell.text for cell in cells(words))).split())


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", printable(text))


def _facts(facts: Facts) -> str:
    """A list; what has no name of its own continues the name before it."""
    lines: list[str] = []
    for name, said in facts.rows:
        if name:
            lines.append(f"- **{_escape(name)}** {_words(said)}")
        else:
            lines.append(f"  - {_words(said)}" if lines else f"- {_words(said)}")
    return "\n".join(lines)


def _item(item: Item) -> str:
    head = " ".join(f"**{_words(c)}**" if c.tone is Tone.HEAD else _words(c) for c in cells(item.head))
    return f"- {head}<br>{_words(item.detail)}" if item.detail else f"- {head}"


def _table(table: Table) -> str:
    """A pipe table; bars are left out."""
    kept = [i for i in range(len(table.columns)) if not any(_bar(row[i]) for row in table.rows)]
    lines = [
        _line([_words(table.columns[i].header) for i in kept]),
        _line(["--:" if table.columns[i].right else ":--" for i in kept]),
    ]
    lines += [_line([_words(row[i]) for i in kept]) for row in table.rows]
    return "\n".join(lines)


def _bar(cell: str | Cell) -> bool:
    return isinstance(cell, Cell) and cell.bar is not None


def _line(cells_of_row: Sequence[str]) -> str:
    return "| " + " | ".join(cells_of_row) + " |"

"""Access to the tables of an export, whatever it is stored as: column by column, in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from parsers.columns import NULL, Ints
from parsers.nsys.conditions import Condition

BLOCK_ROWS = 1 << 16
"""Rows that are read at a time."""

LONGEST_NAME = 4096
"""Characters of a name that are looked at: names of templated kernels can be much longer."""

LONGEST_TEXT = 1 << 27
"""Characters of a captured output that are looked at."""

LARGEST_PAYLOAD = 1 << 16
"""Bytes of a payload beyond which it is not NCCL's."""


@dataclass(frozen=True)
class Block:
    """Some rows of a table.

    Attributes:
        rows: how many.
        ints: int64 per integer column, `NULL` where the table says nothing.
        values: text, bytes or numbers per other column, None where the table says nothing.
    """

    rows: int
    ints: Mapping[str, Ints]
    values: Mapping[str, Sequence[Any]]


class Store(Protocol):
    """An opened export.

    Attributes:
        faults: sentences on what could not be read.
        cut: whether rows are missing because of that.
    """

    faults: list[str]
    cut: bool

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table, none if there is no such table."""

    def tables(self) -> Sequence[str]:
        """All tables, by the names of `parsers.nsys.schema`."""

    def scan(
        self, table: str, ints: Sequence[str], values: Sequence[str] = (), where: Condition | None = None
    ) -> Iterator[Block]:
        """Rows of a table in the order of the file, columns that it lacks being null; no blocks if there is none."""

    def strings(self, ids: Ints) -> dict[int, str]:
        """Texts of ``StringIds`` by their number."""

    def find_strings(self, where: Condition) -> dict[int, str]:
        """The texts of ``StringIds`` whose ``value`` fulfils a condition."""

    def long_text(self, number: int) -> str:
        """One text of ``StringIds`` in full, up to `LONGEST_TEXT`; empty if there is none."""

    def close(self) -> None:
        """Let go of the file."""


def column(store: Store, table: str, *names: str, where: Condition | None = None) -> dict[str, Ints]:
    """Whole integer columns of a table."""
    blocks = list(store.scan(table, names, where=where))
    empty = np.empty(0, np.int64)
    return {name: np.concatenate([block.ints[name] for block in blocks]) if blocks else empty for name in names}


def records(store: Store, table: str, names: Sequence[str], limit: int = 100_000) -> list[dict[str, Any]]:
    """The first rows of a small table as dictionaries of Python objects."""
    out: list[dict[str, Any]] = []
    for block in store.scan(table, (), names):
        columns = [block.values[name] for name in names]
        out += [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        if len(out) >= limit:
            break
    return out[:limit]


def as_int(value: Any) -> int:
    """One value of an integer column: what is no 64-bit integer is `NULL`; an unsigned one wraps around."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return NULL
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return NULL
    if number >= 1 << 63:
        number -= 1 << 64
    return number if -(1 << 63) <= number < 1 << 63 else NULL

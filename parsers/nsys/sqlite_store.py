"""Exports as SQLite files: opened read-only, nothing in them is trusted or executed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from parsers.columns import NULL, Ints
from parsers.errors import InputError
from parsers.nsys.conditions import Condition, OneOf
from parsers.nsys.schema import COLUMNS, STRINGS, is_export, real_names
from parsers.nsys.store import BLOCK_ROWS, LARGEST_PAYLOAD, LONGEST_NAME, LONGEST_TEXT, Block, as_int

_LARGEST_VALUE = 1 << 28
_IDS_AT_ONCE = 4096
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})
_FUNCTIONS = frozenset({"glob", "ifnull", "instr", "length", "substr"})
_FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""Of a damaged file. SQLite quotes names in its messages, which Python decodes strictly, whatever `text_factory` is."""

_PAYLOADS = frozenset({"binaryData", "jsonText"})


class SqliteStore:
    """See `parsers.nsys.store.Store`.

    The file is opened with ``immutable``: no lock, no journal, no write. Only plain tables are read (views and virtual
    tables would run what the file says), through statements of this module alone, and values of any size are cut.

    Raises:
        InputError: the file is no database, is damaged, or is not an export of Nsight Systems.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.faults: list[str] = []
        self.cut = False
        self._name = name
        try:
            self._connection = _open(path)
            self._columns, self._always = _tables(self._connection)
        except _FAILURES as error:
            raise InputError(f"cannot be read as SQLite ({error})", path=name, hint="export the report again") from None
        if not is_export(self._columns):
            self.close()
            hint = "known are exports of Nsight Systems: nsys export --type sqlite report.nsys-rep"
            raise InputError("is a SQLite database of something else", path=name, hint=hint)
        self._real = real_names(self._columns)
        self._connection.set_authorizer(_only_reads)
        if _has_content(path.with_name(path.name + "-wal")):
            self.faults.append("a write-ahead log lies beside the file: rows that are only there are missing")

    def columns(self, table: str) -> frozenset[str]:
        """See `Store`."""
        return self._columns.get(self._real.get(table, ""), frozenset())

    def tables(self) -> Sequence[str]:
        """See `Store`."""
        return tuple(self._real)

    def scan(
        self, table: str, ints: Sequence[str], values: Sequence[str] = (), where: Condition | None = None
    ) -> Iterator[Block]:
        """See `Store`."""
        if table not in self._real:
            return
        condition, parameters = where.sql() if where is not None else ("1", [])
        always = self._always.get(self._real[table], frozenset())
        numbers = [f'"{name}"' if name in always else f'ifnull("{name}", {NULL})' for name in ints]
        names = [*numbers, *(_cut(name) for name in values)]
        text = f"SELECT {', '.join(names)} FROM {self._with_nulls(table)} WHERE {condition}"
        given = 0
        try:
            cursor = self._connection.execute(text, parameters)
            while rows := cursor.fetchmany(BLOCK_ROWS):
                given += len(rows)
                yield _block(rows, ints, values)
        except _FAILURES as error:
            self.cut = True
            self.faults.append(f"table {self._real[table]} cannot be read to its end ({error})")
            left = self._before_damage(text, parameters, given)
            if left:
                yield _block(left, ints, values)

    def _before_damage(self, text: str, parameters: Sequence[Any], given: int) -> list[tuple[Any, ...]]:
        """The rows between those already given and the one that cannot be read."""
        rows: list[tuple[Any, ...]] = []
        with suppress(*_FAILURES):  # `extend` keeps what came before it
            rows.extend(islice(self._connection.execute(text, parameters), given, given + BLOCK_ROWS))
        return rows

    def strings(self, ids: Ints) -> dict[int, str]:
        """See `Store`."""
        found: dict[int, str] = {}
        wanted = np.unique(ids)
        for begin in range(0, len(wanted), _IDS_AT_ONCE):
            found |= self.find_strings(OneOf("id", wanted[begin : begin + _IDS_AT_ONCE].tolist()))
        return found

    def find_strings(self, where: Condition) -> dict[int, str]:
        """See `Store`."""
        found: dict[int, str] = {}
        for block in self.scan(STRINGS, ["id"], ["value"], where):
            pairs = zip(block.ints["id"].tolist(), block.values["value"], strict=True)
            found |= {number: str(value) for number, value in pairs if value is not None}
        return found

    def long_text(self, number: int) -> str:
        """See `Store`."""
        query = f'SELECT substr("value", 1, {LONGEST_TEXT}) FROM {self._with_nulls(STRINGS)} WHERE "id" = ?'
        try:
            row = self._connection.execute(query, (number,)).fetchone() if STRINGS in self._real else None
        except _FAILURES as error:
            self.faults.append(f"text {number} cannot be read ({error})")
            row = None
        return str(row[0]) if row and row[0] is not None else ""

    def close(self) -> None:
        """See `Store`."""
        self._connection.close()

    def _with_nulls(self, table: str) -> str:
        """The table, with the columns that this version of it lacks as nulls."""
        real = self._real[table]
        there = self._columns[real]
        known = COLUMNS.get(table, ())
        if there.issuperset(known):
            return f'"{real}"'
        columns = ", ".join(f'"{name}"' if name in there else f'NULL AS "{name}"' for name in known)
        return f'(SELECT {columns} FROM "{real}")'


def tables_of(path: Path) -> tuple[str, ...]:
    """The names of a database's tables; none if it cannot be read."""
    try:
        connection = _open(path)
    except _FAILURES:
        return ()
    try:
        return tuple(_names(connection))
    except _FAILURES:
        return ()
    finally:
        connection.close()


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path.absolute().as_uri() + "?mode=ro&immutable=1", uri=True, check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA query_only = ON")
    connection.text_factory = _text
    return connection


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _names(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    return [
        str(name)
        for name, sql in rows
        if not str(sql).lstrip().upper().startswith("CREATE VIRTUAL") and '"' not in name
    ]


def _tables(connection: sqlite3.Connection) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    """The columns of every table, and those of them that are never null."""
    columns: dict[str, frozenset[str]] = {}
    always: dict[str, frozenset[str]] = {}
    for name in _names(connection):
        rows = connection.execute(f'PRAGMA table_info("{name}")').fetchall()
        columns[name] = frozenset(str(row[1]) for row in rows if '"' not in str(row[1]))
        always[name] = frozenset(str(row[1]) for row in rows if row[3])
    return columns, always


def _only_reads(action: int, _: str | None, second: str | None, *_more: str | None) -> int:
    allowed = action in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _cut(name: str) -> str:
    """A column whose values are cut (names) or left out (payloads) where they are too long."""
    if name in _PAYLOADS:
        return f'CASE WHEN length("{name}") <= {2 * LARGEST_PAYLOAD} THEN "{name}" END'
    return f'CASE WHEN length("{name}") <= {LONGEST_NAME} THEN "{name}" ELSE substr("{name}", 1, {LONGEST_NAME}) END'


def _block(rows: list[tuple[Any, ...]], ints: Sequence[str], values: Sequence[str]) -> Block:
    if not values:
        return Block(len(rows), dict(zip(ints, _matrix(rows, len(ints)), strict=True)), {})
    columns = list(zip(*rows, strict=True))
    numbers = {name: _ints(column) for name, column in zip(ints, columns, strict=False)}
    return Block(len(rows), numbers, dict(zip(values, columns[len(ints) :], strict=True)))


def _matrix(rows: list[tuple[Any, ...]], width: int) -> list[Ints]:
    """The columns of rows of integers."""
    try:
        return list(np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * width).reshape(-1, width).T)
    except (TypeError, ValueError, OverflowError):
        return [_ints(column) for column in zip(*rows, strict=True)]


def _ints(column: Sequence[Any]) -> Ints:
    try:
        return np.fromiter(column, np.int64, len(column))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter(
            (NULL if value is None else value if type(value) is int else as_int(value) for value in column),
            np.int64,
            len(column),
        )

"""The columns of a summary table: one row a rank, a list per column of the rank's own tables.

Text is stored as numbers beside the list of its words, both as the rank has them, so that a summary that was written
and read again is the same to the last code. Times are stored as differences that are mostly small or zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from heuristics.arrays import NULL, codes, numpy, whole
from heuristics.columns import array
from parsers import tables
from parsers.columns import distinct_values, text_array

WORDS = ".words"
INTEGERS = (
    "steps.begin",
    "steps.end",
    "steps.number",
    "steps.launch_gap",
    "line.compute_start",
    "line.compute_length",
    "line.memcpy_start",
    "line.memcpy_length",
    "line.comm_call",
    "line.comm_start",  # less the start of its call
    "line.comm_length",  # less the length of its call
    "line.call_start",  # less the time in the table of collectives
    "line.call_length",
    "host.at_start",  # name after name
    "host.during",
    "host.dry",
    "host.ready",  # less the start of its call
    "host.passes",
    "turns.start",
    "turns.length",
    "turns.phase",
)
BEHAVIOUR = "view.behaviour"
"""What a rank has in common with all that do the same (see `analyzer.summary.view`): stored once for many."""

FAMILY_OF_CALL = "view.family_of_call"

WITNESSES = ("witness", "log")
"""What other sources of the job are joined with."""

TIMING = ("view.call_phase", "view.landmark", "view.landmark_start", "view.landmark_length")
"""Columns of `RankView.timing`: empty where the calls say their size or their group."""

FOR_LAYOUT = ("view", BEHAVIOUR)
"""All that layout inference needs where every call says its group."""

FOR_CALLS = (FAMILY_OF_CALL, *TIMING, *(f"collectives.{name}" for name in ("ts_ns", "dur_ns", "stream", "step")))
"""What it needs beside where calls do not, and for saying which dimension each call belongs to."""

SPACED = "groups.spaced"
"""First rank, number and distance of the ranks of each group that are evenly spaced; ``groups.ranks`` is null there."""


def _fields() -> Iterator[tuple[str, pa.DataType]]:
    yield from (("rank", pa.int32()), ("world_size", pa.int32()), ("head", pa.string()), ("view", pa.string()))
    yield from ((name, pa.binary()) for name in WITNESSES)
    yield from ((BEHAVIOUR, tables.TEXT), (FAMILY_OF_CALL, pa.list_(pa.int32())))
    yield SPACED, pa.list_(pa.list_(pa.int32()))
    yield from ((name, pa.list_(pa.int64())) for name in (*TIMING, *INTEGERS))
    yield "steps.complete", pa.list_(pa.int8())
    for prefix, schema in (("groups.", tables.GROUPS), ("collectives.", tables.COLLECTIVES)):
        for field in schema:
            if pa.types.is_dictionary(field.type):
                yield prefix + field.name, pa.list_(pa.int32())
                yield prefix + field.name + WORDS, pa.list_(pa.string())
            else:
                yield prefix + field.name, pa.list_(field.type)


SCHEMA = pa.schema(list(_fields()))
"""One row a rank."""


def packed(prefix: str, table: pa.Table) -> dict[str, pa.Array]:
    """A rank's table as columns of one row."""
    out: dict[str, pa.Array] = {}
    for name in table.column_names:
        column = whole(table.column(name))
        if pa.types.is_dictionary(column.type):
            out[prefix + name + WORDS] = one(column.dictionary)
            column = column.indices
        out[prefix + name] = one(column)
    return out


def unpacked(prefix: str, schema: pa.Schema, rows: Rows, row: int) -> pa.Table:
    """The rank's table again; the inverse of `packed`."""
    arrays = []
    for field in schema:
        values = rows.values(prefix + field.name, row)
        if pa.types.is_dictionary(field.type):
            words = rows.values(prefix + field.name + WORDS, row)
            # The check matters: a code beyond the words of a damaged file would be read from foreign memory.
            values = pa.DictionaryArray.from_arrays(values, words, safe=True)
        arrays.append(values)
    return pa.Table.from_arrays(arrays, schema=schema)


def compact_words(table: pa.Table) -> pa.Table:
    """The table without words that no row uses; the order of the others stays."""
    for place, field in enumerate(table.schema):
        if not pa.types.is_dictionary(field.type):
            continue
        column = whole(table.column(field.name))
        indices = column.indices
        codes = numpy(indices)
        used = distinct_values(codes[codes >= 0])
        if len(used) == len(column.dictionary):
            continue
        new = np.full(len(column.dictionary) + 1, -1, dtype=np.int32)
        new[used] = np.arange(len(used), dtype=np.int32)
        all_words = column.dictionary.to_pylist()
        words = text_array([all_words[code] for code in used.tolist()])
        table = table.set_column(
            place, field, pa.DictionaryArray.from_arrays(nullable32(new[codes]), words, safe=False)
        )
    return table


def nullable32(values: npt.NDArray[np.int32]) -> pa.Array:
    """Codes as an int32 array; -1 is null."""
    return array(np.maximum(values, 0), values >= 0)


def numbers(values: npt.NDArray[np.generic], kind: pa.DataType) -> pa.Array:
    """One row that holds all the values, from a buffer: `pyarrow.array` would import pandas."""
    data = np.ascontiguousarray(values, dtype=kind.to_pandas_dtype())
    return one(pa.Array.from_buffers(kind, len(data), [None, pa.py_buffer(data)]))


def one(values: pa.Array) -> pa.Array:
    """One row that holds all the values."""
    offsets = pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(np.array([0, len(values)], dtype=np.int32))])
    return pa.ListArray.from_arrays(offsets, values)


class Rows:
    """Access to the lists of a summary table."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._columns: dict[str, tuple[list[int], pa.Array]] = {}
        self._ints: dict[tuple[str, int], npt.NDArray[np.int64]] = {}

    def values(self, name: str, row: int) -> pa.Array:
        """The list of one rank."""
        offsets, values = self._column(name)
        return values.slice(offsets[row], offsets[row + 1] - offsets[row])

    def lengths(self, name: str) -> npt.NDArray[np.int64]:
        """How long the list of each rank is."""
        return np.diff(self._column(name)[0])

    def ints(self, name: str, row: int, null: int = NULL) -> npt.NDArray[np.int64]:
        """The list of one rank as int64: a part of the column, which is converted once for all ranks."""
        if (name, null) not in self._ints:
            self._ints[name, null] = numpy(self._column(name)[1], null)
        offsets = self._column(name)[0]
        return self._ints[name, null][offsets[row] : offsets[row + 1]]

    def column(self, name: str) -> list[bytes | None]:
        """Bytes, one a rank."""
        values: list[bytes | None] = self._table.column(name).to_pylist()
        return values

    @property
    def schema(self) -> pa.Schema:
        """The columns that are there."""
        return self._table.schema

    def words(self, name: str) -> tuple[list[int], list[str]]:
        """Repeated text, one a rank: numbers of words (-1 for none), and the words."""
        numbers, words = codes(self._table, name)
        if len(numbers) and numbers.max() >= len(words):
            raise LookupError(f"{name} refers to a word that is not there")
        return numbers.tolist(), words

    def _column(self, name: str) -> tuple[list[int], pa.Array]:
        """Where the lists of the ranks begin and end, and the values of all of them."""
        if name not in self._columns:
            column = whole(self._table.column(name))
            if not pa.types.is_list(column.type):
                raise TypeError(f"{name} holds {column.type} in place of lists")
            self._columns[name] = (numpy(column.offsets).tolist() if len(column) else [0], column.values)
        return self._columns[name]

    def texts(self, name: str) -> list[str]:
        """Texts, one a rank; of a null nothing can be made, so that reading it fails."""
        values: list[str] = self._table.column(name).to_pylist()
        return values

    def text(self, name: str, row: int) -> str:
        """One text."""
        return str(self._table.column(name)[row].as_py())

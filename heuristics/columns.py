"""Arrow columns as NumPy arrays, with nulls made explicit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NONE = -1
"""A row number that stands for no row."""


def ints(table: pa.Table, name: str, null: int = -1) -> Ints:
    """An integer column as int64; ``null`` stands for missing values."""
    column = table.column(name)
    if column.null_count:
        column = column.fill_null(null)
    return np.asarray(column.to_numpy(), dtype=np.int64)


def known(table: pa.Table, name: str) -> Bools:
    """Which rows have a value."""
    return np.asarray(table.column(name).is_valid().to_numpy(), dtype=np.bool_)


def codes(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int32], list[str]]:
    """A text column as numbers and the distinct texts they stand for; -1 where it is null."""
    return encode(table.column(name))


def encode(column: pa.ChunkedArray | pa.Array) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Text as numbers and the distinct texts they stand for; -1 where it is null."""
    if not len(column):
        return np.empty(0, np.int32), []
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries().chunk(0) if column.num_chunks == 1 else _joined(column)
    indices = column.indices.fill_null(-1) if column.indices.null_count else column.indices
    return np.asarray(indices, dtype=np.int32), column.dictionary.to_pylist()


def _joined(column: pa.ChunkedArray) -> pa.DictionaryArray:
    chunks = column.unify_dictionaries().chunks
    indices = pa.concat_arrays([chunk.indices for chunk in chunks])
    return pa.DictionaryArray.from_arrays(indices, chunks[0].dictionary)


def take(column: Any, rows: Ints) -> pa.Array:
    """Values of a column at the given rows; null where the row is `NONE`."""
    index = pa.array(rows, mask=rows < 0)
    taken = column.take(index)
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken


def nullable(values: npt.NDArray[Any], valid: Bools, kind: pa.DataType) -> pa.Array:
    """An Arrow array of ``kind`` that is null where ``valid`` is false."""
    return pa.array(values, type=kind, mask=~valid)


def texts(values: list[str], number: npt.NDArray[Any]) -> pa.DictionaryArray:
    """Dictionary-encoded text from numbers into ``values``; null where the number is negative."""
    index = pa.array(number.astype(np.int32), mask=number < 0)
    return pa.DictionaryArray.from_arrays(index, pa.array(values, type=pa.string()))


def first_known(*sources: Ints) -> Ints:
    """Row by row, the first of the given values that is not `NONE`."""
    out = sources[0].copy()
    for source in sources[1:]:
        out = np.where(out == NONE, source, out)
    return out

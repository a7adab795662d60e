"""Building Arrow columns from NumPy arrays and row numbers; reading them is `heuristics.arrays`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from heuristics.arrays import NULL, list_parts, numpy, valid, whole
from parsers.columns import NULL as ABSENT
from parsers.columns import bits, int_array, list_of, text_array, validity

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def none(n: int) -> Ints:
    """``n`` times `NULL`: row numbers that stand for no row."""
    return np.full(n, NULL, dtype=np.int64)


def at(values: npt.NDArray[Any], rows: Ints, null: Any = NULL) -> npt.NDArray[Any]:
    """``values[rows]``, with ``null`` where the row is `NULL`."""
    if not len(values):
        return np.full(len(rows), null, dtype=values.dtype)
    return np.where(rows >= 0, values[np.maximum(rows, 0)], null)


def first(*sources: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Row by row, the first of the given values that is not `NULL`."""
    out = sources[0].copy()
    for source in sources[1:]:
        missing = out == NULL
        out[missing] = source[missing]
    return out


def distinct(*columns: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Rows of several integer columns that are alike.

    Returns:
        The first row of each kind, kinds in ascending order of their values; and the kind of every row.
    """
    key = np.zeros(len(columns[0]), dtype=np.int64)
    room = 1
    for column in columns:
        low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
        if room * (high - low + 1) >= 1 << 62:
            _, key = np.unique(key, return_inverse=True)
            room = int(key.max(initial=0)) + 1
        if room * (high - low + 1) >= 1 << 62:
            values, column = np.unique(column, return_inverse=True)
            low, high = 0, len(values) - 1
        key = key * (high - low + 1) + (column.astype(np.int64) - low)
        room *= high - low + 1
    _, example, kind = np.unique(key, return_index=True, return_inverse=True)
    return example, kind


def array(values: npt.NDArray[Any], here: Bools | None = None) -> pa.Array:
    """Integers or truth values as an Arrow array, null where not ``here``.

    Made from buffers: `pyarrow.array` would import pandas, which takes longer than a small trace.
    """
    mask = None if here is None else validity(here)
    data = bits(values) if values.dtype == np.bool_ else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [mask, data])


def take(column: pa.Array | pa.ChunkedArray, rows: Ints) -> pa.Array:
    """Values of a column at the given rows; null where the row is `NULL`.

    From the buffers, for the reason that `heuristics.arrays.list_parts` gives.
    """
    values = whole(column)
    kind = values.type
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(take(values.indices, rows), values.dictionary, safe=False)
    if pa.types.is_list(kind):
        lengths, items = list_parts(values)
        here = at(valid(values), rows, False)
        size = at(lengths, rows, 0)
        return list_of(take(items, _ranges(np.cumsum(lengths) - lengths, size, rows)), size, here, kind)
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return values.take(array(rows, rows >= 0))
    here = at(valid(values), rows, False)
    found = at(numpy(values, 0), rows, 0)
    return array(found.astype(np.bool_ if pa.types.is_boolean(kind) else kind.to_pandas_dtype()), here)


def take_rows(table: pa.Table, rows: Ints) -> pa.Table:
    """The given rows of a table."""
    return pa.Table.from_arrays([take(column, rows) for column in table.columns], schema=table.schema)


def _ranges(begin: Ints, size: Ints, rows: Ints) -> Ints:
    """Where the items of the lists at the given rows are, one list after the other; ``size`` is that of each row's."""
    places: Ints = np.arange(int(size.sum())) + np.repeat(at(begin, rows, 0) - (np.cumsum(size) - size), size)
    return places


def nullable(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """An Arrow array of ``kind``, null where the value is `NULL` or does not fit."""
    return int_array(np.where(values == NULL, ABSENT, values), kind)


def texts(values: Sequence[str], number: npt.NDArray[Any]) -> pa.DictionaryArray:
    """Dictionary-encoded text from numbers into ``values`` (which may repeat); null where the number is `NULL`."""
    unique = list(dict.fromkeys(values))
    place = {value: i for i, value in enumerate(unique)}
    lookup = np.array([*(place[value] for value in values), NULL], dtype=np.int32)
    index = lookup[number]
    return pa.DictionaryArray.from_arrays(array(index, index >= 0), text_array(unique), safe=False)

"""Building Arrow columns from NumPy arrays and row numbers; reading them is `heuristics.arrays`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from heuristics.arrays import NULL
from parsers.columns import text_array

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


def array(values: npt.NDArray[Any], valid: Bools | None = None) -> pa.Array:
    """Integers or truth values as an Arrow array, null where not valid.

    Made from buffers: `pyarrow.array` would import pandas, which takes longer than a small trace.
    """
    missing = valid is not None and not valid.all()
    mask = pa.py_buffer(np.packbits(valid, bitorder="little")) if valid is not None and missing else None
    data = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [mask, pa.py_buffer(data)])


def take(column: pa.ChunkedArray, rows: Ints) -> pa.Array:
    """Values of a column at the given rows; null where the row is `NULL`."""
    taken = column.take(array(rows, rows >= 0))
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken


def nullable(values: npt.NDArray[Any], kind: pa.DataType, valid: Bools | None = None) -> pa.Array:
    """An Arrow array of ``kind``, null where ``valid`` is false (or, without it, where the value is `NULL`)."""
    return array(values, values != NULL if valid is None else valid).cast(kind)


def texts(values: Sequence[str], number: npt.NDArray[Any]) -> pa.DictionaryArray:
    """Dictionary-encoded text from numbers into ``values`` (which may repeat); null where the number is `NULL`."""
    unique = list(dict.fromkeys(values))
    place = {value: i for i, value in enumerate(unique)}
    lookup = np.array([*(place[value] for value in values), NULL], dtype=np.int32)
    index = lookup[number]
    return pa.DictionaryArray.from_arrays(array(index, index >= 0), text_array(unique), safe=False)

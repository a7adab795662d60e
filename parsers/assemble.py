"""Arrow tables from lists of Python values, for formats whose files are small or whose rows are few.

Made from buffers like everything in `parsers.columns`: `pyarrow.array(list)` would import pandas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from parsers.columns import NULL, Names, bits, int_array, integers, list_array, text_array


def table(schema: pa.Schema, columns: Mapping[str, Sequence[Any]], rows: int | None = None) -> pa.Table:
    """A table of the given schema.

    Args:
        schema: integers, booleans, floats, text (plain or dictionary), lists of integers, of text, of such lists.
        columns: values by column name, None for null; a column that is not named is null throughout.
        rows: how many, where no column is named.

    Raises:
        KeyError: a column that the schema does not have.
    """
    unknown = set(columns) - set(schema.names)
    if unknown:
        raise KeyError(min(unknown))
    count = len(next(iter(columns.values()))) if columns else rows or 0
    arrays = [_array(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_integer(kind):
        return int_array(integers([NULL if value is None else value for value in values]), kind)
    if pa.types.is_boolean(kind):
        return _booleans(values, kind)
    if pa.types.is_floating(kind):
        return _floats(values)
    if pa.types.is_dictionary(kind):
        return _dictionary(values, kind)
    if pa.types.is_string(kind):
        return text_array(values)
    return _lists(values, kind)


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    return bits(np.array(flags, np.bool_))


def _booleans(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    valid = _bits([value is not None for value in values])
    return pa.Array.from_buffers(kind, len(values), [valid, _bits([bool(value) for value in values])])


def _floats(values: Sequence[Any]) -> pa.Array:
    numbers = np.array([0.0 if value is None else value for value in values], np.float64)
    valid = _bits([value is not None for value in values])
    return pa.Array.from_buffers(pa.float64(), len(values), [valid, pa.py_buffer(numbers)])


def _dictionary(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    names = Names()
    codes = names.codes(values)
    valid = _bits([value is not None for value in values])
    indices = pa.Array.from_buffers(kind.index_type, len(values), [valid, pa.py_buffer(np.maximum(codes, 0))])
    return pa.DictionaryArray.from_arrays(indices, text_array([str(name) for name in names]), safe=False)


def _lists(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    codes = np.array([NULL if value is None else row for row, value in enumerate(values)], np.int64)
    return list_array(values, codes, kind)

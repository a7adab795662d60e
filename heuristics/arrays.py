"""Arrow columns as NumPy arrays, the way every heuristic wants them: nulls filled, text as codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

NULL = -1
"""What a null integer becomes."""


def ints(table: pa.Table, name: str, null: int = NULL) -> npt.NDArray[np.int64]:
    """An integer or boolean column as int64, nulls as ``null``."""
    column = table.column(name).combine_chunks()
    if column.null_count:
        column = column.fill_null(null if str(column.type) != "bool" else False)
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def codes(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    """A dictionary-encoded text column as (codes, values); null is code -1."""
    column = table.column(name).unify_dictionaries().combine_chunks()
    if hasattr(column, "chunks"):  # a chunked array without chunks
        return np.empty(0, dtype=np.int64), []
    indices = column.indices
    if indices.null_count:
        indices = indices.fill_null(-1)
    return np.asarray(indices.to_numpy(zero_copy_only=False), dtype=np.int64), column.dictionary.to_pylist()


def code_of(values: list[str], text: str) -> int:
    """The code of ``text`` in a dictionary, -2 if it does not occur (so that it equals no code and no null)."""
    try:
        return values.index(text)
    except ValueError:
        return -2


def lists(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A list-of-integers column as (offsets of length rows + 1, flat values); null lists are empty."""
    column = table.column(name).combine_chunks()
    if hasattr(column, "chunks"):
        return np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64)
    lengths = column.value_lengths().fill_null(0)
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths.to_numpy(zero_copy_only=False), dtype=np.int64))])
    flat = column.flatten().fill_null(NULL)
    return offsets, np.asarray(flat.to_numpy(zero_copy_only=False), dtype=np.int64)

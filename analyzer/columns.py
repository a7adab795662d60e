"""Arrow columns as NumPy arrays, with nulls made explicit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analyzer.intervals import Bools, Ints


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
    """A text column as numbers and the texts they stand for; -1 where it is null."""
    column = table.column(name)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 0:
            return np.empty(0, np.int32), []
        column = column.chunk(0)
    indices = column.indices
    if indices.null_count:
        indices = indices.fill_null(-1)
    return np.asarray(indices.to_numpy(zero_copy_only=False), dtype=np.int32), column.dictionary.to_pylist()

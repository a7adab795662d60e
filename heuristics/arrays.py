"""Arrow columns as NumPy arrays, the way every heuristic wants them: nulls filled, text as codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

NULL = -1
"""What a null integer becomes."""


def numpy(values: pa.Array | pa.ChunkedArray, null: int = NULL) -> npt.NDArray[np.int64]:
    """Integers or truth values as int64, nulls as ``null``.

    From the buffers: `to_numpy` and `numpy.asarray` on Arrow data import pandas, which takes longer than a small trace.
    """
    chunks = [_chunk(chunk, null) for chunk in getattr(values, "chunks", [values])]
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate(chunks) if chunks else np.empty(0, dtype=np.int64)


def _chunk(values: pa.Array, null: int) -> npt.NDArray[np.int64]:
    mask, data = values.buffers()[:2]
    here = slice(values.offset, values.offset + len(values))
    if not len(values) or data is None:
        return np.full(len(values), null, dtype=np.int64)
    if str(values.type) == "bool":
        found = _bits(data)[here].astype(np.int64)
    else:
        width = np.dtype(f"{'u' if str(values.type).startswith('u') else 'i'}{values.type.bit_width // 8}")
        found = np.frombuffer(data, dtype=width, count=here.stop)[here].astype(np.int64, copy=False)
    return found if mask is None or not values.null_count else np.where(_bits(mask)[here], found, null)


def valid(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Which values are not null."""
    chunks = getattr(values, "chunks", [values])
    return np.concatenate([np.empty(0, dtype=np.bool_), *(_valid(chunk) for chunk in chunks)])


def _valid(values: pa.Array) -> npt.NDArray[np.bool_]:
    mask = values.buffers()[0]
    if mask is None:
        return np.full(len(values), str(values.type) != "null")
    return _bits(mask)[values.offset : values.offset + len(values)]


def _bits(buffer: pa.Buffer) -> npt.NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(buffer, dtype=np.uint8), bitorder="little").astype(np.bool_)


def ints(table: pa.Table, name: str, null: int = NULL) -> npt.NDArray[np.int64]:
    """An integer or boolean column as int64, nulls as ``null``."""
    column = table.column(name)
    return numpy(column, null if str(column.type) != "bool" else 0)


def codes(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    """A dictionary-encoded text column as (codes, values); null is code -1."""
    column = whole(table.column(name))
    return numpy(column.indices), column.dictionary.to_pylist()


def code_of(values: list[str], text: str) -> int:
    """The code of ``text`` in a dictionary, -2 if it does not occur (so that it equals no code and no null)."""
    try:
        return values.index(text)
    except ValueError:
        return -2


def lists(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A list-of-integers column as (offsets of length rows + 1, flat values); null lists are empty."""
    lengths, items = list_parts(table.column(name))
    return np.concatenate([[0], np.cumsum(lengths)]), numpy(items)


def list_parts(column: pa.ListArray | pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Length of every row's list (0 for null), and the items of all of them.

    From the buffers: Arrow's own functions come with `pyarrow.compute`, whose import takes longer than a small trace.
    """
    array = whole(column)
    if not len(array):
        return np.empty(0, dtype=np.int64), array.values[:0]
    offsets = numpy(array.offsets)
    lengths = np.diff(offsets)
    if array.null_count:
        here = valid(array)
        if lengths[~here].any():  # a null may lie over items that belong to nobody
            return np.where(here, lengths, 0), array.flatten()
    return lengths, array.values[int(offsets[0]) : int(offsets[-1])]


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column in one piece, with one dictionary where it has any."""
    if not hasattr(column, "chunks"):
        return column
    if not column.num_chunks:
        import pyarrow as pa

        return pa.nulls(0, column.type)
    joined = column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
    return joined.chunk(0) if hasattr(joined, "chunks") else joined

"""Arrow columns read and built from their buffers give what Arrow's own functions give."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from heuristics.arrays import list_parts, lists, numpy, whole
from heuristics.columns import array, nullable, take, take_rows
from parsers.columns import distinct_values

ROWS = np.array([2, -1, 0, 0, 3])
EXPECTED = [2, None, 0, 0, 3]
COLUMNS = {
    "integers": pa.array([5, None, -7, 1 << 40]),
    "narrow": pa.array([5, None, -7, 9], pa.int8()),
    "truth": pa.array([True, None, False, True]),
    "text": pa.array(["a", None, "", "dé"]),
    "words": pa.array(["x", None, "y", "x"]).dictionary_encode(),
    "lists": pa.array([[1, 2], None, [], [3, None]]),
    "nested": pa.array([[[1], []], None, [[2, 3]], []]),
    "texts": pa.array([["a", "bc"], None, [], [None]]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_take_gives_the_rows_and_null_for_no_row(name: str) -> None:
    values = COLUMNS[name].to_pylist()
    wanted = [None if row is None else values[row] for row in EXPECTED]
    padded = pa.concat_arrays([COLUMNS[name][:1], COLUMNS[name]])[1:]  # an array that does not begin at its buffer
    for column in (COLUMNS[name], padded, pa.chunked_array([COLUMNS[name][:2], COLUMNS[name][2:]])):
        taken = take(column, ROWS)
        assert taken.type == COLUMNS[name].type
        assert taken.to_pylist() == wanted
        taken.validate(full=True)


def test_take_rows_keeps_the_schema() -> None:
    table = pa.table(COLUMNS)
    taken = take_rows(table, np.array([3, 1]))
    assert taken.schema == table.schema
    assert taken.to_pylist() == [table.to_pylist()[3], table.to_pylist()[1]]


def test_lists_come_as_lengths_and_items() -> None:
    column = COLUMNS["lists"][1:]
    lengths, items = list_parts(column)
    assert lengths.tolist() == [0, 0, 2]
    assert items.to_pylist() == [3, None]
    offsets, flat = lists(pa.table({"a": pa.chunked_array([column, COLUMNS["lists"]])}), "a")
    assert offsets.tolist() == [0, 0, 0, 2, 4, 4, 4, 6]
    assert flat.tolist() == [3, -1, 1, 2, 3, -1]


def test_items_under_a_null_belong_to_nobody() -> None:
    mask = pa.py_buffer(np.packbits([True, False, True], bitorder="little"))
    offsets = pa.py_buffer(np.array([0, 1, 3, 4], dtype=np.int32))
    column = pa.Array.from_buffers(pa.list_(pa.int64()), 3, [mask, offsets], children=[array(np.arange(4))])
    lengths, items = list_parts(column)
    assert lengths.tolist() == pc.fill_null(pc.list_value_length(column), 0).to_pylist() == [1, 0, 1]
    assert items.to_pylist() == [0, 3]


def test_a_column_without_chunks_is_empty() -> None:
    lengths, items = list_parts(pa.chunked_array([], pa.list_(pa.int64())))
    assert len(lengths) == len(items) == 0
    assert whole(pa.chunked_array([], pa.int32())).type == pa.int32()


def test_dictionaries_of_chunks_become_one() -> None:
    column = pa.chunked_array([pa.array(["a", "b"]).dictionary_encode(), pa.array(["b", "c"]).dictionary_encode()])
    joined = whole(column)
    assert joined.dictionary.to_pylist() == ["a", "b", "c"]
    assert numpy(joined.indices).tolist() == [0, 1, 1, 2]


def test_distinct_values_are_sorted() -> None:
    values = np.random.default_rng(0).integers(-5, 5, 1000)
    assert distinct_values(values).tolist() == np.unique(values).tolist()
    assert distinct_values(values[:0]).tolist() == []


def test_minus_one_and_what_does_not_fit_are_null() -> None:
    values = np.array([7, -1, 1 << 40, -2])
    assert nullable(values, pa.int64()).to_pylist() == [7, None, 1 << 40, -2]
    assert nullable(values, pa.int32()).to_pylist() == [7, None, None, -2]

"""Columns: exact times, lenient integers, and Arrow arrays without pandas."""

from __future__ import annotations

import subprocess
import sys
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.columns import (
    NULL,
    Columns,
    Lists,
    Names,
    comma_separated,
    integers,
    list_array,
    nanosecond,
    nanoseconds,
    text_array,
    whole_number,
)
from tests.parsers.made import three_steps


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        (b"0", 0),
        (b"12.345", 12345),
        (b"5239871117788.785", 5239871117788785),
        (b"1767189312000000.001", 1767189312000000001),  # beyond what a double holds
        (b"-0.5", -500),
        (b"1e3", 1_000_000),
        (b"1.0004", 1000),
        (b"1.0006", 1001),
        (b"135556.78999999998", 135556790),
        (b"1.0005", 1000),
        (b"1.0015", 1002),
        (b"1.00050000000000000000000000000000000000001", 1001),  # more digits than a decimal context keeps
        (b"-", NULL),
        (b"1e-400000000", 0),
        (b'"7.25"', 7250),
        (b"NaN", NULL),
        (b"null", NULL),
        (b"", NULL),
        (b"1e400", NULL),
        (b"1e999999999999999999", NULL),
        (b"-9e99999999", NULL),
        (b"9223372036854775807", NULL),
        (b"9223372036854776.0", NULL),
        (b"9223372036854775.0", 9223372036854775000),
        (b"-9223372036854776.0", NULL),
    ],
)
def test_one_time_is_exact(written: bytes, ns: int) -> None:
    assert nanosecond(written) == ns
    assert nanoseconds(written + b",1.5", 2).tolist() == [ns, 1500]


@given(st.lists(st.decimals(-(10**14), 10**14, places=3), min_size=1), st.booleans())
def test_times_equal_decimal_arithmetic(values: list[Decimal], plain: bool) -> None:
    texts = [format(value.normalize() if plain else value, "f").encode() for value in values]
    expected = [int((value * 1000).to_integral_value(ROUND_HALF_EVEN)) for value in values]
    assert nanoseconds(b",".join(texts), len(texts)).tolist() == expected


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=1))
def test_times_from_the_shortest_form_of_doubles(values: list[float]) -> None:
    texts = [repr(value).encode() for value in values]
    expected = [nanosecond(text) for text in texts]
    assert nanoseconds(b",".join(texts), len(texts)).tolist() == expected


@given(st.lists(st.text("0123456789.-/eE+", max_size=24), min_size=1))
def test_any_text_is_read_alike_alone_and_among_others(values: list[str]) -> None:
    texts = [value.encode() for value in values]
    assert nanoseconds(b",".join(texts), len(texts)).tolist() == [nanosecond(text) for text in texts]


@given(st.from_regex(r"\A-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,60})?([eE][+-]?[0-9]{1,2})?\Z"))
def test_a_time_is_the_fraction_that_its_text_says(written: str) -> None:
    exact = round(Fraction(written) * 1000)
    said = nanosecond(written.encode())
    assert said == (exact if abs(exact) < 2**63 else NULL)


def test_integers_take_what_writers_make_of_numbers() -> None:
    assert integers([1, "2", "stream 20", 3.0, None, "x", 2**64]).tolist() == [1, 2, 20, 3, NULL, NULL, NULL]


def test_rows_of_lists_repeat_shared_lists() -> None:
    codes = np.array([1, 0, -1, 1], np.int32)
    array = list_array([[1, 2], []], codes, pa.list_(pa.int32()))
    array.validate(full=True)
    assert array.to_pylist() == [[], [1, 2], None, []]
    nested = list_array([[[1], []], [[2, 3]]], codes, pa.list_(pa.list_(pa.int64())))
    nested.validate(full=True)
    assert nested.to_pylist() == [[[2, 3]], [[1], []], None, [[2, 3]]]
    texts = list_array([["a", ""], ["b"]], codes, pa.list_(pa.string()))
    texts.validate(full=True)
    assert texts.to_pylist() == [["b"], ["a", ""], None, ["b"]]


def test_no_lists_at_all() -> None:
    array = list_array([], np.array([-1, -1], np.int32), pa.list_(pa.list_(pa.int64())))
    array.validate(full=True)
    assert array.to_pylist() == [None, None]


def test_text_that_is_not_unicode_survives() -> None:
    assert text_array(["é", None, "\ud800"]).to_pylist() == ["é", None, "?"]


def test_a_table_grows_by_blocks_and_fills_what_is_missing() -> None:
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("small", pa.int32()),
            ("flag", pa.bool_()),
            ("name", pa.dictionary(pa.int32(), pa.string())),
            ("list", pa.list_(pa.int64())),
        ]
    )
    names = Names()
    lists = Lists(lambda raw: ([int(part) for part in raw.split()], raw.endswith(b" ")))
    columns = Columns(schema, {"name": names, "list": lists})
    columns.add(2, {"n": np.array([1, NULL]), "name": names.codes(["a", None]), "small": np.array([2**40, 7])})
    codes = lists.codes([b"1 2", b"", b"1 2 "])
    columns.add(3, {"n": 5, "list": codes, "flag": lists.cut(codes), "name": names.codes(["b", "a", "a"])})
    table = columns.table()
    table.validate(full=True)
    assert table.to_pydict() == {
        "n": [1, None, 5, 5, 5],
        "small": [None, 7, None, None, None],  # a value that does not fit is none
        "flag": [None, None, False, False, True],
        "name": ["a", None, "b", "a", "a"],
        "list": [None, None, [1, 2], None, [1, 2]],
    }
    assert columns.table(np.array([4, 0]))["n"].to_pylist() == [5, 1]
    columns.keep(np.array([True, False, False, False, True]))
    assert columns.rows == 2
    assert columns.table()["list"].to_pylist() == [None, [1, 2]]


def test_reading_a_trace_does_not_import_pandas(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(three_steps().text())
    heavy = "{'pandas', 'matplotlib'}"
    code = f"import sys, parsers; parsers.read({str(path)!r}); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_loads_no_reader() -> None:
    code = "import sys, parsers; print([name for name in ('pyarrow', 'numpy', 'msgspec') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("said", "number"),
    [
        (7, 7),
        ("-7", -7),
        (b"007", 7),
        (str(2**63 - 1), 2**63 - 1),
        (2**63, None),
        (str(2**63), None),
        ("9" * 5000, None),  # more digits than Python reads
        ("²", None),  # a digit for `str.isdigit`, no number
        ("--5", None),
        ("", None),
        (7.0, None),
        (True, None),
        (None, None),
    ],
)
def test_a_whole_number_is_one_or_its_digits(said: object, number: int | None) -> None:
    assert whole_number(said) == number


@pytest.mark.parametrize(
    ("text", "numbers"),
    [(b"0,-1, 2", [0, -1, 2]), (b"5", [5]), (b"1 2", None), (b"1,,2", None), (b"1,", None), (b"", None)],
)
def test_numbers_between_commas(text: bytes, numbers: list[int] | None) -> None:
    found = comma_separated(text)
    assert (None if found is None else found.tolist()) == numbers

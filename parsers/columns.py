"""Columns that grow block by block and end as Arrow tables.

Values are kept in NumPy arrays, never as Python objects. Arrow arrays are made from buffers: `pyarrow.array(list)`
would import pandas, which costs more than reading a small trace.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import MAX_PREC, ROUND_HALF_EVEN, Context, Decimal
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]

NULL = -(2**63)
"""Stands for "not said" in integer columns until they become Arrow arrays."""

_I64_MAX = 2**63 - 1
_POWERS = np.array([1000, 100, 10, 1], dtype=np.int64)
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_EXACT = Context(prec=MAX_PREC)  # with the usual 28 digits a longer number would be rounded twice
_LONE_MINUS = re.compile(rb"-(?!\d)")  # NumPy reads it as 0


def integers(values: Sequence[Any]) -> Ints:
    """Integers (`NULL` for none, numbers in strings accepted) as a column; what is no 64-bit integer becomes `NULL`."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter((integer(value) for value in values), np.int64, len(values))


def integer(value: Any) -> int:
    """One integer out of what writers make of one: ``7``, ``7.0``, ``"7"``, ``"stream 7"``; else `NULL`."""
    if isinstance(value, str):
        digits = value.split()[-1:]
        value = digits[0] if digits else ""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return NULL
    return number if NULL < number <= _I64_MAX else NULL


def whole_number(value: Any) -> int | None:
    """A 64-bit integer, or the plain digits of one (``"7"``, ``b"-7"``); None for anything else.

    `str.isdigit` is true of texts that `int` refuses (``"²"``), and `int` refuses texts of more than 4,300 digits.
    """
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if NULL < value <= _I64_MAX else None


def comma_separated(text: bytes) -> Ints | None:
    """Whole numbers with commas between them (``b"0,-1, 2"``); None where there is anything else."""
    try:
        values = np.fromstring(text, dtype=np.int64, sep=",")
    except (ValueError, DeprecationWarning):
        return None
    return values if len(values) == text.count(b",") + 1 else None


def nanoseconds(text: bytes, count: int) -> Ints:
    """Microseconds as written to integer nanoseconds, exactly.

    A double holds microseconds since the epoch, or since boot after 52 days, only to some nanoseconds; the digits hold
    them all. Finer digits are rounded to the nearest nanosecond, halves to the even one; what is no number becomes
    `NULL`.

    Args:
        text: the numbers, with commas between them (``b"12.345,7"``).
        count: how many they are.
    """
    if not count:
        return np.empty(0, np.int64)
    fast = _decimals(text, count)
    if fast is not None:
        return fast
    return np.fromiter((nanosecond(raw) for raw in text.split(b",")), np.int64, count)


def _decimals(text: bytes, count: int) -> Ints | None:
    """The fast way for plain decimals of up to three places; None where one of them is something else."""
    data = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(data == ord(","))
    if len(commas) != count - 1 or data.max(initial=48) > ord("9") or data.min(initial=48) < ord(","):
        return None
    if b"-" in text and _LONE_MINUS.search(text):
        return None
    ends = np.append(commas, len(text))
    lengths = ends - np.append(0, commas + 1)
    points = np.flatnonzero(data == ord("."))
    owner = np.searchsorted(commas, points)
    decimals = np.zeros(count, np.int64)
    decimals[owner] = ends[owner] - points - 1
    twice = len(owner) > 1 and bool((owner[1:] == owner[:-1]).any())
    if twice or decimals.max() > 3 or lengths.min() < 1 or lengths.max() > 18:
        return None
    values = comma_separated(text.replace(b".", b""))
    if values is None or (np.abs(values) > _I64_MAX // _POWERS[decimals]).any():
        return None
    scaled: Ints = values * _POWERS[decimals]
    return scaled


def nanosecond(raw: bytes) -> int:
    """One time, as `nanoseconds` reads it."""
    try:
        value = Decimal(raw.strip(b'" ').decode("ascii"))
        small = value.copy_abs() < 2**63
        number = int(_EXACT.multiply(value, 1000).to_integral_value(ROUND_HALF_EVEN)) if small else NULL
    except (ArithmeticError, UnicodeDecodeError, ValueError):
        return NULL
    return number if NULL < number <= _I64_MAX else NULL


class Names(dict[Any, int]):
    """Numbers repeated text: ``names[text]`` is its number, in order of first use."""

    def __init__(self, texts: Iterable[Any] = ()) -> None:
        super().__init__()
        for text in texts:
            _ = self[text]

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number

    def codes(self, values: Sequence[Any]) -> Codes:
        """The numbers of many texts; -1 for None."""
        if None not in values:
            return np.fromiter(map(self.__getitem__, values), np.int32, len(values))
        get = self.__getitem__
        return np.fromiter((-1 if value is None else get(value) for value in values), np.int32, len(values))


class Lists(dict[bytes, int]):
    """Numbers repeated lists, each parsed once from the text that it was written as."""

    def __init__(self, parse: Callable[[bytes], tuple[list[Any], bool] | None]) -> None:
        super().__init__({b"": -1})
        self.lists: list[list[Any]] = []
        self._parse = parse
        self._cut: list[bool] = []

    def __missing__(self, raw: bytes) -> int:
        parsed = self._parse(raw)
        code = -1
        if parsed is not None:
            code = len(self.lists)
            self.lists.append(parsed[0])
            self._cut.append(parsed[1])
        self[raw] = code
        return code

    def codes(self, raws: Sequence[Any]) -> Codes:
        """The numbers of many lists as written; -1 where there is none."""
        return np.fromiter(map(self.__getitem__, map(bytes, raws)), np.int32, len(raws))

    def cut(self, codes: Codes) -> npt.NDArray[np.int8]:
        """1 where the writer had cut the list short."""
        flags = np.array([*self._cut, False], np.int8)
        return flags[codes]


class Columns:
    """One growing table.

    Integer and boolean columns are int64 and int8 arrays with `NULL` and -1 for null, text and list columns are int32
    numbers of a `Names` or `Lists` that is shared by all blocks.

    A column is one buffer that grows in place: arrays of single blocks, to be put together at the end, would leave the
    memory in pieces that are of no use for larger ones, and a reader that peaks at several times what it keeps.
    """

    def __init__(self, schema: pa.Schema, shared: Mapping[str, Names | Lists]) -> None:
        self.schema = schema
        self.rows = 0
        self._shared = shared
        self._kinds: dict[str, npt.DTypeLike] = {field.name: _dtype(field.type) for field in schema}
        self._data: dict[str, bytearray] = {field.name: bytearray() for field in schema}

    def add(self, count: int, columns: Mapping[str, npt.NDArray[Any] | int]) -> None:
        """Add ``count`` rows; a scalar stands for all of them, a column not named is null.

        Names outside the schema are kept beside the table (see `column`). No array that `column` gave may be in use.
        """
        for name in self.schema.names:
            kind = self._kinds[name]
            self._append(name, count, columns.get(name, NULL if kind is np.int64 else -1))
        for name, value in columns.items():
            if name not in self.schema.names:
                self._kinds.setdefault(name, np.int64 if isinstance(value, int) else value.dtype)
                self._append(name, count, value)
        self.rows += count

    def _append(self, name: str, count: int, value: npt.NDArray[Any] | int) -> None:
        kind = self._kinds[name]
        values = np.full(count, value, kind) if isinstance(value, int) else np.ascontiguousarray(value, kind)
        self._data.setdefault(name, bytearray()).extend(values.data)

    def column(self, name: str) -> npt.NDArray[Any]:
        """One column as an array, with its stand-ins for null."""
        return np.frombuffer(self._data.get(name, b""), self._kinds.get(name, np.int64))

    def replace(self, name: str, values: npt.NDArray[Any]) -> None:
        """Put a whole new column in the place of an old one."""
        self._data[name] = bytearray(np.ascontiguousarray(values, self._kinds[name]).data)

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Forget the rows whose mask is false."""
        self.reorder(np.flatnonzero(mask))

    def reorder(self, rows: npt.NDArray[Any]) -> None:
        """Keep the given rows, by their numbers, in the order given."""
        if self.rows:
            for name in self._data:
                self.replace(name, self.column(name)[rows])
        self.rows = len(rows)

    def table(self, rows: npt.NDArray[Any] | None = None, *, last: bool = False) -> pa.Table:
        """The table, or the given rows of it (their numbers, in the order wanted).

        ``last``: nothing is asked of these columns any more, so that each can go as soon as it is in the table.
        """
        arrays = []
        for field in self.schema:
            values = self.column(field.name)
            arrays.append(_arrow(values if rows is None else values[rows], field.type, self._shared.get(field.name)))
            if last:
                del values, self._data[field.name]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _dtype(kind: pa.DataType) -> type[np.int64 | np.int32 | np.int8]:
    if pa.types.is_boolean(kind):
        return np.int8
    return np.int64 if pa.types.is_integer(kind) else np.int32


def _arrow(values: npt.NDArray[Any], kind: pa.DataType, shared: Names | Lists | None) -> pa.Array:
    if pa.types.is_integer(kind):
        return int_array(values, kind)
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, len(values), [validity(values != -1), bits(values == 1)])
    if pa.types.is_dictionary(kind):
        texts = text_array([str(text) for text in shared] if isinstance(shared, Names) else [])
        indices = pa.Array.from_buffers(
            kind.index_type, len(values), [validity(values != -1), pa.py_buffer(np.ascontiguousarray(values))]
        )
        return pa.DictionaryArray.from_arrays(indices, texts, safe=False)
    lists = shared.lists if isinstance(shared, Lists) else []
    return list_array(lists, values, kind)


def distinct_values(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The different values of a vector in ascending order.

    As `numpy.unique`, which imports `numpy.ma` to ask whether the vector is masked: longer than a small trace takes.
    """
    ordered = np.sort(values)
    new = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]


def int_array(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Integers with `NULL` for null; a value that does not fit ``kind`` is null as well."""
    valid = values != NULL
    target = np.dtype(kind.to_pandas_dtype())
    if target != np.int64:
        info = np.iinfo(target)
        valid &= (values >= info.min) & (values <= info.max)
        values = np.where(valid, values, 0).astype(target)
    return pa.Array.from_buffers(kind, len(values), [validity(valid), pa.py_buffer(np.ascontiguousarray(values))])


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """Strings with None for null. Lone surrogates, which UTF-8 cannot hold, become question marks."""
    return binary_array([None if text is None else text.encode("utf-8", "replace") for text in texts], pa.string())


def binary_array(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """Bytes with None for null, as ``kind`` (binary by default)."""
    data = [value or b"" for value in values]
    valid = np.fromiter((value is not None for value in values), np.bool_, len(data))
    buffers = [validity(valid), offsets(_sizes(data)), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(kind or pa.binary(), len(data), buffers)


def list_array(lists: Sequence[Sequence[Any] | None], codes: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """The array whose row i is ``lists[codes[i]]``, null for code -1.

    ``kind`` is a list of integers, of strings, or of lists of integers.
    """
    items = [item or () for item in lists]
    valid = codes >= 0
    chosen = codes[valid]
    lengths = np.zeros(len(codes), np.int64)
    lengths[valid] = _sizes(items)[chosen]
    values = _gathered(items, chosen.tolist(), kind.value_type)
    return list_of(values, lengths, valid, kind)


def list_of(values: pa.Array, lengths: Ints, valid: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """Lists of so many values each, one list after the other, as ``kind``; null where not ``valid``."""
    return pa.Array.from_buffers(kind, len(lengths), [validity(valid), offsets(lengths)], children=[values])


def _gathered(lists: Sequence[Sequence[Any]], chosen: Sequence[int], kind: pa.DataType) -> pa.Array:
    """The values of the chosen lists, one list after the other.

    Each list is turned into bytes once and written as often as it is chosen: a number for every value of every row
    would take more memory than the values.
    """
    if pa.types.is_integer(kind):
        return int_array(np.frombuffer(_written([integers(item).tobytes() for item in lists], chosen), np.int64), kind)
    if pa.types.is_string(kind):
        lists = [[text.encode("utf-8", "replace") for text in item] for item in lists]
    lengths = np.frombuffer(_written([_sizes(item).tobytes() for item in lists], chosen), np.int64)
    if pa.types.is_string(kind):
        texts = pa.py_buffer(_written([b"".join(item) for item in lists], chosen))
        return pa.Array.from_buffers(kind, len(lengths), [None, offsets(lengths), texts])
    inner = _gathered([list(chain.from_iterable(item)) for item in lists], chosen, kind.value_type)
    return pa.Array.from_buffers(kind, len(lengths), [None, offsets(lengths)], children=[inner])


def _written(stored: Sequence[bytes], chosen: Sequence[int]) -> bytes:
    """The chosen pieces in one; `bytes.join` would need a list of them, and ten times that for its own."""
    out = io.BytesIO()
    out.writelines(map(stored.__getitem__, chosen))
    return out.getvalue()


def _sizes(items: Sequence[Sequence[Any] | bytes]) -> Ints:
    return np.fromiter(map(len, items), np.int64, len(items))


def offsets(lengths: Ints) -> pa.Buffer:
    """Where each of some values of these lengths begins, and where the last one ends, as Arrow wants it."""
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.py_buffer(ends)


def bits(flags: npt.NDArray[np.bool_]) -> pa.Buffer:
    """Truth values as Arrow wants them."""
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def validity(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    """The mask of an array in which some values are null; None where none is."""
    return None if valid.all() else bits(valid)

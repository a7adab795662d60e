"""Strange columns in Parquet and Arrow files: bytes changed at random seldom get past the checks of these formats."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fuzz.values import STRANGE_NUMBERS, STRANGE_TEXT

_TEXTS = [text for text in STRANGE_TEXT if text.isascii() or "\ud800" not in text]
_WHOLE = [number for number in STRANGE_NUMBERS if isinstance(number, int)]

_COLUMNS: tuple[tuple[pa.DataType, list[Any]], ...] = (
    (pa.int64(), [number for number in _WHOLE if -(2**63) <= number < 2**63]),
    (pa.uint64(), [number for number in _WHOLE if 0 <= number < 2**64]),
    (pa.int8(), [-128, 0, 127]),
    (pa.float64(), [float(number) for number in STRANGE_NUMBERS]),
    (pa.string(), _TEXTS),
    (pa.large_string(), _TEXTS),
    (pa.dictionary(pa.int32(), pa.string()), _TEXTS[:3]),
    (pa.binary(), [b"", b"\xff\xfe", b"\x00" * 40, b"0" * 63]),
    (pa.bool_(), [True, False]),
    (pa.null(), [None]),
    (pa.list_(pa.int64()), [[], [1], [-(2**63), None]]),
    (pa.struct([("a", pa.string())]), [{"a": "x"}, {"a": None}]),
    (pa.timestamp("ns"), [datetime.datetime(2024, 1, 1), datetime.datetime(1970, 1, 1)]),
    (pa.decimal128(38, 2), [decimal.Decimal("1.50"), decimal.Decimal(10) ** 30]),
)


def columns(data: bytes, random: Random) -> bytes | None:
    """Other types, other values, rows and columns lost or twice, in a Parquet or an Arrow file."""
    found = _read(data)
    if found is None:
        return None
    table, write = found
    for _ in range(random.choice((1, 1, 2, 5))):
        table = _changed(table, random)
    try:
        return write(table)
    except pa.ArrowException:  # the format has no such type
        return None


def _read(data: bytes) -> tuple[pa.Table, Callable[[pa.Table], bytes]] | None:
    """The table of a sound file, and what writes one like it."""
    if data[:4] == b"PAR1":
        return pq.read_table(pa.BufferReader(data)), _parquet
    if data[:6] == b"ARROW1":
        return pa.ipc.open_file(pa.BufferReader(data)).read_all(), _arrow
    return None


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _changed(table: pa.Table, random: Random) -> pa.Table:
    if not table.num_columns:
        return table
    place = random.randrange(table.num_columns)
    name = table.schema.names[place]
    kind = random.randrange(10)
    if kind == 0:
        return table.remove_column(place)
    if kind == 1:
        return table.rename_columns([f"x{at}" if at == place else n for at, n in enumerate(table.schema.names)])
    if kind == 2:
        return table.append_column(name, table.column(place))
    if kind == 3:
        return table.slice(random.randrange(table.num_rows + 1), random.choice((0, 1, 5)))
    if kind == 4:
        return pa.concat_tables([table, table])
    return table.set_column(place, name, _strange(table.num_rows, random))


def _strange(rows: int, random: Random) -> pa.Array:
    """A column of any type; some of it is null."""
    kind, values = random.choice(_COLUMNS)
    said = [None if random.random() < 0.1 else random.choice(values) for _ in range(rows)]
    if random.random() < 0.3:
        said = [random.choice(values)] * rows
    return pa.array(said, kind)

"""Exports as Arrow tables: Parquet and Arrow directories, Arrow streams, and what other readers put into tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from parsers.columns import NULL, Ints
from parsers.errors import InputError
from parsers.nsys.conditions import Condition, OneOf
from parsers.nsys.schema import STRINGS, is_export, real_names
from parsers.nsys.store import BLOCK_ROWS, LARGEST_PAYLOAD, LONGEST_NAME, LONGEST_TEXT, Block, as_int

_DAMAGE = (pa.ArrowException, OSError, ValueError)
"""What Arrow raises on damaged files; names that are not UTF-8 are a `UnicodeDecodeError`."""

Reader = Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
"""Gives the batches of a table, only the named columns being needed."""

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


class ArrowStore:
    """See `parsers.nsys.store.Store`.

    Args:
        readers: how to get at each table.
        columns: the columns of each.
        name: of the export, for messages.

    Raises:
        InputError: the tables are not those of an export of Nsight Systems.
    """

    def __init__(self, readers: Mapping[str, Reader], columns: Mapping[str, Sequence[str]], name: str) -> None:
        self.faults: list[str] = []
        self.cut = False
        if not is_export(columns):
            hint = "known are exports of Nsight Systems: nsys export --type parquetdir report.nsys-rep"
            raise InputError("holds no tables of Nsight Systems", path=name, hint=hint)
        self._readers = readers
        self._columns = {table: self._told_apart(table, names) for table, names in columns.items()}
        self._real = real_names(self._columns)

    def _told_apart(self, table: str, names: Sequence[str]) -> frozenset[str]:
        """The columns of a table that its names tell apart."""
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            self.cut = True
            self.faults.append(f"table {table} has several columns of one name: {', '.join(twice)[:200]}")
        return frozenset(names).difference(twice)

    def columns(self, table: str) -> frozenset[str]:
        """See `Store`."""
        return self._columns.get(self._real.get(table, ""), frozenset())

    def tables(self) -> Sequence[str]:
        """See `Store`."""
        return tuple(self._real)

    def scan(
        self, table: str, ints: Sequence[str], values: Sequence[str] = (), where: Condition | None = None
    ) -> Iterator[Block]:
        """See `Store`."""
        real = self._real.get(table)
        if real is None:
            return
        wanted = {*ints, *values, *(where.uses() if where is not None else ())}
        there = sorted(self._columns[real].intersection(wanted)) or sorted(self._columns[real])[:1]
        try:
            for batch in self._readers[real](there):
                for begin in range(0, batch.num_rows, BLOCK_ROWS):
                    yield from _block(_Rows(batch.slice(begin, BLOCK_ROWS)), ints, values, where)
        except _DAMAGE as error:
            self.cut = True
            self.faults.append(f"table {real} cannot be read to its end ({error})")

    def strings(self, ids: Ints) -> dict[int, str]:
        """See `Store`."""
        return self.find_strings(OneOf("id", np.unique(ids).tolist()))

    def find_strings(self, where: Condition) -> dict[int, str]:
        """See `Store`."""
        found: dict[int, str] = {}
        for block in self.scan(STRINGS, ["id"], ["value"], where):
            pairs = zip(block.ints["id"].tolist(), block.values["value"], strict=True)
            found |= {number: str(value) for number, value in pairs if value is not None}
        return found

    def long_text(self, number: int) -> str:
        """See `Store`."""
        real = self._real.get(STRINGS)
        for batch in self._readers[real](["id", "value"]) if real is not None else ():
            at = np.flatnonzero(_ints(batch, "id") == number)
            if len(at):
                found = batch.column("value")[int(at[0])].as_py()
                return "" if found is None else str(found)[:LONGEST_TEXT]
        return ""

    def close(self) -> None:
        """See `Store`."""


class _Rows:
    """A batch whose missing columns are null."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def column(self, name: str) -> pa.ChunkedArray:
        """A column for a condition: numbers, or text."""
        place = self.batch.schema.get_field_index(name)
        if place < 0:
            kind = pa.int64() if name.endswith(("Id", "id")) else pa.string()
            return pa.chunked_array([pa.nulls(self.batch.num_rows, kind)])
        values = self.batch.column(place)
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        return pa.chunked_array([values])


def _block(rows: _Rows, ints: Sequence[str], values: Sequence[str], where: Condition | None) -> Iterator[Block]:
    batch = rows.batch
    if where is not None:
        kept = np.flatnonzero(np.asarray(where.mask(rows.column).to_numpy(), dtype=np.bool_))
        if not len(kept):
            return
        if len(kept) < batch.num_rows:
            batch = batch.take(pa.array(kept))
    yield Block(
        batch.num_rows,
        {name: _ints(batch, name) for name in ints},
        {name: _values(batch, name) for name in values},
    )


def _ints(batch: pa.RecordBatch, name: str) -> Ints:
    place = batch.schema.get_field_index(name)
    if place < 0:
        return np.full(batch.num_rows, NULL, np.int64)
    values = batch.column(place)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_integer(values.type):
        values = values.view(pa.int64()) if values.type == pa.uint64() else values.cast(pa.int64())
        if values.null_count:
            values = values.fill_null(NULL)
        return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.int64)
    return np.fromiter((as_int(value) for value in values.to_pylist()), np.int64, len(values))


def _values(batch: pa.RecordBatch, name: str) -> Sequence[Any]:
    place = batch.schema.get_field_index(name)
    if place < 0:
        return [None] * batch.num_rows
    values = batch.column(place)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type):
        values = values.cast(pa.string() if pa.types.is_large_string(values.type) else pa.binary())
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        # A text column may hold the bytes of a payload, which are no UTF-8.
        raw = values.view(pa.binary()).to_pylist()
        if name == "binaryData":
            return [item if item is None or len(item) <= 2 * LARGEST_PAYLOAD else None for item in raw]
        return [None if item is None else item.decode("utf-8", "replace")[: _longest(name)] for item in raw]
    if pa.types.is_nested(values.type):
        return [None] * batch.num_rows
    return list(values.to_pylist())


def _longest(name: str) -> int:
    return 2 * LARGEST_PAYLOAD if name == "jsonText" else LONGEST_NAME


# -- what the tables are read from


def directory_store(path: Path, name: str) -> ArrowStore:
    """A directory of one Parquet or Arrow file per table (``nsys export --type parquetdir`` or ``arrowdir``).

    Raises:
        InputError: it holds no tables of Nsight Systems.
    """
    readers: dict[str, Reader] = {}
    columns: dict[str, Sequence[str]] = {}
    faults: list[str] = []
    for file in sorted(path.iterdir()):
        if not file.is_file() or file.suffix not in (".parquet", ".arrow"):
            continue
        try:
            schema, reader = _parquet(file) if file.suffix == ".parquet" else _ipc(file)
            columns[file.stem] = schema.names
        except _DAMAGE as error:
            faults.append(f"{file.name} cannot be read ({error})")
            columns.pop(file.stem, None)
            continue
        readers[file.stem] = reader
    store = ArrowStore(readers, columns, name)
    store.faults += faults
    store.cut |= bool(faults)
    return store


def stream_store(path: Path, name: str) -> ArrowStore:
    """One file of Arrow streams, one after the other, each with its table's name in the metadata (``--type arrow``).

    Raises:
        InputError: it holds no tables of Nsight Systems.
    """
    found: dict[str, pa.Table] = {}
    faults: list[str] = []
    with pa.memory_map(str(path)) as file:
        while file.tell() < file.size():
            try:
                with pa.ipc.open_stream(file) as stream:
                    table = checked(stream.read_all())
            except _DAMAGE as error:
                faults.append(f"the Arrow stream at byte {file.tell()} cannot be read ({error})")
                break
            table_name = (table.schema.metadata or {}).get(b"table_name")
            if table_name is not None:
                found[table_name.decode("utf-8", "replace")] = table
    store = tables_store(found, name)
    store.faults += faults
    store.cut |= bool(faults)
    return store


def tables_store(found: Mapping[str, pa.Table], name: str) -> ArrowStore:
    """Tables that are in memory, by name.

    Raises:
        InputError: they are not those of Nsight Systems.
    """
    readers = {table: _of_table(content) for table, content in found.items()}
    return ArrowStore(readers, {table: content.schema.names for table, content in found.items()}, name)


def checked(data: Rows) -> Rows:
    """The same rows, once it is sure that they can be read.

    Arrow takes the offsets of an IPC file as they are: a damaged one leads outside of memory. Text is checked as bytes,
    for there are payloads in it that are no UTF-8.

    Raises:
        ArrowInvalid: they are damaged.
    """
    for name in data.schema.names:
        for part in data.column(name).chunks if isinstance(data, pa.Table) else [data.column(name)]:
            raw = part.view(pa.binary()) if pa.types.is_string(part.type) else part
            raw.validate(full=True)
    return data


def _of_table(table: pa.Table) -> Reader:
    return lambda names: iter(table.select(list(names)).to_batches())


def _parquet(path: Path) -> tuple[pa.Schema, Reader]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    return file.schema_arrow, lambda names: file.iter_batches(BLOCK_ROWS, columns=list(names))


def _ipc(path: Path) -> tuple[pa.Schema, Reader]:
    source = pa.memory_map(str(path))
    try:
        file = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        table = checked(pa.ipc.open_stream(source).read_all())
        return table.schema, _of_table(table)

    def batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for number in range(file.num_record_batches):
            yield checked(file.get_batch(number).select(list(names)))

    return file.schema, batches

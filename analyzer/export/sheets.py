"""Tables as files: Parquet, Arrow (Feather) or CSV, chosen by the name's ending."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, Any

import msgspec
import pyarrow as pa

from analyzer.escaping import spreadsheet
from analyzer.render import write

ENDINGS = {".parquet": "parquet", ".csv": "csv", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow"}
"""Endings of file names, and what they ask for."""

FORMATS = ("parquet", "csv", "arrow")


def write_table(table: pa.Table, output: str, form: str) -> None:
    """Write a table to a path, which appears whole or not at all, or to stdout for ``-``.

    Args:
        table: what.
        output: where to.
        form: one of `FORMATS`.

    Raises:
        InputError: it cannot be written.
    """
    buffer = io.BytesIO()
    _WRITERS[form](table, buffer)
    write(buffer.getvalue(), output)


def _parquet(table: pa.Table, file: IO[bytes]) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, file, compression="zstd")


def _arrow(table: pa.Table, file: IO[bytes]) -> None:
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _csv(table: pa.Table, file: IO[bytes]) -> None:
    """With a header; lists as JSON, null as nothing, and no text that a spreadsheet would run."""
    import pyarrow.csv as pc

    columns = [_flat(column, field) for column, field in zip(table.columns, table.schema, strict=True)]
    pc.write_csv(pa.table(columns, names=table.column_names), file)


def _flat(column: pa.ChunkedArray, field: pa.Field) -> Any:
    if pa.types.is_list(field.type):
        listed = (None if value is None else msgspec.json.encode(value).decode() for value in column.to_pylist())
        return pa.array([None if text is None else spreadsheet(text) for text in listed], pa.string())
    if pa.types.is_string(field.type):
        return pa.array([None if text is None else spreadsheet(text) for text in column.to_pylist()], pa.string())
    return column


_WRITERS: dict[str, Callable[[pa.Table, IO[bytes]], None]] = {"parquet": _parquet, "arrow": _arrow, "csv": _csv}

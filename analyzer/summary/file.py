"""Summary files: Parquet with a version, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from analyzer.render import whole_file
from analyzer.summary import notes
from analyzer.summary.columns import SCHEMA
from parsers.errors import InputError
from parsers.summary import KEY, VERSION

if TYPE_CHECKING:
    import pyarrow.parquet as pq

RANKS_PER_GROUP = 256
"""Ranks of a merged file that are compressed together."""


def write_table(table: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write summaries as zstd Parquet; whoever reads the path meanwhile sees the old file or the new one.

    Raises:
        InputError: it cannot be written.
    """
    write_tables([table], path)


def write_tables(tables: Iterable[pa.Table], path: str | os.PathLike[str]) -> None:
    """As `write_table`, one table after the other into one file: no more than one has to be in memory.

    Raises:
        InputError: it cannot be written.
    """
    import pyarrow.parquet as pq

    schema = SCHEMA.with_metadata({KEY: str(VERSION)})
    leaves = list(_leaves())
    with (
        whole_file(path) as partial,
        pq.ParquetWriter(
            partial,
            schema,
            compression="zstd",
            use_dictionary=[path for path, kind in leaves if pa.types.is_string(kind)],
            write_page_checksum=True,
            write_statistics=False,  # nothing asks for them, and they are a fifth of a rank's file
            column_encoding={path: "DELTA_BINARY_PACKED" for path, kind in leaves if _is_delta(kind)},
        ) as writer,
    ):
        rows = 0
        for table in tables:
            writer.write_table(pa.Table.from_arrays(table.columns, schema=schema), row_group_size=RANKS_PER_GROUP)
            rows += table.num_rows
        if rows == 1:
            writer.add_key_value_metadata({notes.KEY: notes.written(table)})


def read_table(path: str, columns: Sequence[str] | None = None, *, threads: bool = True) -> pa.Table:
    """Read summaries, all columns or some; several columns at a time unless ``threads`` is false.

    Raises:
        InputError: no summary, one of another version, or a damaged one.
    """
    import pyarrow.parquet as pq

    try:
        with _opened(path) as file:
            parquet = pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=columns is None)
            _check(parquet, path)
            return parquet.read(columns=None if columns is None else list(columns), use_threads=threads)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        what = " ".join(str(error).split())
        raise InputError(f"is a damaged summary ({what})", path=path, hint="summarize the trace again") from error


def _check(parquet: pq.ParquetFile, path: str) -> None:
    version = (parquet.metadata.metadata or {}).get(KEY.encode())
    if version is None:
        raise InputError("is a Parquet file, but no summary", path=path, hint="make one with `analyze summarize TRACE`")
    if version != str(VERSION).encode():
        raise InputError(
            f"is a summary of version {version.decode(errors='replace')}, this program reads {VERSION}",
            path=path,
            hint="summarize the trace again",
        )


def _opened(path: str) -> Any:
    """The file, local or wherever ``fsspec`` reaches."""
    if "://" not in path:
        return Path(path).open("rb")
    fsspec: Any = import_module("fsspec")
    return fsspec.open(path, "rb").open()


def _leaves() -> Iterator[tuple[str, pa.DataType]]:
    """The columns as Parquet names them, with the type of their values."""
    for field in SCHEMA:
        path, kind = field.name, field.type
        while pa.types.is_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        yield path, kind


def _is_delta(kind: pa.DataType) -> bool:
    return kind in (pa.int64(), pa.int32())

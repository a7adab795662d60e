"""The end of a Parquet file, where its columns and its own metadata are named: enough to tell what it holds.

Opening it in full costs fifty times as much, which counts where a directory holds thousands of them.
"""

from __future__ import annotations

from pathlib import Path

MAGIC = b"PAR1"
_LENGTH = 4
_FOOTER = _LENGTH + len(MAGIC)


def footer(path: Path) -> bytes:
    """The encoded metadata of a local Parquet file; empty for any other file.

    Names of columns and keys stand in it as they are (format: parquet.thrift, `FileMetaData`).

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return b""
        size = file.seek(0, 2)
        file.seek(max(size - _FOOTER, 0))
        end = file.read()
        length = int.from_bytes(end[:_LENGTH], "little")
        if len(end) < _FOOTER or end[_LENGTH:] != MAGIC or length > size - _FOOTER:
            return b""
        file.seek(size - _FOOTER - length)
        return file.read(length)

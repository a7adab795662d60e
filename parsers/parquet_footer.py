"""The end of a Parquet file, where its columns and its own metadata are named: enough to tell what it holds.

Opening it in full costs fifty times as much, which counts where a directory holds thousands of them.
"""

from __future__ import annotations

from pathlib import Path

MAGIC = b"PAR1"
_LENGTH = 4
_FOOTER = _LENGTH + len(MAGIC)
_LONGEST_VARINT = 5  # of a number of 32 bits


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


def value(footer: bytes, key: str) -> bytes | None:
    """What a file's own metadata hold under a key; None without it.

    A ``KeyValue`` is written as two strings one after the other (thrift's compact protocol: the byte 0x18 for the next
    field, a string; then its length, seven bits a byte; then its bytes).

    Args:
        footer: as `footer` gives it.
        key: shorter than 128 bytes.
    """
    begins = b"\x18" + bytes([len(key.encode())]) + key.encode() + b"\x18"
    place = footer.find(begins)
    if place < 0:
        return None
    place += len(begins)
    length = shift = 0
    for digit in footer[place : place + _LONGEST_VARINT]:
        place += 1
        length |= (digit & 0x7F) << shift
        shift += 7
        if digit < 0x80:
            break
    return footer[place : place + length]

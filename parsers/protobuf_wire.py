"""The wire format of Protocol Buffers, as far as Chakra's traces need it: fields of a message, by number.

Written out by hand: the `protobuf` package and generated code would be a dependency for three message types
(https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, I64, LEN, I32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it.

    Raises:
        ValueError: the data end within it, or it is longer than 64 bits need.
    """
    number = 0
    for place, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number & ((1 << 64) - 1), at + place + 1
    raise ValueError("varint")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message: integers and fixed-width values as bytes or numbers, as encoded.

    Raises:
        ValueError: it is no message.
    """
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, value
            continue
        size, at = varint(data, at) if kind == LEN else ({I64: 8, I32: 4}.get(kind, -1), at)
        if size < 0 or at + size > len(data) or not number:
            raise ValueError("field")
        yield number, data[at : at + size]
        at += size


def signed(number: int) -> int:
    """A 64-bit number as two's complement."""
    return number - (1 << 64) if number >= 1 << 63 else number


def real(value: bytes) -> float:
    """A float or double.

    Raises:
        ValueError: neither has so many bytes.
    """
    if len(value) not in (4, 8):
        raise ValueError("float")
    number: float = struct.unpack("<f" if len(value) == 4 else "<d", value)[0]
    return number


def delimited(data: bytes) -> Iterator[bytes]:
    """The messages of a file that puts the length before each.

    Raises:
        ValueError: the file ends within a message.
    """
    at = 0
    while at < len(data):
        size, at = varint(data, at)
        if at + size > len(data):
            raise ValueError("message")
        yield data[at : at + size]
        at += size

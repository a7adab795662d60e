"""Decompressors: gzip, zstandard and xz to the last byte that a damaged stream still gives.

Each takes the stored bytes and a list, to which it adds a `Fault` where the data do not come to their end.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import IO, Any

_PIECE_BYTES = 16 * 1024  # of compressed data at a time: what larger pieces inflate to, malloc maps anew each time


@dataclass(frozen=True)
class Fault:
    """A compressed stream that could not be read to its end.

    ``at_byte`` counts decompressed bytes: everything before it was read.
    """

    message: str
    at_byte: int
    cut: bool  # data are missing; false: all are there, but the checksum differs


class Stored:
    """A compressed file that knows how many bytes were taken from it and can be opened once more."""

    def __init__(self, file: IO[bytes], reopen: Callable[[], IO[bytes]]) -> None:
        self.file = file
        self.reopen = reopen
        self.taken = 0

    def read(self) -> bytes:
        """The next bytes; none at the end."""
        piece = self.file.read(_PIECE_BYTES)
        self.taken += len(piece)
        return piece


def gunzip(stored: Stored, faults: list[Fault]) -> Generator[bytes, None, None]:
    """All members of a gzip file, one after the other."""
    inflate, errors = _inflater()
    given, member_start, member_given = 0, 0, 0
    state = inflate()
    piece = stored.read()
    with stored.file:
        while piece:
            if state is None:  # between members: padding of zeros is allowed, anything else must be a header
                piece = piece.lstrip(b"\x00")
                if not piece:
                    piece = stored.read()
                    continue
                if not b"\x1f\x8b".startswith(piece[:2]):
                    faults.append(Fault("bytes after the end of the gzip data", given, cut=False))
                    return
                state, member_given, member_start = inflate(), 0, stored.taken - len(piece)
            try:
                data = state.decompress(piece)
            except errors as error:
                for data in _salvage(stored.reopen, member_start, member_given):
                    given += len(data)
                    yield data
                cut = "check" not in str(error).lower() and "crc" not in str(error).lower()
                faults.append(Fault(f"gzip data damaged ({error})", given, cut=cut))
                return
            given += len(data)
            member_given += len(data)
            if data:
                yield data
            if state.eof:
                piece, state = state.unused_data or stored.read(), None
            else:
                piece = stored.read()
        if state is not None:
            faults.append(Fault("gzip data cut off", given, cut=True))


def _inflater() -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """The fastest inflate at hand; both give the same bytes."""
    try:
        isal: Any = importlib.import_module("isal.isal_zlib")
    except ImportError:
        return lambda: zlib.decompressobj(31), (zlib.error,)
    return lambda: isal.decompressobj(31), (isal.error, zlib.error)


def _salvage(reopen: Callable[[], IO[bytes]], member_start: int, given: int) -> Generator[bytes, None, None]:
    """What a damaged gzip member still holds beyond the ``given`` bytes, to the last byte that inflates.

    Inflate throws away what it had when it fails, so the failing piece is repeated byte by byte from a copy.
    """
    state = zlib.decompressobj(31)
    skip = given
    with reopen() as file:
        file.seek(member_start)
        while piece := file.read(_PIECE_BYTES):
            before = state.copy()
            try:
                data = state.decompress(piece)
            except zlib.error:
                data = _byte_by_byte(before, piece)
                piece = b""
            if len(data) > skip:
                yield data[skip:]
            skip = max(0, skip - len(data))
            if not piece:
                return


def _byte_by_byte(state: Any, piece: bytes) -> bytes:
    out = bytearray()
    try:
        for index in range(len(piece)):
            out += state.decompress(piece[index : index + 1])
    except zlib.error:
        pass
    return bytes(out)


def _zstd(stored: Stored, faults: list[Fault]) -> Generator[bytes, None, None]:
    import zstandard

    def start() -> Any:
        return zstandard.ZstdDecompressor(max_window_size=2**27).decompressobj()

    # A run of equal bytes takes three bytes for 128 KiB: of more at a time, one step alone would fill the memory.
    yield from _frames(stored, start, zstandard.ZstdError, "zstd", faults, bite_bytes=512)


def _xz(stored: Stored, faults: list[Fault]) -> Generator[bytes, None, None]:
    import lzma

    yield from _frames(stored, lambda: lzma.LZMADecompressor(memlimit=2**28), lzma.LZMAError, "xz", faults)


def _frames(
    stored: Stored,
    start: Callable[[], Any],
    failure: type[Exception],
    label: str,
    faults: list[Fault],
    bite_bytes: int = 4096,
) -> Generator[bytes, None, None]:
    """All frames of a zstandard or xz file, fed in small bites so that little is lost where one fails."""
    given = 0
    state = None
    with stored.file:
        piece = stored.read()
        while piece:
            state = state or start()
            bite, rest = piece[:bite_bytes], piece[bite_bytes:]
            try:
                data = state.decompress(bite)
            except (failure, EOFError) as error:
                faults.append(Fault(f"{label} data damaged ({error})", given, cut=True))
                return
            given += len(data)
            if data:
                yield data
            if state.eof:
                rest, state = (state.unused_data or b"") + rest, None
            piece = rest or stored.read()
        if state is not None:
            faults.append(Fault(f"{label} data cut off", given, cut=True))


Decompressor = Callable[[Stored, list[Fault]], Generator[bytes, None, None]]
"""Yields decompressed pieces, none of them empty."""

_BY_MAGIC: tuple[tuple[bytes, Decompressor], ...] = (
    (b"\x1f\x8b", gunzip),
    (b"\x28\xb5\x2f\xfd", _zstd),
    (b"\xfd7zXZ\x00", _xz),
)
LONGEST_MAGIC = max(len(magic) for magic, _ in _BY_MAGIC)
"""Bytes of a file that tell its compression."""


def decompressor(head: bytes) -> Decompressor | None:
    """What decompresses a file that begins so; None for one that is not compressed."""
    return next((decompress for magic, decompress in _BY_MAGIC if head.startswith(magic)), None)

"""A source as one piece of bytes, or as lines; both bounded."""

from __future__ import annotations

from collections.abc import Iterator

from parsers.errors import InputError
from parsers.source import BLOCK_BYTES, Source

MAX_LINE_BYTES = 1 << 20
"""A line that is longer is cut there: logs have none, but a binary file taken for a log has no line ends."""


def whole(source: Source, max_bytes: int, what: str) -> bytes:
    """All bytes of a source.

    Args:
        source: from its beginning.
        max_bytes: more than that is refused.
        what: what such a file should be, for the message: ``a Flight Recorder dump``.

    Raises:
        InputError: it is larger than ``max_bytes``.
    """
    pieces: list[bytes] = []
    size = 0
    buffer = bytearray(BLOCK_BYTES)
    view = memoryview(buffer)
    while count := source.readinto(view):
        size += count
        if size > max_bytes:
            raise InputError(
                f"is larger than {max_bytes >> 20} MiB, which {what} never is",
                path=source.name,
                place=f"byte {max_bytes}",
                hint="check that this is the file you meant",
            )
        pieces.append(bytes(view[:count]))
    return b"".join(pieces)


def lines(source: Source) -> Iterator[bytes]:
    """The lines of a source without their ends (``\\n`` or ``\\r\\n``), empty ones included."""
    buffer = bytearray(BLOCK_BYTES)
    view = memoryview(buffer)
    rest = b""
    while count := source.readinto(view):
        block = rest + bytes(view[:count])
        *complete, rest = block.split(b"\n")
        for line in complete:
            yield line.removesuffix(b"\r")
        if len(rest) > MAX_LINE_BYTES:
            yield rest[:MAX_LINE_BYTES]
            rest = b""
    if rest:
        yield rest.removesuffix(b"\r")

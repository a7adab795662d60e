"""Where an annotated trace goes: a document written in a stream."""

from __future__ import annotations

import gzip
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import msgspec

from analyzer.render import whole_file

GZIP_LEVEL = 2
"""Of isal's 0 to 3: traces shrink about fifteen times at a few hundred MB a second."""


class EventFile:
    """A document of trace events that is written in a stream: the keys first, then the events.

    Args:
        file: where to.
        header: the keys, values as JSON; ``traceEvents`` is none of them.
    """

    def __init__(self, file: IO[bytes], header: dict[str, Any]) -> None:
        self.events = 0
        self._file = file
        head = msgspec.json.encode(header)
        file.write(head[:-1] + (b"," if header else b"") + b'"traceEvents":[\n')

    def write(self, events: Sequence[Any]) -> None:
        """Add events: mappings that can be encoded as JSON."""
        if not events:
            return
        self._file.write((b",\n" if self.events else b"") + msgspec.json.encode(events)[1:-1])
        self.events += len(events)

    def close(self) -> None:
        """Write the end of the document."""
        self._file.write(b"\n]}\n")


@contextmanager
def event_file(output: str, header: dict[str, Any]) -> Iterator[EventFile]:
    """An `EventFile` at a path (compressed where it ends in ``.gz``), or on stdout for ``-``.

    Raises:
        InputError: it cannot be written.
    """
    if output == "-":
        stdout = EventFile(sys.stdout.buffer, header)
        yield stdout
        stdout.close()
        sys.stdout.buffer.flush()
        return
    with whole_file(output) as partial, partial.open("wb") as plain:
        file = _compressed(plain) if output.lower().endswith(".gz") else plain
        written = EventFile(file, header)
        yield written
        written.close()
        if file is not plain:
            file.close()


def _compressed(file: IO[bytes]) -> IO[bytes]:
    """Gzip without a time of day: the same export is the same file."""
    try:
        isal: Any = importlib.import_module("isal.igzip")
    except ImportError:
        return gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0)  # type: ignore[return-value]
    compressed: IO[bytes] = isal.IGzipFile(filename="", mode="wb", compresslevel=GZIP_LEVEL, fileobj=file, mtime=0)
    return compressed

"""The part of a file that is in memory while its events are read: one buffer, used again and again."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from parsers.source import BLOCK_BYTES, Source

# What may follow the bracket that ends the events: a key, the end of the document (perhaps of the first of several).
_TRAILER = re.compile(rb'\s*(?:,\s*"|\}\s*(?:\Z|[^\s,\]])|\Z)')


@dataclass
class Damage:
    """What was wrong with a text, counted.

    Attributes:
        repaired: elements changed so that they could be read.
        dropped: elements lost.
        first_byte: where the first damage is, in decompressed bytes.
        kinds: how often each kind of damage was met.
        second_writer_byte: where a second header stands among the events.
        cut: the text ends before its end.
    """

    repaired: int = 0
    dropped: int = 0
    first_byte: int | None = None
    kinds: Counter[str] = field(default_factory=Counter)
    second_writer_byte: int | None = None
    cut: bool = False
    notes: list[str] = field(default_factory=list)

    def at(self, byte: int, kind: str) -> None:
        """Note one damage of a kind and where it is."""
        self.first_byte = byte if self.first_byte is None else min(self.first_byte, byte)
        self.kinds[kind] += 1


class Window:
    """The buffer: what is read goes behind ``fill``, what is done with lies before ``pos``.

    Attributes:
        base: position of ``buf[0]`` in the decompressed file.
        block: bytes of one read.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.block = BLOCK_BYTES
        self.buf = bytearray(4 * self.block)
        self.view = memoryview(self.buf)
        self.pos = 0
        self.fill = 0
        self.base = 0
        self.eof = False

    def byte(self, at: int) -> bytes:
        """The byte at a position, empty behind the end of what was read."""
        return bytes(self.view[at : at + 1]) if at < self.fill else b""

    def text(self, start: int, end: int) -> bytes:
        """A copy of what lies between two positions."""
        return bytes(self.view[start:end])

    def discard(self) -> None:
        """Forget what lies before ``pos``, which becomes 0."""
        kept = self.fill - self.pos
        self.view[:kept] = self.view[self.pos : self.fill]
        self.base += self.pos
        self.pos, self.fill = 0, kept

    def more(self) -> bool:
        """Read one more block behind what is there; false at the end of the file. Positions stay valid."""
        if self.eof:
            return False
        if len(self.buf) - self.fill < self.block:
            grown = bytearray(2 * len(self.buf))
            grown[: self.fill] = self.view[: self.fill]
            self.buf, self.view = grown, memoryview(grown)
        size = self.source.readinto(self.view[self.fill : self.fill + self.block])
        self.fill += size
        self.eof = size == 0
        return not self.eof

    def grow(self) -> bool:
        """Read on until there is twice as much, so that looking again from the start stays linear in all.

        False where there was nothing more.
        """
        seen = self.fill
        while self.fill < 2 * seen and self.more():
            pass
        return self.fill > seen

    def closes(self, at: int) -> bool | None:
        """Whether the bracket at ``at`` ends the array of events; None: not to be known before more is read."""
        match = _TRAILER.match(self.buf, at + 1, self.fill)
        if match and (match.end() < self.fill or self.eof):
            return True
        return False if self.eof or self.fill - at >= self.block else None

"""The elements of a trace's event array, in blocks, in constant memory, with every cut proved.

A block is cut at the last place that *looks* like the border of two events and decoded as an array of its own. The text
began at the border of an element, and JSON has one reading from there: if the block is a valid array, the true reader
also stands between two elements at its end, whatever made us cut there. A wrong guess (a border inside a string) cannot
decode; it costs another try. No assumption about key order, spacing or indentation is trusted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from parsers.errors import InputError
from parsers.lexing import scan, skip_space, value_end
from parsers.repair import COMMAS, repair
from parsers.source import BLOCK_BYTES, Source

Batch = TypeVar("Batch")

_GUESSES = 3
_JOINS = 24
_HEADER_BYTES = 256 * 2**20  # a header larger than this is no trace's
_REPAIR_BYTES = 4 * 2**20  # an element larger than this is given up, not repaired
_BOM = b"\xef\xbb\xbf"

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENT_KEY = rb'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:'
# Where an event begins for sure: after another one, or as the first of an array (a second writer's).
_RESUME = re.compile(rb"(\})\s*,?\s*(?=" + _EVENT_KEY + rb')|"traceEvents"\s*:\s*\[\s*(?=' + _EVENT_KEY + rb")")
_CLOSED = re.compile(rb"(\})\s*\]")
_SECOND_HEADER = re.compile(rb'"(?:schemaVersion|traceEvents|distributedInfo|baseTimeNanoseconds)"\s*:')
_TRAILER = re.compile(rb'\s*(?:,\s*"|\}\s*\Z|\Z)')


@dataclass
class Damage:
    """What was wrong with the text, counted."""

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
    """The part of the file in memory: one buffer, used again and again."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.buf = bytearray(4 * BLOCK_BYTES)
        self.view = memoryview(self.buf)
        self.pos = 0
        self.fill = 0
        self.base = 0  # file position of buf[0]
        self.eof = False

    def byte(self, at: int) -> bytes:
        """The byte at a position, empty behind the end of what was read."""
        return bytes(self.view[at : at + 1]) if at < self.fill else b""

    def discard(self) -> None:
        """Forget what lies before `pos`, which becomes 0."""
        kept = self.fill - self.pos
        self.view[:kept] = self.view[self.pos : self.fill]
        self.base += self.pos
        self.pos, self.fill = 0, kept

    def more(self) -> bool:
        """Read one more block behind what is there; false at the end of the file. Positions stay valid."""
        if self.eof:
            return False
        if len(self.buf) - self.fill < BLOCK_BYTES:
            grown = bytearray(2 * len(self.buf))
            grown[: self.fill] = self.view[: self.fill]
            self.buf, self.view = grown, memoryview(grown)
        size = self.source.readinto(self.view[self.fill : self.fill + BLOCK_BYTES])
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


class Elements(Generic[Batch]):
    """Reads one document: its events as batches, and its other keys.

    Args:
        source: the bytes.
        decode: turns the text of a JSON array into a batch; raises `msgspec.DecodeError` where it is no valid array.
            What it returns may refer to the text and must be used up before the next batch is asked for.

    Attributes:
        header: the other keys of the document, each with its text, complete when all batches have been taken.
        damage: what was wrong so far.
    """

    def __init__(self, source: Source, decode: Callable[[memoryview | bytes], Batch]) -> None:
        self.header: dict[str, bytes] = {}
        self.damage = Damage()
        self._name = source.name
        self._window = Window(source)
        self._decode = decode
        self._separator: bytes | None = None

    def batches(self) -> Iterator[Batch]:
        """All events, block by block.

        Raises:
            InputError: the file holds no array of events at all.
        """
        is_object = self._open()
        yield from self._array()
        while is_object and self._members(self._window.pos, events=False):
            self.damage.notes.append("the document holds more than one `traceEvents`; all were read")
            yield from self._array()
        self._after(is_object)
        for fault in self._window.source.faults:
            self.damage.notes.append(f"{fault.message} after {fault.at_byte} bytes of data")
            self.damage.first_byte = min(self.damage.first_byte or fault.at_byte, fault.at_byte)
            self.damage.cut |= fault.cut

    # -- before the array

    def _open(self) -> bool:
        """Read up to the bracket that opens the array; true where the document is an object."""
        window = self._window
        window.more()
        if window.view[:3] == _BOM:
            window.pos = 3
        while (start := skip_space(window.buf, window.pos, window.fill)) == window.fill and window.more():
            pass
        window.pos = start
        first = bytes(window.view[start : start + 1])
        if start == window.fill:
            raise InputError("the file holds nothing but white space", path=self._name)
        if first == b"[":
            return False
        if first != b"{":
            raise InputError(
                f"is not JSON (it starts with {bytes(window.view[start : start + 8])!r})",
                path=self._name,
                place=f"byte {window.base + start}",
                hint="give a profiler trace, plain or compressed",
            )
        if not self._members(window.pos + 1, events=True):
            self._find_events()
        return True

    def _members(self, at: int, *, events: bool) -> bool:
        """Read keys of the document from ``at`` on; true where an array of events was met (``window.pos`` is at it).

        ``events`` tells that none was met yet: then all that was read is kept, to look for one in a damaged header.
        """
        window = self._window
        while True:
            at = self._token(at)
            byte = window.byte(at)
            if byte == b",":
                at += 1
                continue
            if byte != b'"':
                window.pos = at
                return False
            end = self._value(at)
            if end < 0:
                window.pos = at
                return False
            key = bytes(window.view[at + 1 : end - 1]).decode("utf-8", "replace")
            at = self._token(end)
            if window.byte(at) != b":":
                window.pos = at
                return False
            at = self._token(at + 1)
            if key == "traceEvents" and window.byte(at) == b"[":
                window.pos = at
                return True
            if not events:
                window.pos = at
                window.discard()
                at = 0
            end = self._value(at) if at < window.fill else -1
            if end < 0:
                window.pos = at
                return False
            self.header[key] = bytes(window.view[at:end])
            at = end

    def _token(self, at: int) -> int:
        """The next byte that is not white space, reading on as needed."""
        window = self._window
        while (at := skip_space(window.buf, at, window.fill)) == window.fill and window.more():
            pass
        return at

    def _value(self, at: int) -> int:
        """The end of the value at ``at``, reading on as needed; -1 where the file ends inside it."""
        window = self._window
        while (end := value_end(window.buf, at, window.fill)) < 0:
            if window.fill - at > _HEADER_BYTES or not window.grow():
                return -1
        return end

    def _find_events(self) -> None:
        """Look for the array of events where the header could not be read to it."""
        window = self._window
        while not (match := _EVENTS.search(window.buf, 0, window.fill)):
            if window.fill > _HEADER_BYTES or not window.grow():
                break
        if match is None:
            raise self._no_events()
        self.damage.at(window.base + window.pos, "a damaged header")
        window.pos = match.end() - 1

    def _no_events(self) -> InputError:
        window = self._window
        if "traceEvents" in self.header:
            return InputError("its `traceEvents` is not an array", path=self._name, hint="export the trace again")
        if window.eof and skip_space(window.buf, window.pos, window.fill) == window.fill:
            return InputError(
                "is cut off before its first event",
                path=self._name,
                place=f"byte {window.base + window.fill}",
                hint="copy the file again or take another rank",
            )
        return InputError(
            "is JSON but not a profiler trace (it has no `traceEvents`)",
            path=self._name,
            hint="give the trace that torch.profiler exported",
        )

    # -- the array

    def _array(self) -> Iterator[Batch]:
        """The events, from the opening bracket at ``window.pos`` to behind the closing one."""
        window = self._window
        window.more()
        self._separator = self._first_border()
        while True:
            if window.fill - window.pos < BLOCK_BYTES:
                window.discard()
                window.more()
            batch, comma = self._guess()
            if batch is not None:
                yield batch
                window.pos = comma
                continue
            run = scan(window.buf, window.pos + 1, window.fill)
            stop = max(run.comma, run.close)
            if stop < 0 and window.fill - window.pos < _HEADER_BYTES and window.grow():
                continue
            if stop >= 0:
                batch = self._try(stop)
                if batch is not None:
                    yield batch
                    if run.close >= 0:
                        window.pos = stop + 1
                        return
                    window.pos = stop
                    self._separator = self._learn(run.before_comma, stop)
                    continue
            ended = yield from self._settle()
            if ended:
                return

    def _first_border(self) -> bytes | None:
        """The text between the first two events, if they are in the buffer."""
        window = self._window
        start = skip_space(window.buf, window.pos + 1, window.fill)
        end = value_end(window.buf, start, window.fill) if window.byte(start) == b"{" else -1
        comma = skip_space(window.buf, end, window.fill) if end > 0 else window.fill
        return self._learn(end, comma) if window.byte(comma) == b"," else None

    def _guess(self) -> tuple[Batch | None, int]:
        """Decode up to the last border that looks like the file's; the batch and the comma it ends at."""
        window, separator = self._window, self._separator
        if separator is None:
            return None, -1
        at = window.fill
        for _ in range(_GUESSES):
            at = window.buf.rfind(separator, window.pos + 1, at)
            if at < 0:
                break
            comma = at + separator.index(b",")
            batch = self._try(comma)
            if batch is not None:
                return batch, comma
            at += len(separator) - 1
        return None, -1

    def _try(self, stop: int) -> Batch | None:
        """Decode what lies between the bracket at ``window.pos`` and ``stop``, in place."""
        window = self._window
        first, last = window.buf[window.pos], window.buf[stop]
        window.buf[window.pos], window.buf[stop] = b"[]"
        try:
            return self._decode(window.view[window.pos : stop + 1])
        except msgspec.DecodeError:
            return None
        finally:
            window.buf[window.pos], window.buf[stop] = first, last

    def _learn(self, before_comma: int, comma: int) -> bytes:
        """The text between two events, as this file's writer has it."""
        window = self._window
        after = skip_space(window.buf, comma + 1, window.fill)
        return bytes(window.view[before_comma - 1 : after + 1])

    # -- damage

    def _settle(self) -> Generator[Batch, None, bool]:
        """Go through the buffer element by element, mending or dropping what is damaged.

        Returns (as the generator's value) true where the array ended.
        """
        window = self._window
        at = window.pos + 1
        commas = 1
        while True:
            at = skip_space(window.buf, at, window.fill)
            byte = window.byte(at)
            if byte == b",":
                commas += 1
                at += 1
                continue
            if not byte or (byte != b"]" and window.fill - at < 16 and not window.eof):
                break
            if byte == b"]" and (ended := self._closes(at)) is not None:
                if not ended:
                    break
                window.pos = at + 1
                return True
            if byte == b"{" and commas != 1:
                self.damage.at(window.base + at, COMMAS)
                self.damage.repaired += 1
            start, at = at, -1
            if byte == b"{":
                end = value_end(window.buf, start, window.fill)
                if end > 0 and (batch := self._one(bytes(window.view[start:end]))) is not None:
                    yield batch
                    at = end
            if at < 0:
                ends, at = self._ends(start)
                if at == window.fill and not window.eof and at - start < _REPAIR_BYTES:
                    at = start
                    break
                at, batch = self._mend(start, ends, at)
                if batch is None:
                    commas = 1  # what stood before the next event is lost
                    continue
                yield batch
            commas = 0
        return self._pause(at)

    def _pause(self, at: int) -> bool:
        """Leave the slow path before ``at``; true where nothing is left to read."""
        window = self._window
        window.pos = at - 1
        window.discard()
        if window.more() or window.fill > 1:
            return False
        self.damage.cut = True
        return True

    def _closes(self, at: int) -> bool | None:
        """Whether the bracket at ``at`` ends the array: yes, not known before more is read (false), or no (None)."""
        window = self._window
        match = _TRAILER.match(window.buf, at + 1, window.fill)
        if match and (match.end() < window.fill or window.eof):
            return True
        if not window.eof and window.fill - at < BLOCK_BYTES:
            return False
        return None

    def _one(self, text: bytes) -> Batch | None:
        try:
            return self._decode(b"[" + text + b"]")
        except msgspec.DecodeError:
            return None

    def _mend(self, start: int, ends: list[int], resume: int) -> tuple[int, Batch | None]:
        """Mend the element at ``start``, or give it up; where to go on, and the batch if there is one."""
        window = self._window
        for end in ends:
            text = bytes(window.view[start:end])
            mended = repair(text) if text[:1] == b"{" and len(text) < _REPAIR_BYTES else None
            batch = self._one(mended[0]) if mended else None
            if mended and batch is not None:
                self.damage.repaired += 1
                for kind in mended[1]:
                    self.damage.at(window.base + start, kind)
                return end, batch
        lost = bytes(window.view[start:resume])
        if not lost.strip(b" \t\r\n,]}"):
            self.damage.at(window.base + start, "stray brackets")
            return resume, None
        if resume == window.fill and window.eof:
            self.damage.cut = True
        self._second_writer(lost, window.base + start)
        self.damage.at(window.base + start, "events that cannot be read")
        self.damage.dropped += 1
        return resume, None

    def _ends(self, start: int) -> tuple[list[int], int]:
        """Where the damaged element at ``start`` may end, nearest first, and where the next one begins."""
        window = self._window
        ends = []
        resume = -1
        for match in _RESUME.finditer(window.buf, start, window.fill):
            if match.end() <= start:
                continue
            resume = match.end() if resume < 0 else resume
            if match[1] is None:
                break
            ends.append(match.end(1))
            if len(ends) == _JOINS:
                break
        if resume < 0:
            closed = _CLOSED.search(window.buf, start, window.fill)
            if closed:
                ends.append(closed.end(1))
                resume = closed.end(1)
        structural = value_end(window.buf, start, window.fill)
        if structural > 0:
            ends.insert(0, structural)
        return ends, window.fill if resume < 0 else resume

    def _second_writer(self, text: bytes, byte: int) -> None:
        match = _SECOND_HEADER.search(text)
        if match and self.damage.second_writer_byte is None:
            self.damage.second_writer_byte = byte + match.start()

    # -- after the array

    def _after(self, is_object: bool) -> None:
        """The keys behind the array and whatever follows the document."""
        window = self._window
        if is_object:
            at = self._token(window.pos)
            if window.byte(at) != b"}":
                self.damage.cut = True
            window.pos = min(at + 1, window.fill)
        at = self._token(window.pos)
        if at < window.fill:
            first = window.base + at
            self._second_writer(bytes(window.view[at : window.fill]), first)
            while window.more():
                window.pos = window.fill
                window.discard()
            rest = window.base + window.fill - first
            self.damage.at(first, "bytes after the end of the document")
            self.damage.notes.append(f"{rest} bytes after the end of the document were not read")

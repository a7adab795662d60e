"""The elements of a trace's event array, in blocks, in constant memory, with every cut proved.

A block is cut at the last place that *looks* like the border of two events and decoded as an array of its own. The text
began at the border of an element, and JSON has one reading from there: if the block is a valid array, the true reader
also stands between two elements at its end, whatever made us cut there. A wrong guess (a border inside a string) cannot
decode; it costs another try. No assumption about key order, spacing or indentation is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec

from parsers.errors import InputError
from parsers.lexing import NO_RUN, scan, skip_space, value_end
from parsers.settle import Settler
from parsers.source import Source
from parsers.window import Damage, Window

Batch = TypeVar("Batch")

_GUESSES = 3
_HEADER_BYTES = 256 * 2**20  # a header larger than this is no trace's
_KEY_BYTES = 64  # `"traceEvents": [` however it is spaced
_ELEMENT_BYTES = 32 * 2**20  # nor is an event
_BOM = b"\xef\xbb\xbf"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')


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
        self._settler = Settler(self._window, decode, self.damage)
        self._separator: bytes | None = None
        self._oversized: str | None = None  # the key whose value is larger than any header
        self._is_given_up = False  # nothing behind the events was read for that

    @property
    def byte(self) -> int:
        """Where the batch that was given last begins, in decompressed bytes."""
        return self._window.base + self._window.pos

    def batches(self) -> Iterator[Batch]:
        """All events, block by block.

        Raises:
            InputError: the file holds no array of events at all.
        """
        is_object = self._open()
        yield from self._array()
        while is_object and self._members(self._window.pos, keep=False):
            self.damage.notes.append("the document holds more than one `traceEvents`; all were read")
            yield from self._array()
        self._close(is_object)
        for fault in self._window.source.faults:
            self.damage.notes.append(f"{fault.message} after {fault.at_byte} bytes of data")
            self.damage.first_byte = min(self.damage.first_byte or fault.at_byte, fault.at_byte)
            self.damage.cut |= fault.cut

    # -- the keys around the array

    def _open(self) -> bool:
        """Read up to the bracket that opens the array; true where the document is an object."""
        window = self._window
        window.more()
        start = self._token(3 if window.text(0, 3) == _BOM else 0)
        first = window.byte(start)
        window.pos = start
        if not first:
            hint = "the profiler died before it wrote; take another rank"
            raise InputError("the file holds nothing but white space", path=self._name, hint=hint)
        if first == b"[":
            return False
        if first != b"{":
            raise InputError(
                f"is not JSON (it starts with {window.text(start, start + 8)!r})",
                path=self._name,
                place=f"byte {start}",
                hint="give a profiler trace, plain or compressed",
            )
        if not self._members(start + 1, keep=True):
            self._find_events()
        return True

    def _members(self, at: int, *, keep: bool) -> bool:
        """Read keys of the document from ``at`` on; true where an array of events was met (``window.pos`` is at it).

        Else ``window.pos`` is where reading stopped. ``keep`` keeps in memory what was read, for another look at it.
        """
        window = self._window
        while True:
            at = self._token(at)
            window.pos = at
            if window.byte(at) == b",":
                at += 1
                continue
            end = self._value(at) if window.byte(at) == b'"' else -1
            if end < 0:
                return False
            key = window.text(at + 1, end - 1).decode("utf-8", "replace")
            at = window.pos = self._token(end)
            if window.byte(at) != b":":
                return False
            at = window.pos = self._token(at + 1)
            if key == "traceEvents" and window.byte(at) == b"[":
                return True
            if not keep:
                window.discard()
                at = 0
            end = self._value(at) if window.byte(at) else -1
            if end < 0 and window.fill - at > _HEADER_BYTES:
                self._oversized, self._is_given_up = key, not keep
                self.damage.at(window.base + at, "a header too large to read")
                size = f"{_HEADER_BYTES >> 20} MiB"
                self.damage.notes.append(f"`{key}` is larger than {size}: it and the keys behind it were not read")
            if end < 0:
                return False
            self.header[key] = window.text(at, end)
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
        start = window.base + window.pos
        while not (match := _EVENTS.search(window.buf, 0, window.fill)):
            if window.fill > _HEADER_BYTES:  # nothing of it is needed again, but the key may be cut in two
                window.pos = window.fill - _KEY_BYTES
                window.discard()
            if not window.grow():
                break
        if match is None:
            raise self._no_events()
        if self._oversized is None:
            self.damage.at(start, "a damaged header")
        window.pos = match.end() - 1

    def _no_events(self) -> InputError:
        window = self._window
        if "traceEvents" in self.header:
            return InputError("its `traceEvents` is not an array", path=self._name, hint="export the trace again")
        if self._oversized is not None:
            why = f"holds no events, and its `{self._oversized}` is larger than {_HEADER_BYTES >> 20} MiB"
            return InputError(why, path=self._name, hint="take another rank")
        if window.byte(window.pos) != b"}":
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

    def _close(self, is_object: bool) -> None:
        """Read the end of the document, and count whatever follows it."""
        window = self._window
        if self._is_given_up:
            return
        at = self._token(window.pos)
        if is_object:
            self.damage.cut |= window.byte(at) != b"}"
            at = self._token(min(at + 1, window.fill))
        window.pos = at
        if not window.byte(at):
            return
        first = window.base + at
        self._settler.look_for_second_writer(window.text(at, window.fill), first)
        while window.more():
            window.pos = window.fill
            window.discard()
        self.damage.at(first, "bytes after the end of the document")
        rest = window.base + window.fill - first
        self.damage.notes.append(f"{rest} bytes after the end of the document were not read")

    # -- the array

    def _array(self) -> Iterator[Batch]:
        """The events, from the opening bracket at ``window.pos`` to behind the closing one."""
        window = self._window
        window.more()
        self._separator = self._first_border()
        damaged = False
        while True:
            if window.fill - window.pos < window.block:
                window.discard()
                window.more()
            batch, comma = self._guess()
            if batch is not None:
                yield batch
                window.pos = comma
                damaged = False
                continue
            run = NO_RUN if damaged else scan(window.buf, window.pos + 1, window.fill)
            if run == NO_RUN and not damaged and window.fill - window.pos < _ELEMENT_BYTES and window.grow():
                continue
            if run.close >= 0 and self._is_end(run.close):
                batch = self._try(run.close)
                if batch is not None:
                    yield batch
                    window.pos = run.close + 1
                    return
            elif run.comma >= 0:
                batch = self._try(run.comma)
                if batch is not None:
                    yield batch
                    self._separator = self._border(run.before_comma, run.comma)
                    window.pos = run.comma
                    continue
            self._settler.separator = self._separator
            damaged = True  # damage seldom comes alone: look for the proof of a cut no more, but go through the block
            if (yield from self._settler.run()):
                return

    def _is_end(self, close: int) -> bool:
        """Whether a bracket ends the array, reading on as needed."""
        while (ends := self._window.closes(close)) is None:
            self._window.more()
        return ends

    def _first_border(self) -> bytes | None:
        """The text between the first two events, if they are in the buffer."""
        window = self._window
        start = skip_space(window.buf, window.pos + 1, window.fill)
        end = value_end(window.buf, start, window.fill) if window.byte(start) == b"{" else -1
        comma = skip_space(window.buf, end, window.fill) if end > 0 else window.fill
        return self._border(end, comma) if window.byte(comma) == b"," else None

    def _border(self, before_comma: int, comma: int) -> bytes:
        """The text between two events, as this file's writer has it."""
        window = self._window
        return window.text(before_comma - 1, skip_space(window.buf, comma + 1, window.fill) + 1)

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

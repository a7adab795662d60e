"""The slow path: events one by one, where a block of them is no valid array. Never taken on a sound file."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Generic, TypeVar

import msgspec

from parsers.lexing import skip_space, value_end
from parsers.repair import COMMAS, repair, retouch
from parsers.window import Damage, Window

Batch = TypeVar("Batch")

LOST = "events that cannot be read"
STRAY = "stray brackets"

_JOINS = 24  # borders that may lie inside one damaged event
_HOPELESS = 1000  # events lost, more than mended ones, after which a damaged one is given up at once
_LONGEST_STRIDE = 512
_NEAR_BYTES = 4096  # nearly every event is shorter
_FRUITLESS_BYTES = 8 * 2**20  # text followed in vain, beyond twice what was read, after which none is followed far
_REPAIR_BYTES = 2**20  # text that is tried for one element, in all
_GIVE_UP_BYTES = 4 * 2**20  # an element larger than this is given up
_TRUNCATED = "Input data was truncated"  # what the decoder says of JSON that is sound as far as it goes
_LOOK_AHEAD = 16  # bytes that must follow what is judged

_EVENT_KEY = rb'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:'
# Where an event begins for sure: after another one, or as the first of an array (a second writer's).
_RESUME = re.compile(rb"(\})\s*,?\s*(?=" + _EVENT_KEY + rb')|"traceEvents"\s*:\s*\[\s*(?=' + _EVENT_KEY + rb")")
_CLOSED = re.compile(rb'(\})\s*\](?=\s*(?:,\s*"[^"]*"\s*:|\}\s*\Z|\Z))')
_SECOND_HEADER = re.compile(rb'"(?:schemaVersion|traceEvents|distributedInfo|baseTimeNanoseconds)"\s*:')


class Settler(Generic[Batch]):
    """Mends or drops damaged elements, and counts them.

    Args:
        window: the text; ``window.pos`` is at the bracket or comma before an element.
        decode: as in `parsers.elements.Elements`.
        damage: where to count.
    """

    def __init__(self, window: Window, decode: Callable[[memoryview | bytes], Batch], damage: Damage) -> None:
        self._window = window
        self._decode = decode
        self._damage = damage
        self._check = msgspec.json.Decoder(list[msgspec.Raw]).decode
        self.separator: bytes | None = None  # the text between two events, where it is known
        self._stride = 16
        self._fruitless = 0  # bytes in which brackets were followed that did not close
        self._comma_is_due = False  # the last run stopped between an element and the comma after it

    def run(self) -> Generator[Batch, None, bool]:
        """Go through what is in the buffer.

        Yields:
            What could be read, as one batch (or as one per element).

        Returns:
            True where the array or the file ended; ``window.pos`` is behind it.
        """
        window = self._window
        at = after = window.pos + 1
        commas = 0 if self._comma_is_due else 1
        sure = True  # whether all commas since the last element were seen
        self._comma_is_due = False
        texts: list[bytes] = []
        while True:
            at = skip_space(window.buf, at, window.fill)
            byte = window.byte(at)
            if byte == b",":
                commas += 1
                at += 1
                continue
            if not byte or (byte != b"]" and window.fill - at < _LOOK_AHEAD and not window.eof):
                break
            if byte == b"]":
                closes = window.closes(at)
                if closes is None:
                    break
                if closes:
                    if sure:
                        self._count_commas(at, commas, allowed={0} if after > window.pos + 1 else {0, 1})
                    window.pos = at + 1
                    yield from self._batch(texts)
                    return True
            end, text, sure_now = self._element(at)
            if end == at:
                break
            if byte == b"{" and sure:
                self._count_commas(at, commas, allowed={1})
            if text is not None:
                texts.append(text)
            at = after = end
            commas, sure = int(not sure_now), sure_now
        yield from self._batch(texts)
        return self._pause(after, at, commas)

    def _batch(self, texts: list[bytes]) -> Iterator[Batch]:
        """All elements that could be read as one batch."""
        if not texts:
            return
        try:
            yield self._decode(b"[" + b",".join(texts) + b"]")
        except msgspec.DecodeError:  # sound JSON that the decoder cannot take: find out which
            for text in texts:
                try:
                    yield self._decode(b"[" + text + b"]")
                except msgspec.DecodeError:
                    self._damage.kinds[LOST] += 1
                    self._damage.dropped += 1

    def _count_commas(self, at: int, commas: int, *, allowed: set[int]) -> None:
        if commas not in allowed:
            self._damage.at(self._window.base + at, COMMAS)
            self._damage.repaired += 1

    def _pause(self, after: int, at: int, commas: int) -> bool:
        """Stop before an element that is not whole yet; true where nothing is left to read."""
        window = self._window
        nothing = at == window.fill
        if commas:  # stand on a comma, which takes the place of the bracket
            first = window.buf.find(b",", after, at)
            window.pos = first if first >= 0 else after - 1
        else:
            window.pos = after - 1
            self._comma_is_due = True
        window.discard()
        if window.more() or not nothing:
            return False
        self._damage.cut = True
        window.pos = window.fill
        return True

    def _element(self, start: int) -> tuple[int, bytes | None, bool]:
        """One element: its end (``start`` where more must be read first), its text if it can be read, and whether
        it was whole."""
        window = self._window
        end, text = self._stretch(start)
        if text is not None:
            return end, text, True
        hopeless = self._is_hopeless()
        borders, resume = self._borders(start) if hopeless else ([], -1)
        end = self._end(start, min(borders[0] if borders else start + _NEAR_BYTES, window.fill))
        text = self._sound(start, end)
        if text is not None:
            return end, text, True
        if not hopeless:
            borders, resume = self._borders(start)
        if resume == window.fill and not window.eof and resume - start < _GIVE_UP_BYTES:
            return start, None, False
        if end < 0 and not hopeless:
            # Brackets that never close must not be followed through the whole buffer, again for every element.
            limit = borders[-1] if len(borders) == _JOINS else window.fill
            far = self._fruitless <= _FRUITLESS_BYTES + 2 * (window.base + start)
            end = self._end(start, limit if far else min(limit, start + _NEAR_BYTES))
            text = self._sound(start, end)
            if text is not None:
                return end, text, True
            if far and end < 0 and self._is_cut(start):
                self._damage.cut = True
                borders = []  # it needs no mending: only its end is missing
        end, text = self._mend(start, [end, *borders] if end > 0 else borders, resume)
        return end, text, text is not None

    def _is_cut(self, start: int) -> bool:
        """Whether the file ends inside the element at ``start``, which is sound as far as it goes."""
        window = self._window
        if not window.eof or self._damage.cut:
            return False
        self._fruitless += window.fill - start
        return self._is_begun(window.text(start, window.fill))

    def _is_begun(self, text: bytes) -> bool:
        """Whether a text is the sound beginning of a value, and no more."""
        try:
            self._check(b"[" + text)
        except msgspec.DecodeError as error:
            return str(error) == _TRUNCATED
        except RecursionError:
            pass
        return False

    def _is_hopeless(self) -> bool:
        """Whether so much was lost that trying hard with every further event would only cost time."""
        return self._damage.dropped > max(_HOPELESS, self._damage.repaired)

    def _stretch(self, start: int) -> tuple[int, bytes | None]:
        """Several sound elements at once, found by the border that this file has: twice as many after each success,
        a quarter after each failure."""
        window = self._window
        end = start
        if self.separator is None or self._stride < 2:
            self._stride += 1
            return -1, None
        for _ in range(self._stride):
            border = window.buf.find(self.separator, end + 1, window.fill)
            if border < 0:
                break
            end = border
        text = window.text(start, end + 1)
        if end == start or not self._reads(text):
            self._stride //= 4
            return -1, None
        self._stride = min(2 * self._stride, _LONGEST_STRIDE)
        return end + 1, text

    def _end(self, start: int, limit: int) -> int:
        window = self._window
        end = value_end(window.buf, start, limit) if window.byte(start) == b"{" else -1
        self._fruitless += limit - start if end < 0 else 0
        return end

    def _sound(self, start: int, end: int) -> bytes | None:
        """The text of an element that can be read as it is, or with single tokens replaced."""
        if end < 0:
            return None
        text = self._window.text(start, end)
        if self._reads(text):
            return text
        touched = retouch(text)
        if touched.text is None or not self._reads(touched.text):
            return None
        self._mended(start, touched.kinds)
        return touched.text

    def _reads(self, text: bytes) -> bool:
        try:
            self._check(b"[" + text + b"]")
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def _mended(self, start: int, kinds: frozenset[str]) -> None:
        self._damage.repaired += 1
        for kind in kinds:
            self._damage.at(self._window.base + start, kind)

    def _borders(self, start: int) -> tuple[list[int], int]:
        """Where the damaged element at ``start`` may end, nearest first, and where the next one begins."""
        window = self._window
        ends: list[int] = []
        resume = -1
        for match in _RESUME.finditer(window.buf, start, window.fill):
            if match.end() <= start:
                continue
            resume = match.end() if resume < 0 else resume
            if match[1] is None:
                break
            ends.append(match.end(1))
            if len(ends) == (1 if self._is_hopeless() else _JOINS):
                break
        if resume < 0 and (window.eof or window.fill - start >= _GIVE_UP_BYTES):  # else more may follow
            closed = self._closed(start)
            if closed >= 0:
                ends.append(closed)
                resume = closed
        return ends, window.fill if resume < 0 else resume

    def _closed(self, start: int) -> int:
        """The end of the last event: the first place that looks like one after which the document is sound, else the
        first; -1 for none."""
        window = self._window
        first = -1
        for match in islice(_CLOSED.finditer(window.buf, start, window.fill), _JOINS):
            rest = b'{"":0' + window.text(match.end(), window.fill)  # the keys behind the events
            if self._reads(rest) or self._is_begun(rest):
                return match.end(1)
            first = match.end(1) if first < 0 else first
        return first

    def _mend(self, start: int, ends: list[int], resume: int) -> tuple[int, bytes | None]:
        """Mend the element at ``start``, trying its possible ends, or give it up; where to go on, and its text."""
        window, damage = self._window, self._damage
        budget = _REPAIR_BYTES
        for end in [] if self._is_hopeless() or window.byte(start) != b"{" else ends:
            budget -= end - start
            if budget < 0:
                break
            mended = repair(window.text(start, end))
            if mended.text is not None and self._reads(mended.text):
                self._mended(start, mended.kinds)
                return end, mended.text
            if not mended.unfinished:
                break
        lost = window.text(start, resume)
        if not lost.strip(b" \t\r\n,]}"):
            damage.at(window.base + start, STRAY)
            return resume, None
        damage.cut |= resume == window.fill and window.eof
        self.look_for_second_writer(lost, window.base + start)
        damage.at(window.base + start, LOST)
        damage.dropped += 1
        return resume, None

    def look_for_second_writer(self, text: bytes, byte: int) -> None:
        """Note where a header stands that does not belong here; ``byte`` is the position of the text."""
        match = _SECOND_HEADER.search(text)
        if match and self._damage.second_writer_byte is None:
            self._damage.second_writer_byte = byte + match.start()

"""The slow path: events one by one, where a block of them is no valid array. Never taken on a sound file."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

import msgspec

from parsers.lexing import skip_space, value_end
from parsers.repair import COMMAS, repair
from parsers.window import Damage, Window

Batch = TypeVar("Batch")

LOST = "events that cannot be read"
STRAY = "stray brackets"

_JOINS = 24  # borders that may lie inside one damaged event
_HOPELESS = 1000  # events lost, after which a damaged one is no longer looked for beyond the next border
_NEAR_BYTES = 4096  # nearly every event is shorter
_REPAIR_BYTES = 2**20  # text that is tried for one element, in all
_GIVE_UP_BYTES = 4 * 2**20  # an element larger than this is given up
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
        self._comma_is_due = False  # the last run stopped between an element and the comma after it

    def run(self) -> Generator[Batch, None, bool]:
        """Go through what is in the buffer.

        Yields:
            One batch per element.

        Returns:
            True where the array or the file ended; ``window.pos`` is behind it.
        """
        window = self._window
        at = after = window.pos + 1
        commas = 0 if self._comma_is_due else 1
        sure = True  # whether all commas since the last element were seen
        self._comma_is_due = False
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
                    return True
            end, batch, sure_now = self._element(at)
            if end == at:
                break
            if byte == b"{" and sure:
                self._count_commas(at, commas, allowed={1})
            if batch is not None:
                yield batch
            at = after = end
            commas, sure = int(not sure_now), sure_now
        return self._pause(after, at, commas)

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

    def _element(self, start: int) -> tuple[int, Batch | None, bool]:
        """One element: its end (``start`` where more must be read first), its batch, and whether it was whole."""
        window = self._window
        end = self._end(start, min(start + _NEAR_BYTES, window.fill))
        batch = self._one(window.text(start, end)) if end > 0 else None
        if batch is not None:
            return end, batch, True
        borders, resume = self._borders(start)
        if resume == window.fill and not window.eof and resume - start < _GIVE_UP_BYTES:
            return start, None, False
        if end < 0:
            # Brackets that never close must not be followed through the whole buffer, again for every element.
            end = self._end(start, borders[-1] if len(borders) == self._joins() else window.fill)
            batch = self._one(window.text(start, end)) if end > 0 else None
            if batch is not None:
                return end, batch, True
        end, batch = self._mend(start, [end, *borders] if end > 0 else borders, resume)
        return end, batch, batch is not None

    def _end(self, start: int, limit: int) -> int:
        window = self._window
        return value_end(window.buf, start, limit) if window.byte(start) == b"{" else -1

    def _joins(self) -> int:
        """How many borders may lie inside a damaged event; where all is damaged, there is no use in looking far."""
        return _JOINS if self._damage.dropped < _HOPELESS else 1

    def _one(self, text: bytes) -> Batch | None:
        try:
            return self._decode(b"[" + text + b"]")
        except msgspec.DecodeError:
            return None

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
            if len(ends) == self._joins():
                break
        if resume < 0:
            closed = _CLOSED.search(window.buf, start, window.fill)
            if closed:
                ends.append(closed.end(1))
                resume = closed.end(1)
        return ends, window.fill if resume < 0 else resume

    def _mend(self, start: int, ends: list[int], resume: int) -> tuple[int, Batch | None]:
        """Mend the element at ``start``, trying its possible ends, or give it up; where to go on, and its batch."""
        window, damage = self._window, self._damage
        budget = _REPAIR_BYTES
        for end in ends if window.byte(start) == b"{" else []:
            budget -= end - start
            if budget < 0:
                break
            mended = repair(window.text(start, end))
            batch = None if mended.text is None else self._one(mended.text)
            if batch is not None:
                damage.repaired += 1
                for kind in mended.kinds:
                    damage.at(window.base + start, kind)
                return end, batch
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

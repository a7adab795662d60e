"""A window cut out of a stream of events, so that what is left is still a sound trace.

Kept is what overlaps the window. An event longer than the whole window (a Python frame, a step) is shortened to it and
says so in its arguments. Pairs stay pairs: ``B`` and ``E`` of one slice become one ``X``; flows and asynchronous ranges
are kept only with both of their ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import Raw

from analyzer.export.chrome import Event, microseconds

ALWAYS = (b'"M"',)
FLOWS = (b'"s"', b'"t"', b'"f"')
ASYNC = (b'"b"', b'"n"', b'"e"', b'"S"', b'"T"', b'"p"', b'"F"')
STARTS, ENDS = (b'"s"', b'"b"', b'"S"'), (b'"f"', b'"e"', b'"F"')


@dataclass(frozen=True)
class Window:
    """Half-open: ``start_ns <= t < end_ns`` on the time axis of the export."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns

    def overlaps(self, start: int, end: int) -> bool:
        """Whether anything of ``[start, end]`` lies inside; an instant has equal ends."""
        return start < self.end_ns and (end > self.start_ns or start >= self.start_ns)


@dataclass
class Cut:
    """The window at work on the events of one file.

    Attributes:
        window: what to keep.
        base_ns: what ``ts`` of the events counts from.
    """

    window: Window
    base_ns: int
    _open: dict[tuple[bytes, bytes], list[tuple[Event, int]]] = field(default_factory=lambda: defaultdict(list))
    _pairs: dict[tuple[bytes, bytes, bytes], list[Event]] = field(default_factory=lambda: defaultdict(list))

    def take(self, event: Event, start: int, length: int) -> Event | None:
        """One event in order of the file, its begin and length in ns on the time axis of the export; what to write."""
        phase = bytes(event.get("ph", b"null"))
        if phase in ALWAYS:
            return event
        if phase == b'"X"':
            return self._clipped(event, start, start + length)
        if phase == b'"B"':
            self._open[_thread(event)].append((event, start))
            return None
        if phase == b'"E"':
            return self._closed(event, start)
        if not self.window.overlaps(start, start):
            return None
        if phase in FLOWS or phase in ASYNC:
            self._pairs[_pair(event)].append(event)
            return None
        return event

    def pairs(self) -> Iterator[Event]:
        """Flows and asynchronous ranges of which both ends lie inside; to be asked when all events were taken."""
        for events in self._pairs.values():
            phases = {bytes(event["ph"]) for event in events}
            if phases & set(STARTS) and phases & set(ENDS):
                yield from events

    def _closed(self, event: Event, end: int) -> Event | None:
        waiting = self._open[_thread(event)]
        if not waiting:
            return None
        begun, start = waiting.pop()
        slice_ = {**begun, "ph": Raw(b'"X"'), "dur": microseconds(end - start)}
        return self._clipped(slice_, start, end)

    def _clipped(self, event: Event, start: int, end: int) -> Event | None:
        window = self.window
        if not window.overlaps(start, end):
            return None
        if end - start <= window.length_ns:
            return event
        first, last = max(start, window.start_ns), min(end, window.end_ns)
        said = b'{"full_dur_us":' + bytes(microseconds(end - start)) + b',"cut_to_the_window":true'
        args = bytes(event.get("args", b"{}"))
        joined = said + (b"}" if args.strip() in (b"{}", b"null") else b"," + args.lstrip()[1:])
        return {
            **event,
            "ts": microseconds(first - self.base_ns),
            "dur": microseconds(last - first),
            "args": Raw(joined if args.lstrip().startswith(b"{") else said + b"}"),
        }


def _thread(event: Mapping[str, Raw]) -> tuple[bytes, bytes]:
    return bytes(event.get("pid", b"")), bytes(event.get("tid", b""))


def _pair(event: Mapping[str, Raw]) -> tuple[bytes, bytes, bytes]:
    """What the ends of one flow or range have in common."""
    local = bytes(event["pid"]) if b'"local"' in bytes(event.get("id2", b"")) and "pid" in event else b""
    which = bytes(event.get("id", event.get("id2", b"")))
    return bytes(event.get("cat", b"")), which, local

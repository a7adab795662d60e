"""Identifiers of several files in one: each is made to differ from those of every other file.

Process ids, flow ids, `correlation` and `External id` are unique within the file of a rank and repeat in the next. The
first file keeps its flow and correlation numbers; those of the n-th have n times 2**40 added (JSON numbers are exact
up to 2**53, and CUPTI's correlation ids have 32 bits). Processes and threads get numbers of their own, because writers
use words for some of them.
"""

from __future__ import annotations

import re

from msgspec import Raw

ROOM = 1 << 40
"""Numbers a file may use."""

PROCESSES = 1_000_000
"""Process numbers of a file; its own are ``PROCESSES * (place + 1)`` and up. They fit the 32 bits of Perfetto."""

WORD_THREADS = 1 << 31
"""Numbers of threads that have a word for a name begin here: above those of Linux, which go up to 2**22."""

_LINKS = re.compile(rb'("(?:correlation|External id|external id)"\s*:\s*)("?\d+"?)')


class Identifiers:
    """The identifiers of one file.

    Args:
        place: of the file among those exported, from 0.
        alone: whether there is no other file: then links stay as they are.
        hidden: whether thread numbers, which the operating system gave, are to be replaced as well.
    """

    def __init__(self, place: int, *, alone: bool, hidden: bool = False) -> None:
        self.place = place
        self.alone = alone
        self.hidden = hidden
        self.processes: dict[bytes, int] = {}
        self.words: dict[tuple[int, bytes], int] = {}
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._others: dict[bytes, int] = {}

    def process(self, raw: bytes) -> int:
        """The new number of a process."""
        if raw not in self.processes:
            self.processes[raw] = PROCESSES * (self.place + 1) + len(self.processes)
        return self.processes[raw]

    def thread(self, pid: int, raw: bytes) -> int:
        """The number of a thread (or stream) of a process; what has a number keeps it."""
        if raw.isdigit() and int(raw) < WORD_THREADS:
            return int(raw) if not self.hidden else self._numbers.setdefault((pid, raw), len(self._numbers) + 1)
        if (pid, raw) not in self.words:
            self.words[pid, raw] = WORD_THREADS + len(self.words)
        return self.words[pid, raw]

    def link(self, raw: bytes) -> int:
        """The new number of a flow, a correlation or an external id."""
        digits = raw.strip(b'"')
        number = int(digits) if digits.isdigit() else ROOM
        if number >= ROOM // 2:
            # Not a counter but a hash or a word: numbered from the middle of the room on.
            number = ROOM // 2 + self._others.setdefault(raw, len(self._others))
        return self.place * ROOM + number

    def links_in(self, args: bytes) -> bytes:
        """The arguments of an event with their links renumbered: keys are never found inside of texts, whose quotes
        are escaped."""
        if self.alone or (b'"corr' not in args and b'ternal id"' not in args):
            return args
        return _LINKS.sub(lambda match: match[1] + str(self.link(match[2])).encode(), args)


def raw_int(value: int) -> Raw:
    """A number as JSON."""
    return Raw(str(value).encode())

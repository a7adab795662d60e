"""Where JSON values begin and end, without building them: the structure only, at a regular expression's speed."""

from __future__ import annotations

import re
from typing import NamedTuple

Buffer = bytes | bytearray | memoryview

# A string (group 1 is its closing quote, empty where the buffer ends first) or a bracket.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*+("?)|[{}\[\]]', re.DOTALL)
_SCALAR = re.compile(rb'[^\s,:{}\[\]"]+')
_SPACE = re.compile(rb"\s*")
_NEXT = re.compile(rb"\s*,")

_OPEN = frozenset(b"{[")
_QUOTE = ord('"')


class Run(NamedTuple):
    """What `scan` found, as positions in the buffer, -1 for not found."""

    comma: int  # the last comma behind a whole element
    before_comma: int  # the end of that element; without a comma: of the last of several that no comma separates
    close: int  # the bracket that ends the array


NO_RUN = Run(-1, -1, -1)
"""Nothing found."""


def scan(buffer: Buffer, start: int, end: int) -> Run:
    """Walk over the elements of an array from ``start``, the beginning of one, to ``end`` or the end of the array.

    Only objects and arrays count as elements here; numbers and words between them belong to the next one.
    """
    depth = 0
    last = previous = -1
    for match in _TOKEN.finditer(buffer, start, end):
        byte = buffer[match.start()]
        if byte == _QUOTE:
            if not match[1]:
                break
        elif byte in _OPEN:
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                previous, last = last, match.end()
            elif depth < 0:
                return Run(-1, -1, match.start())
    for finish in (last, previous):
        comma = _NEXT.match(buffer, finish, end) if finish >= 0 else None
        if comma:
            return Run(comma.end() - 1, finish, -1)
    return Run(-1, last, -1) if previous >= 0 else NO_RUN


def value_end(buffer: Buffer, start: int, end: int) -> int:
    """The position after the value that begins at ``start``; -1 where the buffer ends before it does.

    A number or word that reaches the end of the buffer counts as unfinished.
    """
    byte = buffer[start]
    if byte != _QUOTE and byte not in _OPEN:
        match = _SCALAR.match(buffer, start, end)
        return -1 if match is None or match.end() == end else match.end()
    depth = 0
    for match in _TOKEN.finditer(buffer, start, end):
        byte = buffer[match.start()]
        if byte == _QUOTE:
            if not match[1]:
                return -1
        elif byte in _OPEN:
            depth += 1
        else:
            depth -= 1
        if depth <= 0:
            return match.end()
    return -1


def skip_space(buffer: Buffer, start: int, end: int) -> int:
    """The position of the next byte that is not white space, or ``end``."""
    match = _SPACE.match(buffer, start, end)
    return match.end() if match else start

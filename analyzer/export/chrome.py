"""The events of a Kineto file as they were written, in a stream: nothing is interpreted that need not be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

from analyzer.intervals import Ints
from parsers.columns import NULL, integer, nanosecond, nanoseconds
from parsers.elements import Elements
from parsers.errors import InputError
from parsers.source import open_source

Event = dict[str, Raw]

_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_RAWS = msgspec.json.Decoder(list[Raw])
_DAMAGED = "decodes as no array of events"


def batches(path: str) -> Iterator[list[Event]]:
    """All events of a file, block by block; damaged ones are mended or left out as the analysis does.

    Raises:
        InputError: the file cannot be read.
    """
    with open_source(path) as source:
        yield from Elements(source, _decoded).batches()


def header_of(path: str) -> dict[str, bytes]:
    """The keys around the events, as text; reads the file to its end where the time base does not come first.

    Raises:
        InputError: the file cannot be read.
    """
    with open_source(path) as source:
        elements = Elements(source, _counted)
        for _ in elements.batches():
            if "baseTimeNanoseconds" in elements.header:
                break
        return dict(elements.header)


def base_ns(header: Mapping[str, bytes]) -> int | None:
    """What has to be added to every time of the file, in ns; None where times are what they are."""
    text = header.get("baseTimeNanoseconds")
    number = NULL if text is None else integer(_loaded(text))
    return None if number == NULL else number


def times(events: list[Event], key: str) -> Ints:
    """``ts`` or ``dur`` of every event, in ns as written; `parsers.columns.NULL` where there is none."""
    raws = [bytes(event[key]) if key in event else b"null" for event in events]
    if b"null" not in raws:
        return nanoseconds(b",".join(raws), len(raws))
    return np.fromiter((NULL if raw == b"null" else nanosecond(raw) for raw in raws), np.int64, len(raws))


def text_of(event: Mapping[str, Raw], key: str) -> str:
    """A text of an event; empty where there is none."""
    value = _loaded(bytes(event[key])) if key in event else None
    return value if isinstance(value, str) else "" if value is None else str(value)


def raw(value: object) -> Raw:
    """A value as JSON."""
    return Raw(msgspec.json.encode(value))


def microseconds(ns: int) -> Raw:
    """A time as Kineto writes it: microseconds with three places."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return Raw(f"{sign}{ns // 1000}.{ns % 1000:03d}".encode())


def _loaded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _counted(text: memoryview | bytes) -> int:
    return len(_RAWS.decode(text))


def _decoded(text: memoryview | bytes) -> list[Event]:
    """Events that can be written again as they are: msgspec checks everything but UTF-8 inside of what it steps over.

    Raises:
        msgspec.DecodeError: the text is no valid array.
    """
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        text = str(text, "utf-8", "replace").encode()
    try:
        return _EVENTS.decode(text)
    except msgspec.ValidationError:
        return _one_by_one(text)
    except RecursionError:
        raise msgspec.DecodeError(_DAMAGED) from None


def _one_by_one(text: memoryview | bytes) -> list[Event]:
    """Without the elements that are no objects."""
    found = []
    for element in _RAWS.decode(text):
        try:
            found.append(_EVENT.decode(element))
        except (msgspec.DecodeError, RecursionError):
            continue
    return found


def is_chrome(path: str) -> bool:
    """Whether a file holds Kineto's events, so that they can be written again.

    Raises:
        InputError: the file cannot be read.
    """
    from parsers import kineto

    try:
        with open_source(path) as source:
            return kineto.sniff(source.head)
    except InputError:
        return False

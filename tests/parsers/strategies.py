"""Hypothesis strategies for traces: sound ones, and what writers, disks and copies do to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.parsers.made import LAYOUTS, TraceMaker

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@st.composite
def traces(draw: st.DrawFn, most_steps: int = 3) -> TraceMaker:
    """A sound trace: steps of kernels and all-reduces at any whole or broken microsecond, some ties, odd names."""
    trace = TraceMaker(rank=draw(st.integers(0, 3)), pid=draw(st.sampled_from([1, 77, 2**31 + 5])))
    at = float(draw(st.sampled_from([0, 1000, 123456.789, 1.7e9])))
    for step in range(draw(st.integers(1, most_steps))):
        trace.step(step, at, 6000)
        for number in range(draw(st.integers(0, 4))):
            begin = at + 100 + draw(st.sampled_from([0, 0, 0.001, 250.5, 999.999])) + 900 * number
            length = draw(st.sampled_from([0.2, 1, 400.25]))
            if draw(st.booleans()):
                trace.collective(begin, length, nelems=draw(st.integers(1, 2**40)))
            else:
                trace.kernel(draw(NAMES) or "k", begin, length, stream=draw(st.sampled_from([0, 7, 20])))
        at += 6000 + draw(st.sampled_from([0, 0.5, 1e6]))
    return trace


@st.composite
def shuffled(draw: st.DrawFn, trace: TraceMaker) -> TraceMaker:
    """The same events in another order."""
    other = TraceMaker(rank=trace.rank, pid=trace.pid)
    other.header, other.events = trace.header, draw(st.permutations(trace.events))
    return other


@st.composite
def damaged(draw: st.DrawFn, sound: bytes) -> bytes:
    """One to four damages: bytes flipped, lost, doubled, put in; cut; lines broken; another trace written into it."""
    data = bytearray(sound)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(sorted(_DAMAGES)))
        _DAMAGES[kind](draw, data, at)
    return bytes(data)


def _flip(draw: st.DrawFn, data: bytearray, at: int) -> None:
    if at < len(data):
        data[at] = draw(st.integers(0, 255))


def _lose(draw: st.DrawFn, data: bytearray, at: int) -> None:
    del data[at : at + draw(st.integers(1, 300))]


def _insert(draw: st.DrawFn, data: bytearray, at: int) -> None:
    some = st.binary(max_size=20) | st.sampled_from(
        [b"NaN", b"\\", b'"', b"}}, {", b"[[[", b"\x00", b'"traceEvents": [']
    )
    data[at:at] = draw(some)


def _double(draw: st.DrawFn, data: bytearray, at: int) -> None:
    data[at:at] = data[max(0, at - draw(st.integers(1, 400))) : at]


def _cut(draw: st.DrawFn, data: bytearray, at: int) -> None:
    del data[at:]


def _second_writer(draw: st.DrawFn, data: bytearray, at: int) -> None:
    other = TraceMaker(rank=1, pid=9)
    other.kernel("other", 5, 5)
    text = other.text().encode()
    data[at : at + draw(st.sampled_from([0, len(text)]))] = text


_DAMAGES: dict[str, Callable[[st.DrawFn, bytearray, int], None]] = {
    "flip": _flip,
    "lose": _lose,
    "insert": _insert,
    "double": _double,
    "cut": _cut,
    "second writer": _second_writer,
}


def written(document: Any) -> st.SearchStrategy[bytes]:
    """The document in any writer's layout."""
    return st.sampled_from(sorted(LAYOUTS)).map(lambda layout: LAYOUTS[layout](document).encode())


def plain(document: Any) -> bytes:
    """The document as Python's json writes it."""
    return json.dumps(document).encode()

"""The element stream: every cut proved, whatever the layout, the order of keys and the strings inside."""

from __future__ import annotations

import json
import random
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers import window as window_module
from parsers.elements import Elements
from parsers.errors import InputError
from parsers.lexing import scan, value_end
from parsers.settle import Settler
from parsers.source import BLOCK_BYTES, Source
from parsers.window import Damage
from tests.examples import examples
from tests.parsers.made import LAYOUTS

_DECODER = msgspec.json.Decoder(list[Any])

# What could mislead a reader that looks for borders instead of reading JSON.
TRAPS = (
    "},{",
    "},\n  {",
    "}, {",
    "]",
    "}]",
    "]}",
    '"',
    "\\",
    '\\"',
    '"ph":',
    "[{",
    '},{"ph":"X"',
    "\n",
    "é\u2028",
    "{",
    "",
)
text = st.lists(st.sampled_from(TRAPS) | st.text(max_size=4), max_size=4).map("".join)
value = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
event = st.dictionaries(st.sampled_from(["ph", "cat", "name", "ts", "dur", "args", "pid"]) | text, value, max_size=5)
SETTINGS = examples(30)


def source_of(data: bytes, piece: int = 1 << 20) -> Source:
    return Source("memory", (data[at : at + piece] for at in range(0, len(data), piece)), len(data), [])


def read(data: bytes, piece: int = 1 << 20) -> tuple[list[Any], Elements[list[Any]]]:
    stream: Elements[list[Any]] = Elements(source_of(data, piece), _DECODER.decode)
    return [item for batch in stream.batches() for item in batch], stream


def header_of(stream: Elements[list[Any]]) -> dict[str, Any]:
    return {key: json.loads(raw) for key, raw in stream.header.items()}


@pytest.fixture(params=[300, 1 << 19])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    size: int = request.param
    monkeypatch.setattr(window_module, "BLOCK_BYTES", size)
    return size


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("bare", [False, True])
@SETTINGS
@given(st.lists(event, max_size=20), st.randoms(use_true_random=False))
def test_equals_a_full_parse(layout: str, bare: bool, events: list[Any], rng: random.Random) -> None:
    rest = [("schemaVersion", 1), ("deviceProperties", [{"id": 0}]), ("traceName", "},{"), ("traceEvents", events)]
    rng.shuffle(rest)
    document = dict(rest)
    data = LAYOUTS[layout](events if bare else document).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_module, "BLOCK_BYTES", rng.choice([64, 300, 5000]))
        patch.setattr(Settler, "run", _never)
        found, stream = read(data, piece=rng.choice([7, 100, 1 << 20]))
    assert found == events
    assert stream.damage == Damage()
    assert header_of(stream) == (
        {} if bare else {key: value for key, value in document.items() if key != "traceEvents"}
    )


def _never(self: object) -> bool:
    raise AssertionError("the slow path was taken on a sound file")


@SETTINGS
@given(st.lists(event, min_size=1, max_size=12), st.sampled_from(sorted(LAYOUTS)), st.data())
def test_a_cut_loses_only_the_event_it_cuts(events: list[Any], layout: str, data: st.DataObject) -> None:
    text = LAYOUTS[layout]({"traceEvents": events, "traceName": "t"}).encode()
    at = data.draw(st.integers(0, len(text) - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_module, "BLOCK_BYTES", 64)
        try:
            found, stream = read(text[:at])
        except InputError:
            found, stream = [], None
    whole = _whole_before(text, at)
    assert found == events[:whole]
    if stream is not None:
        assert stream.damage.cut
        assert stream.damage.dropped <= 1
        assert stream.damage.repaired == 0


@pytest.mark.parametrize(
    ("event", "at"),
    [
        ({"ph": "X", "args": {"l": [{"n": 1}]}, "z": 0}, b"]}"),  # as the end of a document has it
        ({"ph": "X", "args": [{"n": 1}], "z": 0}, b"}]"),  # as the end of a bare array
        ({"ph": "X", "args": [{"n": 1}], "z": 0}, b'"z":'),  # as a key after the events
        ({"ph": "X", "},{},{": {"},{": None, "},{},{": [{"},{},{": None}]}}, b"]}"),
        ({"ph": "X", "args": {"l": ["},{},{"]}}, b"{},{"),
        ({"ph": "X", "args": {"l": [{"ph": 1}, {"ph": 2}]}, "z": 0}, b"]}"),
    ],
)
@pytest.mark.parametrize("size", [64, 1 << 19])
@pytest.mark.parametrize("before", [0, 3])
def test_a_cut_that_looks_like_the_end_is_told(
    event: Any, at: bytes, size: int, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_module, "BLOCK_BYTES", size)
    sound = [{"ph": "X", "name": str(number)} for number in range(before)]
    text = LAYOUTS["compact"]({"traceEvents": [*sound, event], "traceName": "t"}).encode()
    cut = text.index(at, text.rindex(b'{"ph":"X"')) + len(at)
    found, stream = read(text[:cut])
    assert found[:before] == sound
    assert stream.damage.cut
    assert stream.damage.dropped == 1


def test_a_broken_last_event_is_no_cut(block: int) -> None:
    text = b'{"traceEvents":[{"ph":"X"},{"ph":"X","args":[{"n":1}],"m":%s}],"baseTimeNanoseconds":7}'
    for middle in (b'"x"y"', b"[}", b"{]}"):
        found, stream = read(text % middle)
        assert found[0] == {"ph": "X"}
        assert not stream.damage.cut
        assert header_of(stream) == {"baseTimeNanoseconds": 7}


def _whole_before(text: bytes, at: int) -> int:
    """How many events end before a position, by a reader that knows the text."""
    start = text.index(b"[", text.index(b"traceEvents")) + 1
    count = 0
    while True:
        begin = start + len(text[start:]) - len(text[start:].lstrip(b" \t\r\n,"))
        end = value_end(text, begin, len(text)) if text[begin : begin + 1] == b"{" else -1
        if end < 0 or end > at:
            return count
        count, start = count + 1, end


def test_events_never_decrease_as_the_cut_moves(block: int) -> None:
    events = [{"ph": "X", "name": f'k}},{{"{i}', "args": {"l": [{"x": i}, {"y": "]"}]}} for i in range(12)]
    text = LAYOUTS["kineto"]({"schemaVersion": 1, "traceEvents": events, "traceName": "x"}).encode()
    last = 0
    for at in range(len(text) + 1):
        try:
            found, _ = read(text[:at])
        except InputError:
            found = []
        assert found == events[: len(found)]
        assert len(found) >= last
        last = len(found)
    assert last == 12


def test_an_event_larger_than_the_buffer(block: int) -> None:
    events = [{"name": "a"}, {"name": "x" * 3_000_000, "args": {"b": "},{" * 50_000}}, {"name": "c"}]
    found, stream = read(json.dumps({"traceEvents": events, "z": 1}).encode())
    assert found == events
    assert header_of(stream) == {"z": 1}


def test_large_keys_before_and_after_the_events(block: int) -> None:
    big = [{"ranks": list(range(20_000)), "s": '"traceEvents": [{'}] * 3
    events = [{"name": str(i)} for i in range(500)]
    document = {"a": big, "traceEvents": events, "b": big, "c": {"traceEvents": [{"name": "not one"}]}}
    found, stream = read(json.dumps(document).encode())
    assert found == events
    assert header_of(stream) == {"a": big, "b": big, "c": document["c"]}


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_header_larger_than_any_is_passed_over_and_said(
    block: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parsers.elements._HEADER_BYTES", 1 << 20)
    events = [{"ph": "X", "name": str(number)} for number in range(500)]
    big = {"pg_config": [{"pg_name": str(number), "ranks": [0, number]} for number in range(60_000)]}
    first, last = {"a": 1, "traceEvents": events}, {"z": 1}
    document = {"big": big, **first, **last} if place == "before" else {**first, "big": big, **last}
    found, stream = read(json.dumps(document).encode())
    assert found == events
    assert stream.damage.notes == ["`big` is larger than 1 MiB: it and the keys behind it were not read"]
    assert stream.damage.kinds == {"a header too large to read": 1}
    assert not stream.damage.cut
    assert header_of(stream) == ({"z": 1} if place == "before" else {"a": 1})


def test_a_header_larger_than_any_without_events(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parsers.elements._HEADER_BYTES", 1 << 20)
    with pytest.raises(InputError, match="holds no events, and its `big` is larger than 1 MiB"):
        read(json.dumps({"big": ["x" * 100] * 30_000}).encode())


def test_elements_that_are_no_objects_do_not_hide_the_others(block: int) -> None:
    elements = [1, None, {"name": "a"}, "x", [1, {"b": 2}], {"name": "c"}, 2.5]
    for shape in (elements, {"traceEvents": elements}):
        assert read(json.dumps(shape).encode())[0] == elements


def test_two_arrays_of_events_are_both_read(block: int) -> None:
    text = b'{"traceEvents":[{"a":1}],"x":2,"traceEvents":[{"a":2},{"a":3}],"y":4}'
    found, stream = read(text)
    assert found == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert header_of(stream) == {"x": 2, "y": 4}
    assert stream.damage.notes == ["the document holds more than one `traceEvents`; all were read"]


def test_a_byte_order_mark_and_white_space_are_skipped(block: int) -> None:
    found, stream = read(b'\xef\xbb\xbf \r\n{"traceEvents": [ {"a":1} ] } \n\n')
    assert found == [{"a": 1}]
    assert stream.damage == Damage()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"  \n ", "nothing but white space"),
        (b"\x89PNG\r\n\x1a\n", "is not JSON"),
        (b"hello", "is not JSON"),
        (b'{"a": 1}', "not a profiler trace"),
        (b'{"traceEvents": {"a": 1}}', "`traceEvents` is not an array"),
        (b'{"a": [1, 2', "cut off before its first event"),
        (b'{"a', "cut off before its first event"),
        (b"{", "cut off before its first event"),
        (b'{"nodes": [{"traceEvents": 5}]}', "not a profiler trace"),
    ],
)
def test_what_holds_no_events_is_refused_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("memory")


def test_a_damaged_header_does_not_hide_the_events(block: int) -> None:
    found, stream = read(b'{"schemaVersion": 1, "a": "x"y", "b": inf, "traceEvents": [{"n":1},{"n":2}], "c": 3}')
    assert found == [{"n": 1}, {"n": 2}]
    assert stream.damage.first_byte is not None
    assert stream.damage.kinds["a damaged header"] == 1
    assert header_of(stream)["c"] == 3


def test_scan_finds_the_last_whole_element() -> None:
    text = b' {"a": "},{"}, [1, {"b": 2}] , {"c": "unfinished'
    run = scan(text, 0, len(text))
    assert text[run.before_comma - 8 : run.before_comma] == b'{"b": 2}'[-8 + 1 :] + b"]"
    assert text[run.comma : run.comma + 1] == b","
    assert scan(b'{"a":1}]', 0, 8).close == 7
    assert scan(b'{"a":1', 0, 6) == (-1, -1, -1)


def test_memory_does_not_grow_with_the_file() -> None:
    event = json.dumps({"ph": "X", "cat": "ac2g", "name": "x" * 100, "args": {"a": [1, 2, 3]}}).encode()

    def peak(megabytes: int) -> int:
        count = megabytes * 1_000_000 // len(event)
        blocks = (b"," + event for _ in range(count))
        source = Source("memory", (b"[" + block[1:] if not at else block for at, block in enumerate(blocks)), 0, [])
        stream: Elements[int] = Elements(source, lambda text: len(msgspec.json.decode(text, type=list[msgspec.Raw])))
        tracemalloc.start()
        found = sum(stream.batches())
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found == count
        return top

    small, large = peak(4), peak(16)
    assert large < 1.1 * small
    assert large < 8 * BLOCK_BYTES

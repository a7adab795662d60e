"""Damage: what is mended, what is lost, that it is counted, and that no neighbour suffers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers import repair as kinds
from parsers.errors import InputError
from parsers.lexing import value_end
from parsers.repair import repair, retouch
from parsers.tables import RankTrace
from tests.examples import examples
from tests.parsers.made import LAYOUTS, seen, three_steps

ReadText = Callable[..., list[RankTrace]]

STEP = '"ProfilerStep#1"'


@pytest.mark.parametrize(
    ("damaged", "value", "kind"),
    [
        (rb'{"name": "C:\Users\x\train.py(12): f"}', {"name": r"C:\Users\x\train.py(12): f"}, kinds.BACKSLASHES),
        (rb'{"name": "C:\tmp\", "pid": 1}', {"name": "C:\\tmp\\", "pid": 1}, kinds.BACKSLASHES),
        (b'{"name": "a\nb\x01"}', {"name": "a\nb\x01"}, kinds.CONTROL),
        (b'{"name": "say "hi", ok", "cat": "x"}', {"name": 'say "hi", ok', "cat": "x"}, kinds.QUOTES),
        (b'{"a": {"b": ["x "y" z", "w"]}}', {"a": {"b": ['x "y" z', "w"]}}, kinds.QUOTES),
        (b'{"a": NaN, "b": -inf, "c": Infinity, "d": -nan}', dict.fromkeys("abcd"), kinds.NON_FINITE),
        (b'{"a": nan(ind), "b": 1e999}', dict.fromkeys("ab"), kinds.NON_FINITE),
        (b'{"a": ncclFloat32, "b": True, "c": None}', {"a": None, "b": True, "c": None}, kinds.BARE_WORDS),
        (b'{"a": , "b": 2}', {"a": None, "b": 2}, kinds.BARE_WORDS),
        (
            b'{"a": 0x1f, "b": 007, "c": .5, "d": 1., "e": +3}',
            {"a": 31, "b": 7, "c": 0.5, "d": 1, "e": 3},
            kinds.BAD_NUMBERS,
        ),
        (b'{"a": 1 "b": "x" "c": [1, 2,], "d": {},}', {"a": 1, "b": "x", "c": [1, 2], "d": {}}, kinds.COMMAS),
        (b'{"a": 1,, "b": 2}', {"a": 1, "b": 2}, kinds.COMMAS),
        (rb'{"a": "\ud800x", "b": "\ud83d\ude00"}', {"a": "\ufffdx", "b": "😀"}, kinds.SURROGATES),
    ],
)
def test_each_kind_of_damage_has_one_reading(damaged: bytes, value: object, kind: str) -> None:
    mended = repair(damaged)
    assert mended.text is not None
    assert json.loads(mended.text) == value
    assert kind in mended.kinds


# A name that prints a dictionary: the name's end is known from the key that follows it (pytorch/kineto#1459).
def test_a_name_with_json_inside() -> None:
    mended = repair(b'{"name": "{"device": "cpu", "dtype": "float32"}(12): run", "pid": 1}')
    assert mended.text is not None
    assert json.loads(mended.text) == {"name": '{"device": "cpu", "dtype": "float32"}(12): run', "pid": 1}


@pytest.mark.parametrize("text", [b'{"a": 1', b'{"a" 1}', b'{"a": "Collective name": 5}', b"{1: 2}", b'{"a": ]}', b"{"])
def test_what_has_no_reading_is_not_invented(text: bytes) -> None:
    assert repair(text).text is None


@examples(80)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_sound_values_are_left_as_they_are(value: object) -> None:
    mended = repair(json.dumps({"v": value}).encode())
    assert mended.text is not None
    assert json.loads(mended.text) == {"v": value}
    assert mended.kinds == frozenset()


def test_deep_nesting_is_given_up_not_followed() -> None:
    assert repair(b'{"a": ' + b"[" * 100_000).text is None


# -- in a file


@pytest.fixture
def sound() -> str:
    return three_steps().text()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("old", "new", "repaired", "note"),
    [
        (STEP, r'"C:\Users\x\train.py(12): step"', 1, "lone backslashes: 1"),
        (STEP, '"line1\nline2 "quoted" \x01"', 1, "raw control characters: 1"),
        ('"dur": 400', '"dur": 400, "bw": inf', 12, "numbers that are not finite: 12"),
        ('"tid": 20', '"tid": 0x14', 12, "malformed numbers: 12"),
        ('"cat": "kernel",', '"cat": "kernel"', 24, "missing or doubled commas: 24"),
        ("}}, {", "}} {", None, "missing or doubled commas"),
        ("}}, {", "}},, {", None, "missing or doubled commas"),
    ],
)
def test_a_mended_event_is_kept_and_counted(
    sound: str, read_text: ReadText, old: str, new: str, repaired: int | None, note: str
) -> None:
    (whole,) = read_text(sound)
    (trace,) = read_text(sound.replace(old, new))
    assert trace.health.repaired == (sound.count(old) if repaired is None else repaired)
    assert any(line.startswith(note) for line in trace.health.notes)
    assert trace.health.dropped == 0
    assert trace.health.complete
    assert trace.health.first_damage_byte is not None
    assert trace.health.events == whole.health.events
    assert seen(trace)["gpu"] == seen(whole)["gpu"]
    assert seen(trace)["records"] == seen(whole)["records"]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("layout", ["default", "kineto", "compact"])
@pytest.mark.parametrize(
    "garbage", ['{"ph": "X", "na', "}", "\x00\x01", '{"a" "b"}, ', "]", "[[[", '"', "{{{", 'x": 5}, ']
)
def test_garbage_costs_at_most_the_next_event(read_text: ReadText, layout: str, garbage: str) -> None:
    text = LAYOUTS[layout](three_steps().document())
    (whole,) = read_text(text)
    first = text.index('"ph"')
    at = text.rindex("{", 0, text.index('"ph"', first + len(text[first:]) // 2))
    (trace,) = read_text(text[:at] + garbage + text[at:])
    lost = set(seen(whole)["gpu"]) - set(seen(trace)["gpu"])
    assert len(lost) <= 1
    assert set(seen(trace)["gpu"]) <= set(seen(whole)["gpu"])
    assert trace.health.first_damage_byte is not None
    assert trace.health.notes
    assert whole.health.events - 1 <= trace.health.events <= whole.health.events


@pytest.mark.usefixtures("small_blocks")
def test_text_that_is_not_utf8_is_kept(read_text: ReadText) -> None:
    data = three_steps().text().encode().replace(b'"sm90_gemm"', b'"sm90_\xe9emm"')
    (trace,) = read_text(data)
    names = trace.gpu_events["name"].to_pylist()
    assert names.count("sm90_\ufffdemm") == 12
    assert trace.health.repaired == 12
    assert "text that is not UTF-8: 12" in trace.health.notes
    first = data.index(b"\xe9")
    assert trace.health.first_damage_byte is not None
    assert first - 2000 < trace.health.first_damage_byte <= first  # the block that holds it


@pytest.mark.usefixtures("small_blocks")
def test_numbers_written_as_text_are_read(read_text: ReadText) -> None:
    document = three_steps().document()
    for event in document["traceEvents"]:
        if event["cat"] == "kernel":
            event["ts"], event["args"]["correlation"] = str(event["ts"]), str(event["args"]["correlation"])
    (trace,) = read_text(json.dumps(document))
    (whole,) = read_text(three_steps().text())
    assert seen(trace) == seen(whole)
    assert trace.health.repaired == 24
    assert "numbers written as text: 24" in trace.health.notes


def test_integers_beyond_64_bits_are_no_numbers_and_cost_nothing_else(read_text: ReadText) -> None:
    document = three_steps().document()
    kernel = next(event for event in document["traceEvents"] if event["cat"] == "kernel")
    kernel["args"] |= {"correlation": 2**70, "bytes": 10**400}
    (trace,) = read_text(json.dumps(document))
    assert trace.gpu_events["correlation"].to_pylist()[0] is None
    assert trace.gpu_events["bytes"].null_count == 24
    assert trace.gpu_events.num_rows == 24


def test_two_writers_are_named(read_text: ReadText) -> None:
    first, second = three_steps(rank=0).text(), three_steps(rank=1, pid=1001).text()
    traces = read_text(first[:5000] + second[:7000] + first[12000:])
    for trace in traces:
        assert any("two writers in one file" in note and "byte 5001" in note for note in trace.health.notes)
        assert not trace.health.complete
        assert trace.health.dropped == 2
    assert {device for trace in traces for device in trace.gpu_events["device"].to_pylist()} == {0, 1}
    assert all(len(set(trace.gpu_events["device"].to_pylist())) == 1 for trace in traces)


def test_a_document_behind_the_document_is_named(read_text: ReadText) -> None:
    (trace,) = read_text(three_steps().text() * 2)
    assert trace.gpu_events.num_rows == 24
    assert not trace.health.complete
    assert any("two writers" in note for note in trace.health.notes)
    assert any("bytes after the end of the document were not read" in note for note in trace.health.notes)


@pytest.mark.usefixtures("small_blocks")
def test_a_file_cut_anywhere_keeps_every_whole_event(read_text: ReadText) -> None:
    text = three_steps().text()
    last = 0
    for at in range(text.index("}, {", text.index("traceEvents")) + 1, len(text), 97):
        (trace,) = read_text(text[:at])
        assert not trace.health.complete
        assert trace.health.dropped <= 1
        assert trace.health.repaired == 0
        assert trace.health.events >= last
        last = trace.health.events
    assert last >= 85


def test_the_last_good_time_is_that_of_the_last_event_read(read_text: ReadText) -> None:
    text = three_steps().text()
    cut = text.index('"ts": 10100.0, "dur": 1000')  # the fourth step's second kernel is cut in its middle
    (trace,) = read_text(text[:cut])
    assert trace.health.last_good_ts_ns == (10100 - 20) * 1000
    assert "the file is cut off: events after the last one read are missing" in trace.health.notes


@examples(100)
@given(st.data())
def test_any_mutation_is_survived(read_text: ReadText, data: st.DataObject) -> None:
    text = bytearray(three_steps().text().encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        kind = data.draw(st.sampled_from(["flip", "delete", "insert", "copy"]))
        if kind == "flip":
            text[at] = data.draw(st.integers(0, 255))
        elif kind == "delete":
            del text[at : at + data.draw(st.integers(1, 300))]
        elif kind == "insert":
            text[at:at] = data.draw(st.binary(max_size=20))
        else:
            text[at:at] = text[max(0, at - 200) : at]
    said, traces = "", []
    try:
        traces = read_text(bytes(text))
    except InputError as refused:  # the one error that a user may see
        said = str(refused)
    assert bool(said) is not bool(traces)
    assert "\n" not in said
    for trace in traces:
        for table in (trace.gpu_events, trace.comm_records, trace.launches, trace.cpu_marks, trace.steps, trace.groups):
            table.validate(full=True)
        assert trace.health.events > 0
        durations = trace.gpu_events["dur_ns"].to_pylist()
        assert min(durations, default=0) >= 0


@pytest.mark.usefixtures("small_blocks")
def test_an_event_nested_too_deeply_is_lost_alone(read_text: ReadText) -> None:
    job = three_steps()
    text = job.text()
    deep = '{"ph": "X", "cat": "kernel", "name": "deep", "args": {"a": ' + "[" * 5000 + "]" * 5000 + "}}, "
    at = text.index("}}, {") + 4
    (trace,) = read_text(text[:at] + deep + text[at:])
    (whole,) = read_text(text)
    assert seen(trace) == seen(whole)
    assert trace.health.dropped == 1


def test_the_work_on_damage_everywhere_grows_with_the_file(
    read_text: ReadText, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0

    def count(name: str, wrapped: Callable[..., Any], size: Callable[..., int]) -> None:
        def counted(*args: Any) -> Any:
            nonlocal looked_at
            looked_at += size(*args)
            return wrapped(*args)

        monkeypatch.setattr(f"parsers.settle.{name}", counted)

    count("repair", repair, len)
    count("retouch", retouch, len)
    count("value_end", value_end, lambda buffer, start, end: end - start)

    def work(copies: int) -> int:
        nonlocal looked_at
        looked_at = 0
        job = three_steps()
        job.events *= copies
        (trace,) = read_text(
            job.text().replace('"dur": 400', '"dur": 400, "x": {').replace('"stream": 7', '"stream": "7')
        )
        assert trace.health.dropped > 20 * copies
        return looked_at

    assert work(80) < 5 * work(20)  # four times the text; a quadratic reader would look at sixteen times as much


def test_words_and_strings_are_retouched_without_a_look_at_the_structure() -> None:
    touched = retouch(b'{"a": [inf, 1, "x\x01", "\\q"], "b": {"c": -nan}')
    assert touched.text == b'{"a": [null, 1, "x\\u0001", "\\\\q"], "b": {"c": null}'
    assert touched.kinds == {kinds.NON_FINITE, kinds.CONTROL, kinds.BACKSLASHES}
    assert retouch(b'{"a": [1, "x"]}').text is None

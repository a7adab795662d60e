"""What holds of every trace, sound or damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from parsers.errors import InputError
from parsers.tables import RankTrace
from tests.examples import examples
from tests.parsers.made import TraceMaker, expected, seen
from tests.parsers.strategies import damaged, plain, shuffled, traces, written

ReadText = Callable[..., list[RankTrace]]

QUICK = examples(40)


@QUICK
@given(st.data())
def test_a_sound_trace_is_read_as_json_has_it(read_text: ReadText, data: st.DataObject) -> None:
    document = data.draw(traces()).document()
    (trace,) = read_text(data.draw(written(document)))
    assert seen(trace) == expected(document)
    assert (trace.health.repaired, trace.health.dropped, trace.health.complete) == (0, 0, True)
    assert trace.health.events == len(document["traceEvents"])


def test_a_time_written_with_the_error_of_a_double_is_the_nearest_nanosecond(read_text: ReadText) -> None:
    trace = TraceMaker()
    trace.kernel("k", 135456.789 + 100.001, 0.2)
    trace.kernel("k", 0.0625, 0.0635)  # 62.5 ns and 63.5 ns: halves go to the even one
    assert '"ts": 135556.78999999998,' in trace.text()
    (found,) = read_text(trace.text())
    assert found.gpu_events["ts_ns"].to_pylist() == [135_556_790, 62]
    assert found.gpu_events["dur_ns"].to_pylist() == [200, 64]
    assert seen(found) == expected(trace.document())


@QUICK
@given(st.data())
def test_the_order_of_events_changes_no_row(read_text: ReadText, data: st.DataObject) -> None:
    trace = data.draw(traces())
    (one,) = read_text(trace.text())
    (other,) = read_text(data.draw(shuffled(trace)).text())
    for name in ("gpu_events", "comm_records", "launches", "cpu_marks", "steps"):
        rows = [getattr(rank, name).to_pylist() for rank in (one, other)]
        for row in (*rows[0], *rows[1]):
            row.pop("gpu_event", None)  # a row number
        assert sorted(map(repr, rows[0])) == sorted(map(repr, rows[1]))


@QUICK
@given(st.data())
def test_a_damaged_trace_is_read_or_refused_in_one_line(read_text: ReadText, data: st.DataObject) -> None:
    trace = data.draw(traces())
    text = data.draw(damaged(plain(trace.document())))
    said = ""
    found: list[RankTrace] = []
    try:
        found = read_text(text)
    except InputError as error:
        said = str(error)
    assert bool(found) != bool(said)
    assert "\n" not in said
    assert found or "trace.json" in said
    check(found, trace)


def check(found: list[RankTrace], trace: TraceMaker) -> None:
    """What damage may not do: make tables invalid, times negative, or itself unseen."""
    for rank in found:
        for name in ("gpu_events", "comm_records", "launches", "cpu_marks", "steps", "groups"):
            getattr(rank, name).validate(full=True)
        assert min(rank.gpu_events["dur_ns"].to_pylist(), default=0) >= 0
        health = rank.health
        assert health.events > 0
        if health.events < len(trace.events):  # something is gone: that is said
            assert not health.complete or health.dropped or health.notes
        if health.dropped or health.repaired:
            assert health.first_damage_byte is not None


def test_the_command_says_where_and_until_when(tmp_path: Path) -> None:
    from analyzer.pipeline import analyze
    from tests.parsers.made import three_steps

    text = three_steps().text()
    cut = text.index('"ts": 10100.0, "dur": 1000')
    path = tmp_path / "rank0.json"
    path.write_text(text[:cut].replace('"ProfilerStep#1"', r'"C:\Users\x\ProfilerStep"'))
    warnings = analyze(path).trust.warnings
    assert f"first damage at byte {text.index('ProfilerStep#1') - len(STEP_HEAD):,}" in warnings
    assert "the last event read begins at 10,080.000 µs" in warnings
    assert "lone backslashes: 1" in warnings
    assert "the file is cut off: events after the last one read are missing" in warnings


STEP_HEAD = '{"ph": "X", "cat": "user_annotation", "name": "'

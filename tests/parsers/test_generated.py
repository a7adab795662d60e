"""The generator of large traces: what it writes has the mix of events that it promises, in every layout."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.traces import LAYOUTS, Job, dump, write
from parsers import read


def test_the_mix_of_events() -> None:
    counts = Counter(event.get("cat") for event in Job(steps=2, layers=16).events())
    total = sum(counts.values())
    assert total > 10_000
    assert 0.35 < counts["python_function"] / total < 0.5
    assert 0.15 < counts["cpu_op"] / total < 0.3
    assert 0.03 < counts["kernel"] / total < 0.06


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_every_layout_reads_the_same(tmp_path: Path, layout: str) -> None:
    job = Job(rank=3, steps=2, layers=3)
    out = io.StringIO()
    dump(out, job.header(), job.events(), layout)
    assert [event.get("name") for event in json.loads(out.getvalue())["traceEvents"]] == [
        event["name"] for event in job.events()
    ]
    path = tmp_path / "trace.json"
    path.write_text(out.getvalue())
    (trace,) = read(path)
    assert trace.identity.rank == 3
    assert trace.steps["number"].to_pylist() == [0, 1]
    layers = ("c10d", "record_param_comms", "annotation", "kernel")
    assert Counter(trace.comm_records["layer"].to_pylist()) == dict.fromkeys(layers, 12)
    assert trace.gpu_events.num_rows == trace.launches.num_rows == 2 * 6 * 6
    assert trace.metadata["threads"] == {
        job.tid: f"thread {job.tid} (python3.12)",
        job.backward_tid: f"thread {job.backward_tid} (pt_autograd_0)",
    }
    assert trace.health.notes == ()


def test_the_size_is_about_what_was_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", 3.0)
    assert 2.0e6 < path.stat().st_size < 4.0e6
    packed = write(tmp_path / "trace.json.gz", 3.0)
    assert read(packed)[0].gpu_events == read(path)[0].gpu_events

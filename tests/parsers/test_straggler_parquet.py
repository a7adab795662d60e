"""Operations of a pipeline job as Parquet, and summaries of ranks: what is in the one, and that the other is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parsers import read, straggler_parquet, summary
from parsers.errors import InputError
from parsers.source import open_source

OPERATIONS: list[dict[str, Any]] = [
    {"rank": 1, "step": 4, "optype": "forward-compute", "start_ts": 0.0, "duration": 0.5, "seq_id": 0},
    {"rank": 1, "step": 4, "optype": "forward-send", "start_ts": 0.5, "duration": 0.25, "seq_id": 0},
    {"rank": 0, "step": 4, "optype": "gc", "start_ts": 0.125, "duration": 0.125, "seq_id": 0},
    {"rank": 0, "step": 5, "optype": "optimizer-clip-main-grad", "start_ts": 0.0, "duration": 0.25, "seq_id": 0},
    {"rank": 0, "step": 5, "optype": "backward-compute", "start_ts": 0.25, "duration": 0.5, "seq_id": 0},
]


def written(path: Path, rows: list[dict[str, Any]], leave_out: str | None = None) -> Path:
    columns = [name for name in OPERATIONS[0] if name != leave_out]
    content = {name: [row[name] for row in rows] for name in columns}
    schema = pa.schema([(n, pa.string() if n == "optype" else pa.from_numpy_dtype(_KINDS[n])) for n in columns])
    pq.write_table(pa.table(content, schema=schema), path)
    return path


_KINDS = {"rank": "i8", "step": "i8", "start_ts": "f8", "duration": "f8", "seq_id": "i8"}


def test_each_rank_is_a_trace_on_one_clock(tmp_path: Path) -> None:
    first, second = read(written(tmp_path / "job.parquet", OPERATIONS))
    assert [(t.identity.rank, t.identity.run_id, t.format) for t in (first, second)] == [
        (0, "job", "straggler_analysis"),
        (1, "job", "straggler_analysis"),
    ]
    # Step 4 is as long as its last operation, and step 5 begins behind it.
    begins = 750_000_001
    for trace in (first, second):
        assert trace.steps.select(["number", "ts_ns", "dur_ns"]).to_pylist() == [
            {"number": 4, "ts_ns": 0, "dur_ns": begins},
            {"number": 5, "ts_ns": begins, "dur_ns": begins},
        ]
    assert [(row["name"], row["ts_ns"], row["dur_ns"]) for row in first.gpu_events.to_pylist()] == [
        ("optimizer-clip-main-grad", begins, 250_000_000),
        ("backward-compute", begins + 250_000_000, 500_000_000),
    ]
    assert [(row["kind"], row["name"]) for row in first.cpu_marks.to_pylist()] == [
        ("annotation", "gc"),
        ("autograd", "backward-compute"),
    ]
    streams = second.gpu_events.column("stream").to_pylist()
    assert len(set(streams)) == 2
    (call,) = first.comm_records.to_pylist()
    assert (call["collective"], call["gpu_event"], call["in_nelems"], call["dtype"]) == ("allreduce", 0, 1, "Float")
    (message,) = second.comm_records.to_pylist()
    assert (message["collective"], message["gpu_event"], message["in_nelems"]) == ("send", 1, None)


def test_no_operations_and_a_missing_column_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no operations"):
        read(written(tmp_path / "empty.parquet", []))
    path = written(tmp_path / "job.parquet", OPERATIONS, leave_out="seq_id")
    with pytest.raises(InputError, match="lacks the columns seq_id"):
        straggler_parquet.read_operations(str(path))


def test_other_files_hold_no_operations(tmp_path: Path) -> None:
    path = written(tmp_path / "job.parquet", OPERATIONS)
    assert straggler_parquet.holds_operations(path)
    assert not straggler_parquet.holds_operations(written(tmp_path / "other.parquet", OPERATIONS, leave_out="rank"))
    (tmp_path / "text").write_text("once upon a time")
    (tmp_path / "cut").write_bytes(path.read_bytes()[:100])
    assert not any(straggler_parquet.holds_operations(tmp_path / name) for name in ("text", "cut", "absent"))


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"once upon a time", False),
        (b"PAR1", False),
        (b"PAR1" + (1 << 20).to_bytes(4, "little") + b"PAR1", False),  # a footer longer than the file
        (b"PAR1" + summary.KEY.encode() + (17).to_bytes(4, "little") + b"PAR1", True),
        (b"PAR1" + b"x" * 17 + (17).to_bytes(4, "little") + b"PAR1", False),
    ],
)
def test_a_summary_is_told_from_its_footer(tmp_path: Path, data: bytes, wanted: bool) -> None:
    assert len(summary.KEY) <= 17
    path = tmp_path / "rank0.parquet"
    path.write_bytes(data)
    assert summary.belongs(path, data[:16]) is wanted
    assert summary.is_summary(str(path)) is data.startswith(b"PAR1")


def test_a_summary_has_no_events_to_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.parquet"
    path.write_bytes(b"PAR1" + bytes(20))
    with open_source(path) as source, pytest.raises(InputError, match="is a summary: its events are gone"):
        summary.read(source)

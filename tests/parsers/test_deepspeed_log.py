"""DeepSpeed's communication logger."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from parsers import read
from parsers.deepspeed_log import CommsLogger, sniff
from parsers.errors import InputError
from parsers.tables import RankTrace

Read = Callable[..., list[RankTrace]]

COLUMNS = (
    "Comm. Op",
    "Message Size",
    "Count",
    "Total Latency(ms)",
    "Avg Latency(ms)",
    "tput_avg (Gbps)",
    "busbw_avg (Gbps)",
)


def _row(*cells: str) -> str:
    """One line of the table: columns of twenty characters."""
    return "".join(cell.ljust(20) for cell in cells)


HEADER = _row(*COLUMNS)


def _logger(trace: RankTrace) -> CommsLogger:
    assert isinstance(trace.witness, CommsLogger)
    return trace.witness


def test_a_summary_is_read_with_its_rounding(read_text: Read) -> None:
    row = _row("", "678.86 MB", "40", "602.29", "9.69", "1468.06", "1376.31")
    (trace,) = read_text("\n".join(["step 5", HEADER, "reduce_scatter_tensor", row, "done training"]), "out.log")
    (said,) = _logger(trace).summary.to_pylist()
    assert (said["op"], said["count"], said["caller"]) == ("reduce_scatter_tensor", 40, None)
    assert (said["total_ms"], said["average_ms"]) == (602.29, 9.69)
    # 678.86 · 2^20, known to half a hundredth of a MiB
    assert (said["size_bytes"], said["size_error_bytes"]) == (711_836_303, 5_243)
    # printed in Gbit/s
    assert (said["algbw_gbps"], said["busbw_gbps"]) == (1468.06 / 8, 1376.31 / 8)
    assert trace.comm_records.num_rows == 0
    assert trace.identity.rank is None


def test_the_last_summary_counts(read_text: Read) -> None:
    def rows(count: int) -> list[str]:
        return [HEADER, "broadcast", _row("", "2.0 KB", str(count), "1.0", "0.1", "0.4", "0.4")]

    (trace,) = read_text("\n".join([*rows(3), *rows(7)]), "out.log")
    assert _logger(trace).summary.column("count").to_pylist() == [7]


def test_lines_of_calls_have_no_exact_bytes(read_text: Read) -> None:
    line = (
        "[2022-06-26 01:39:55,722] [INFO] [logging.py:69:log_dist] [Rank 0] rank=0 | comm op: all_reduce | "
        "time (ms): 9.46 | msg size: 1.5 GB | algbw (Gbps): 1204.52  | busbw (Gbps): 1129.23"
    )
    (trace,) = read_text(f"noise\n{line}\n", "out.log")
    (record,) = trace.comm_records.to_pylist()
    assert (record["collective"], record["dur_ns"], record["message_bytes"], record["ts_ns"]) == (
        "all_reduce",
        9_460_000,
        None,
        None,
    )
    assert _logger(trace).calls.to_pylist()[0]["size_bytes"] == 1_610_612_736
    assert trace.identity.rank == 0


def test_the_json_form_is_exact(read_text: Read) -> None:
    said = {"count": 2, "total_latency_ms": 3.0, "avg_latency_ms": 1.5, "tput_avg_gbps": 8.0, "busbw_avg_gbps": 4.0}
    document = {
        "summary": {"all_reduce": {"1000": {**said, "msg_size_bytes": 1000, "msg_size_str": "1000.0 B"}}},
        "straggler_analysis": {"all_reduce": {"1000": {"total_comm_lat_ms": 2.0, "total_straggler_ms": 1.0}}},
        "metadata": {"world_size": 16, "rank": 0},
    }
    (trace,) = read_text(json.dumps(document), "comms.json")
    (row,) = _logger(trace).summary.to_pylist()
    assert (row["size_bytes"], row["size_error_bytes"], row["algbw_gbps"]) == (1000, 0, 1.0)
    assert (row["transfer_total_ms"], row["straggler_total_ms"]) == (2.0, 1.0)
    assert (trace.identity.world_size, trace.identity.rank) == (16, 0)


def test_a_header_without_rows_is_one_line(read_text: Read) -> None:
    with pytest.raises(InputError, match="no call and no summary"):
        read_text(f"{HEADER}\n", "out.log")


def test_content_tells_the_format() -> None:
    assert sniff(HEADER.encode())
    assert not sniff(b"Comm. Op is a column of the summary")
    assert not sniff(b'{"summary": {"loss": 1}}')


SUMMARIES = {
    "comms_logger_summary.txt": [("broadcast", None, 146), ("broadcast", None, 1), ("reduce_scatter_tensor", None, 40)],
    "comms_logger_summary_debug.txt": [
        ("broadcast", "_broadcast_model", 146),
        ("broadcast", "_broadcast_model", 1),
        ("reduce_scatter_tensor", "reduce_scatter_fn", 80),
    ],
    "comms_logger_straggler_synthetic.txt": [("all_gather_into_tensor", None, 24), ("reduce_scatter_tensor", None, 40)],
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_documented_summaries(shared: Path, name: str) -> None:
    (trace,) = read(shared / "data/formats/deepspeed" / name)
    rows = _logger(trace).summary.to_pylist()
    assert [(row["op"], row["caller"], row["count"]) for row in rows] == SUMMARIES[name]
    waits = [row["straggler_total_ms"] for row in rows]
    assert waits == ([0.31, 22.18] if "straggler" in name else [None] * 3)


def test_documented_calls(shared: Path) -> None:
    (trace,) = read(shared / "data/formats/deepspeed/comms_logger_verbose.txt")
    calls = _logger(trace).calls.to_pylist()
    assert [(call["op"], call["dur_ns"]) for call in calls] == [
        ("reduce_scatter_tensor", 9_460_000),
        ("all_gather_into_tensor", 110_000),
        ("all_gather_into_tensor", 80_000),
    ]
    # busbw / algbw = 15/16: the logger takes the world of 16 for the group.
    assert calls[0]["busbw_gbps"] / calls[0]["algbw_gbps"] == pytest.approx(15 / 16, abs=1e-4)

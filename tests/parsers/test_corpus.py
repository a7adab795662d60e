"""Every fault that mutated files have found, as the smallest file that shows it, and what is right instead."""

from __future__ import annotations

import csv
import json
import pickle
import sqlite3
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analyzer.pipeline import analyze
from analyzer.reading.one import Job, summarized
from analyzer.summary.file import read_table, write_table
from analyzer.summary.table import from_table
from parsers import read
from parsers.errors import LONGEST_MESSAGE, InputError
from parsers.flight_recorder import Dump
from parsers.nccl_log import NcclLog
from parsers.nsys.arrow_store import checked
from parsers.nsys.payload import Payloads
from parsers.protobuf_wire import real
from parsers.straggler_parquet import read_operations
from parsers.tables import RankTrace
from tests.parsers import flight_dumps
from tests.parsers.made import three_steps
from tests.parsers.nsys.export import Export, grouped

Read = Callable[..., list[RankTrace]]

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
GROUPS = {"0": ("default_pg", range(4))}


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- Kineto


def test_brackets_that_never_close_are_not_followed_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text('{"traceEvents": [' + '{"a": {"b": "c"}, ' * 25_000)
    start = time.process_time()
    assert "holds no events" in refusal(path)
    assert time.process_time() - start < 10


@pytest.mark.parametrize("ranks", ["0 1", "0,,1", "0,1,", ",", "9" * 5000])
def test_declared_ranks_that_are_no_list(read_text: Read, ranks: Any) -> None:
    made = three_steps()
    made.header["distributedInfo"]["pg_config"] = [{"pg_name": "0", "pg_size": 2, "ranks": ranks}]
    (trace,) = read_text(made.text())
    assert trace.groups.select(["size", "ranks"]).to_pylist() == [{"size": 2, "ranks": None}]


@pytest.mark.parametrize("long", ["9" * 5000, "[" + "9" * 5000 + "]", "²", "--5"])
@pytest.mark.parametrize(
    "key", ["Process Group Ranks", "In split size", "Group size", "Src Rank", "Process Group Name"]
)
def test_numbers_in_arguments_that_python_does_not_read(read_text: Read, key: str, long: str) -> None:
    made = three_steps()
    made.events[-1]["args"][key] = long
    (trace,) = read_text(made.text())
    assert trace.gpu_events.num_rows == 24
    assert trace.comm_records.num_rows == 3 * 4 * 4


@pytest.mark.parametrize("name", ["h_" + "9" * 5000 + ".1.pt.trace.json", "h_².1.pt.trace.json"])
def test_a_trace_name_with_a_number_that_python_does_not_read(read_text: Read, name: str) -> None:
    (trace,) = read_text(three_steps(traceName=name).text())
    assert (trace.identity.rank, trace.identity.host) == (0, None)


@pytest.mark.parametrize("value", ['inf, "x": 1e' + "9" * 5000, "0x" + "f" * 5000])
def test_damaged_numbers_that_python_does_not_read(read_text: Read, value: str) -> None:
    made = three_steps()
    text = made.text()
    (trace,) = read_text(text.replace('"cbid": 211', f'"cbid": {value}', 1))
    assert (trace.health.events, trace.health.repaired, trace.health.dropped) == (87, 1, 0)


# -- Flight Recorder


def dump(**status: Any) -> dict[str, Any]:
    made = flight_dumps.dump([flight_dumps.entry("all_reduce", 1)], GROUPS, status={0: (1, 1, 1)})
    made["pg_status"]["0"] |= status
    return made


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 2**70, [1], "x"])
def test_a_status_that_is_no_number_is_none(read_text: Read, number: Any) -> None:
    (trace,) = read_text(flight_dumps.as_pickle(dump(last_enqueued_collective=number)), "dump_0")
    assert isinstance(trace.witness, Dump)
    assert (trace.witness.statuses, trace.comm_records.num_rows) == ((), 1)


def test_half_a_surrogate_pair_in_a_dump(read_text: Read, tmp_path: Path) -> None:
    document = flight_dumps.dump([flight_dumps.entry("all_reduce", 1, ("0", "\ud800 group"))], GROUPS)
    data = pickle.dumps(document, 2)
    (trace,) = read_text(data, "dump_0")
    assert "\ufffd" in trace.comm_records["group_desc"].to_pylist()[0]
    path = tmp_path / "dump_0"
    path.write_bytes(data)
    assert summarized(Job(str(path))).num_rows == 1


@pytest.mark.parametrize("number", ["²", "--5", "9" * 5000, 10**30])
def test_numbers_of_a_dump_that_python_does_not_read(read_text: Read, number: Any) -> None:
    entry = flight_dumps.entry("all_reduce", 1) | {"record_id": number, "pg_id": number}
    made = flight_dumps.dump([entry], GROUPS, status={0: (1, 1, 1)})
    made["pg_status"] = {str(number): made["pg_status"]["0"]}
    (trace,) = read_text(flight_dumps.as_json(made), "dump_0.json")
    assert isinstance(trace.witness, Dump)
    assert (trace.witness.statuses, trace.comm_records.num_rows) == ((), 1)


def test_a_message_to_a_rank_that_python_does_not_read(read_text: Read) -> None:
    entries = [flight_dumps.entry("all_reduce", 1), flight_dumps.entry("send 0->" + "9" * 5000, 2)]
    (trace,) = read_text(flight_dumps.as_json(flight_dumps.dump(entries, GROUPS)), "dump_0.json")
    assert (trace.comm_records.num_rows, trace.health.quarantined) == (1, 1)


# -- execution traces


@pytest.mark.parametrize("number", [{}, [1], "1", None, 2**70])
def test_a_node_whose_number_is_none(read_text: Read, number: Any) -> None:
    node = {"id": number, "nodetype": 7, "name": "ncclKernel_X", "datadeps": [number]}
    good = {"id": 5, "nodetype": 7, "name": "ncclKernel_Y", "commtype": 0, "commsize": 64, "runtime": 3}
    (trace,) = read_text(json.dumps({"schema": "x", "workload_graph": [node, good]}), "rank0.json")
    assert trace.comm_records["name"].to_pylist() == ["ncclKernel_Y"]


def test_a_float_of_other_than_four_or_eight_bytes() -> None:
    assert real(b"\x00\x00\x80\x3f") == 1.0
    with pytest.raises(ValueError, match="float"):
        real(b"\x00\x00\x80")


# -- logs


def test_a_log_with_bytes_that_are_no_text(read_text: Read) -> None:
    who = b"h:100:101 [0] NCCL INFO "
    lines = [
        who
        + b"ncclCommInitRank comm 0x50 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xbeef - Init COMPLETE",
        who + b"Channel 00/0 : 0[0] -> 1[1] via P2P/\xe5\xc4MEM/read",
    ]
    (trace, *_) = read_text(b"\n".join(lines), "nccl.log")
    assert isinstance(trace.witness, NcclLog)
    assert trace.witness.communicators.num_rows == 1


def test_a_summary_of_deepspeed_with_bytes_that_are_no_text(read_text: Read) -> None:
    columns = ("Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)")
    head = "".join(cell.ljust(20) for cell in (*columns, "busbw_avg (Gbps)")).encode()
    row = "".join(cell.ljust(20) for cell in ("", "1.0 MB", "4", "2.0", "0.5", "1.0", "1.0")).encode()
    (trace,) = read_text(b"\n".join([head, b"all_reduce | [Caller Func: f\x93g]", row]), "ds.log")
    assert trace.format == "deepspeed_log"


@pytest.mark.parametrize("peer", [[1], {"a": 1}, "1"])
def test_a_message_of_the_inspector_to_nobody(read_text: Read, peer: Any) -> None:
    line = {
        "header": {"id": "0xbeef", "rank": 2, "n_ranks": 8, "nnodes": 2},
        "metadata": {"hostname": "h", "pid": 7, "dump_timestamp_us": 1_700_000_000_000_000},
        "p2p_perf": {"p2p": "Send", "p2p_sn": 1, "p2p_peer": peer, "p2p_msg_size_bytes": 64},
    }
    (trace,) = read_text(json.dumps(line) + "\n", "h-pid7.log")
    assert trace.comm_records["message_bytes"].to_pylist() == [64]


def test_a_negative_place_in_a_communicator(tmp_path: Path) -> None:
    line = {
        "header": {"id": "0xbeef", "rank": -1, "n_ranks": 8, "nnodes": 2},
        "metadata": {"hostname": "h", "pid": 7, "dump_timestamp_us": 1_700_000_000_000_000},
        "coll_perf": {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 64, "coll_exec_time_us": 5},
    }
    path = tmp_path / "h-pid7.log"
    path.write_text(json.dumps(line) + "\n")
    assert [item.rank for item in analyze(path).inputs] == [None]


# -- Nsight Systems


@pytest.fixture
def export() -> Export:
    export = Export(payload="json")
    owner = export.process(500)
    kernel = {"name": ALL_REDUCE, "start": 50_000, "end": 51_000}
    grouped(export, owner, 500, 5000, [("ncclAllReduce", {"comm": 1, "bytes": 64, "redop": 0})], [kernel])
    return export


def test_a_payload_that_is_a_number(export: Export, tmp_path: Path) -> None:
    path = export.sqlite(tmp_path / "report.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE NVTX_EVENTS SET jsonText = x'00ff' WHERE jsonText IS NOT NULL")
    connection.commit()
    connection.close()
    assert read(path)[0].comm_records["message_bytes"].to_pylist() == [None]


def test_a_file_of_several_columns_of_one_name(export: Export, tmp_path: Path) -> None:
    folder = export.arrow_directory(tmp_path / "report_arwdir")
    rewritten(folder / "PROCESSES.arrow", lambda old: old.append_column("pid", old.column("pid")))
    (trace,) = read(folder)
    assert "table PROCESSES has several columns of one name: pid" in " / ".join(trace.health.notes)
    assert trace.gpu_events.num_rows == 1


@pytest.mark.parametrize("values", [[{"a": 1}], [[1]], [True], [7], [b"\xff"], [None]])
def test_texts_of_another_type(export: Export, tmp_path: Path, values: list[Any]) -> None:
    folder = export.arrow_directory(tmp_path / "report_arwdir")
    for table, column in (("StringIds", "value"), ("NVTX_PAYLOAD_SCHEMA_ENTRIES", "type"), ("TARGET_INFO_GPU", "id")):
        if (folder / f"{table}.arrow").exists():
            rewritten(folder / f"{table}.arrow", lambda old, c=column: strange(old, c, values))  # type: ignore[misc]
    (trace,) = read(folder)
    assert trace.gpu_events.num_rows == 1


def rewritten(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    with pa.ipc.open_file(pa.BufferReader(file.read_bytes())) as source:
        changed = change(source.read_all())
    with pa.ipc.new_file(str(file), changed.schema) as writer:
        writer.write_table(changed)


def strange(table: pa.Table, column: str, values: list[Any]) -> pa.Table:
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values * table.num_rows))


@pytest.mark.parametrize("name", ["EXPORT_PARAM_TIME_SHIFT", "EXPORT_PRODUCT_VERSION"])
@pytest.mark.parametrize("value", [1e300, "9" * 4000, "²", b"\x00", -(2**63), 2**63 - 1])
def test_settings_of_an_export_that_are_no_numbers(export: Export, tmp_path: Path, name: str, value: Any) -> None:
    export.environment("X=1", epoch=2**63 - 1)
    path = export.sqlite(tmp_path / "report.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE META_DATA_EXPORT SET value = ? WHERE name = ?", (value, name))
        connection.execute("INSERT INTO META_DATA_EXPORT (name, value) VALUES (?, ?)", (name, value))
    connection.close()
    (trace,) = read(path)
    assert trace.gpu_events["ts_ns"].to_pylist() == [50_000]


def test_rows_beyond_any_clock(export: Export, tmp_path: Path) -> None:
    path = export.sqlite(tmp_path / "report.sqlite")
    with sqlite3.connect(path) as connection:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            connection.execute(f"UPDATE {table} SET start = {-(2**63) + 1}, end = {2**62}")
    connection.close()
    assert "3 ranges of NCCL have no start" in refusal(path)


def test_lines_that_are_nested_too_deeply(export: Export, tmp_path: Path) -> None:
    path = export.json_lines(tmp_path / "report.jsonl")
    path.write_bytes(path.read_bytes() + b'{"table": ' * 5000 + b"\n")
    (trace,) = read(path)
    assert "1 lines are no JSON" in " / ".join(trace.health.notes)
    assert not trace.health.complete


def test_a_database_that_complains_in_bytes_that_are_no_text(export: Export, tmp_path: Path) -> None:
    path = export.sqlite(tmp_path / "report.sqlite")
    data = path.read_bytes()
    path.write_bytes(data.replace(b'CREATE TABLE "META_DATA_EXPORT"', b'CREATE TABLE "\xe4\xff\xe4_DATA_EXPO', 1))
    assert "cannot be read as SQLite" in refusal(path)


def test_tables_whose_columns_have_no_name(export: Export, tmp_path: Path) -> None:
    folder = export.arrow_directory(tmp_path / "report_arwdir")
    file = folder / "PROCESSES.arrow"
    file.write_bytes(file.read_bytes().replace(b"globalPid", b"\x80\xe5obalPid"))
    (trace,) = read(folder)
    assert "PROCESSES.arrow cannot be read" in " / ".join(trace.health.notes)
    assert trace.gpu_events.num_rows == 1


def test_offsets_that_lead_out_of_memory_are_not_followed() -> None:
    sound = pa.table({"value": ["short", "text"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sound.schema) as writer:
        writer.write_table(sound)
    data = sink.getvalue().to_pybytes()
    assert checked(pa.ipc.open_stream(data).read_all()) == sound
    damaged = data.replace(struct.pack("<3i", 0, 5, 9), struct.pack("<3i", 0, 2**30, 9))
    assert damaged != data
    with pytest.raises(pa.ArrowInvalid):
        checked(pa.ipc.open_stream(damaged).read_all())


@pytest.mark.parametrize("head", [b"Start (ns),Duration (ns),Na\xadme", b"Start (ns),Name,Name,Name"])
def test_a_printed_table_with_a_damaged_head(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "report_cuda_gpu_trace.csv"
    path.write_bytes(head + b"\n1,2,3,4\n5,6,7,8\n")
    from parsers import nsys
    from parsers.source import open_source

    with open_source(path) as source, pytest.raises(InputError) as caught:
        nsys.read(source)
    assert str(path) in str(caught.value)


LAUNCHED = ("API Start (ns)", "API Dur (ns)", "Kernel Start (ns)", "Kernel Dur (ns)", "PID", "TID", "DevId")


@pytest.mark.parametrize("damaged", [True, False])
def test_kernels_without_the_column_of_names_keep_their_times(tmp_path: Path, damaged: bool) -> None:
    path = tmp_path / "cuda_kern_exec_trace.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow((*LAUNCHED, "API Function", "Iernel Name" if damaged else "Kernel Name"))
        table.writerow((10, 5, 100, 50, 144, 144, 0, "cudaLaunchKernel", "gemm"))
        table.writerow((20, 5, 200, 60, 145, 145, 1, "cudaLaunchKernel", "gemm"))
    traces = read(path)
    assert [(row["dur_ns"], row["name"]) for trace in traces for row in trace.gpu_events.to_pylist()] == [
        (50, "" if damaged else "gemm"),
        (60, "" if damaged else "gemm"),
    ]
    said = "a table has no column 'Kernel Name': its kernels have no names"
    assert all((said in trace.health.notes) is damaged for trace in traces)


@pytest.mark.parametrize("number", [1e300, 2**200, -(2**70), "9" * 20, "0x" + "f" * 40, "9" * 400])
def test_numbers_of_json_payloads_that_no_column_holds_are_none(number: Any) -> None:
    payloads = Payloads(1)
    payloads.from_json([json.dumps({"Peer rank": number, "Root": 3})])
    assert payloads.columns["arg"].tolist() == [3]


# -- summaries and published traces


def altered(table: pa.Table, path: Path, column: str, value: Any) -> Path:
    place = table.schema.get_field_index(column)
    write_table(
        table.set_column(place, table.schema.field(place), [pa.array([value], table.schema.field(place).type)]), path
    )
    return path


@pytest.mark.parametrize(
    ("column", "value"),
    [("head", '{"path" 1}'), ("view", "[]"), ("line.comm_call", [10**6]), ("collectives.ts_ns", [])],
)
def test_a_summary_whose_values_do_not_fit(sample_traces: Path, tmp_path: Path, column: str, value: Any) -> None:
    table = summarized(Job(str(sample_traces / "ddp4" / "rank0.json.gz")))
    path = altered(table, tmp_path / "rank0.parquet", column, value)
    with pytest.raises(InputError, match="a summary is damaged"):
        from_table(read_table(str(path)))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("steps.complete", "steps.complete is not as long as steps.begin"),
        ("view.family_of_call", "is not as long as"),
        ("line.compute_length", "line.compute_length is not as long as line.compute_start"),
        ("collectives.dur_ns", "is not as long as"),
        ("groups.size", "is not as long as groups.name"),
        ("host.ready", "host.ready is not as long as line.call_start"),
    ],
)
def test_a_summary_whose_lists_do_not_go_together(sample_traces: Path, tmp_path: Path, column: str, said: str) -> None:
    table = summarized(Job(str(sample_traces / "ddp4" / "rank0.json.gz")))
    value = table.column(column).to_pylist()[0]
    path = altered(table, tmp_path / "rank0.parquet", column, value + value[:1])
    with pytest.raises(InputError, match=f"a summary is damaged .*{said}"):
        from_table(read_table(str(path)))


def test_a_summary_that_points_before_its_calls(sample_traces: Path, tmp_path: Path) -> None:
    table = summarized(Job(str(sample_traces / "ddp4" / "rank0.json.gz")))
    value = table.column("line.comm_call").to_pylist()[0]
    path = altered(table, tmp_path / "rank0.parquet", "line.comm_call", [-2, *value[1:]])
    with pytest.raises(InputError, match=r"line\.comm_call points outside of line\.call_start"):
        from_table(read_table(str(path)))


def test_a_summary_whose_lists_are_something_else(sample_traces: Path) -> None:
    table = summarized(Job(str(sample_traces / "ddp4" / "rank0.json.gz")))
    place = table.schema.get_field_index("turns.start")
    struct = pa.array([{"item": 1}] * table.num_rows)
    with pytest.raises(InputError, match=r"a summary is damaged .*turns.start holds struct"):
        from_table(table.set_column(place, "turns.start", struct))


def test_a_summary_whose_pages_were_changed(sample_traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "rank0.parquet"
    write_table(summarized(Job(str(sample_traces / "ddp4" / "rank0.json.gz"))), path)
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match="is a damaged summary"):
        read_table(str(path))


def test_an_error_that_quotes_a_value_is_one_line_of_some_length(tmp_path: Path) -> None:
    sound = {"rank": ["9" * 5000], "step": [0], "optype": ["x"], "start_ts": [0.5], "duration": [0.1], "seq_id": [0]}
    pq.write_table(pa.table(sound), tmp_path / "job.parquet")
    with pytest.raises(InputError, match="cannot be read as Parquet") as caught:
        read_operations(str(tmp_path / "job.parquet"))
    assert len(caught.value.message) == LONGEST_MESSAGE
    assert InputError("two\nlines of  text").message == "two lines of text"


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("start_ts", [float("nan")], "times that are no times"),
        ("duration", [1e300], "times that are no times"),
        ("rank", ["one"], "cannot be read as Parquet"),
        ("optype", [None], "without a rank, a step, a name or a time"),
    ],
)
def test_operations_that_are_none(tmp_path: Path, column: str, values: list[Any], said: str) -> None:
    sound = {"rank": [0], "step": [0], "optype": ["forward"], "start_ts": [0.5], "duration": [0.1], "seq_id": [0]}
    path = tmp_path / "job.parquet"
    pq.write_table(pa.table({**sound, column: pa.array(values, pa.string()) if values == [None] else values}), path)
    with pytest.raises(InputError, match=said):
        read_operations(str(path))
    pq.write_table(pa.table(sound), path)
    assert read_operations(str(path)).start_ns.tolist() == [500_000_000]

"""Exports whose tables are damaged, of odd types or of nothing: what is left is read, and what is lost is told."""

from __future__ import annotations

import base64
import csv
import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parsers import read
from parsers.columns import NULL
from parsers.errors import InputError
from parsers.nsys import places_of
from parsers.nsys.arrow_store import directory_store, tables_store
from parsers.nsys.communicators import hash_name, log_of, with_log
from parsers.nsys.detect import is_export_directory, worth_a_look
from parsers.nsys.dynamic import own_layouts
from parsers.nsys.json_store import json_store
from parsers.nsys.marks import sizes_of
from parsers.nsys.payload import Payloads
from parsers.nsys.report import _run, _to_terminal
from parsers.nsys.schema import KERNELS, STRINGS
from parsers.nsys.seats import Member
from parsers.nsys.sqlite_store import SqliteStore, tables_of
from parsers.nsys.stats import table_store
from parsers.nsys.store import records
from parsers.source import open_source
from tests.parsers.nsys.export import Export, grouped
from tests.parsers.nsys.test_forms import facts, report

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
TEXT_OF_SUMMARY = b"Time (%),Total Time (ns),Instances,Name\n90.0,1000,3,gemm\n"


def calls(path: Path) -> list[list[int | None]]:
    return [trace.comm_records.column("message_bytes").to_pylist() for trace in read(path)]


# -- Arrow and Parquet


def test_other_files_among_the_tables_are_passed_over(tmp_path: Path) -> None:
    folder = report().parquet(tmp_path / "report_pqtdir")
    (folder / "notes.txt").write_text("mine")
    (folder / "older").mkdir()
    assert calls(folder) == [[1 << 20]] * 2


def test_a_damaged_table_of_a_directory_is_named(tmp_path: Path) -> None:
    folder = report().parquet(tmp_path / "report_pqtdir")
    (folder / "CUPTI_ACTIVITY_KIND_MEMSET.parquet").write_bytes(b"PAR1 and no more")
    trace = read(folder)[0]
    assert any(note.startswith("CUPTI_ACTIVITY_KIND_MEMSET.parquet cannot be read") for note in trace.health.notes)
    assert not trace.health.complete
    assert trace.comm_records.num_rows == 1


def test_arrow_files_may_be_streams(tmp_path: Path) -> None:
    export = report()
    folder = export.arrow_directory(tmp_path / "report_arwdir")
    for table in ("NVTX_EVENTS", "StringIds"):
        content = export.arrow(table)
        with pa.OSFile(str(folder / f"{table}.arrow"), "wb") as file, pa.ipc.new_stream(file, content.schema) as writer:
            writer.write_table(content)
    assert calls(folder) == [[1 << 20]] * 2


def test_a_cut_stream_keeps_the_tables_before_the_cut(tmp_path: Path) -> None:
    path = report().arrow_stream(tmp_path / "report.arrows")
    data = path.read_bytes()
    path.write_bytes(data[:-300])
    traces = read(path)
    assert [trace.comm_records.num_rows for trace in traces] == [1, 1]
    assert [trace.health.complete for trace in traces] == [False, False]
    assert any("the Arrow stream at byte" in note for note in traces[0].health.notes)


def test_a_stream_without_a_name_is_no_table(tmp_path: Path) -> None:
    path = report().arrow_stream(tmp_path / "report.arrows")
    nameless = pa.table({"start": [1]})
    with pa.OSFile(str(tmp_path / "one"), "wb") as file, pa.ipc.new_stream(file, nameless.schema) as writer:
        writer.write_table(nameless)
    path.write_bytes(path.read_bytes() + (tmp_path / "one").read_bytes())
    assert calls(path) == [[1 << 20]] * 2


def test_columns_may_be_dictionaries_and_numbers_may_be_text() -> None:
    kernels = pa.table(
        {
            "start": pa.array(["10", "20", "x"]),
            "end": pa.array([11, 21, 31]).dictionary_encode(),
            "globalPid": pa.array([1.0, None, 3.0]),
        }
    )
    strings = pa.table({"id": [1, 2], "value": pa.array(["gemm", "gemm"]).dictionary_encode()})
    store = tables_store({KERNELS: kernels, STRINGS: strings}, "report")
    (block,) = store.scan(KERNELS, ["start", "end", "globalPid"])
    assert block.ints["start"].tolist() == [10, 20, NULL]
    assert block.ints["end"].tolist() == [11, 21, 31]
    assert block.ints["globalPid"].tolist() == [1, NULL, 3]
    assert store.strings(np.array([2])) == {2: "gemm"}
    assert [store.long_text(number) for number in (1, 7)] == ["gemm", ""]


def test_a_small_table_is_read_to_its_limit() -> None:
    strings = pa.table({"id": list(range(100)), "value": [str(number) for number in range(100)]})
    store = tables_store({KERNELS: pa.table({"start": [1]}), STRINGS: strings}, "report")
    assert [row["id"] for row in records(store, STRINGS, ("id",), limit=3)] == [0, 1, 2]


def test_tables_of_others_are_refused() -> None:
    with pytest.raises(InputError, match="mine: holds no tables of Nsight Systems"):
        tables_store({"people": pa.table({"name": ["a"]})}, "mine")


def test_a_table_that_breaks_off_while_it_is_read_is_counted(tmp_path: Path) -> None:
    folder = report().parquet(tmp_path / "report_pqtdir")
    path = folder / f"{KERNELS}.parquet"
    content = pq.read_table(path)
    pq.write_table(content, path, compression="snappy", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[4:60] = bytes(56)  # the head of the first page
    path.write_bytes(bytes(data))
    store = directory_store(folder, "report")
    assert list(store.scan(KERNELS, sorted(content.column_names))) == []
    assert store.cut
    assert store.faults[0].startswith(f"table {KERNELS} cannot be read to its end")


# -- SQLite


def test_a_write_ahead_log_beside_the_database_is_told(tmp_path: Path) -> None:
    path = report().sqlite(tmp_path / "report.sqlite")
    (tmp_path / "report.sqlite-wal").write_bytes(b"rows")
    traces = read(path)
    assert any("write-ahead log" in note for note in traces[0].health.notes)
    assert traces[0].comm_records.num_rows == 1


def test_a_text_that_cannot_be_read_is_empty_and_told(tmp_path: Path) -> None:
    export = report()
    store = SqliteStore(export.sqlite(tmp_path / "report.sqlite"), "report")
    assert store.long_text(export.string("pt_main")) == "pt_main"
    store._connection.close()
    store._connection = SqliteStore(export.sqlite(tmp_path / "other.sqlite"), "other")._connection
    store._real[STRINGS] = "Gone"
    store._columns["Gone"] = frozenset({"id", "value"})
    assert store.long_text(1) == ""
    assert store.faults == ["text 1 cannot be read (no such table: Gone)"]
    store.close()


def test_what_is_no_database_has_no_tables(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("once upon a time" * 100)
    assert tables_of(tmp_path / "text") == ()
    assert tables_of(tmp_path / "absent") == ()


# -- JSON


def _older(*lines: Any) -> bytes:
    return b"\n\n".join(json.dumps(line).encode() for line in lines) + b"\n[1]\n\n"


def test_the_older_json_has_kernels_copies_fills_and_calls(tmp_path: Path) -> None:
    of_gpu = {"deviceId": 2, "contextId": 1, "streamId": 7, "correlationId": 3, "globalPid": 9}
    when = {"startNs": "100", "endNs": "180"}
    path = tmp_path / "report.json"
    path.write_bytes(
        _older(
            {"data": ["[unused]", "gemm"]},
            {"Type": 79, "CudaEvent": {**when, **of_gpu, "kernel": {"demangledName": "1", "shortName": "1"}}},
            {"Type": 80, "CudaEvent": {**when, **of_gpu, "memcpy": {"sizebytes": "4096", "copyKind": 1}}},
            {"Type": 81, "CudaEvent": {**when, **of_gpu, "memset": {"bytes": 64}, "sync": 3}},
            {"Type": 48, "TraceProcessEvent": {**when, "globalTid": 9, "correlationId": 3, "name": "1"}},
            {"Type": 48, "TraceProcessEvent": "not an event"},
            {"table": "A_TABLE_OF_NO_INTEREST", "start": 1},
        )
    )
    with open_source(path) as source:
        store = json_store(source)
    assert {name for name in store.tables() if name.startswith("CUPTI")} == {
        f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")
    }
    columns = ["start", "end", "deviceId", "streamId", "correlationId"]
    (kernels,) = store.scan("CUPTI_ACTIVITY_KIND_KERNEL", [*columns, "shortName"])
    assert [int(kernels.ints[name][0]) for name in (*columns, "shortName")] == [100, 180, 2, 7, 3, 1]
    for kind, size in (("MEMCPY", 4096), ("MEMSET", 64)):
        (block,) = store.scan(f"CUPTI_ACTIVITY_KIND_{kind}", ["bytes"])
        assert block.ints["bytes"].tolist() == [size]
    (called,) = store.scan("CUPTI_ACTIVITY_KIND_RUNTIME", ["nameId", "globalTid"])
    assert (called.ints["nameId"].tolist(), called.ints["globalTid"].tolist()) == ([1], [9])
    assert not store.cut


def test_payloads_of_the_older_json_that_are_no_base64_are_left_out(tmp_path: Path) -> None:
    good = base64.b64encode(struct.pack("<QQi", 5, 64, 0) + bytes(4)).decode()

    def event(start: int, *data: Any) -> dict[str, Any]:
        said = {"BinaryData": [{"SchemaId": 16777221, "Data": item} for item in data]}
        return {"Type": 59, "NvtxEvent": {"Timestamp": start, "Text": "ncclAllReduce", "Payload": said}}

    unnamed = event(4)
    unnamed["NvtxEvent"]["Payload"]["BinaryData"] = ["no object", {"Data": good}]
    path = tmp_path / "report.json"
    path.write_bytes(_older({"data": ["x"]}, event(1, good), event(2, "%%%"), event(3, 7, good), unnamed))
    with open_source(path) as source:
        store = json_store(source)
    (block,) = store.scan("NVTX_EVENTS", ["start"], ["binaryData"])
    header = struct.pack("<QQQQ", 0, 16777221, 24, 32).hex().encode()
    assert [value and value[:64] for value in block.values["binaryData"]] == [header, None, header, None]


def test_a_table_of_json_lines_grows_beyond_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parsers.nsys.json_store.BLOCK_ROWS", 4)
    path = report(payload="json").json_lines(tmp_path / "report.jsonl")
    wanted = read(report(payload="json").sqlite(tmp_path / "report.sqlite"))
    assert [trace.gpu_events.num_rows for trace in read(path)] == [trace.gpu_events.num_rows for trace in wanted]
    texts = json.dumps({"data": [str(number) for number in range(8)]})  # as many as two blocks hold
    (tmp_path / "texts.json").write_text(texts + "\n" + json.dumps({"table": KERNELS, "start": 1}))
    with open_source(tmp_path / "texts.json") as source:
        assert json_store(source).strings(np.array([0, 7])) == {0: "0", 7: "7"}


# -- printed tables


def test_a_summary_is_refused_with_the_tables_to_give(tmp_path: Path) -> None:
    path = tmp_path / "cuda_gpu_kern_sum.csv"
    path.write_bytes(TEXT_OF_SUMMARY)
    with pytest.raises(InputError, match=r"is a summary of nsys stats: it has no time line.*cuda_gpu_trace"):
        read(path)


def test_a_table_without_a_time_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("Name,Duration (ns)\ngemm,5\n")
    with open_source(path) as source, pytest.raises(InputError, match="holds no table of nsys stats with a time line"):
        table_store(source)


PRINTED = ("Start (ns)", "Duration (ns)", "CorrId", "Device", "Ctx", "Strm", "Name")


def _printed(folder: Path, **more: bytes) -> Path:
    folder.mkdir()
    with (folder / "report_cuda_gpu_trace.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(PRINTED)
        table.writerow((1000, 200, 1, "NVIDIA H100 (0)", 1, 20, ALL_REDUCE))
        table.writerow((2000, 300, 2, "NVIDIA H100 (0)", 1, 7, "gemm"))
    for name, data in more.items():
        (folder / name.replace("__", "-").replace("_dot_", ".")).write_bytes(data)
    return folder


@pytest.mark.parametrize(
    "metadata", [b"{", b"[" * 100_000, b'{"a": 1}', b'[1, {"name": "Hostname", "nameEnum": "x", "value": "n"}]']
)
def test_damaged_metadata_beside_printed_tables_say_nothing(tmp_path: Path, metadata: bytes) -> None:
    wanted = read(_printed(tmp_path / "a"))[0]
    found = read(_printed(tmp_path / "b", system__metadata_dot_json=metadata, other_dot_txt=b"x"))[0]
    assert found.gpu_events.to_pylist() == wanted.gpu_events.to_pylist()
    assert [row["name"] for row in found.gpu_events.to_pylist()] == [ALL_REDUCE, "gemm"]


def test_devices_of_a_recipe_may_be_absent_or_damaged(tmp_path: Path) -> None:
    for number, name in enumerate(("id", "uuid", None)):
        folder = _printed(tmp_path / str(number))
        path = folder / "devices.parquet"
        if name is None:
            path.write_bytes(b"no Parquet")
        else:
            pq.write_table(pa.table({f"('TARGET_INFO_GPU', '{name}')": [0]}), path)
        assert read(folder)[0].gpu_events.num_rows == 2


def test_a_damaged_table_of_a_recipe_is_one_line(tmp_path: Path) -> None:
    folder = _printed(tmp_path / "a")
    (folder / "trace.parquet").write_bytes(b"no Parquet")
    with pytest.raises(InputError, match=r"trace.parquet: cannot be read as Parquet"):
        read(folder)


# -- what a report says of itself


def test_layouts_that_contradict_or_overrun_are_not_used(tmp_path: Path) -> None:
    export = report()

    def schema(number: int, size: int, *entries: tuple[int, str, object, int]) -> None:
        export.add("NVTX_PAYLOAD_SCHEMAS", domainId=1, schemaId=number, payloadSize=size)
        for index, name, offset, kind in entries:
            export.add(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                domainId=1,
                schemaId=number,
                idx=index,
                type=kind,
                name=name,
                offset=offset,
            )

    size_of, root = "Message size [bytes]", "Root"
    schema(900, 16, (0, size_of, 0, 22), (1, root, 8, 5))
    schema(901, 16, (0, size_of, 0, 22), (0, size_of, 8, 22))  # one field, two places
    schema(902, 8, (0, size_of, 0, 22), (1, root, 8, 5))  # reaches past its end
    schema(903, 16, (0, size_of, 0, 22), (1, "Colour of the curtains", 8, 5))
    schema(904, 16, (0, size_of, 0, 9999))  # no type that is known
    schema(905, 16, (0, size_of, b"\x08", 22))  # no number
    export.add("NVTX_PAYLOAD_SCHEMAS", domainId=1, schemaId=None, payloadSize=8)
    store = SqliteStore(export.sqlite(tmp_path / "report.sqlite"), "report")
    found = own_layouts(store)
    store.close()
    assert {key: layout for key, layout in found.items() if key[0] in range(900, 910)} == {
        (900, 16): (("bytes", 0, "<u8"), ("arg", 8, "<i4")),
        (903, 16): (("bytes", 0, "<u8"),),
    }


def test_a_child_has_its_parent_and_a_rank_without_colour_has_none(tmp_path: Path) -> None:
    export = Export()
    owner = export.process(500)
    export.nccl_range(owner, 500, "ncclCommInitRank", 10, 90, comm=1, nranks=4, rank=2, device=0)
    split = {"parent": 1, "nranks": 4, "rank": 2, "device": 0, "key": 5}
    export.nccl_range(owner, 500, "ncclCommSplit", 110, 190, comm=2, color=7, **split)
    export.nccl_range(owner, 500, "ncclCommSplit", 210, 290, comm=3, color=-1, **split)
    kernel = {"name": ALL_REDUCE, "start": 50_000, "end": 51_000}
    grouped(export, owner, 500, 5000, [("ncclAllReduce", {"comm": 2, "bytes": 8, "redop": 0})], [kernel])
    (trace,) = read(export.sqlite(tmp_path / "report.sqlite"))
    assert trace.groups.column("name").to_pylist() == ["0x1", "0x2"]
    assert trace.groups.column("size").to_pylist() == [4, None]


def test_a_log_names_the_rank_in_a_child() -> None:
    line = (
        "a:500:501 [0] NCCL INFO ncclCommInitRank comm 0x51 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x2 "
        "- Init COMPLETE"
    )
    log = log_of([line], "out")
    known = Member("0x9", 3, 4, 0)
    child = Member("0x2", None, None, 0, parent="0x1", color=7, key=5, parent_rank=2, parent_size=4)
    assert with_log([child, known], log, 500, 0) == [Member("0x2", 1, 2, 0), known]
    assert with_log([known], log, 500, None) == [known, Member("0x2", 1, 2, 0)]
    assert with_log([known], log, 499, None) == [known]
    assert log_of(["nothing of NCCL's"], "out") is None
    assert log_of([], "out") is None


# -- what is looked at


def test_only_what_may_be_an_export_is_opened(tmp_path: Path) -> None:
    assert not worth_a_look(tmp_path / "absent")
    assert not is_export_directory(tmp_path / "absent")
    for name, wanted in (("report.sqlite.gz", True), ("rank0.json.gz", False)):
        (tmp_path / name).write_bytes(b"\x1f\x8b\x08\x00")
        assert worth_a_look(tmp_path / name) is wanted


@pytest.mark.parametrize("name", ["s3://bucket/report.sqlite", "absent.sqlite"])
def test_no_communicators_are_known_of_what_is_not_there(name: str) -> None:
    assert places_of(name) == []


def test_no_communicators_are_known_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("once upon a time")
    assert places_of(str(tmp_path / "a.txt")) == []
    assert places_of(str(tmp_path)) == []
    folder = report().parquet(tmp_path / "report_pqtdir")
    path = report().sqlite(tmp_path / "report.sqlite")
    assert len(places_of(str(folder))) == len(places_of(str(path))) == 2
    assert hash_name(-1) == "0xffffffffffffffff"


def test_directories_that_are_numbered_from_0_are_ranks(tmp_path: Path) -> None:
    export = Export()
    owner = export.process(500)
    kernel = {"name": ALL_REDUCE, "start": 50_000, "end": 51_000}
    grouped(export, owner, 500, 5000, [("ncclAllReduce", {"comm": 1, "bytes": 64, "redop": 0})], [kernel])
    for number in range(3):
        export.parquet(tmp_path / f"job_{number}_pqtdir")
    export.parquet(tmp_path / "day_20_pqtdir")
    found = [read(tmp_path / name)[0].identity.rank for name in ("job_0_pqtdir", "job_2_pqtdir", "day_20_pqtdir")]
    assert found == [0, 2, None]


def test_correlations_that_lie_far_apart_are_found_as_well(tmp_path: Path) -> None:
    export = Export()
    owner = export.process(500)
    for number, correlation in enumerate((7, 1 << 40)):
        start = 10_000 * (number + 1)
        export.kernel(owner, "gemm", start, start + 500, tid=500, at=start - 2000, correlation=correlation)
    (trace,) = read(export.sqlite(tmp_path / "report.sqlite"))
    assert trace.launches.column("correlation").to_pylist() == [7, 1 << 40]
    assert trace.gpu_events.column("correlation").to_pylist() == [7, 1 << 40]


def test_two_places_of_one_rank_in_a_communicator_tell_none(tmp_path: Path) -> None:
    export = Export()
    for place in range(2):
        owner = export.process(500 + place, domain=1 + place)
        said = {"comm": 7, "nranks": 2, "rank": 0, "device": place}
        export.nccl_range(owner, 500 + place, "ncclCommInitRankConfig", 10, 90, **said)
        kernel = {"name": ALL_REDUCE, "start": 50_000, "end": 51_000, "device": place}
        grouped(export, owner, 500 + place, 5000, [("ncclAllReduce", {"comm": 7, "bytes": 8, "redop": 0})], [kernel])
    traces = read(export.sqlite(tmp_path / "report.sqlite"))
    assert [(trace.identity.rank, trace.identity.rank_source) for trace in traces] == [
        (0, "gpu_order"),
        (1, "gpu_order"),
    ]


def test_json_payloads_may_be_texts_of_the_table_of_texts(tmp_path: Path) -> None:
    export = Export(payload=None)
    owner = export.process(500)
    kernel = {"name": ALL_REDUCE, "start": 50_000, "end": 51_000}
    grouped(export, owner, 500, 5000, [("ncclAllReduce", {})], [kernel])
    text = export.string('{"Message size [bytes]": 4096, "Reduction operation": "Max"}')
    for row in export.tables["NVTX_EVENTS"]:
        row["jsonTextId"] = text if row.get("textId") == export.string("ncclAllReduce") else None
    (trace,) = read(export.sqlite(tmp_path / "report.sqlite"))
    assert trace.comm_records.column("message_bytes").to_pylist() == [4096]


def test_sizes_that_are_no_lists_are_none() -> None:
    assert sizes_of(["[[2, 3], 7, [true, 1.5, 4]]", "{", "7", "[" * 100_000]) == [
        [[2, 3], [], [True, 4]],
        None,
        None,
        None,
    ]


def test_json_payloads_are_followed_to_a_depth() -> None:
    payloads = Payloads(3)
    deep: Any = {"Bytes": 7}
    for _ in range(20):
        deep = {"more": deep}
    assert payloads.from_json([json.dumps({"a": [{"Bytes": 64}]}), json.dumps(deep), '{"comm": "0xzz"}']) == 2
    assert payloads.columns["bytes"].tolist() == [64, NULL, NULL]


def test_payloads_of_no_bytes_and_in_long_chains_say_nothing() -> None:
    chain = b"".join(struct.pack("<QQQQ", 1, 3, 8, 32) + bytes(8) for _ in range(20))
    payloads = Payloads(3)
    assert payloads.from_binary(["ncclAllGather"] * 3, [b"", 7, chain], {}) == 3
    assert (payloads.columns["bytes"] == NULL).all()


def test_an_argument_of_torchrun_that_is_no_number_is_not_used(tmp_path: Path) -> None:
    export = report()
    export.add("META_DATA_CAPTURE", name="PROCESS_0:COMMAND", value="/usr/bin/torchrun")
    export.add("META_DATA_CAPTURE", name="PROCESS_0:ARGUMENT_0", value="--nnodes=$N")
    export.add("META_DATA_EXPORT", name="EXPORT_PARAM_TIME_SHIFT", value="a while")
    export.add("ProcessStreams", globalPid=1, filenameId=1, contentId=None)
    wanted = read(report().sqlite(tmp_path / "a.sqlite"))
    found = read(export.sqlite(tmp_path / "b.sqlite"))
    assert [t.gpu_events.column("ts_ns").to_pylist() for t in found] == [
        t.gpu_events.column("ts_ns").to_pylist() for t in wanted
    ]
    assert [t.identity.world_size for t in found] == [2, 2]


def test_a_report_whose_tables_all_are_damaged_says_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "report_pqtdir"
    folder.mkdir()
    for table in (KERNELS, "NVTX_EVENTS"):
        (folder / f"{table}.parquet").write_bytes(b"PAR1 and no more")
    for table in ("StringIds", "CUPTI_ACTIVITY_KIND_RUNTIME", "META_DATA_EXPORT"):
        pq.write_table(report().arrow(table), folder / f"{table}.parquet")
    with pytest.raises(InputError, match=r"CUPTI_ACTIVITY_KIND_KERNEL.parquet cannot be read.*export the report again"):
        read(folder)


def test_nodes_of_a_graph_whose_originals_are_gone_have_no_calls(tmp_path: Path) -> None:
    export = Export()
    owner = export.process(500)
    export.add("CUDA_GRAPH_NODE_EVENTS", start=5, globalTid=owner | 500, graphNodeId=21, originalGraphNodeId=11)
    launch = export.next_correlation(owner)
    export.call(owner, 500, "cudaGraphLaunch_v10000", 80_000, 85_000, launch)
    export.kernel(owner, ALL_REDUCE, 100_000, 109_000, node=21, correlation=launch)
    export.kernel(owner, ALL_REDUCE, 110_000, 119_000, node=99, correlation=launch)
    (trace,) = read(export.sqlite(tmp_path / "report.sqlite"))
    assert trace.gpu_events.num_rows == 2
    assert {row["message_bytes"] for row in trace.comm_records.to_pylist()} <= {None}


def test_an_nsys_that_takes_too_long_or_does_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parsers.nsys.report._TIME_LIMIT_S", 0.05)
    with pytest.raises(InputError, match=r"nsys export did not run \(.*timed out.*run: the command"):
        _run(["/bin/sleep", "5"], "job.nsys-rep", "the command")
    with pytest.raises(InputError, match=r"nsys export did not run \(.*No such file"):
        _run([str(tmp_path / "nsys")], "job.nsys-rep", "the command")


def test_a_disk_without_room_for_the_export_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.sqlite.gz"
    path.write_bytes(gzip.compress(report().sqlite(tmp_path / "report.sqlite").read_bytes()))
    real = Path.open

    def full(self: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if "w" in mode:
            raise OSError(28, "No space left on device")
        return real(self, mode, *more, **named)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(InputError, match=r"cannot be unpacked \(No space left on device\); decompress it first \("):
        read(path)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_blocks_of_few_rows_give_the_same(tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = report().sqlite(tmp_path / "report.sqlite")
    wanted = facts(read(path))
    monkeypatch.setattr("parsers.nsys.sqlite_store.BLOCK_ROWS", rows)
    assert facts(read(path)) == wanted


def test_what_nsys_is_doing_is_told_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal, said in ((False, ""), (True, "exporting ...\n")):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        _to_terminal("exporting")
        assert capsys.readouterr().err == said


def test_copies_of_copies_of_a_node_lead_to_its_call_up_to_a_length(tmp_path: Path) -> None:
    export = Export()
    owner = export.process(500)
    for node in range(1, 40):
        export.add(
            "CUDA_GRAPH_NODE_EVENTS", start=node, globalTid=owner | 500, graphNodeId=node, originalGraphNodeId=node + 1
        )
    launch = export.next_correlation(owner)
    export.call(owner, 500, "cudaGraphLaunch_v10000", 80_000, 85_000, launch)
    export.kernel(owner, ALL_REDUCE, 100_000, 109_000, node=1, correlation=launch)
    (trace,) = read(export.sqlite(tmp_path / "report.sqlite"))
    assert trace.gpu_events.column("dur_ns").to_pylist() == [9000]

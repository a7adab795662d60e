"""Values that a writer should not have written, format by format: each costs itself alone.

What is tested of sound files stands in each format's own tests.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import lzma
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zstandard

from parsers import chakra, chakra_nodes, execution_trace, flight_recorder_entry, nccl_log_lines, read, tables
from parsers.assemble import table
from parsers.bytes_of import MAX_LINE_BYTES, lines, whole
from parsers.columns import NULL, nanoseconds
from parsers.deepspeed_log import CommsLogger
from parsers.discover import expand
from parsers.errors import InputError
from parsers.flight_recorder import Dump
from parsers.garbage import no_garbage_collection
from parsers.nccl_log import NcclLog
from parsers.nccl_words import signed
from parsers.nsys.owners import PROCESS_SHIFT, Owners
from parsers.plain_pickle import load
from parsers.profiled import ProfilerWitness
from parsers.repair import repair
from parsers.source import Source, open_source
from parsers.tables import RankTrace
from tests.parsers.flight_dumps import as_json, as_pickle, dump, entry
from tests.parsers.made import TraceMaker, three_steps

Read = Callable[..., list[RankTrace]]


# -- bytes and columns


def test_a_file_larger_than_its_kind_ever_is_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    with open_source(tmp_path / "a") as source:
        assert whole(source, 100, "a list") == b"x" * 100
    with open_source(tmp_path / "a") as source, pytest.raises(InputError, match="is larger than 0 MiB, which a list"):
        whole(source, 99, "a list")


def test_a_line_without_an_end_is_given_in_pieces(tmp_path: Path) -> None:
    size = 3 * MAX_LINE_BYTES
    (tmp_path / "a").write_bytes(b"first\r\n" + b"x" * size + b"\nlast")
    with open_source(tmp_path / "a") as source:
        found = list(lines(source))
    assert (found[0], found[-1]) == (b"first", b"last")
    assert max(map(len, found)) == MAX_LINE_BYTES
    assert set(b"".join(found[1:-1])) == {ord("x")}


def test_no_times_at_all_and_times_that_are_no_numbers() -> None:
    assert nanoseconds(b"", 0).tolist() == []
    assert nanoseconds(b"1.5,..,2", 3).tolist() == [1500, NULL, 2000]
    assert nanoseconds(b"1.5,1/2,2", 3).tolist() == [1500, NULL, 2000]


def test_a_column_that_a_schema_lacks_is_an_error_of_ours() -> None:
    with pytest.raises(KeyError, match="colour"):
        table(tables.STEPS, {"number": [1], "colour": [2]})
    assert table(tables.STEPS, {}, rows=2).num_rows == 2


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_of_garbage_is_left_as_it_was_found(enabled: bool) -> None:
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with no_garbage_collection():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_what_is_made_without_collection_is_not_looked_through_at_once() -> None:
    with no_garbage_collection():
        made = [[number] for number in range(2000)]
    young = {id(one) for one in gc.get_objects(generation=0)}
    assert not young & set(map(id, made))
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("said", "number"),
    [("0x10", 16), ("12", 12), ("0xffffffffffffffff", -1), ("x", None), (None, None), (-1, None), (1 << 64, None)],
)
def test_ids_of_communicators_are_signed_numbers(said: int | str | None, number: int | None) -> None:
    assert signed(said) == number


def test_a_key_without_a_colon_has_no_reading() -> None:
    assert repair(b'{"a"}').text is None


def test_a_lone_backslash_beside_escaped_ones_is_escaped_alone() -> None:
    assert json.loads(repair(rb'{"a": "\q \n"}').text or b"") == {"a": r"\q \n"}  # this writer escapes nothing
    assert json.loads(repair(rb'{"a": "\q \\ \n"}').text or b"") == {"a": "\\q \\ \n"}


# -- pickles


@pytest.mark.parametrize(
    "data",
    [
        b"\xff.",  # no instruction
        b"K\x01\x87.",  # a tuple of more than there is
        b"K\x01K\x02a.",  # appended to a number
        b"K\x01K\x02K\x03s.",  # an item of a number
        b"\x8a\x20" + bytes(32) + b".",  # an integer of 256 bits
        b"}NK\x01s.",  # a key of None
    ],
)
def test_instructions_that_do_not_fit_are_damage(data: bytes) -> None:
    with pytest.raises(InputError, match="is a damaged pickle"):
        load(pickle.PROTO + b"\x02" + data, "x")


@pytest.mark.parametrize(("data", "value"), [(b"K\x01K\x020.", 1), (b"K\x01(0.", 1), (b"K\x01(K\x02K\x031.", 1)])
def test_values_taken_off_the_stack_are_gone(data: bytes, value: int) -> None:
    assert load(pickle.PROTO + b"\x02" + data, "x") == value == pickle.loads(pickle.PROTO + b"\x02" + data)


# -- Flight Recorder


def _dump(traces: list[RankTrace]) -> Dump:
    (trace,) = traces
    assert isinstance(trace.witness, Dump)
    return trace.witness


@pytest.mark.parametrize("top", [7, "entries", None, (1, 2)])
def test_a_pickle_of_something_else_is_one_line(read_text: Read, top: Any) -> None:
    with pytest.raises(InputError, match=r"neither a dict nor a list of entries|not a trace in a known format"):
        read_text(as_pickle({"entries": 1} if top is None else top), "dump")


def test_statuses_that_cannot_be_are_left_out(read_text: Read) -> None:
    document = dump([entry("allreduce", 1)], {"0": ("default_pg", range(2))}, status={0: (5, 4, 3)})
    document["pg_status"] |= {"x": {}, "1": 7}
    (status,) = _dump(read_text(as_pickle(document), "dump")).statuses
    assert (status.enqueued, status.started, status.completed) == (5, 4, 3)


def test_a_group_without_ranks_and_an_entry_without_a_group(read_text: Read) -> None:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": {"a": 1}}}
    document = {**dump([entry("allreduce", 1)], {}), "pg_config": groups}
    del document["entries"][0]["process_group"], document["entries"][0]["pg_id"]
    document["entries"][0] |= {"duration_ms": 1.5}
    (trace,) = read_text(as_json(document), "dump")
    assert trace.groups.to_pylist()[0]["size"] is None
    (row,) = trace.comm_records.to_pylist()
    assert (row["collective"], row["group_name"]) == ("allreduce", None)
    assert _dump([trace]).entries.column("dur_ns").to_pylist() == [1_500_000]


@pytest.mark.parametrize(
    ("said", "ns"), [(1.5, 1_500_000), (float("nan"), None), (-1, None), (True, None), ("1", None)]
)
def test_durations_are_milliseconds(said: Any, ns: int | None) -> None:
    assert flight_recorder_entry._duration(said) == ns


# -- DeepSpeed's logger


def test_json_of_the_logger_with_values_of_other_kinds(read_text: Read) -> None:
    good = {"count": "3", "total_latency_ms": 6.0, "avg_latency_ms": 2.0, "msg_size_bytes": 1024}
    document = {"summary": {"all_reduce": {"1024": good, "2048": "lost"}, "broadcast": 7}, "metadata": {"rank": "1"}}
    (trace,) = read_text(json.dumps(document), "comms.json")
    assert isinstance(trace.witness, CommsLogger)
    assert [(row["op"], row["size_bytes"], row["count"]) for row in trace.witness.summary.to_pylist()] == [
        ("all_reduce", 1024, 3)
    ]
    with pytest.raises(InputError, match="is damaged JSON"):
        read_text(json.dumps(document)[:-1], "comms.json")


# -- profilers of NCCL


def _profiled(traces: list[RankTrace]) -> ProfilerWitness:
    witness = traces[0].witness
    assert isinstance(witness, ProfilerWitness)
    return witness


def test_lines_of_inspector_without_a_call_or_a_time(read_text: Read) -> None:
    header = {
        "header": {"id": "0xbeef", "rank": 2, "n_ranks": 8, "nnodes": 2},
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": "h", "pid": 7, "dump_timestamp_us": 10**15},
    }
    call = {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 64, "coll_exec_time_us": 5}
    text = "\n\n".join(json.dumps({**header, "coll_perf": said}) for said in (call, {**call, "coll": 3}))
    (trace,) = read_text(text, "h.log")
    assert trace.comm_records.column("message_bytes").to_pylist() == [64]
    assert trace.health.quarantined == 1
    with pytest.raises(InputError, match=r"holds no call.*MIN_SIZE_BYTES"):
        read_text(json.dumps(header), "h.log")


def _comma(**more: Any) -> dict[str, Any]:
    said = {"comm_hash": "0xbeef", "name": "AllReduce", "cat": "COLL", "rank": 1, "pid": 7, "seq_num": 3}
    return {**said, "ts": 1.5, "child_dur": 2.25, "args": {"size": 64}, "proxyops": [{"peer": 3}, 7], **more}


def test_objects_of_comma_that_cannot_be_read_are_counted(read_text: Read) -> None:
    rows = [_comma(), _comma(cat="PROXY"), _comma(name=3), _comma(ts=True, child_dur="long", args=None)]
    text = ",\n".join(json.dumps(row) for row in rows) + '\n]\n{"name": "cut'
    (trace,) = read_text(text, "comma.json")
    assert [(row["ts_ns"], row["dur_ns"], row["message_bytes"]) for row in trace.comm_records.to_pylist()] == [
        (1500, 2250, 64),
        (None, None, None),
    ]
    assert trace.health.quarantined == 2
    assert "2 rows cannot be read" in trace.health.notes


def test_a_proxy_without_a_peer_says_nothing(read_text: Read) -> None:
    call = {"name": "AllReduce", "cat": "COLL", "ph": "b", "pid": 7, "ts": 1, "args": {"CommHash": 5, "SeqNum": 1}}
    proxy = {"name": "Send", "cat": "PROXY", "ph": "b", "pid": 7, "ts": 2}
    rows = [call, {**proxy, "args": {"Peer": 4}}, {**proxy, "args": {"Peer": "x"}}, {**call, "ph": "e"}]
    traces = read_text("[\n" + ",\n".join(json.dumps(row) for row in rows), "nccl_trace.txt")
    assert [row["network_peers"] for row in _profiled(traces).measured.to_pylist()] == [[4]]


# -- execution traces and Chakra


def _values(*values: Any, types: list[str] | None = None) -> dict[str, Any]:
    return {"values": list(values), "types": types or ["String"] * len(values)}


GROUPS_NODE = "## process_group:init ##"


@pytest.mark.parametrize("text", ["[", "[" * 100_000, 7, "{}"])
def test_groups_that_cannot_be_read_are_none(text: Any) -> None:
    assert execution_trace.groups([{"name": GROUPS_NODE, "inputs": _values(text)}, 7, {"name": "x"}]) == []


def test_groups_say_what_they_can() -> None:
    said = [{"pg_name": "0", "ranks": [], "group_size": "2"}, {"pg_name": "1", "ranks": "all"}, 7]
    found = execution_trace.groups([{"name": GROUPS_NODE, "inputs": _values(json.dumps(said))}])
    assert [(group.name, group.size, group.ranks) for group in found] == [("0", 2, (0, 1)), ("1", None, None)]


def _call(**said: Any) -> dict[str, Any]:
    values = {"collective_name": "allreduce", "pg_size": 4, **said}
    return {"id": 5, "name": "record_param_comms", "attrs": [{"name": k, "value": v} for k, v in values.items()] + [7]}


def test_calls_that_cannot_be_are_left_out() -> None:
    nodes = [
        _call(in_split_size="[1, 2]", out_split_size="[1,"),
        _call(collective_name=""),
        {**_call(), "id": "x"},
        {"id": 6, "name": "record_param_comms", "inputs": _values("a")},
        {"id": 7, "name": "record_param_comms", "inputs": 7},
    ]
    (call,) = execution_trace.calls(nodes, [])
    assert (call.node, call.group_size, call.in_split, call.out_split) == (5, 4, (1, 2), None)


def test_schemas_of_2022_keep_types_beside_the_values() -> None:
    tensor = [1, 2, 0, 1024, 2, "cuda:0"]
    node = {
        "id": 9,
        "name": "record_param_comms",
        "inputs": [[tensor], 3, 77, 1, "allreduce", [], [], 4],
        "input_types": ["GenericList[Tensor(c10::BFloat16)]", "Int", "Int", "Int", "String", "", "", "Int"],
        "outputs": [],
        "output_types": [],
    }
    (call,) = execution_trace.calls([node], [])
    assert (call.collective, call.rank, call.seq, call.group_size) == ("allreduce", 1, 3, 4)
    assert (call.in_nelems, call.out_nelems, call.dtype) == (1024, None, "c10::BFloat16")


def test_what_is_no_protobuf_and_no_object(read_text: Read) -> None:
    assert not chakra.sniff(b"\xff" * 20)
    assert not chakra.sniff(b"\x80")
    with pytest.raises(InputError, match=r"is damaged JSON|is no JSON object"):
        chakra._json(b"[1]", "x")
    with pytest.raises(InputError, match="is damaged JSON"):
        chakra._json(b"[1", "x")


# -- NCCL's logs


def _nccl(*messages: str, thread: int = 101) -> str:
    return "\n".join(f"a:100:{thread} [0] NCCL INFO {text}" for text in messages)


MADE = "ncclCommInitRank comm 0x50 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1000 commId 0xbeef - Init "


@pytest.mark.parametrize(
    "torn",
    [
        "ncclCommInitRank comm 0x50 rank 0 nra COMPLETE",
        "AllReduce: opCount 0 sendbuff 0x7f recvb",
        "AllReduce: opCount ffffffffffffffff sendbuff 0x7f recvbuff 0x8f count 9223372036854775808 datatype 7 op 0 "
        "root 0 comm 0x50 [nranks=1] stream 0x55",
        "comm 0x50 rank 0 nRanks 1 nNodes",
        "37 Bytes -> Algo",
        "P2P Chunksize set",
        "MNNVL busId 0x1 fabric UUID",
        "Pattern 4, crossNic",
        "Using network",
        "NCCL_ALGO set by environment to ",
    ],
)
def test_a_message_that_is_not_whole_is_counted(read_text: Read, torn: str) -> None:
    (trace,) = read_text(_nccl(MADE + "COMPLETE", torn), "nccl.log")
    assert trace.health.dropped == (0 if torn.endswith("to ") else 1)
    assert trace.comm_records.num_rows == 0


def test_what_a_thread_says_while_it_makes_a_communicator_is_of_that_one(read_text: Read) -> None:
    said = (
        "P2P Chunksize set to 524288",
        "NVLS multicast support is available on dev 0",
        "NVLS multicast support is av",
        "Pattern 4, crossNic 0, nChannels 16, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1",
        "Pattern 3, crossNic 0, nChannels 16, bw 20.000000/20.000000, type SYS/SYS, sameChannels 1",
        "comm 0x99 rank 0 nRanks 1 nNodes 1 localRanks 1 localRank 0 MNNVL 0",
        "no gfx here",
    )
    text = "\n".join([_nccl(MADE + "START", *said, MADE + "COMPLETE"), _nccl(*said[:4], thread=999)])
    (trace,) = read_text(text, "nccl.log")
    assert isinstance(trace.witness, NcclLog)
    (comm,) = trace.witness.communicators.to_pylist()
    assert (comm["p2p_chunk_bytes"], comm["nvls"], comm["path"], comm["nodes"]) == (524288, True, "NVL", None)
    assert trace.health.dropped == 2  # the halves


def test_calls_of_a_communicator_that_was_not_announced_are_kept(read_text: Read) -> None:
    call = (
        "AllReduce: opCount 1 sendbuff 0x7f recvbuff 0x8f count 16 datatype 7 op 0 root 0 comm 0x77 [nranks=2] "
        "stream (nil)"
    )
    destroyed = "comm 0x66 rank 0 nranks 1 cudaDev 0 busId 1000 - Destroy COMPLETE"
    (trace,) = read_text(_nccl(MADE + "COMPLETE", call, destroyed), "nccl.log")
    (row,) = trace.comm_records.to_pylist()
    assert (row["collective"], row["in_nelems"], row["group_size"], row["seq"]) == ("all_reduce", 16, 2, 1)
    assert isinstance(trace.witness, NcclLog)
    assert trace.witness.communicators.column("group").to_pylist() == ["0xbeef"]


def test_a_process_whose_rank_nothing_tells_has_none(read_text: Read) -> None:
    calls = "AllReduce: opCount 1 sendbuff 0x7f recvbuff 0x8f count 16 datatype 7 op 0 root 0 comm 0x77 [nranks=2] "
    traces = read_text("\n".join([_nccl(MADE + "COMPLETE"), f"b:9:9 [1] NCCL INFO {calls}stream 0x1"]), "nccl.log")
    assert {(trace.identity.host, trace.identity.rank) for trace in traces} == {("a", 0), ("b", None)}


def test_connections_between_unknown_ends_are_no_links(read_text: Read) -> None:
    channel = "Channel 00/0 : 5[0] -> 6[1] via P2P/IPC"
    (trace,) = read_text("\n".join([_nccl(channel, thread=999), _nccl(MADE + "COMPLETE")]), "nccl.log")
    assert isinstance(trace.witness, NcclLog)
    assert trace.witness.links.num_rows == 0


def test_merged_ports_that_cannot_be_read_are_no_device() -> None:
    found = nccl_log_lines.devices("IB", b"[0]={torn} [1]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}")
    assert [(device.index, device.name) for device in found] == [(1, "mlx5_0")]


# -- Kineto


def test_groups_of_the_header_in_other_forms(read_text: Read) -> None:
    group = {"pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]}
    made = three_steps()
    made.header["distributedInfo"]["pg_config"] = {"7": group, "8": 5}
    (trace,) = read_text(made.text())
    assert [(row["name"], row["size"]) for row in trace.groups.to_pylist() if row["declared"]] == [("7", 4)]
    made.header["distributedInfo"]["pg_config"] = [{"pg_name": "7", **group}, 5, {"pg_name": {"a": 1}, **group}]
    (trace,) = read_text(made.text())
    assert [row["name"] for row in trace.groups.to_pylist() if row["declared"]] == ["7"]
    assert "2 entries of pg_config cannot be read" in trace.health.notes


@pytest.mark.parametrize(
    ("said", "rank"), [("{'rank': 3, 'world_size': 4}", 3), ('{"rank": 3}', 3), ("{'rank': ", None), ("(3", None)]
)
def test_information_on_the_job_that_is_text(read_text: Read, said: str, rank: int | None) -> None:
    made = three_steps()
    made.header["distributedInfo"] = said
    for event in made.events:
        event.get("args", {}).pop("Rank", None)
        event.get("args", {}).pop("Process Group Ranks", None)
    assert read_text(made.text(), "trace.json")[0].identity.rank == rank


def test_elements_that_are_no_events_are_counted(read_text: Read) -> None:
    made = three_steps()
    events = [*made.events[:5], 7, "x", [], None, *made.events[5:]]
    (trace,) = read_text(json.dumps({**made.header, "traceEvents": events}))
    (sound,) = read_text(made.text())
    assert trace.gpu_events.to_pylist() == sound.gpu_events.to_pylist()
    assert "4 elements of the event array are no events" in trace.health.notes


def test_arguments_that_are_no_object_say_nothing(read_text: Read) -> None:
    made = three_steps()
    made.events[1]["args"] = [1, 2]
    last = made.events[-1]["args"]
    last |= {"Process Group Ranks": None, "Input Dims": 7}
    (trace,) = read_text(made.text())
    assert trace.gpu_events.num_rows == 24
    assert trace.comm_records.to_pylist()[-1]["group_name"] == "0"


def test_a_comma_inside_a_time_does_not_shift_the_others(read_text: Read) -> None:
    made = TraceMaker()
    for number in range(3):
        made.kernel("gemm", 100.0 + 10 * number, 5.0)
    made.events[3]["ts"] = "1,1"
    (trace,) = read_text(made.text())
    whole_times = [row["ts_ns"] for row in trace.gpu_events.to_pylist()]
    assert whole_times[0] == 100_000
    assert whole_times[-1] == 120_000
    assert len(whole_times) == 2


def test_a_window_that_ends_at_no_time_has_no_end(read_text: Read) -> None:
    made = three_steps()
    for name, ts in (("Iteration Start: PyTorch Profiler", "?"), ("Record Window End", "?")):
        made.events.append({"ph": "i", "name": name, "pid": "Traces", "tid": "Trace", "ts": ts, "s": "g"})
    (trace,) = read_text(made.text())
    (sound,) = read_text(three_steps().text())
    assert trace.steps.to_pylist() == sound.steps.to_pylist()
    assert "window_ns" not in trace.metadata
    assert trace.health.notes == sound.health.notes


def test_names_that_never_repeat_do_not_fill_the_memory() -> None:
    from parsers.kineto_select import Choice

    class Small(Choice):
        _CAPACITY = 3

    asked: list[str] = []

    def choose(name: str) -> int:
        asked.append(name)
        return len(name)

    choices = Small(choose)
    assert [choices[name] for name in ("a", "bb", "a", "ccc", "dddd", "a")] == [1, 2, 1, 3, 4, 1]
    assert asked == ["a", "bb", "ccc", "dddd", "a"]
    assert len(choices) <= 3


@pytest.mark.parametrize(
    ("rank", "world", "believed"),
    [(-3, 4, (0, 4)), (2, 10**9, (2, None)), (10**9, 10**10, (None, None))],  # the first: by its place in its groups
)
def test_a_rank_that_no_job_has_is_not_believed(
    read_text: Read, rank: int, world: int, believed: tuple[int | None, int | None]
) -> None:
    made = three_steps()
    made.header["distributedInfo"] |= {"rank": rank, "world_size": world, "pg_config": []}
    (trace,) = read_text(made.text())
    assert (trace.identity.rank, trace.identity.world_size) == believed


def test_a_long_tail_behind_the_document_is_counted(read_text: Read, small_blocks: None) -> None:
    made = three_steps()
    (trace,) = read_text(made.text() + " x" * 3000)
    assert trace.gpu_events.num_rows == 24
    assert "5999 bytes after the end of the document were not read" in trace.health.notes


# -- files


def test_witnesses_without_a_timeline_are_given_in_order(tmp_path: Path) -> None:
    for number in (10, 2):
        (tmp_path / f"nccl.{number}.log").write_text(_nccl(MADE + "COMPLETE"))
    (tmp_path / "dump_0").write_bytes(as_pickle(dump([entry("allreduce", 1)], {"0": ("default_pg", range(2))})))
    found = [Path(path).name for path in expand([str(tmp_path)]).paths]
    assert found == ["dump_0", "nccl.2.log", "nccl.10.log"]


def test_a_file_that_may_not_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text("{}")

    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refused)
    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(InputError, match=r"trace.json: cannot be opened \(Permission denied\)"), open_source(path):
        pass


def test_a_url_names_a_trace_that_is_recognised_by_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    data = three_steps().text().encode()
    fsspec = SimpleNamespace(open=lambda name, mode, compression: SimpleNamespace(open=lambda: io.BytesIO(data)))
    real = importlib.import_module
    monkeypatch.setattr(
        "parsers.source.importlib.import_module", lambda name: fsspec if name == "fsspec" else real(name)
    )
    (trace,) = read("mem://bucket/rank0")
    assert (trace.path, trace.format, trace.gpu_events.num_rows) == ("mem://bucket/rank0", "kineto", 24)


def test_a_store_that_cannot_be_opened_or_listed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise ValueError("Protocol not known: mem")

    real = importlib.import_module
    absent = {"fsspec": SimpleNamespace(open=refused), "fsspec.core": SimpleNamespace(url_to_fs=refused)}
    monkeypatch.setattr(importlib, "import_module", lambda name: absent.get(name) or real(name))
    with pytest.raises(InputError, match=r"mem://a: cannot be opened \(Protocol not known: mem\); pip install"):
        open_source("mem://a")
    with pytest.raises(InputError, match=r"mem://a: cannot be listed \(Protocol not known: mem\); pip install"):
        expand(["mem://a"])


@pytest.mark.parametrize(("kind", "pack"), [("zstd", zstandard.ZstdCompressor().compress), ("xz", lzma.compress)])
def test_a_damaged_frame_gives_what_came_before_it(tmp_path: Path, kind: str, pack: Callable[[bytes], bytes]) -> None:
    rng = random.Random(5)
    path = tmp_path / "file"
    first, second = rng.randbytes(50_000), bytearray(pack(rng.randbytes(50_000)))
    second[3] ^= 0xFF  # of the second frame's magic number
    path.write_bytes(pack(first) + bytes(second))
    with open_source(path) as source:
        found = b"".join(iter(lambda: _some(source), b""))
    assert found == first
    assert [(fault.message.split(" (")[0], fault.cut) for fault in source.faults] == [(f"{kind} data damaged", True)]


def _some(source: Source) -> bytes:
    buffer = memoryview(bytearray(4096))
    return bytes(buffer[: source.readinto(buffer)])


def test_an_event_that_the_decoder_cannot_take_is_lost_alone(read_text: Read) -> None:
    made = three_steps()
    texts = [json.dumps(event) for event in made.events]
    deep = '{"ph": "X", "cat": "kernel", "name": "n", "args": ' + "[" * 2000 + "]" * 2000 + "}"
    damaged = ", ".join([*texts[:40], "{,}", deep, *texts[40:]])
    header = json.dumps(made.header)[:-1]
    (trace,) = read_text(f'{header}, "traceEvents": [{damaged}]}}')
    (sound,) = read_text(made.text())
    assert trace.gpu_events.select(["name", "ts_ns"]).to_pylist() == (
        sound.gpu_events.select(["name", "ts_ns"]).to_pylist()
    )
    assert trace.health.dropped >= 1
    assert any(note.startswith("events that cannot be read") for note in trace.health.notes)


@pytest.mark.parametrize("size", [5 << 20, 200])
def test_a_header_whose_end_is_not_found_is_looked_past(read_text: Read, size: int) -> None:
    made = three_steps()
    damaged = '{"deviceProperties": [{"a": ' + "x" * size + ', "traceEvents": ' + json.dumps(made.events) + "}"
    (trace,) = read_text(damaged)
    assert trace.gpu_events.num_rows == 24
    assert any("a damaged header" in note for note in trace.health.notes)


def test_floats_and_large_types_of_chakra() -> None:
    said = chakra_nodes._attribute(b"\x0a\x01a" + b"\x1d" + struct.pack("<f", 2.5))
    assert said == {"a": 2.5}


@pytest.mark.parametrize(("dims", "types"), [(7, "TensorList"), ({"a": 1}, 7), ("[1", None), ([[8], 3], ["Int", 5])])
def test_shapes_and_types_of_another_kind_say_nothing(read_text: Read, dims: Any, types: Any) -> None:
    made = three_steps()
    operator = next(event for event in made.events if event["name"] == "c10d::allreduce_")
    operator["args"] = {"Input Dims": dims, "Input type": types}
    (trace,) = read_text(made.text())
    rows = [row for row in trace.comm_records.to_pylist() if row["name"] == "c10d::allreduce_"]
    assert rows[0]["input_dims"] == ([[8], []] if isinstance(dims, list) else None)
    assert rows[0]["input_types"] == (["Int", "5"] if isinstance(types, list) else None)
    assert rows[1]["input_dims"] == [[1024], [], []]


@pytest.mark.usefixtures("small_blocks")
def test_damage_in_front_of_the_end_of_a_block_loses_itself_alone(read_text: Read) -> None:
    for size in range(0, 700, 7):
        made = three_steps()
        made.events.append({"ph": "X", "cat": "unknown", "name": "x" * size, "pid": 1, "tid": 1, "ts": 1, "dur": 1})
        text = made.text()
        at = text.rindex('"dur"')
        (trace,) = read_text(text[:at] + '"bad": inf, ' + text[at:])
        assert trace.gpu_events.num_rows == 24
        assert trace.health.events == 88
        assert (trace.health.repaired, trace.health.dropped, trace.health.complete) == (1, 0, True)


@pytest.mark.parametrize("odd", [2**70, -(2**70), 300, 2])
def test_a_flag_that_is_neither_yes_nor_no_says_nothing(read_text: Read, odd: int) -> None:
    made = three_steps()
    records = [event for event in made.events if event["name"] == "record_param_comms"]
    records[0]["args"]["Is asynchronized op"] = odd
    records[1]["args"]["Is asynchronized op"] = 1
    (trace,) = read_text(made.text())
    rows = [row for row in trace.comm_records.to_pylist() if row["name"] == "record_param_comms"]
    assert [row["is_async"] for row in rows[:2]] == [None, True]
    assert len(rows) == len(records)


def test_more_processes_than_a_node_runs_are_an_error_of_the_report() -> None:
    owners = Owners("a.sqlite")
    many = (np.arange(2**15, dtype=np.int64) + 7) << PROCESS_SHIFT
    assert owners.numbers(many).tolist() == list(range(2**15))
    assert (owners.number(7 + 5), len(owners.values)) == (5, 2**15)
    with pytest.raises(InputError, match=r"a\.sqlite.*names more than 32,768 processes"):
        owners.number(3)

"""NCCL Inspector, the example profiler, CoMMA."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heuristics.label import label
from parsers import nccl_inspector, nccl_profiler, read
from parsers.errors import InputError
from parsers.profiled import ProfilerWitness
from parsers.tables import RankTrace

Read = Callable[..., list[RankTrace]]


def _witness(trace: RankTrace) -> ProfilerWitness:
    assert isinstance(trace.witness, ProfilerWitness)
    return trace.witness


def _context(version: str = "v4.0", pid: int = 7, dumped_us: int = 1_700_000_000_000_000) -> dict[str, Any]:
    return {
        "header": {"id": "0xbeef", "rank": 2, "n_ranks": 8, "nnodes": 2, "comm_name": "DP Group 0"},
        "metadata": {
            "inspector_output_format_version": version,
            "hostname": "h",
            "pid": pid,
            "dump_timestamp_us": dumped_us,
        },
    }


def _lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def _perf(op: str, seq: int, size: int = 1024, us: float = 5) -> dict[str, Any]:
    return {"coll_perf": {"coll": op, "coll_sn": seq, "coll_msg_size_bytes": size, "coll_exec_time_us": us}}


# -- Inspector


def test_a_line_gives_call_communicator_and_process(read_text: Read) -> None:
    (trace,) = read_text(_lines({**_context(), **_perf("AllGather", 3, us=5.5)}), "h-pid7.log")
    assert (trace.format, trace.identity.host, trace.identity.pid, trace.identity.rank) == (
        "nccl_inspector",
        "h",
        7,
        None,
    )
    (row,) = trace.comm_records.to_pylist()
    assert (row["collective"], row["seq"], row["message_bytes"], row["dtype"]) == ("all_gather", 3, 1024, None)
    # Nothing says when it began: at the latest, its duration before the dump.
    assert (row["dur_ns"], row["ts_ns"]) == (5500, 1_700_000_000_000_000_000 - 5500)
    (group,) = trace.groups.to_pylist()
    assert (group["name"], group["desc"], group["size"], group["ranks"]) == ("0xbeef", "DP Group 0", 8, None)
    witness = _witness(trace)
    assert (dict(witness.own_ranks), dict(witness.nodes)) == ({"0xbeef": 2}, {"0xbeef": 2})
    assert (witness.version, witness.sampled) == ("v4.0", True)


def test_the_message_is_one_ranks_argument(read_text: Read) -> None:
    calls = [{**_context(), **_perf(op, seq)} for seq, op in enumerate(("AllReduce", "AllGather", "ReduceScatter"))]
    (trace,) = read_text(_lines(*calls), "h-pid7.log")
    rows = label(trace).collectives.to_pylist()
    assert [(row["size_bytes"], row["sent_bytes"]) for row in rows] == [
        (1024, 2 * 7 * 1024 // 8),
        (8 * 1024, 7 * 1024),
        (8 * 1024, 7 * 1024),
    ]
    assert {row["dtype"] for row in rows} == {None}
    assert {row["in_nelems"] for row in rows} == {None}


def test_v4_3_lines_belong_to_the_header_before_them(read_text: Read) -> None:
    stats = {"coll_records": 1, "coll_dropped_since_last_dump": 512, "p2p_dropped_since_last_dump": 1}
    other = _context("v4.3")
    other["header"] = {**other["header"], "id": "0xcafe", "rank": 0, "n_ranks": 2}
    send = {"p2p_perf": {"p2p": "Send", "p2p_sn": 1, "p2p_peer": 1, "p2p_msg_size_bytes": 64, "p2p_exec_time_us": 2}}
    text = _lines({**_context("v4.3"), "dump_stats": stats}, _perf("AllReduce", 1), {**other, "dump_stats": {}}, send)
    (trace,) = read_text(text, "h-pid7.log")
    rows = trace.comm_records.to_pylist()
    assert [(row["collective"], row["group_name"], row["group_size"]) for row in rows] == [
        ("all_reduce", "0xbeef", 8),
        ("send", "0xcafe", 2),
    ]
    assert rows[1]["rank_arg"] == 1
    assert (trace.health.dropped, _witness(trace).dropped, _witness(trace).sampled) == (513, 513, False)


def test_the_verbose_form_says_when_the_kernel_began(read_text: Read) -> None:
    record = {**_context(), **_perf("AllReduce", 1)}
    times = {"coll_start_ts": 1000, "kernel_events": [{"kernel_start_ts": 1010}, {"kernel_start_ts": 1005}]}
    record["coll_perf"]["event_trace_ts"] = times
    (trace,) = read_text(_lines(record), "h-pid7.log")
    assert trace.comm_records.column("ts_ns").to_pylist() == [1_005_000]


def test_a_call_that_is_written_twice_counts_once(read_text: Read) -> None:
    record = {**_context(), **_perf("AllReduce", 1)}
    assert read_text(_lines(record, record), "x.log")[0].comm_records.num_rows == 1


def test_processes_in_one_file_are_apart_and_bad_lines_counted(read_text: Read) -> None:
    text = (
        _lines({**_context(pid=1), **_perf("AllReduce", 1)})
        + "{cut\n"
        + _lines({**_context(pid=2), **_perf("AllReduce", 1)})
    )
    traces = read_text(text, "x.log")
    assert [trace.identity.pid for trace in traces] == [1, 2]
    assert traces[0].health.quarantined == 1


def test_prometheus_metrics_are_refused_with_the_way_out(read_text: Read) -> None:
    with pytest.raises(InputError, match="metrics for Prometheus"):
        read_text('nccl_bus_bandwidth_gbs{version="v5.1",nranks="4"} 678.2\n', "x.prom")


def test_real_inspector_lines(shared: Path) -> None:
    folder = shared / "data/formats/nccl_inspector"
    (trace,) = read(folder / "inspector_v4.0_real_line.jsonl")
    row = label(trace).collectives.to_pylist()[0]
    assert (trace.identity.host, trace.identity.pid) == ("nanogpt-nccl-test-worker-0", 48)
    assert (row["primitive"], row["group_size"], row["seq"], row["dur_ns"]) == ("all_reduce", 3, 8995, 5_663_000)
    assert (row["size_bytes"], row["comms_id"]) == (2_360_832, 0xAD56C683B0C4EF)
    # 2,360,832 bytes in 5663 µs, and 2(n-1)/n of that, are the bandwidths that the line itself states.
    measured = _witness(trace).measured.to_pylist()[0]
    assert row["size_bytes"] / row["dur_ns"] == pytest.approx(measured["algbw_gbps"], rel=1e-5)
    assert row["sent_bytes"] / row["dur_ns"] == pytest.approx(measured["busbw_gbps"], rel=1e-5)
    assert [t.identity.pid for t in read(folder / "inspector_v4.0_readme_examples.jsonl")] == [1639453, 438776]
    (newer,) = read(folder / "inspector_v4.3_synthetic.jsonl")
    assert newer.comm_records.column("collective").to_pylist() == ["reduce_scatter", "send"]


# -- the example profiler


def _row(name: str, cat: str, ph: str, args: str = "", ts: float = 10.5) -> str:
    more = f', "args": {{{args}}}' if args else ""
    return f'{{"name": "{name}", "cat": "{cat}", "ph": "{ph}", "id": 0, "pid": 5, "tid": 1, "ts": {ts}{more}}},'


COLL = (
    '"SeqNum": 4, "CommHash": 48879, "Rank": 1, "Count": 256, "Datatype": "ncclFloat16", "Algorithm": "RING", '
    '"nChannels": 2'
)


def test_a_collective_takes_its_time_from_the_gpus_clock(read_text: Read) -> None:
    text = "\n".join(
        [
            "[",
            _row("Group", "GROUP", "b"),
            _row("AllReduce", "COLL", "b", COLL),
            _row("KernelCh", "GPU", "b", '"Channel": 0, "StartGpuClk": 1000, "StopGpuClk": 5000'),
            _row("KernelCh", "GPU", "b", '"Channel": 1, "StartGpuClk": 900, "StopGpuClk": 4000'),
            _row("ScheduleSend", "PROXY", "b", '"Channel": 0, "Peer": 3'),
            _row("AllReduce", "COLL", "e"),
            "{}]",
        ]
    )
    (trace,) = read_text(text, "trace.txt")
    (row,) = trace.comm_records.to_pylist()
    assert (row["collective"], row["in_nelems"], row["dtype"], row["seq"]) == ("all_reduce", 256, "ncclFloat16", 4)
    assert (row["group_name"], row["comms_id"], row["rank_arg"]) == ("0xbeef", 0xBEEF, 1)
    assert (row["ts_ns"], row["dur_ns"]) == (10_500, 4100)
    (measured,) = _witness(trace).measured.to_pylist()
    assert (measured["algorithm"], measured["channels"], measured["network_peers"]) == ("RING", 2, [3])
    assert trace.identity.pid == 5


def test_without_gpu_rows_the_duration_is_not_known(read_text: Read) -> None:
    text = "\n".join(["[", _row("AllReduce", "COLL", "b", COLL), _row("AllReduce", "COLL", "e", ts=99.0), "{}]"])
    assert read_text(text, "trace.txt")[0].comm_records.column("dur_ns").to_pylist() == [None]


def test_bare_words_and_curly_quotes_are_mended(read_text: Read) -> None:
    send = '"CommHash": 0xbeef, "Rank": 1, "Peer": 0, "Count": 8, "Datatype": ncclFloat32'
    text = "\n".join(["[", _row("Send", "P2P", "b", send).replace('{"name"', '{“name"'), "{}]"])
    with pytest.raises(InputError, match="no collective and no message"):
        read_text(text, "trace.txt")  # a hash in quotes is no number: not believed
    text = text.replace("0xbeef", "48879")
    (trace,) = read_text(text, "trace.txt")
    assert trace.comm_records.to_pylist()[0]["dtype"] == "ncclFloat32"


def test_rows_that_cannot_be_mended_are_counted(read_text: Read) -> None:
    broken = '{"name": "Send", "cat": "P2P", "ph": "b", "id": 0, "e", "id": 4, "ts": 2},'
    text = "\n".join(["[", _row("AllReduce", "COLL", "b", COLL), broken, _row("AllReduce", "COLL", "e"), "{}]"])
    (trace,) = read_text(text, "trace.txt")
    assert (trace.comm_records.num_rows, trace.health.quarantined) == (1, 1)


def test_real_traces_of_the_example_profiler(shared: Path) -> None:
    folder = shared / "data/formats"
    (old,) = read(folder / "nccl_profiler_plugin/example_profiler_2.26_README_trace.txt")
    row = label(old).collectives.to_pylist()[0]
    assert (row["primitive"], row["size_bytes"], row["dtype"], row["comms_id"]) == (
        "all_reduce",
        131_072,
        "float32",
        673864846479792718,
    )
    assert _witness(old).measured.to_pylist()[0]["network_peers"] == [0, 2]
    (new,) = read(folder / "nccl_profiler_plugin/example_profiler_2.28_README_trace.txt")
    # StopGpuClk - StartGpuClk of its channels, as the file has them
    assert new.comm_records.column("dur_ns").to_pylist() == [1756135989732831232 - 1756135989724672000]
    (messages,) = read(folder / "malformed/nccl_example_profiler_p2p_hex_bareword.json")
    rows = label(messages).collectives.to_pylist()
    assert [row["direction"] for row in rows].count("send") == 4
    assert {row["size_bytes"] for row in rows} == {4 * 268_435_456}


# -- CoMMA


def test_comma_objects(read_text: Read, shared: Path) -> None:
    (trace,) = read(shared / "data/formats/nccl_profiler_plugin/comma_doc_sample.json")
    (row,) = trace.comm_records.to_pylist()
    assert (row["collective"], row["message_bytes"], row["dur_ns"], row["seq"]) == (
        "all_reduce",
        20_971_520,
        1_456_000,
        57,
    )
    assert row["comms_id"] == 0x58AECEBABB9E37AF
    assert _witness(trace).measured.to_pylist()[0]["network_peers"] == [16]


def test_content_tells_the_formats() -> None:
    assert nccl_inspector.sniff(b'{"header":{"id":"0x1"},"metadata":{"inspector_output_format_version":"v4.0"}}\n')
    assert not nccl_inspector.sniff(b'{"header": {"title": "an article"}}')
    assert nccl_profiler.sniff(b'[\n{"name": "Group API", "cat": "GROUP_API", "ph": "b", "id": 0}')
    assert not nccl_profiler.sniff(b'[{"name": "aten::add", "cat": "cpu_op", "ph": "X"}]')

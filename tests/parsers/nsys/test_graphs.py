"""Work that was recorded into CUDA graphs and replayed from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from heuristics.label import label
from parsers import read
from tests.parsers.nsys.export import Export, grouped

PID = 500
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"
MESSAGES = [("ncclSend", {"comm": 5, "bytes": 8, "peer": 1}), ("ncclRecv", {"comm": 5, "bytes": 8, "peer": 1})]


def recorded(export: Export, *, capture: bool = True) -> int:
    """A capture of one all-reduce and one exchange of messages: nodes 11 and 12, instantiated as 21 and 22."""
    owner = export.process(PID)
    said = {"comm": 5, "nranks": 2, "rank": 0, "device": 0}
    export.nccl_range(owner, PID, "ncclCommInitRank", 10, 90, **said)
    if capture:
        export.call(owner, PID, "cudaStreamBeginCapture_v10000", 900, 910, export.next_correlation(owner))
    end = grouped(export, owner, PID, 1000, [("ncclAllReduce", {"comm": 5, "bytes": 1024, "redop": 0})], [])
    after = grouped(export, owner, PID, 10_000, MESSAGES, [])
    if capture:
        export.call(owner, PID, "cudaStreamEndCapture_v10000", after + 10, after + 20, export.next_correlation(owner))
    for node, at in ((11, end - 1000), (12, after - 1000)):
        event = {"eventClass": 1, "globalTid": owner | PID}
        export.add("CUDA_GRAPH_NODE_EVENTS", start=at, end=at + 5, graphNodeId=node, originalGraphNodeId=None, **event)
        export.add(
            "CUDA_GRAPH_NODE_EVENTS", start=30_000, end=30_001, graphNodeId=node + 10, originalGraphNodeId=node, **event
        )
    return owner


def replay(export: Export, owner: int, times: int) -> None:
    for number in range(times):
        start = 100_000 + 50_000 * number
        launch = export.next_correlation(owner)
        export.call(owner, PID, "cudaGraphLaunch_v10000", start - 20_000, start - 15_000, launch)
        export.kernel(owner, ALL_REDUCE, start, start + 9000, node=21, correlation=launch)
        export.kernel(owner, SEND_RECV, start + 10_000, start + 19_000, node=22, correlation=launch)


@pytest.mark.parametrize("capture", [True, False], ids=["with-capture-calls", "nodes-alone"])
def test_replayed_kernels_have_the_calls_that_recorded_them(capture: bool, tmp_path: Path) -> None:
    export = Export()
    replay(export, recorded(export, capture=capture), 3)
    (trace,) = read(export.sqlite(tmp_path / "report.sqlite"))
    rows = trace.comm_records.select(["layer", "name", "message_bytes", "group_name", "gpu_event"]).to_pylist()
    assert [row["layer"] for row in rows] == ["gpu_nvtx"] * 6
    assert [(row["name"], row["message_bytes"]) for row in rows] == [
        ("ncclAllReduce", 1024),
        ("ncclGroupEnd", None),
    ] * 3
    assert {row["group_name"] for row in rows} == {"0x5"}
    assert [row["gpu_event"] for row in rows] == [0, 1, 2, 3, 4, 5]
    calls = label(trace).collectives.to_pylist()
    assert [call["primitive"] for call in calls] == ["all_reduce", "send_recv"] * 3
    assert [call["size_bytes"] for call in calls] == [1024, None] * 3
    assert [call["dur_ns"] for call in calls] == [9000] * 6
    assert {call["group_size"] for call in calls} == {2}


def test_calls_that_were_only_recorded_are_no_calls(tmp_path: Path) -> None:
    export = Export()
    owner = recorded(export)
    replay(export, owner, 1)
    grouped(
        export,
        owner,
        PID,
        400_000,
        [("ncclAllReduce", {"comm": 5, "bytes": 64, "redop": 0})],
        [{"name": ALL_REDUCE, "start": 500_000, "end": 501_000}],
    )
    calls = label(read(export.sqlite(tmp_path / "report.sqlite"))[0]).collectives.to_pylist()
    assert [(call["primitive"], call["size_bytes"]) for call in calls] == [
        ("all_reduce", 1024),
        ("send_recv", None),
        ("all_reduce", 64),
    ]


def test_a_graph_traced_as_a_whole_is_opaque_and_the_way_out_is_told(tmp_path: Path) -> None:
    export = Export()
    owner = recorded(export)
    for number in range(2):
        start = 100_000 + 50_000 * number
        launch = export.next_correlation(owner)
        export.call(owner, PID, "cudaGraphLaunch_v10000", start - 2000, start - 1000, launch)
        row = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": launch, "globalPid": owner}
        export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=start, end=start + 30_000, graphId=3, graphExecId=4, **row)
    (trace,) = read(export.sqlite(tmp_path / "report.sqlite"))
    assert trace.gpu_events.column("kind").to_pylist() == ["other"] * 2
    assert trace.gpu_events.column("name").to_pylist() == ["CUDA graph 3"] * 2
    assert trace.comm_records.num_rows == 0
    note = "2 launches of CUDA graphs hide the kernels in them: capture with --cuda-graph-trace=node"
    assert note in trace.health.notes

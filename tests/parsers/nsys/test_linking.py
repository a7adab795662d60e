"""Kernels and the calls of NCCL that they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from parsers import read
from tests.parsers.nsys.export import Export, grouped

PID = 500
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"


def links(export: Export, tmp_path: Path) -> tuple[list[tuple[str, int | None]], list[tuple[str, int | None]]]:
    """Calls and kernels in order of time, each with the number of its link, counted from 0 in order of the calls."""
    trace = read(export.sqlite(tmp_path / "report.sqlite"))[0]
    assert set(trace.comm_records.column("layer").to_pylist()) == {"nvtx"}
    calls = _pairs(trace.comm_records)
    kernels = _pairs(trace.gpu_events)
    seen = list(dict.fromkeys(link for _, link in calls + kernels if link is not None))
    return [(name, _number(link, seen)) for name, link in calls], [
        (name, _number(link, seen)) for name, link in kernels
    ]


def _pairs(table: pa.Table) -> list[tuple[str, int | None]]:
    rows = sorted(table.select(["ts_ns", "name", "external_id"]).to_pylist(), key=lambda row: row["ts_ns"])
    return [
        (row["name"].split("(")[0].removeprefix("ncclDevKernel_").split("_")[0], row["external_id"]) for row in rows
    ]


def _number(link: int | None, seen: list[int]) -> int | None:
    return None if link is None else seen.index(link)


def kernel(name: str, start: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "start": start, "end": start + 1000, **more}


@pytest.fixture
def export() -> Export:
    return Export()


def test_a_call_outside_of_a_group_encloses_its_launch(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    export.nccl_range(owner, PID, "ncclAllReduce", 1000, 9000, comm=1, bytes=8, redop=0)
    export.kernel(owner, ALL_REDUCE, 20_000, 21_000, tid=PID, at=5000)
    assert links(export, tmp_path) == ([("ncclAllReduce", 0)], [("AllReduce", 0)])


def test_the_work_of_a_group_is_launched_when_it_closes(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    grouped(export, owner, PID, 1000, [("ncclAllGather", {"comm": 1, "bytes": 8})], [kernel(ALL_GATHER, 50_000)])
    assert links(export, tmp_path) == ([("ncclAllGather", 0)], [("AllGather", 0)])


def test_nested_groups_are_one(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    export.nccl_range(owner, PID, "ncclGroupStart", 100, 200)
    end = grouped(export, owner, PID, 1000, [("ncclAllReduce", {"comm": 1, "bytes": 8})], [])
    end = grouped(export, owner, PID, end + 100, [("ncclAllGather", {"comm": 1, "bytes": 8})], [])
    export.nccl_range(owner, PID, "ncclGroupEnd", end + 100, end + 9000)
    export.kernel(owner, ALL_REDUCE, 50_000, 51_000, tid=PID, at=end + 500)
    export.kernel(owner, ALL_GATHER, 60_000, 61_000, tid=PID, at=end + 2500)
    assert links(export, tmp_path) == (
        [("ncclAllReduce", 0), ("ncclAllGather", 1)],
        [("AllReduce", 0), ("AllGather", 1)],
    )


def test_as_many_kernels_as_calls_are_matched_in_order(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    calls = [("ncclAllReduce", {"comm": number, "bytes": 8}) for number in (1, 1, 2)]
    grouped(export, owner, PID, 1000, calls, [kernel(ALL_REDUCE, 50_000 + 2000 * number) for number in range(3)])
    assert links(export, tmp_path) == (
        [("ncclAllReduce", 0), ("ncclAllReduce", 1), ("ncclAllReduce", 2)],
        [("AllReduce", 0), ("AllReduce", 1), ("AllReduce", 2)],
    )


def test_messages_fuse_into_one_kernel_per_communicator(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    calls = [
        ("ncclSend", {"comm": 1, "bytes": 8, "peer": 1}),
        ("ncclSend", {"comm": 2, "bytes": 8, "peer": 1}),
        ("ncclRecv", {"comm": 1, "bytes": 8, "peer": 1}),
        ("ncclRecv", {"comm": 2, "bytes": 8, "peer": 1}),
    ]
    grouped(export, owner, PID, 1000, calls, [kernel(SEND_RECV, 50_000), kernel(SEND_RECV, 60_000)])
    assert links(export, tmp_path) == (
        [("ncclSend", 0), ("ncclSend", 1), ("ncclRecv", 0), ("ncclRecv", 1)],
        [("SendRecv", 0), ("SendRecv", 1)],
    )


def test_small_calls_that_were_aggregated_share_their_kernel(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    calls = [("ncclAllReduce", {"comm": 1, "bytes": 8})] * 3
    grouped(export, owner, PID, 1000, calls, [kernel(ALL_REDUCE, 50_000)])
    assert links(export, tmp_path) == ([("ncclAllReduce", 0)] * 3, [("AllReduce", 0)])


def test_releases_that_run_everything_under_one_name(export: Export, tmp_path: Path) -> None:
    """NCCL 2.13 called other collectives SendRecv (NVIDIA/nccl#714), RCCL calls them Generic."""
    owner = export.process(PID)
    end = grouped(export, owner, PID, 1000, [("ncclAllGather", {"comm": 1, "bytes": 8})], [kernel(SEND_RECV, 50_000)])
    generic = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    grouped(export, owner, PID, end + 100, [("ncclAllReduce", {"comm": 1, "bytes": 8})], [kernel(generic, 60_000)])
    assert links(export, tmp_path) == (
        [("ncclAllGather", 0), ("ncclAllReduce", 1)],
        [("SendRecv", 0), ("Generic", 1)],
    )


def test_kernels_of_others_in_a_group_are_not_nccls(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    cat = "void at::native::CatArrayBatchedCopy<float>(float*)"
    grouped(
        export,
        owner,
        PID,
        1000,
        [("ncclAllReduce", {"comm": 1, "bytes": 8})],
        [kernel(cat, 40_000), kernel(ALL_REDUCE, 50_000)],
    )
    calls, kernels = links(export, tmp_path)
    assert calls == [("ncclAllReduce", 0)]
    assert [link for _, link in kernels] == [None, 0]


def test_copy_engine_collectives_are_copies_to_peers(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    grouped(export, owner, PID, 1000, [("ncclAllGather", {"comm": 1, "bytes": 8})], [])
    for number in range(3):
        correlation = export.copy(owner, 10, 50_000 + 1000 * number, 50_900 + 1000 * number, 8, dstDeviceId=number + 1)
        export.call(owner, PID, "cudaMemcpyAsync_v3020", 2400 + 50 * number, 2440 + 50 * number, correlation)
    calls, kernels = links(export, tmp_path)
    assert calls == [("ncclAllGather", 0)]
    assert [link for _, link in kernels] == [0, 0, 0]


def test_launches_of_another_thread_are_matched_in_order(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    for number in range(3):
        export.nccl_range(owner, PID, "ncclAllReduce", 1000 + 5000 * number, 2000 + 5000 * number, comm=1, bytes=8)
        export.kernel(
            owner, ALL_REDUCE, 50_000 + 5000 * number, 51_000 + 5000 * number, tid=PID + 9, at=2500 + 5000 * number
        )
    calls, kernels = links(export, tmp_path)
    assert calls == [("ncclAllReduce", 0), ("ncclAllReduce", 1), ("ncclAllReduce", 2)]
    assert [link for _, link in kernels] == [0, 1, 2]
    notes = read(tmp_path / "report.sqlite")[0].health.notes
    assert any("3 kernels were matched with their calls by their order alone" in note for note in notes)


@pytest.mark.parametrize("kernels", [2, 4])
def test_without_a_region_and_with_other_numbers_nothing_is_matched(
    export: Export, tmp_path: Path, kernels: int
) -> None:
    owner = export.process(PID)
    for number in range(3):
        export.nccl_range(owner, PID, "ncclAllReduce", 1000 + 5000 * number, 2000 + 5000 * number, comm=1, bytes=8)
    for number in range(kernels):
        export.kernel(owner, ALL_REDUCE, 50_000 + 5000 * number, 51_000 + 5000 * number, tid=PID + 9, at=2500)
    calls, found = links(export, tmp_path)
    assert {link for _, link in calls + found} == {None}


def test_work_that_begins_before_its_call_is_not_matched(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    export.nccl_range(owner, PID, "ncclAllReduce", 9000, 9500, comm=1, bytes=8)
    export.kernel(owner, ALL_REDUCE, 5000, 6000)
    calls, found = links(export, tmp_path)
    assert (calls, found) == ([("ncclAllReduce", None)], [("AllReduce", None)])


def test_a_group_whose_beginning_was_cut_off(export: Export, tmp_path: Path) -> None:
    """The first range of the window is the end of a group: it must not swallow what follows."""
    owner = export.process(PID)
    export.nccl_range(owner, PID, "ncclGroupEnd", 0, 5000)
    export.kernel(owner, ALL_GATHER, 9000, 9500, tid=PID, at=1000)
    grouped(export, owner, PID, 10_000, [("ncclAllReduce", {"comm": 1, "bytes": 8})], [kernel(ALL_REDUCE, 50_000)])
    calls, found = links(export, tmp_path)
    assert calls == [("ncclAllReduce", 0)]
    assert found == [("AllGather", None), ("AllReduce", 0)]


def test_ranges_that_the_profiler_did_not_close_contain_nothing(tmp_path: Path) -> None:
    """nsys 2023 ends ranges that were popped with a payload only when the capture ends."""
    export = Export(year=2023, payload=None)
    owner = export.process(PID)
    export.add("ANALYSIS_DETAILS", duration=900_000, startTime=5, stopTime=900_005)
    export.nccl_range(owner, PID, "ncclCommInitRankConfig", 100, 900_000)
    export.nccl_range(owner, PID, "ncclAllGather", 500, 900_000)
    grouped(export, owner, PID, 10_000, [("ncclAllReduce", {})], [kernel(ALL_REDUCE, 50_000)])
    calls, found = links(export, tmp_path)
    assert (calls, found) == ([("ncclAllReduce", 0)], [("AllReduce", 0)])
    notes = read(tmp_path / "report.sqlite")[0].health.notes
    assert "1 calls of NCCL were still open when the capture ended" in notes


def test_correlations_of_several_processes_are_kept_apart(export: Export, tmp_path: Path) -> None:
    for pid, domain, name in ((500, 1, "ncclAllReduce"), (600, 2, "ncclAllGather")):
        owner = export.process(pid, domain=domain)
        device = {500: 0, 600: 1}[pid]
        work = [kernel(ALL_REDUCE if pid == 500 else ALL_GATHER, 50_000, device=device)]
        grouped(export, owner, pid, 1000, [(name, {"comm": 1, "bytes": 8})], work)
    traces = read(export.sqlite(tmp_path / "report.sqlite"))
    assert [trace.identity.pid for trace in traces] == [500, 600]
    for trace, name in zip(traces, ("ncclAllReduce", "ncclAllGather"), strict=True):
        assert trace.comm_records.column("name").to_pylist() == [name]
        assert (
            trace.comm_records.column("external_id").to_pylist() == trace.gpu_events.column("external_id").to_pylist()
        )


def test_a_domain_number_means_another_domain_in_another_process(export: Export, tmp_path: Path) -> None:
    owner = export.process(500, domain=1)
    grouped(export, owner, 500, 1000, [("ncclAllReduce", {"comm": 1, "bytes": 8})], [kernel(ALL_REDUCE, 50_000)])
    other = export.process(600, domain=2)
    export.add("NVTX_EVENTS", start=10, end=900, eventType=59, text="solve", globalTid=other | 600, domainId=1)
    export.kernel(other, "solver_kernel", 100, 200, device=1)
    traces = read(export.sqlite(tmp_path / "report.sqlite"))
    assert traces[1].comm_records.num_rows == 0
    assert traces[1].cpu_marks.column("name").to_pylist() == ["solve"]


def test_nccls_own_threads_make_no_calls(export: Export, tmp_path: Path) -> None:
    """nsys's own tracing of NCCL (``-t nccl``) names calls without the prefix, and shows the proxy's operations."""
    owner = export.process(PID)
    payload = '{"commHash": 5, "commRank": 0, "count": 64, "dataType": "ncclFloat16", "seqNumber": 3}'
    row = {"eventType": 59, "domainId": 1, "jsonText": payload}
    export.add("NVTX_EVENTS", start=1000, end=2000, text="AllReduce", globalTid=owner | PID, **row)
    export.add("NVTX_EVENTS", start=5000, end=6000, text="Send", globalTid=owner | 777, **row)
    export.add("ThreadNames", globalTid=owner | 777, nameId=export.string("NCCL Progress 0"))
    export.kernel(owner, ALL_REDUCE, 20_000, 21_000, tid=PID, at=1500)
    (trace,) = read(export.sqlite(tmp_path / "report.sqlite"))
    columns = ["name", "group_name", "dtype", "in_nelems", "seq"]
    assert trace.comm_records.select(columns).to_pylist() == [
        {"name": "ncclAllReduce", "group_name": "0x5", "dtype": "ncclFloat16", "in_nelems": 64, "seq": 3}
    ]

"""PyTorch's own ranges, and the marks of frameworks."""

from __future__ import annotations

from pathlib import Path

import pytest

from heuristics.label import label
from parsers import read
from tests.parsers.nsys.export import Export, grouped

PID = 500
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_kernel"


@pytest.fixture
def export() -> Export:
    return Export()


def test_operators_around_nccl_stand_for_the_call(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    sizes = ", sizes = [[4096, 16], [1024, 16], [], []]"
    export.range(owner, PID, f"c10d::_allgather_base_, op_id = 5{sizes}", 4000, 20_000)
    export.range(owner, PID, "record_param_comms, op_id = 6", 4100, 19_000)
    export.range(owner, PID, "nccl:_all_gather_base, op_id = 7", 4200, 18_000)
    call = ("ncclAllGather", {"comm": 5, "bytes": 32_768})
    grouped(export, owner, PID, 5000, [call], [{"name": ALL_GATHER, "start": 50_000, "end": 51_000}])
    (trace,) = read(export.sqlite(tmp_path / "report.sqlite"))
    layers = [(row["layer"], row["name"]) for row in trace.comm_records.select(["layer", "name"]).to_pylist()]
    assert layers == [
        ("c10d", "c10d::_allgather_base_"),
        ("record_param_comms", "record_param_comms"),
        ("annotation", "nccl:_all_gather_base"),
        ("nvtx", "ncclAllGather"),
    ]
    assert trace.comm_records.column("input_dims").to_pylist()[0] == [[4096, 16], [1024, 16], [], []]
    (row,) = label(trace).collectives.to_pylist()
    assert (row["primitive"], row["classified_by"], row["op"]) == ("all_gather", "operator", "_allgather_base")
    assert (row["ts_ns"], row["dur_ns"], row["launch_ts_ns"]) == (50_000, 1000, 4000)


def test_an_all_to_all_is_made_of_messages(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    said = {"comm": 5, "nranks": 4, "rank": 1, "device": 0}
    export.nccl_range(owner, PID, "ncclCommInitRank", 10, 90, **said)
    export.range(owner, PID, "nccl:all_to_all, op_id = 7", 4200, 40_000)
    calls = [(name, {"comm": 5, "bytes": 100, "peer": peer}) for peer in range(4) for name in ("ncclSend", "ncclRecv")]
    grouped(export, owner, PID, 5000, calls, [{"name": SEND_RECV, "start": 50_000, "end": 51_000}])
    (row,) = label(read(export.sqlite(tmp_path / "report.sqlite"))[0]).collectives.to_pylist()
    assert (row["primitive"], row["classified_by"], row["conflict"]) == ("all_to_all", "annotation", False)
    assert (row["group_size"], row["size_bytes"], row["sent_bytes"]) == (4, 400, 300)
    assert (row["direction"], row["peer"]) == (None, None)


@pytest.mark.parametrize(("place", "sent"), [(1, 100), (0, 101), (None, None)])
def test_of_uneven_messages_one_stays(place: int | None, sent: int | None, export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    if place is None:
        other = export.process(PID + 1)
        export.nccl_range(other, PID + 1, "ncclCommInitRank", 10, 90, comm=5, nranks=2, rank=0, device=1)
    else:
        export.nccl_range(owner, PID, "ncclCommInitRank", 10, 90, comm=5, nranks=2, rank=place, device=0)
    export.range(owner, PID, "nccl:all_to_all, op_id = 7", 4200, 40_000)
    calls = [("ncclSend", {"comm": 5, "bytes": 100 + peer, "peer": peer}) for peer in range(2)]
    grouped(export, owner, PID, 5000, calls, [{"name": SEND_RECV, "start": 50_000, "end": 51_000}])
    (row,) = label(read(export.sqlite(tmp_path / "report.sqlite"))[0]).collectives.to_pylist()
    assert (row["size_bytes"], row["sent_bytes"]) == (201, sent)


def test_operators_that_compute_are_left_out_where_a_gpu_ran(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    names = (
        "aten::mm, seq = 4, op_id = 1, sizes = [[2, 2], [2, 2]]",
        "autograd::engine::evaluate_function: MmBackward0, op_id = 2",
        "Optimizer.step#AdamW.step, op_id = 3",
        "ProfilerStep#7, op_id = 4",
        "forward_step",
        "flash_attn::_flash_attn_forward, op_id = 5",
        "XlaPass:#name=dce#",
        "cublasGemmEx",
    )
    for number, name in enumerate(names):
        export.range(owner, PID, name, 1000 + 100 * number, 1050 + 100 * number)
    export.kernel(owner, GEMM, 3000, 4000)
    (trace,) = read(export.sqlite(tmp_path / "report.sqlite"))
    assert [(row["kind"], row["name"]) for row in trace.cpu_marks.select(["kind", "name"]).to_pylist()] == [
        ("autograd", "autograd::engine::evaluate_function: MmBackward0"),
        ("optimizer", "Optimizer.step#AdamW.step"),
        ("step", "ProfilerStep#7"),
        ("annotation", "forward_step"),
    ]
    assert trace.steps.to_pylist() == [{"number": 7, "ts_ns": 1300, "dur_ns": 50}]


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["ProfilerStep#3", "ProfilerStep#4"], [3, 4]),
        (["iteration 16", "iteration 17"], [16, 17]),
        (["step_5", "step_6"], [5, 6]),
        (["Iteration: 1", "Iteration: 2"], [1, 2]),
        (["train_step", "train_step"], [0, 1]),
        (["XlaModule:#hlo_module=jit_step,program_id=4#"] * 2, [0, 1]),
        (["train_step", "work"], []),  # what does not repeat is no step
        (["layer 1", "layer 2"], []),
    ],
)
def test_what_is_called_a_step_is_one(export: Export, tmp_path: Path, names: list[str], numbers: list[int]) -> None:
    owner = export.process(PID)
    for number, name in enumerate(names):
        export.range(owner, PID, name, 1000 * number, 1000 * number + 900)
    export.kernel(owner, GEMM, 3000, 4000)
    steps = read(export.sqlite(tmp_path / "report.sqlite"))[0].steps
    assert steps.column("number").to_pylist() == numbers
    assert steps.column("ts_ns").to_pylist() == [1000 * number for number in range(len(numbers))]


def test_the_module_that_communicates_most_is_the_step(export: Export, tmp_path: Path) -> None:
    """An initialisation that takes longer runs before the training steps."""
    owner = export.process(PID)
    slow, fast = "XlaModule:#hlo_module=jit_psum,program_id=1#", "XlaModule:#hlo_module=jit_train,program_id=4#"
    for number in range(2):
        export.range(owner, PID, slow, 100_000 * number, 100_000 * number + 90_000)
        begin = 300_000 + 50_000 * number
        export.range(owner, PID, fast, begin, begin + 40_000)
        for call in range(3):
            export.nccl_range(
                owner, PID, "ncclAllGather", begin + 1000 * call, begin + 1000 * call + 500, comm=1, bytes=8
            )
    export.nccl_range(owner, PID, "ncclAllReduce", 10, 60, comm=1, bytes=8)
    steps = read(export.sqlite(tmp_path / "report.sqlite"))[0].steps
    assert steps.column("ts_ns").to_pylist() == [300_000, 350_000]


def test_a_step_inside_a_step_is_none(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    for number in range(2):
        begin = 10_000 * number
        export.range(owner, PID, f"iteration {number}", begin, begin + 9000)
        export.range(owner, PID, "batch 0", begin + 100, begin + 4000)
        export.range(owner, PID, "batch 1", begin + 4100, begin + 8000)
    export.kernel(owner, GEMM, 3000, 4000)
    steps = read(export.sqlite(tmp_path / "report.sqlite"))[0].steps
    assert steps.column("dur_ns").to_pylist() == [9000, 9000]


def test_of_ranges_that_are_called_alike_those_that_take_most_time_are_steps(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    for number in range(3):
        export.range(owner, PID, f"batch {number}", 10_000 * number, 10_000 * number + 500)
        export.range(owner, PID, f"step {number}", 10_000 * number + 600, 10_000 * number + 9000)
    export.kernel(owner, GEMM, 3000, 4000)
    steps = read(export.sqlite(tmp_path / "report.sqlite"))[0].steps
    assert steps.column("ts_ns").to_pylist() == [600, 10_600, 20_600]


def test_threads_have_their_names(export: Export, tmp_path: Path) -> None:
    owner = export.process(PID)
    export.add("ThreadNames", globalTid=owner | 777, nameId=export.string("pt_autograd_0"))
    export.kernel(owner, GEMM, 3000, 4000)
    assert read(export.sqlite(tmp_path / "report.sqlite"))[0].metadata["threads"] == {777: "pt_autograd_0"}

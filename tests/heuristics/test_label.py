"""Which records and kernels are one call, told on traces made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heuristics.kernel_table import KernelTable
from heuristics.label import label
from heuristics.labelled import GpuRole, LabelledRank
from tests.heuristics.traces import AUTOGRAD, MAIN, TraceMaker

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"


def _rows(rank: LabelledRank, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*rank.collectives.select(names).to_pydict().values(), strict=True))


def _roles(rank: LabelledRank) -> list[GpuRole]:
    return [GpuRole(role) for role in rank.gpu_role.tolist()]


def _arguments(collective: str, ins: int, outs: int, size: int = 8, **more: Any) -> dict[str, Any]:
    return {
        "collective": collective,
        "in_nelems": ins,
        "out_nelems": outs,
        "group_size": size,
        "dtype": "BFloat16",
        "group_name": "0",
        **more,
    }


def test_the_layers_of_one_call_are_one_row() -> None:
    """Functional operator > c10d operator > record > annotation > kernel > annotation on the GPU."""
    make = TraceMaker(groups={"0": list(range(8))})
    args = _arguments("_allgather_base", 100, 800)
    make.record("functional", "_c10d_functional::all_gather_into_tensor", 0, 50)
    make.record("c10d", "c10d::_allgather_base_", 5, 40)
    make.metadata("_allgather_base", 10, 30, seq=7, rank_arg=0, **{k: v for k, v in args.items() if k != "collective"})
    make.record("annotation", "nccl:_all_gather_base", 15, 20)
    make.kernel(ALL_GATHER, 100, 50, 20, launch=20, arguments=args)
    make.record("gpu_annotation", "nccl:_all_gather_base", 100, 50, None, device=0, stream=20)
    found = label(make.done())
    columns = ("primitive", "classified_by", "conflict", "op", "library", "ts_ns", "dur_ns", "launch_ts_ns", "seq")
    assert _rows(found, *columns) == [
        ("all_gather", "metadata", False, "_allgather_base", "nccl", 100_000, 50_000, 10_000, 7)
    ]
    assert _rows(found, "group", "group_size", "dtype", "size_bytes", "sent_bytes") == [(0, 8, "bfloat16", 1600, 1400)]
    assert found.gpu_call.tolist() == [0]


def test_waits_and_initialisations_are_not_calls() -> None:
    make = TraceMaker()
    make.metadata("init", 0, 10)
    make.metadata("allreduce", 20, 10, in_nelems=4, out_nelems=4, dtype="Float", group_size=2)
    make.metadata("wait", 40, 10, group_size=1)
    make.record("functional", "_c10d_functional::wait_tensor", 60, 10)
    assert _rows(label(make.done()), "op") == [("allreduce",)]


def test_what_the_caller_says_beats_the_kernels_name_and_the_conflict_is_counted() -> None:
    make = TraceMaker()
    make.record("c10d", "c10d::_reduce_scatter_base_", 0, 50, input_dims=[[8], [64]], input_types=["float", "float"])
    make.kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", 100, 50, launch=20)
    found = label(make.done())
    assert _rows(found, "primitive", "classified_by", "conflict", "group_size", "sent_bytes") == [
        ("reduce_scatter", "operator", True, 8, 7 * 64 * 4 // 8)
    ]
    assert found.stats.conflicts == (("kernel name says send_recv, operator says reduce_scatter", 1),)


def test_a_barrier_is_synchronisation_though_its_kernel_is_an_all_reduce() -> None:
    make = TraceMaker()
    make.record("c10d", "c10d::barrier", 0, 50)
    make.kernel(ALL_REDUCE, 100, 50, launch=20)
    found = label(make.done())
    assert _rows(found, "primitive", "role", "size_bytes") == [("barrier", "sync", 0)]
    assert _roles(found) == [GpuRole.COMM_SYNC]


def test_a_lost_kernel_does_not_take_the_interval_of_a_call_on_the_cpu() -> None:
    make = TraceMaker()
    sizes = {"input_dims": [[4]], "input_types": ["float"]}
    make.record("c10d", "c10d::allreduce_", 0, 20, **sizes)
    make.record("annotation", "nccl:all_reduce", 5, 10, **sizes)
    make.record("c10d", "c10d::allreduce_", 30, 20, **sizes)
    make.record("annotation", "gloo:all_reduce", 40, 100, AUTOGRAD, **sizes)
    make.kernel(GEMM, 0, 10)
    assert _rows(label(make.done()), "ts_ns", "dur_ns", "library", "stream") == [
        (None, None, "nccl", None),
        (40_000, 100_000, "gloo", AUTOGRAD),
    ]


@pytest.mark.parametrize(("op", "kernel"), [("c10d::alltoall_base_", SEND_RECV), ("c10d::barrier", ALL_REDUCE)])
def test_what_a_library_builds_a_primitive_from_is_no_conflict(op: str, kernel: str) -> None:
    make = TraceMaker()
    make.record("c10d", op, 0, 50)
    make.kernel(kernel, 100, 50, launch=20)
    found = label(make.done())
    assert _rows(found, "conflict") == [(False,)]
    assert found.stats.conflicts == ()


def test_a_range_beats_the_kernels_name() -> None:
    make = TraceMaker()
    make.record("nvtx", "ncclAllGather", 0, 50)
    make.kernel(SEND_RECV, 100, 50, launch=20)
    assert _rows(label(make.done()), "primitive", "classified_by", "conflict") == [("all_gather", "nvtx", True)]


def test_kernels_launched_before_the_window_are_kept_without_a_step() -> None:
    make = TraceMaker()
    make.step(0, 0, 1000)
    make.kernel(ALL_REDUCE, 10, 50, 20)
    make.record("c10d", "c10d::allreduce_", 20, 50)
    make.kernel(ALL_REDUCE, 100, 50, 20, launch=30)
    make.kernel(ALL_REDUCE, 200, 50, 20)
    found = label(make.done())
    assert _rows(found, "ts_ns", "step", "launch_ts_ns") == [
        (10_000, None, None),
        (100_000, 0, 20_000),
        (200_000, 0, None),
    ]
    assert found.stats.notes == ("2 communication kernels have no launch in the window",)


def test_calls_whose_kernels_lie_past_the_window_are_kept_without_an_interval() -> None:
    make = TraceMaker()
    make.step(0, 0, 100)
    make.step(1, 100, 100)
    for start in (10, 110):
        make.metadata("allreduce", start, 20, **_without("collective", _arguments("allreduce", 64, 64)))
    make.kernel(ALL_REDUCE, 50, 10, launch=15)
    found = label(make.done())
    assert _rows(found, "ts_ns", "dur_ns", "step", "sent_bytes") == [(50_000, 10_000, 0, 224), (None, None, 1, 224)]
    assert found.steps.complete.tolist() == [True, False]
    assert found.stats.notes == ("1 calls left no kernel in the window",)


def _without(key: str, args: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if name != key}


def test_a_group_of_one_sends_nothing_and_leaves_its_step_whole() -> None:
    make = TraceMaker(groups={"0": [0]})
    make.step(0, 0, 100)
    make.metadata("allreduce", 10, 20, **_without("collective", _arguments("allreduce", 64, 64, 1)))
    make.kernel("void oneRankReduce<x>(void*)", 50, 10, launch=15)
    found = label(make.done())
    assert _rows(found, "role", "group_size", "sent_bytes", "size_bytes", "step") == [("pack", 1, 0, 128, 0)]
    assert _roles(found) == [GpuRole.COMPUTE]
    assert found.steps.complete.tolist() == [True]


def test_copies_for_a_tensor_list_are_not_communication() -> None:
    """Kineto copies the collective's arguments onto every kernel launched under its record."""
    make = TraceMaker()
    args = _arguments("all_gather", 10, 80)
    make.metadata("all_gather", 0, 100, **_without("collective", args))
    make.kernel(ALL_GATHER, 200, 50, 20, launch=10, arguments=args)
    make.kernel("void at::native::CatArrayBatchedCopy<x>(x)", 260, 10, 20, launch=60, arguments=args)
    found = label(make.done())
    assert _rows(found, "name", "dur_ns") == [(ALL_GATHER, 50_000)]
    assert _roles(found) == [GpuRole.COMM, GpuRole.COMPUTE]


def test_a_kernel_of_unknown_name_is_communication_by_its_arguments() -> None:
    make = TraceMaker()
    make.kernel("brand_new_ring_kernel", 0, 50, arguments=_arguments("allreduce", 64, 64))
    found = label(make.done())
    assert _rows(found, "primitive", "classified_by", "sent_bytes") == [("all_reduce", "metadata", 224)]
    assert _roles(found) == [GpuRole.COMM]


def test_batched_sends_and_receives_share_the_kernel_that_the_group_launches() -> None:
    """Four records, one kernel launched by `ncclGroupEnd`: the slices add up to the kernel, in proportion to bytes."""
    make = TraceMaker(rank=1, groups={"0": [0, 1, 2, 3]})
    for i, (collective, peer, elements) in enumerate(
        (("send", 2, 100), ("recv", 0, 300), ("send", 0, 100), ("recv", 2, 500))
    ):
        key = "dst_rank" if collective == "send" else "src_rank"
        args = _arguments(collective, elements, elements, 4, rank_arg=peer, **{key: peer})
        make.record("c10d", "c10d::send" if collective == "send" else "c10d::recv_", 10 * i, 8)
        make.metadata(collective, 10 * i + 1, 6, **_without("collective", args))
    make.record("annotation", "nccl:coalesced", 45, 10)
    make.kernel(SEND_RECV, 100, 100, 20, launch=50)
    make.record("gpu_annotation", "nccl:coalesced", 100, 100, None, device=0, stream=20)
    found = label(make.done())
    assert _rows(found, "direction", "peer", "ts_ns", "dur_ns", "sent_bytes", "classified_by") == [
        ("send", 2, 100_000, 10_000, 200, "metadata"),
        ("recv", 0, 110_000, 30_000, 0, "metadata"),
        ("send", 0, 140_000, 10_000, 200, "metadata"),
        ("recv", 2, 150_000, 50_000, 0, "metadata"),
    ]
    assert found.gpu_call.tolist() == [0]
    assert found.stats.comm_ns_by_source == {"metadata": 100_000}


def test_batches_of_two_threads_are_kept_apart() -> None:
    make = TraceMaker(groups={"0": [0, 1, 2, 3]})
    for tid, peer, launch in ((MAIN, 1, 20), (AUTOGRAD, 3, 25)):
        args = _arguments("send", 100, 100, 4, dst_rank=peer)
        make.metadata("send", 0, 8, tid, **_without("collective", args))
        make.kernel(SEND_RECV, 100 + peer * 100, 50, 20, launch=launch, tid=tid)
    found = label(make.done())
    assert sorted(_rows(found, "peer", "ts_ns", "tid")) == [(1, 200_000, MAIN), (3, 400_000, AUTOGRAD)]


def test_a_kernel_behind_pytorchs_back_does_not_swallow_earlier_calls() -> None:
    """A size-one all-reduce leaves no kernel; the next unrecorded send belongs to somebody else."""
    make = TraceMaker(groups={"0": [0], "1": [0, 1]})
    make.metadata("allreduce", 0, 5, **_without("collective", _arguments("allreduce", 4, 4, 1)))
    make.metadata("allreduce", 10, 5, **_without("collective", _arguments("allreduce", 4, 4, 2, group_name="1")))
    make.kernel(SEND_RECV, 100, 50, 20, launch=30)
    found = label(make.done())
    assert _rows(found, "op", "ts_ns", "classified_by") == [
        ("allreduce", None, "metadata"),
        ("allreduce", None, "metadata"),
        (None, 100_000, "kernel_name"),
    ]


def test_without_launches_the_kth_block_is_the_kth_span() -> None:
    make = TraceMaker(groups={"0": [0, 1, 2, 3]})
    for k in range(3):
        args = _arguments("send", 100, 100, 4, dst_rank=k + 1)
        make.metadata("send", 100 * k, 8, **_without("collective", args))
        make.record("annotation", "nccl:coalesced", 100 * k + 20, 10)
        if k < 2:  # the last block ran after the window
            make.kernel(SEND_RECV, 1000 + 100 * k, 50, 20)
            make.record("gpu_annotation", "nccl:coalesced", 1000 + 100 * k, 50, None, device=0, stream=20)
    found = label(make.done())
    assert _rows(found, "peer", "ts_ns") == [(1, 1_000_000), (2, 1_100_000), (3, None)]


def test_coalesced_collectives_without_a_record_are_read_from_the_operator() -> None:
    """PyTorch 2.4 records nothing for `allgather_into_tensor_coalesced_`; sizes are in the operator's arguments."""
    make = TraceMaker()
    make.record(
        "c10d",
        "c10d::allgather_into_tensor_coalesced_",
        0,
        50,
        input_dims=[[80, 4], [16], [10, 4], [2], [], []],
        input_types=["TensorList", "TensorList", "", "Scalar"],
    )
    make.record(
        "annotation",
        "nccl:all_gather_into_tensor_coalesced",
        5,
        30,
        input_dims=[[10, 4], [2]],
        input_types=["float", "float"],
    )
    make.kernel(ALL_GATHER, 100, 50, 20, launch=20)
    found = label(make.done())
    assert _rows(found, "primitive", "in_nelems", "out_nelems", "group_size", "dtype", "sent_bytes") == [
        ("all_gather", 42, 336, 8, "float32", 7 * 42 * 4)
    ]


def test_kernels_of_a_graph_are_calls_of_their_own() -> None:
    make = TraceMaker()
    make.record("annotation", "nccl:all_reduce", 0, 100)
    make.launches.append({"tid": MAIN, "correlation": 77, "ts_ns": 10_000, "dur_ns": 2_000})
    for i in range(3):
        make.kernel(ALL_GATHER, 100 + 60 * i, 50, 20, correlation=77, graph=i)
    found = label(make.done())
    by_kernel = [row for row in _rows(found, "primitive", "classified_by", "ts_ns") if row[2] is not None]
    assert by_kernel == [("all_gather", "kernel_name", 1000 * (100 + 60 * i)) for i in range(3)]


def test_a_driver_call_under_a_runtime_call_does_not_double_the_kernel() -> None:
    make = TraceMaker()
    make.kernel(ALL_REDUCE, 100, 50, launch=10)
    make.launches.append({**make.launches[0], "ts_ns": 11_000})
    assert _rows(label(make.done()), "primitive", "ts_ns") == [("all_reduce", 100_000)]


def test_copies_of_asynchronous_tensor_parallelism_are_one_all_gather() -> None:
    """`fused_all_gather_matmul` moves its shards with copies between GPUs and waits on signals; GEMMs run between."""
    make = TraceMaker()
    make.record(
        "symm_mem",
        "symm_mem::fused_all_gather_matmul",
        0,
        100,
        input_dims=[[32, 64], [64, 8]],
        input_types=["c10::BFloat16", "TensorList", "", ""],
    )
    for i in range(3):
        make.kernel("Memcpy PtoP (Device -> Device)", 200 + 50 * i, 40, 30, launch=10 + 10 * i, kind="memcpy")
        make.kernel("void wait_signal_kernel(unsigned int**)", 241 + 50 * i, 5, 30, launch=12 + 10 * i)
        make.kernel(GEMM, 247 + 50 * i, 30, 7, launch=15 + 10 * i)
    found = label(make.done())
    assert _rows(found, "primitive", "classified_by", "role", "library", "in_nelems", "ts_ns", "dur_ns") == [
        ("all_gather", "operator", "payload", "copy_engine", 2048, 200_000, 140_000)
    ]
    assert _roles(found) == [GpuRole.COMM, GpuRole.COMM_SYNC, GpuRole.COMPUTE] * 3
    assert found.gpu_call.tolist() == [0, 0, -1] * 3


def test_copies_between_gpus_are_communication_whoever_asks() -> None:
    make = TraceMaker()
    make.kernel("Memcpy PtoP (Device -> Device)", 0, 40, kind="memcpy")
    make.kernel("Memcpy DtoD (Device -> Device)", 50, 40, kind="memcpy")
    make.kernel("Memset (Device)", 100, 40, kind="memset")
    make.kernel("Stream Wait Event", 150, 40, kind="sync")
    make.kernel("nccl:all_reduce", 200, 40, kind="annotation")
    found = label(make.done())
    assert _roles(found) == [GpuRole.COMM, GpuRole.MEMCPY, GpuRole.MEMCPY, GpuRole.IGNORE, GpuRole.IGNORE]
    assert _rows(found, "primitive", "library") == [("send_recv", "copy_engine")]


def test_expert_exchange_is_payload_and_its_count_exchange_is_sync() -> None:
    make = TraceMaker()
    make.kernel("void deep_ep::internode::notify_dispatch<true>(int)", 0, 40, 27)
    make.kernel("void deep_ep::internode::dispatch<true>(int4*)", 50, 40, 27)
    make.kernel("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long*)", 100, 40, 27)
    found = label(make.done())
    assert _rows(found, "primitive", "role") == [("all_to_all", "sync"), ("all_to_all", "payload"), (None, "pack")]
    assert _roles(found) == [GpuRole.COMM_SYNC, GpuRole.COMM, GpuRole.COMPUTE]
    assert found.stats.unclassified_ns == 0


def test_counts_that_overflowed_are_not_believed() -> None:
    """PyTorch 2.4 counts elements in 32 bits; the other side and the group give the size where they can."""
    make = TraceMaker(groups={"0": list(range(8))})
    elements = 3 * 2**30
    wrapped = elements - 2**32
    make.kernel(ALL_GATHER, 0, 50, arguments=_arguments("_allgather_base", elements // 8, wrapped))
    make.kernel(ALL_REDUCE, 100, 50, arguments=_arguments("allreduce", wrapped, wrapped))
    found = label(make.done())
    assert _rows(found, "out_nelems", "size_bytes") == [(elements, 2 * elements), (None, None)]


def test_split_lists_that_were_cut_give_no_share_for_ranks_behind_the_cut() -> None:
    """Of 64 entries 30 are written: rank 5's own entry is known, rank 40's is not."""
    for rank, kept in ((5, 6 * 100), (40, None)):
        make = TraceMaker(rank=rank, world_size=64)
        args = _arguments(
            "all_to_allv", 64_000, 64_000, 64, in_split=list(range(1, 31)), splits_cut=True, rank_arg=rank
        )
        make.metadata("all_to_allv", 0, 50, **_without("collective", args))
        make.record("annotation", "nccl:all_to_all", 5, 20, input_dims=[[640, 100]], input_types=["c10::BFloat16"])
        (row,) = _rows(label(make.done()), "sent_bytes", "shape")
        whole = 64_000 * 2
        assert row == (None if kept is None else whole - 2 * kept, [640, 100])


def test_a_users_table_is_used(tmp_path: Path) -> None:
    make = TraceMaker()
    make.kernel("my_fused_ring<float>", 0, 50)
    assert label(make.done()).collectives.num_rows == 0
    path = tmp_path / "mine.toml"
    path.write_text("[[kernel]]\nmatch = '^my_fused'\nlibrary = 'mine'\nprimitive = 'all_gather'\n")
    found = label(make.done(), kernel_table=KernelTable.load(path))
    assert _rows(found, "primitive", "library", "classified_by") == [("all_gather", "mine", "kernel_name")]


def test_names_of_groups_are_dropped_when_they_are_not_to_be_used() -> None:
    make = TraceMaker(groups={"0": [0, 1]})
    make.groups[0]["desc"] = "TENSOR_MODEL_PARALLEL_GROUP"
    make.metadata("allreduce", 0, 50, **_without("collective", _arguments("allreduce", 4, 4, 2)))
    assert label(make.done()).groups.column("desc").to_pylist() == ["TENSOR_MODEL_PARALLEL_GROUP"]
    blind = label(make.done(), use_names=False)
    assert blind.groups.column("desc").to_pylist() == [None]
    assert _rows(blind, "group") == [(0,)]


def test_formats_that_list_calls_have_one_a_record() -> None:
    """Flight Recorder and NCCL's log write one entry a call, in the library's own words."""
    make = TraceMaker(groups={"0": list(range(8))})
    args = _without("collective", _arguments("", 64, 8))
    make.record("flight_recorder", "nccl:_reduce_scatter_base", 0, 50, None, collective="_reduce_scatter_base", **args)
    make.record("nccl_log", "ReduceScatter", 60, 0, None, collective="ReduceScatter", **args)
    make.record("flight_recorder", "nccl:all_reduce", 70, 50, None)
    make.record("flight_recorder", "nccl:coalesced", 130, 50, None, collective="coalesced")
    assert _rows(label(make.done()), "primitive", "classified_by", "op", "sent_bytes", "dur_ns") == [
        ("reduce_scatter", "metadata", "_reduce_scatter_base", 112, 50_000),
        ("reduce_scatter", "metadata", "ReduceScatter", 112, 0),
        ("all_reduce", "operator", "all_reduce", None, 50_000),
    ]


def test_an_empty_trace_has_no_calls() -> None:
    found = label(TraceMaker().done())
    assert found.collectives.num_rows == 0
    assert found.groups.num_rows == 0
    assert found.steps.source == "none"

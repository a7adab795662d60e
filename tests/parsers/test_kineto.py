"""What is kept of a Kineto file, and what its keys become."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.errors import InputError
from parsers.tables import COMM_RECORDS, CPU_MARKS, GPU_EVENTS, GROUPS, LAUNCHES, STEPS, RankTrace
from tests.examples import examples
from tests.parsers.made import LAYOUTS, TraceMaker, expected, seen, three_steps

ReadText = Callable[..., list[RankTrace]]
BASE = 1_767_189_312_000_000_000


def rows(trace: RankTrace, layer: str) -> list[dict[str, Any]]:
    return [row for row in trace.comm_records.to_pylist() if row["layer"] == layer]


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("bare", [False, True])
def test_every_layout_gives_the_same_rows(read_text: ReadText, layout: str, bare: bool) -> None:
    job = three_steps(baseTimeNanoseconds=BASE)
    document: Any = job.events if bare else job.document()
    (trace,) = read_text(LAYOUTS[layout](document))
    assert seen(trace) == expected(document)
    assert trace.health.events == 87
    assert (trace.health.repaired, trace.health.quarantined, trace.health.dropped, trace.health.notes) == (0, 0, 0, ())
    assert trace.health.complete
    assert trace.format == "kineto"


@examples(20)
@given(st.randoms(use_true_random=False), st.sampled_from(sorted(LAYOUTS)))
def test_the_order_of_keys_and_events_does_not_matter(read_text: ReadText, rng: random.Random, layout: str) -> None:
    job = three_steps()

    def shuffled(value: dict[str, Any]) -> dict[str, Any]:
        return dict(rng.sample(list(value.items()), len(value)))

    events = [
        shuffled({**event, "args": shuffled(event["args"])} if "args" in event else event) for event in job.events
    ]
    rng.shuffle(events)
    document = shuffled({**job.header, "traceEvents": events})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parsers.window.BLOCK_BYTES", rng.choice([500, 4000, 1 << 19]))
        (trace,) = read_text(LAYOUTS[layout](document))
    assert seen(trace) == expected(document)
    (whole,) = read_text(job.text())
    assert sorted(trace.cpu_marks.to_pylist(), key=str) == sorted(whole.cpu_marks.to_pylist(), key=str)
    assert trace.steps == whole.steps
    assert trace.identity == whole.identity
    assert trace.groups == whole.groups
    for row in rows(trace, "kernel"):
        assert trace.gpu_events["ts_ns"][row["gpu_event"]].as_py() == row["ts_ns"]


def test_tables_have_their_schemas(read_text: ReadText) -> None:
    (trace,) = read_text(three_steps().text())
    for table, schema in (
        (trace.gpu_events, GPU_EVENTS),
        (trace.comm_records, COMM_RECORDS),
        (trace.launches, LAUNCHES),
        (trace.cpu_marks, CPU_MARKS),
        (trace.steps, STEPS),
        (trace.groups, GROUPS),
    ):
        assert table.schema.equals(schema)
        table.validate(full=True)


def test_times_are_whole_nanoseconds_since_the_epoch(read_text: ReadText) -> None:
    job = TraceMaker(baseTimeNanoseconds=BASE)
    job.kernel("a", 5239871117788.785, 0.2)
    job.kernel("b", 5239871117789, 3)
    (trace,) = read_text(LAYOUTS["kineto"](job.document()))
    assert trace.gpu_events["ts_ns"].to_pylist() == [BASE + 5239871117788785, BASE + 5239871117789000]
    assert trace.gpu_events["dur_ns"].to_pylist() == [200, 3000]


def test_absolute_microseconds_of_old_files_keep_their_last_digit(read_text: ReadText) -> None:
    (trace,) = read_text(
        '[{"ph":"X","cat":"Kernel","name":"k","pid":0,"tid":"stream 7","ts":1614800519473220.123,"dur":1}]'
    )
    assert trace.gpu_events["ts_ns"].to_pylist() == [1614800519473220123]
    assert trace.gpu_events["stream"].to_pylist() == [7]
    assert trace.gpu_events["device"].to_pylist() == [0]
    assert trace.gpu_events["kind"].to_pylist() == ["kernel"]


def test_the_display_unit_is_not_the_unit(read_text: ReadText) -> None:
    one, other = (read_text(three_steps(displayTimeUnit=unit).text())[0] for unit in ("ms", "ns"))
    assert one.gpu_events == other.gpu_events
    assert one.steps == other.steps


@pytest.mark.parametrize(
    ("cat", "kind"),
    [
        ("kernel", "kernel"),
        ("Kernel", "kernel"),
        ("gpu_memcpy", "memcpy"),
        ("Memcpy", "memcpy"),
        ("gpu_memset", "memset"),
        ("cuda_sync", "sync"),
        ("gpu_user_annotation", "annotation"),
        ("mtia_ccp_events", "kernel"),
        ("mlu_memcpy", "memcpy"),
        ("xpu_sync", "sync"),
    ],
)
def test_gpu_categories_of_all_times_and_vendors(read_text: ReadText, cat: str, kind: str) -> None:
    job = TraceMaker()
    job.kernel("thing", 100, 5, cat=cat, bytes=4096)
    (trace,) = read_text(job.text())
    (row,) = trace.gpu_events.to_pylist()
    assert (row["kind"], row["name"], row["bytes"], row["correlation"], row["stream"]) == (kind, "thing", 4096, 1, 7)


def test_graph_nodes_external_ids_and_named_streams(read_text: ReadText) -> None:
    job = TraceMaker()
    job.kernel("a", 100, 5, **{"graph node id": 12, "External id": 77})
    job.kernel("b", 110, 5, **{"graph node id": 0, "external id": 78, "stream": "stream 20"})
    (trace,) = read_text(job.text())
    assert trace.gpu_events["graph"].to_pylist() == [12, None]
    assert trace.gpu_events["external_id"].to_pylist() == [77, 78]
    assert trace.gpu_events["stream"].to_pylist() == [7, 20]


def test_a_collective_s_keys(read_text: ReadText) -> None:
    job = TraceMaker()
    more = {
        "In split size": "[1, 2, 3, 4]",
        "Out split size": "[" + ", ".join(["2"] * 29) + ", ..., 2]",
        "Global rank start": 0,
        "Global rank stride": 8,
        "Process Group Ranks": "[0, 8, ..., 56]",
        "Comms Id": 2**63 + 5,
        "Is asynchronized op": 1,
        "Src Rank": 3,
        "Dst Rank": 4,
    }
    job.collective(100, 50, nelems=2**33, **more)
    (trace,) = read_text(job.text())
    (record,) = rows(trace, "record_param_comms")
    (kernel,) = rows(trace, "kernel")
    for row in (record, kernel):
        assert (row["collective"], row["dtype"], row["in_nelems"], row["out_nelems"]) == (
            "allreduce",
            "BFloat16",
            2**33,
            2**33,
        )
        assert (row["in_split"], row["out_split"], row["splits_cut"]) == ([1, 2, 3, 4], [2] * 30, True)
        assert (row["group_name"], row["group_desc"], row["group_size"]) == ("0", "default_pg", 4)
        assert (row["group_ranks"], row["group_ranks_cut"]) == ([0, 8, 56], True)
        assert (row["src_rank"], row["dst_rank"], row["comms_id"]) == (3, 4, 2**63 + 5 - 2**64)
    assert (record["rank_start"], record["rank_stride"], record["rank_arg"]) == (0, 8, 0)
    assert (record["seq"], record["is_async"], record["tid"], record["gpu_event"]) == (1, True, 1000, None)
    assert (kernel["device"], kernel["stream"], kernel["correlation"], kernel["gpu_event"], kernel["tid"]) == (
        0,
        20,
        1,
        0,
        None,
    )


def test_the_spellings_of_2023_and_2024(read_text: ReadText) -> None:
    job = TraceMaker()
    old = {"In msg size": 10, "Out msg size": 40, "Group size": 4, "dtype": "Float", "Process Group ID": 3}
    job.kernel("ncclKernel_AllGather", 100, 5, **old)
    (trace,) = read_text(job.text())
    (row,) = rows(trace, "kernel")
    assert (row["in_nelems"], row["out_nelems"], row["group_name"], row["collective"]) == (10, 40, "3", None)


def test_an_empty_rank_list_is_not_a_missing_one(read_text: ReadText) -> None:
    job = TraceMaker()
    job.collective(100, 50, **{"Process Group Ranks": "[]"})
    job.x("cpu_op", "c10d::barrier", 200, 5)
    (trace,) = read_text(job.text())
    assert rows(trace, "record_param_comms")[0]["group_ranks"] == []
    assert [row["group_ranks"] for row in rows(trace, "c10d")] == [None, None]


def test_shapes_of_communication_operators(read_text: ReadText) -> None:
    job = TraceMaker()
    dims = {
        "Input Dims": [[[2, 3], [4]], [], [5]],
        "Input type": ["TensorList", "", "float"],
        "Concrete Inputs": ["", "[1, 2]", "3"],
    }
    job.x("cpu_op", "c10d::alltoall_base_", 100, 5, **dims)
    job.x("cpu_op", "_c10d_functional::all_reduce", 110, 5)
    (trace,) = read_text(job.text())
    (row,) = rows(trace, "c10d")
    assert row["input_dims"] == [[2, 3], [4], [], [5]]
    assert row["input_types"] == ["TensorList", "", "float"]
    assert row["concrete_inputs"] == ["", "[1, 2]", "3"]
    (bare,) = rows(trace, "functional")
    assert (bare["input_dims"], bare["input_types"], bare["concrete_inputs"]) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("record_param_comms", "record_param_comms"),
        ("c10d::_allgather_base_", "c10d"),
        ("c10d_functional::all_reduce", "functional"),
        ("_c10d_functional::reduce_scatter_tensor", "functional"),
        ("_c10d_functional_autograd::all_to_all_single", "functional"),
        ("symm_mem::fused_all_gather_matmul", "symm_mem"),
        ("vllm::all_reduce", "functional"),
        ("sglang::outplace_all_reduce", "functional"),
        ("sglang::reg_all_gather_into_tensor", "functional"),
        ("_c10d_functional::wait_tensor", None),
        ("_c10d_functional::_wrap_tensor_autograd", None),
        ("vllm::moe_forward", None),
        ("aten::mm", None),
        ("nccl:all_reduce", "annotation"),  # an operator until torch 1.12
    ],
)
def test_operators_of_communication(read_text: ReadText, name: str, layer: str | None) -> None:
    job = TraceMaker()
    job.x("cpu_op", name, 100, 5)
    job.kernel("k", 200, 5)
    (trace,) = read_text(job.text())
    assert trace.comm_records["layer"].to_pylist() == ([layer] if layer else [])
    assert trace.cpu_marks.num_rows == 0


@pytest.mark.parametrize(
    "name", ["nccl:all_reduce", "gloo:send", "rccl:broadcast", "hccl:allgather", "xccl:recv 1<-0", "ucc:reduce"]
)
def test_ranges_of_process_groups_on_both_sides(read_text: ReadText, name: str) -> None:
    job = TraceMaker()
    job.x("user_annotation", name, 100, 5, **{"Input Dims": [[7]]})
    job.x("gpu_user_annotation", name, 110, 50, tid=20, pid=0, **{"External id": 5})
    job.x("gpu_user_annotation", "layer 3", 110, 50, tid=7, pid=0)
    (trace,) = read_text(job.text())
    assert [(row["layer"], row["name"], row["input_dims"]) for row in trace.comm_records.to_pylist()] == [
        ("annotation", name, [[7]]),
        ("gpu_annotation", name, None),
    ]
    (on_gpu,) = rows(trace, "gpu_annotation")
    assert (on_gpu["gpu_event"], on_gpu["stream"], on_gpu["device"]) == (0, 20, 0)
    assert trace.gpu_events["kind"].to_pylist() == ["annotation", "annotation"]


@pytest.mark.parametrize(
    ("cat", "name", "kind"),
    [
        ("user_annotation", "ProfilerStep#12", "step"),
        ("cpu_op", "ProfilerStep#12", "step"),  # until torch 1.12
        ("user_annotation", "ProfilerStep#x", "annotation"),
        ("user_annotation", "Optimizer.step#AdamW.step", "optimizer"),
        ("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad", "optimizer"),
        ("cpu_op", "autograd::engine::evaluate_function: MmBackward0", "autograd"),
        ("user_annotation", "FSDP::all_gather (layers.0)", "annotation"),
        ("user_annotation", "DistributedDataParallel.forward", "annotation"),
        ("user_annotation", "PP:4RECV_F0", "annotation"),
        ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "annotation"),
        ("cpu_op", "## Call CompiledFxGraph fo3ni ##", "annotation"),
        ("cpu_op", "Torch-Compiled Region: 0/0", "annotation"),
        ("cpu_op", "aten::mm", None),
        ("cpu_op", "MmBackward0", None),
        ("python_function", "ProfilerStep#12", None),
    ],
)
def test_marks_of_the_cpu(read_text: ReadText, cat: str, name: str, kind: str | None) -> None:
    job = TraceMaker()
    job.x(cat, name, 100, 50, tid=33)
    (trace,) = read_text(job.text())
    assert [(row["kind"], row["name"], row["tid"]) for row in trace.cpu_marks.to_pylist()] == (
        [(kind, name, 33)] if kind else []
    )
    assert trace.steps.to_pylist() == ([{"number": 12, "ts_ns": 100_000, "dur_ns": 50_000}] if kind == "step" else [])


def test_steps_come_from_the_gpu_where_the_cpu_marked_none(read_text: ReadText) -> None:
    job = TraceMaker()
    job.x("gpu_user_annotation", "ProfilerStep#3", 300, 50, tid=7, pid=0)
    job.x("gpu_user_annotation", "ProfilerStep#2", 200, 50, tid=7, pid=0)
    (trace,) = read_text(job.text())
    assert trace.steps["number"].to_pylist() == [2, 3]
    job.step(9, 100, 500)
    (trace,) = read_text(job.text())
    assert trace.steps["number"].to_pylist() == [9]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("cudaLaunchKernel", True),
        ("cudaLaunchKernelExC", True),
        ("cuLaunchKernelEx", True),
        ("cudaMemcpyAsync", True),
        ("cudaMemsetAsync", True),
        ("cudaGraphLaunch", True),
        ("hipExtModuleLaunchKernel", True),
        ("hipMemcpyWithStream", True),
        ("urEnqueueKernelLaunch", True),
        ("cudaLaunchHostFunc", False),
        ("cudaEventQuery", False),
        ("cudaStreamWaitEvent", False),
    ],
)
@pytest.mark.parametrize("cat", ["cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime"])
def test_calls_that_put_work_on_a_gpu(read_text: ReadText, name: str, kept: bool, cat: str) -> None:
    job = TraceMaker()
    job.x(cat, name, 100, 5, correlation=4, **{"External id": 9})
    (trace,) = read_text(job.text())
    row = {"ts_ns": 100_000, "dur_ns": 5_000, "tid": 1000, "correlation": 4, "external_id": 9}
    assert trace.launches.to_pylist() == ([row] if kept else [])


def test_a_call_without_a_name_is_a_launch_if_something_follows_from_it(read_text: ReadText) -> None:
    job = TraceMaker()
    job.x("cuda_runtime", "INVALID", 100, 5, correlation=4)
    job.x("cuda_runtime", "INVALID", 110, 5, correlation=5)
    job.x("kernel", "k", 120, 5, tid=7, pid=0, device=0, stream=7, correlation=5)
    (trace,) = read_text(job.text())
    assert trace.launches["correlation"].to_pylist() == [5]


def test_operators_are_compute_only_where_no_gpu_is(read_text: ReadText) -> None:
    job = TraceMaker()
    job.header["deviceProperties"] = []
    job.x("cpu_op", "aten::mm", 100, 50)
    job.x("cpu_op", "flash_attn::_fwd", 150, 50)
    job.x("cpu_op", "MmBackward0", 200, 50)
    job.x("cpu_op", "_c10d_functional::wait_tensor", 300, 50)
    (trace,) = read_text(job.text())
    assert [(row["kind"], row["name"]) for row in trace.cpu_marks.to_pylist()] == [
        ("op", "aten::mm"),
        ("op", "flash_attn::_fwd"),
    ]
    assert not trace.on_gpu
    job.step(1, 90, 500)
    job.kernel("gemm", 400, 5)  # seen last, as Kineto writes it
    job.x("cpu_op", "aten::mm", 500, 50)
    (trace,) = read_text(job.text())
    assert trace.cpu_marks["kind"].to_pylist() == ["step"]


def test_a_header_with_devices_keeps_no_operators_from_the_start(read_text: ReadText) -> None:
    job = TraceMaker()
    job.x("cpu_op", "aten::mm", 100, 50)
    (trace,) = read_text(job.text())
    assert trace.cpu_marks.num_rows == 0


def test_what_makes_the_cpu_wait_is_kept_beside_a_gpu(read_text: ReadText) -> None:
    job = TraceMaker()
    job.kernel("gemm", 400, 5)
    job.x("cpu_op", "aten::mm", 500, 50)
    job.x("cpu_op", "aten::item", 600, 50)
    job.x("cuda_runtime", "cudaStreamSynchronize", 610, 30, correlation=9)
    job.x("cuda_runtime", "cudaEventQuery", 660, 1, correlation=10)
    job.x("cpu_op", "Python GC", 700, 20)
    (trace,) = read_text(job.text())
    assert {(row["kind"], row["name"]) for row in trace.cpu_marks.to_pylist()} == {
        ("sync", "aten::item"),
        ("sync", "cudaStreamSynchronize"),
        ("annotation", "Python GC"),
    }


def test_names_of_threads_and_the_window(read_text: ReadText) -> None:
    job = TraceMaker(baseTimeNanoseconds=BASE)
    for tid, name in ((1, "thread 1 (pt_autograd_0)"), (1, "thread 1 (python)"), (2, "thread 2 (python)")):
        job.events.append({"ph": "M", "name": "thread_name", "pid": 1000, "tid": tid, "ts": 0, "args": {"name": name}})
    job.events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 0, "args": {"name": "stream 7"}})
    job.events.append(
        {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", "tid": "Trace", "ts": 50}
    )
    job.events.append({"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 150.5})
    job.kernel("early", 40, 5)
    job.kernel("inside", 100, 90)
    job.kernel("late", 151, 5)
    (trace,) = read_text(job.text())
    assert trace.metadata["threads"] == {1: "thread 1 (pt_autograd_0)", 2: "thread 2 (python)"}
    assert trace.metadata["window_ns"] == (BASE + 50_000, BASE + 150_500)
    assert trace.health.notes == ("2 GPU events begin outside the window that the profiler says it recorded",)
    assert trace.health.complete


@pytest.mark.parametrize(
    ("ts", "dur", "reason"),
    [
        (1200, -5, "a negative duration"),
        (1200, 9.2e15, "a duration of more than a month"),
        (0, 0, "start and duration 0 on the GPU"),
        (1200, None, "no start or duration"),
        (None, 5, "no start or duration"),
        (-9.2e15, 5, "a start beyond any clock"),
    ],
)
def test_times_that_make_no_sense_are_set_aside(read_text: ReadText, ts: Any, dur: Any, reason: str) -> None:
    job = three_steps()
    job.kernel("tiny", 1100.7, 0.2)
    number = len(job.events)
    job.kernel("bad", 100, 1)
    job.events[-1] |= {"ts": ts, "dur": dur}
    (trace,) = read_text(job.text())
    assert trace.health.quarantined == 1
    assert trace.health.notes == (f"1 events set aside: {reason}",)
    assert trace.health.events == number + 2
    assert "bad" not in trace.gpu_events["name"].to_pylist()
    assert trace.gpu_events["dur_ns"].to_pylist()[-1] == 200


def test_what_is_set_aside_does_not_shift_the_rows_of_the_others(read_text: ReadText) -> None:
    job = TraceMaker()
    job.kernel("bad", 100, -1)
    job.collective(200, 5)
    job.kernel("bad", 300, -1, **{"Collective name": "allreduce", "Group size": 4})
    job.collective(400, 5)
    (trace,) = read_text(job.text())
    assert [row["gpu_event"] for row in rows(trace, "kernel")] == [0, 1]
    assert trace.gpu_events["ts_ns"].to_pylist() == [200_000, 400_000]


def test_a_clock_that_was_not_set_is_told_by_what_is_around(read_text: ReadText) -> None:
    job = TraceMaker()
    job.collective(0, 5)  # a kernel at 0 that took time
    (near,) = read_text(job.text())
    assert near.health.quarantined == 0
    for event in job.events[:-1]:
        event["ts"] += 5.2e12
    job.collective(5.2e12 + 100, 5)
    (far,) = read_text(job.text())
    assert far.gpu_events["ts_ns"].to_pylist() == [5_200_000_000_100_000]
    assert far.health.quarantined == 1
    assert far.health.notes == ("1 events set aside: time 0 on the GPU, days before the rest",)
    assert [row["gpu_event"] for row in rows(far, "kernel")] == [0]


def test_duplicated_correlation_is_a_fact_not_a_fault(read_text: ReadText) -> None:
    job = three_steps()
    doubles = [
        {**event, "cat": "cuda_driver", "name": "cuLaunchKernelEx"}
        for event in job.events
        if event["cat"] == "cuda_runtime"
    ]
    job.events += doubles
    (trace,) = read_text(job.text())
    assert trace.launches.num_rows == 48
    assert trace.gpu_events.num_rows == 24
    assert trace.health.notes == ()


def test_an_unknown_category_costs_nothing(read_text: ReadText) -> None:
    job = three_steps()
    for index in range(0, 200, 3):
        job.events.insert(index, {"ph": "X", "cat": f"cat {index}", "name": "n", "pid": 1, "tid": 1, "ts": 1, "dur": 1})
        job.events.insert(index, {"ph": "C", "name": "counter", "pid": 1, "ts": 5, "args": {"v": 1}})
    (trace,) = read_text(job.text())
    assert seen(trace) == expected(three_steps().document())
    assert (trace.health.repaired, trace.health.notes) == (0, ())


def test_tasks_of_an_ascend_device(read_text: ReadText) -> None:
    device = {"Model Id": 4, "Physic Stream Id": 3, "Task Id": 9, "connection_id": 17}
    events = [
        {
            "ph": "X",
            "name": "MatMul",
            "pid": 5,
            "tid": 3,
            "ts": "100.250",
            "dur": 2.5,
            "args": {**device, "Task Type": "AI_CORE"},
        },
        {
            "ph": "X",
            "name": "EVENT_WAIT",
            "pid": 5,
            "tid": 3,
            "ts": "110",
            "dur": 2,
            "args": {**device, "Task Type": "EVENT_WAIT"},
        },
        {
            "ph": "X",
            "name": "memcpy",
            "pid": 5,
            "tid": 3,
            "ts": "120",
            "dur": 2,
            "args": {**device, "Task Type": "SDMA"},
        },
    ]
    (trace,) = read_text(json.dumps(events))
    assert trace.gpu_events["kind"].to_pylist() == ["kernel", "sync", "memcpy"]
    assert trace.gpu_events["ts_ns"].to_pylist() == [100_250, 110_000, 120_000]
    assert trace.gpu_events["stream"].to_pylist() == [3, 3, 3]
    assert trace.gpu_events["correlation"].to_pylist() == [17, 17, 17]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "holds no events"),
        ('{"traceEvents": []}', "holds no events"),
        ('{"nodes": [], "edges": []}', "not a profiler trace"),
        ("\x89PNG\r\n\x1a\n", "not a trace in a known format"),
        ("step 1 loss 2.3\n", "not a trace in a known format"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(read_text: ReadText, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_text(text, "input.json")
    assert message in str(caught.value)
    assert "input.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_thousand_operators_with_odd_arguments(read_text: ReadText) -> None:
    job = TraceMaker()
    odd = {"Group size": "4", "Seq": 3.0, "In msg nelems": None, "Rank": "x", "Process Group Ranks": [0, 1], "dtype": 5}
    for index in range(1000):
        job.x("cpu_op", "record_param_comms", 100 + index, 1, **odd)
    (trace,) = read_text(job.text())
    records = rows(trace, "record_param_comms")
    assert len(records) == 1000
    assert {(r["group_size"], r["seq"], r["in_nelems"], r["rank_arg"], r["dtype"]) for r in records} == {
        (4, 3, None, None, "5")
    }
    assert records[0]["group_ranks"] == [0, 1]
    assert any("in the arguments of communication operators" in note for note in trace.health.notes)


READ = """
import json, sys
import parsers.kineto, parsers

def most():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024

before = most()
(trace,) = parsers.read(sys.argv[1])
tables = (trace.gpu_events, trace.comm_records, trace.launches, trace.cpu_marks)
print(json.dumps([most() - before, sum(table.nbytes for table in tables), trace.comm_records.num_rows]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nothing_but_the_tables_grows_with_the_file(tmp_path: Path) -> None:
    job = TraceMaker()
    job.collective(1000, 400)
    head, tail = json.dumps({**job.header, "traceEvents": []})[:-2], "]}"
    one = ",".join(map(json.dumps, job.events))

    def read(calls: int) -> tuple[int, int]:
        path = tmp_path / f"{calls}.json"
        path.write_text(head + ",".join([one] * calls) + tail)
        done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
        taken, kept, rows = json.loads(done.stdout)
        assert rows == 4 * calls  # of the operator, its two ranges, and the kernel
        return taken, kept

    (small, kept_of_small), (large, kept_of_large) = read(5_000), read(25_000)
    assert large - small < 2 * (kept_of_large - kept_of_small)  # 1.7; numbers are kept as 64 bits until the end

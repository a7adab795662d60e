"""What a generated file says at each metadata level, as the releases of torch and NCCL write it."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthesis.generate import Job, simulate
from benchmarks.synthesis.spec import Spec, Writing

Event = dict[str, Any]
SIZES = {"Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "In split size", "Out split size"}
NAMES = {"Process Group Name", "Process Group Description", "Process Group Ranks"}


@pytest.fixture(scope="module")
def job() -> Job:
    return simulate(Spec.parse("megatron", "tp2-pp2-dp2", steps=1, ranks=(0, 5)))


def written(job: Job, folder: Path, rank: int = 0, **how: Any) -> tuple[Event, list[Event]]:
    job.write(folder, replace(job.spec.writing, **how))
    document = json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))
    return document, document["traceEvents"]


def nccl(events: list[Event]) -> list[Event]:
    return [e for e in events if e.get("cat") == "kernel" and e["name"].startswith("nccl")]


def records(events: list[Event]) -> list[Event]:
    return [e["args"] for e in events if e["name"] == "record_param_comms"]


def test_full_metadata(job: Job, tmp_path: Path) -> None:
    document, events = written(job, tmp_path)
    groups = {g["pg_name"]: g for g in document["distributedInfo"]["pg_config"]}
    assert groups["0"] == {
        "pg_name": "0",
        "pg_desc": "default_pg",
        "backend_config": "cpu:gloo,cuda:nccl",
        "pg_size": 8,
        "ranks": list(range(8)),
    }
    assert "TENSOR_MODEL_PARALLEL_GROUP" in {g["pg_desc"] for g in groups.values()}
    for args in records(events):
        assert args.keys() >= SIZES | NAMES | {"Rank", "Global rank start"}
        assert args["Process Group Name"] in groups


def test_level_b_keeps_ranks_and_drops_descriptions(job: Job, tmp_path: Path) -> None:
    document, events = written(job, tmp_path, level="b")
    assert {g["pg_desc"] for g in document["distributedInfo"]["pg_config"]} == {"undefined"}
    assert {a["Process Group Description"] for a in records(events)} == {"undefined"}
    assert "[0, 1]" in {a["Process Group Ranks"] for a in records(events)}


def test_level_c_keeps_sizes_only(job: Job, tmp_path: Path) -> None:
    document, events = written(job, tmp_path, level="c")
    assert document["distributedInfo"] == {"backend": "nccl", "rank": 0, "world_size": 8}
    assert all(a.keys() >= SIZES and not a.keys() & NAMES for a in records(events))
    assert not any("Input Dims" in e.get("args", {}) for e in events)


def test_level_d_keeps_kernels_only(job: Job, tmp_path: Path) -> None:
    _, events = written(job, tmp_path, level="d")
    assert nccl(events)
    assert not any(SIZES & e["args"].keys() for e in nccl(events))
    assert not any("c10d" in e["name"] or "nccl:" in e["name"] or e["name"] == "record_param_comms" for e in events)


def test_batched_messages_are_one_kernel_without_arguments(job: Job, tmp_path: Path) -> None:
    _, events = written(job, tmp_path, rank=5)
    messages = [a for a in records(events) if a["Collective name"] in ("send", "recv")]
    kernels = [e for e in nccl(events) if "SendRecv" in e["name"]]
    spans = [e for e in events if e["name"] == "nccl:coalesced" and e["cat"] == "gpu_user_annotation"]
    assert len(messages) == 8  # four microbatches in, four gradients out
    assert len(kernels) == len(spans) < len(messages)
    assert all(not SIZES & e["args"].keys() for e in kernels)
    ends = [e["ts"] for e in events if e["name"] == "nccl:coalesced" and e["cat"] == "user_annotation"]
    inside = [c for c in events if c["name"] in ("c10d::send", "c10d::recv_")]
    assert all(not c["ts"] <= end <= c["ts"] + c["dur"] for c in inside for end in ends)


def test_messages_name_the_global_rank_of_the_other_side(job: Job, tmp_path: Path) -> None:
    _, events = written(job, tmp_path, rank=5)
    messages = [a for a in records(events) if a["Collective name"] in ("send", "recv")]
    assert {(a["Collective name"], a.get("Dst Rank"), a.get("Src Rank"), a["Rank"]) for a in messages} == {
        ("send", 1, None, 0),
        ("recv", None, 1, 0),
    }


def test_kernels_are_launched_by_the_call_that_asked_for_them(job: Job, tmp_path: Path) -> None:
    _, events = written(job, tmp_path)
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"}
    ids = {e["args"]["External id"]: e["name"] for e in events if e.get("cat") == "cpu_op"}
    for event in nccl(events):
        assert calls[event["args"]["correlation"]]["ts"] < event["ts"]
        if "SendRecv" not in event["name"]:  # batches are launched when their calls are over
            assert ids[event["args"]["External id"]] == "record_param_comms"


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        ("nccl-2.27", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"),
        ("nccl-2.17", "ncclKernel_ReduceScatter_RING_LL_Sum_float"),
        ("rccl", "ncclDevKernel_Generic_4"),
    ],
)
def test_kernel_names_of_each_library(job: Job, tmp_path: Path, library: str, expected: str) -> None:
    _, events = written(job, tmp_path, library=library)
    assert expected in {e["name"].split("(")[0] for e in nccl(events)}


def test_old_releases_write_no_arguments_for_coalesced_calls(job: Job, tmp_path: Path) -> None:
    _, events = written(job, tmp_path, torch="2.4")
    names = {a.get("Collective name") for a in records(events)}
    assert None in names
    assert not names & {"reduce_scatter_tensor_coalesced", "allgather_into_tensor_coalesced"}
    assert not any("Seq" in a for a in records(events))


def test_new_releases_number_calls_alike_on_all_ranks(tmp_path: Path) -> None:
    job = simulate(Spec.parse("megatron", "tp2", steps=1, writing=Writing(torch="2.13")))
    ids = []
    for rank in (0, 1):
        _, events = written(job, tmp_path, rank=rank)
        ids.append([(a["Process Group Name"], a["Seq"], a["Comms Id"]) for a in records(events)])
    shared = [row for row in ids[0] if row in ids[1]]
    assert len(shared) == len({row[2] for row in shared}) > 50


def test_marks_can_be_left_out(job: Job, tmp_path: Path) -> None:
    _, with_marks = written(job, tmp_path / "with")
    _, without = written(job, tmp_path / "without", step_marks=False, autograd_marks=False)
    marks = ("ProfilerStep", "autograd::")
    assert {m for m in marks for e in with_marks if e["name"].startswith(m)} == set(marks)
    assert not any(e["name"].startswith(marks) for e in without)


def test_times_are_whole_microseconds_where_asked(job: Job, tmp_path: Path) -> None:
    document, events = written(job, tmp_path, integer_us=True)
    assert all(isinstance(e["ts"], int) and isinstance(e.get("dur", 1), int) for e in events)
    assert "baseTimeNanoseconds" not in document


def test_lists_of_ranks_are_cut_after_thirty(tmp_path: Path) -> None:
    job = simulate(Spec.parse("torchtitan", "dp64", steps=1, ranks=(0,)))
    _, events = written(job, tmp_path)
    text = next(a["Process Group Ranks"] for a in records(events) if a["Group size"] == 64)
    assert text.startswith("[0, 1, 2")
    assert text.endswith("28, ..., 63]")


def test_inference_in_a_graph_has_kernels_without_calls(tmp_path: Path) -> None:
    job = simulate(Spec.parse("inference", "tp4", options=(("graph", True), ("server", "sglang"))))
    _, events = written(job, tmp_path)
    reduced = [e for e in events if e.get("cat") == "kernel" and "sglang::cross_device_reduce" in e["name"]]
    assert len(reduced) == 8 * (2 * 8 + 1)  # steps, two a layer and one for the embedding
    launches = {e["args"]["correlation"] for e in events if e["name"] == "cudaGraphLaunch"}
    assert {e["args"]["correlation"] for e in reduced} == launches
    assert not records(events)

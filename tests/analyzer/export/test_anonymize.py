"""Nothing that was planted remains, and what is left is the same job."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from analyzer.export.anonymize import Hider
from analyzer.pipeline import analyze
from tests.analyzer.export.test_trace import exported, run
from tests.analyzer.kineto_files import ddp_trace

SECRETS = ("acmecorp", "zanzibar", "alice", "node17", "h100-prod", "skunkworks", "/home", "7777123", "18374")
"""Planted: a company, a model, a user, a host, a cluster, a project, a path, a pid, a thread."""


def planted(rank: int) -> dict[str, Any]:
    """A rank full of names."""
    trace = ddp_trace(rank, 2)
    trace |= {
        "traceName": f"/home/alice/skunkworks/node17_7777123.{rank}.pt.trace.json",
        "host_name": "node17.h100-prod.acmecorp.example",
        "PT_PROFILER_JOB_NAME": "skunkworks-zanzibar-7b",
        "username": "alice",
        "anything": {"deep": ["acmecorp"]},
    }
    for device in trace["deviceProperties"]:
        device |= {"uuid": "GPU-acmecorp", "host": "node17"}
    text = (
        json.dumps(trace).replace("default_pg", "acmecorp_dp_group").replace(f'"pid": {100 + rank}', '"pid": 7777123')
    )
    trace = json.loads(text)
    cpu = {"ph": "X", "pid": 7777123, "tid": 18374, "ts": 1100, "dur": 10}
    trace["traceEvents"] += [
        {**cpu, "cat": "user_annotation", "name": "zanzibar forward of alice", "args": {}},
        {**cpu, "cat": "cpu_op", "name": "skunkworks::fused_zanzibar_attention", "args": {"note": "acmecorp"}},
        {**cpu, "cat": "python_function", "name": "/home/alice/zanzibar/train.py(12): step", "args": {"Python id": 1}},
        {**cpu, "cat": "python_function", "name": "nn.Module: ZanzibarBlock_0", "args": {"Python module id": 0}},
        {**cpu, "cat": "cpu_op", "name": "ZanzibarFnBackward", "args": {"Input type": ["zanzibar"], "Input Dims": [2]}},
        {**cpu, "cat": "cpu_op", "name": "aten::add", "args": {"Concrete Inputs": ["alice", "1.5"], "Call stack": "x"}},
        {**cpu, "cat": "acmecorp_events", "name": "aten::add", "args": {"cbid": "alice"}},
        {"ph": "X", "cat": "kernel", "name": "void zanzibar_kernel<acmecorp::T>(float*)", "pid": rank, "tid": 7,
         "ts": 900, "dur": 10, "args": {"device": rank, "stream": 7, "correlation": 99991}},
        {"ph": "X", "cat": "kernel", "name": "void at::native::reduce_kernel<acmecorp::Zanzibar>()", "pid": rank,
         "tid": 7, "ts": 920, "dur": 10, "args": {"device": rank, "stream": 7, "correlation": 99992}},
        {"ph": "M", "name": "process_name", "pid": 7777123, "tid": 0, "args": {"name": "alice-trainer"}},
        {"ph": "M", "name": "thread_name", "pid": 7777123, "tid": 18374, "args": {"name": "thread 18374 (zanzibar)"}},
        {"ph": "M", "name": "thread_sort_index", "pid": 7777123, "tid": 18374, "args": {"sort_index": 18374}},
        {"ph": "M", "name": "process_labels", "pid": 7777123, "tid": 0, "args": {"labels": "acmecorp"}},
        {"ph": "i", "s": "g", "name": "skunkworks mark", "pid": "acmecorp", "tid": "alice", "ts": 1200},
        {"ph": "s", "id": "alice-1", "cat": "fwdbwd", "name": "zanzibar", "pid": 7777123, "tid": 18374, "ts": 1100},
        {"ph": "f", "id": "alice-1", "cat": "fwdbwd", "name": "zanzibar", "pid": 7777123, "tid": 18374, "ts": 1105,
         "bp": "e"},
    ]  # fmt: skip
    return trace


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home") / "alice" / "skunkworks"
    folder.mkdir(parents=True)
    for rank in range(2):
        (folder / f"rank{rank}.json").write_text(json.dumps(planted(rank)))
    return folder


def revealed(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text.lower()]


def test_what_is_looked_for_is_there_without_the_option(job: Path, tmp_path: Path) -> None:
    exported(job, "-o", tmp_path / "open.json", "-q")
    text = (tmp_path / "open.json").read_text()
    assert set(revealed(text)) >= {"acmecorp", "zanzibar", "alice", "skunkworks", "18374"}


@pytest.mark.parametrize("how", [(), ("--no-events",), ("--slice", "steps=1")])
def test_a_trace_reveals_nothing(job: Path, tmp_path: Path, how: tuple[str, ...]) -> None:
    exported(job, "-o", tmp_path / "out.json.gz", "--anonymize", "-q", *how)
    assert revealed(gzip.decompress((tmp_path / "out.json.gz").read_bytes()).decode()) == []


def test_tables_reveal_nothing(job: Path, tmp_path: Path) -> None:
    result = run("export", job, "--tables", tmp_path / "t", "--table-format", "csv", "--anonymize")
    assert result.exit_code == 0
    text = "".join(path.read_text() for path in (tmp_path / "t").iterdir()) + result.stderr
    assert "desc_" in text
    assert "rank0_" in text
    assert revealed(text) == []


def test_times_and_sizes_stay(job: Path, tmp_path: Path) -> None:
    exported(job, "-o", tmp_path / "out.json", "--anonymize", "-q")
    before, after = analyze(job), analyze(tmp_path / "out.json")
    assert before.exposure is not None
    assert after.exposure == before.exposure
    assert (after.layout.dp, after.layout.zero_stage) == (before.layout.dp, before.layout.zero_stage) == (2, 0)
    assert [(r.dim, r.primitive, r.size_bytes) for r in after.collectives] == [
        (r.dim, r.primitive, r.size_bytes) for r in before.collectives
    ]


def test_equal_names_are_equal_under_one_salt_only(job: Path, tmp_path: Path) -> None:
    texts = []
    for number, salt in enumerate(("a", "a", "b")):
        exported(job, "-o", tmp_path / f"{number}.json", "--anonymize", "--salt", salt, "-q")
        texts.append((tmp_path / f"{number}.json").read_text())
    assert texts[0] == texts[1] != texts[2]


def test_public_names_stay() -> None:
    hide = Hider(b"salt")
    for name in (
        "aten::add_",
        "c10d::allreduce_",
        "record_param_comms",
        "nccl:all_reduce",
        "ProfilerStep#12",
        "cudaLaunchKernel",
        "Memcpy DtoD (Device -> Device)",
        "ncclDevKernel_AllReduce_Sum_bf16",
        "Optimizer.step#AdamW.step",
        "autograd::engine::evaluate_function: MmBackward0",
    ):
        assert hide.name(name) == name
    assert hide.name("Optimizer.step#Zanzibar.step").startswith("Optimizer.step#optimizer_")
    assert hide.name("FSDP::pre_forward (zanzibar.layers.0)").startswith("FSDP::pre_forward (module_")
    hidden = hide.name("autograd::engine::evaluate_function: ZanzibarBackward0")
    assert hidden.startswith("autograd::engine::evaluate_function: node_")
    assert hidden.endswith("Backward0")


@pytest.mark.parametrize("case", ["torchtitan_fsdp4_2026", "megatron_tp8_2024"])
def test_a_real_job_stays_the_same(case: str, shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "real" / case
    exported(folder, "-o", tmp_path / "out.json.gz", "--anonymize", "-q")
    before, after = analyze(folder), analyze(tmp_path / "out.json.gz")
    assert before.exposure is not None
    assert after.exposure is not None
    assert after.exposure.exposed_us == before.exposure.exposed_us
    for dim in ("tp", "cp", "pp", "dp", "ep"):
        assert getattr(after.layout, dim) in (None, getattr(before.layout, dim))

"""Real GPU traces: what their index and published figures say of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import parsers
from heuristics.label import label
from heuristics.labelled import GpuRole, LabelledRank


def _rank(shared: Path, name: str) -> LabelledRank:
    (trace,) = parsers.read(shared / "data" / "real" / name)
    return label(trace)


def _count(rank: LabelledRank, *names: str, ran: bool = True) -> Counter[tuple[Any, ...]]:
    rows = zip(*rank.collectives.select(["ts_ns", *names]).to_pydict().values(), strict=True)
    return Counter(tuple(values) for ts, *values in rows if not ran or ts is not None)


@pytest.mark.parametrize("rank", range(8))
def test_megatron_tp8_has_84_all_reduces_a_rank(shared: Path, rank: int) -> None:
    """81 of [4, 2048, 4096] in half precision, 3 scalars; the group comes from positional arguments of PyTorch 2.1."""
    found = _rank(shared, f"megatron_tp8_2024/rank{rank}.json.gz")
    assert _count(found, "primitive", "dtype", "group_size") == {
        ("all_reduce", "float16", 8): 81,
        ("all_reduce", "float32", 8): 3,
    }
    activations = 4 * 2048 * 4096
    assert _count(found, "in_nelems", "sent_bytes")[activations, 2 * 7 * activations * 2 // 8] == 81
    assert found.groups.column("ranks").to_pylist()[0] == list(range(8))
    silent = _count(found, "group_size", "sent_bytes", ran=False) - _count(found, "group_size", "sent_bytes")
    assert silent == {(1, 0): 1}
    assert int((found.gpu_role == GpuRole.COMM).sum()) == 84


@pytest.mark.parametrize("rank", range(2))
def test_megatron_tp2_has_13_all_reduces_on_group_13(shared: Path, rank: int) -> None:
    found = _rank(shared, f"megatron_tp2_2024/rank{rank}.json.gz")
    assert _count(found, "primitive", "classified_by") == {("all_reduce", "metadata"): 13}
    groups = found.groups.to_pylist()
    assert {groups[row]["name"] for (row,) in _count(found, "group")} == {"13"}
    assert _count(found, "phase") == {("forward",): 8, ("backward",): 5}


@pytest.mark.parametrize("rank", range(4))
def test_torchtitan_fsdp_gathers_15_times_and_reduces_8_times(shared: Path, rank: int) -> None:
    found = _rank(shared, f"torchtitan_fsdp4_2026/rank{rank}.json.gz")
    assert _count(found, "primitive", "dtype", "phase") == {
        ("all_gather", "bfloat16", "forward"): 8,
        ("all_gather", "bfloat16", "backward"): 7,
        ("reduce_scatter", "float32", "backward"): 8,
        ("all_reduce", "float32", "optimizer"): 3,
        ("all_reduce", "int32", "optimizer"): 1,
        ("all_reduce", "int64", "optimizer"): 1,
    }


@pytest.mark.parametrize("rank", range(2))
def test_all_kernels_of_trace_filter_are_named_send_recv_and_none_is_one(shared: Path, rank: int) -> None:
    found = _rank(shared, f"hta/trace_filter_2rank/sampled_rank-{rank}.json.gz")
    assert _count(found, "primitive", "classified_by") == {
        ("all_to_all", "operator"): 4,
        ("all_reduce", "operator"): 4,
        ("all_gather", "operator"): 2,
    }
    assert sum(n for _, n in found.stats.conflicts) == 6
    assert {name.split("_")[1] for (name,) in _count(found, "name")} == {"SendRecv"}


def test_all_80_kernels_of_negative_queue_length_get_their_primitive(shared: Path) -> None:
    """75 through the operator that launched them; 5 queued before the window, by the order that the streams repeat."""
    found = _rank(shared, "hta/negative_queue_length/rank0.json.gz")
    assert _count(found, "primitive", "classified_by") == {
        ("all_to_all", "operator"): 45,
        ("all_reduce", "operator"): 10,
        ("all_gather", "operator"): 10,
        ("reduce_scatter", "operator"): 10,
        ("all_to_all", "period"): 2,
        ("all_gather", "period"): 2,
        ("all_reduce", "period"): 1,
    }
    assert dict(found.stats.conflicts) == {
        "kernel name says send_recv, operator says all_reduce": 10,
        "kernel name says send_recv, operator says all_gather": 10,
        "kernel name says send_recv, operator says reduce_scatter": 10,
    }
    assert found.steps.complete.tolist() == [True] * 5
    empty = _count(found, "size_bytes", ran=False) - _count(found, "size_bytes")
    assert empty == {(0,): 10}
    sizes = _count(found, "primitive", "in_nelems", "out_nelems", "group_size")
    assert sizes["reduce_scatter", 65536 * 384, 8192 * 384, 8] == 5


@pytest.mark.parametrize("rank", range(8))
def test_deep_ep_decode_has_58_dispatches_and_58_combines(shared: Path, rank: int) -> None:
    found = _rank(shared, f"lightllm_ep8_decode/rank{rank}.json.gz")
    words = Counter(
        name.split("<")[0].rsplit("::", 1)[1] for (name,), n in _count(found, "name").items() for _ in range(n)
    )
    assert words == {"dispatch": 58, "combine": 58}
    assert _count(found, "primitive", "library", "classified_by") == {("all_to_all", "deep_ep", "kernel_name"): 116}
    assert found.steps.source == "none"


@pytest.mark.parametrize("rank", range(8))
def test_custom_all_reduce_decode_has_123_and_one_gather_of_logits(shared: Path, rank: int) -> None:
    found = _rank(shared, f"lightllm_tp8_decode/rank{rank}.json.gz")
    assert _count(found, "primitive", "library", "dtype", "group_size") == {
        ("all_reduce", "custom_all_reduce", "bfloat16", 8): 2 * 61 + 1,
        ("all_gather", "nccl", None, 8): 1,
    }


def test_symmetric_memory_all_reduces_are_communication(shared: Path) -> None:
    found = _rank(shared, "vllm_tp8_b200/rank0.json.gz")
    assert _count(found, "primitive", "library", "classified_by") == {
        ("all_reduce", "torch_symm_mem", "operator"): 73,
        ("all_gather", "nccl", "metadata"): 1,
    }
    assert int((found.gpu_role == GpuRole.COMM).sum()) == 74
    assert found.stats.comm_ns_by_source.keys() == {"metadata", "operator"}
    assert sum(found.stats.comm_ns_by_source.values()) == pytest.approx(2_141_500, abs=100)


def test_generic_kernels_of_rccl_are_told_apart(shared: Path) -> None:
    """6 all-reduces and 6 broadcasts carry metadata; of the 5 queued before the window 3 and 2 repeat them."""
    found = _rank(shared, "rccl_ddp8_mi300/rank0.json.gz")
    assert _count(found, "primitive", "library", "classified_by") == {
        ("all_reduce", "rccl", "metadata"): 6,
        ("broadcast", "rccl", "metadata"): 6,
        ("all_reduce", "rccl", "period"): 3,
        ("broadcast", "rccl", "period"): 2,
    }
    assert _count(found, "step", "classified_by")[None, "period"] == 5


def test_triton_all_to_alls_of_torchao_are_communication(shared: Path) -> None:
    found = _rank(shared, "ao_ep2_symmetric/rank0.json.gz")
    assert _count(found, "primitive", "library") == {("all_to_all", "torchao"): 20, ("all_gather", "nccl"): 10}


def test_uneven_exchanges_of_ao_ep2(shared: Path) -> None:
    found = _rank(shared, "ao_ep2_nccl/rank0.json.gz")
    assert _count(found, "op", "dtype") == {
        ("all_to_allv", "int64"): 10,
        ("all_to_allv", "bfloat16"): 20,
        (None, None): 1,
    }
    rows = found.collectives.select(["op", "dtype", "in_nelems", "in_split", "sent_bytes", "seq"]).to_pylist()
    for row in rows:
        if row["op"] is not None:
            width = row["in_nelems"] // sum(row["in_split"])
            assert row["sent_bytes"] == row["in_split"][1] * width * (8 if row["dtype"] == "int64" else 2)
            assert row["seq"] is not None


def test_kernels_launched_before_the_window_belong_to_no_step(shared: Path) -> None:
    for name in ("nanogpt_overlap_before", "nanogpt_overlap_after"):
        found = _rank(shared, f"{name}/rank0.json.gz")
        counts = _count(found, "classified_by", "step")
        assert counts["kernel_name", None] == 20
        assert sum(n for (source, _), n in counts.items() if source == "metadata") == 56
        assert {step for source, step in counts if source == "metadata"} == {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["sglang_tp1_decode/rank0.json.gz", "vllm_tp1_graphs/rank0.json.gz"])
def test_a_single_rank_has_no_communication(shared: Path, name: str) -> None:
    found = _rank(shared, name)
    assert found.collectives.num_rows == 0
    assert not set(found.gpu_role.tolist()) & {GpuRole.COMM, GpuRole.COMM_SYNC}


@pytest.mark.parametrize("rank", range(8))
def test_dlrm_has_5_exchanges_and_3_all_reduces(shared: Path, rank: int) -> None:
    found = _rank(shared, f"hta/dlrm_8rank_v100/rank{rank}.json.gz")
    assert _count(found, "primitive", "classified_by") == {("all_to_all", "operator"): 5, ("all_reduce", "operator"): 3}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("trace_diff_control/control.json.gz", {"all_to_all": 42, "all_reduce": 18}),
        ("trace_diff_test/test.json.gz", {"all_to_all": 43, "all_reduce": 21}),
        ("df_index_resolver/df_index_resolver.json.gz", {"all_reduce": 2020}),
        ("nccl_parser_config/nccl_data.json.gz", {"all_reduce": 15, "broadcast": 6}),
    ],
)
def test_kernels_of_other_traces_are_classified(shared: Path, name: str, expected: dict[str, int]) -> None:
    found = _rank(shared, f"hta/{name}")
    assert {primitive: n for (primitive,), n in _count(found, "primitive").items()} == expected


@pytest.mark.parametrize("rank", range(4))
def test_torchrec_exchanges_are_not_sends(shared: Path, rank: int) -> None:
    found = _rank(shared, f"torchrec_mp4/rank{rank}.json.gz")
    assert _count(found, "primitive", "classified_by")["all_reduce", "operator"] == 12
    assert _count(found, "primitive", "classified_by")["all_to_all", "operator"] == 15
    assert {primitive for (primitive,) in _count(found, "primitive")} == {"all_reduce", "all_to_all"}


def test_annotations_are_the_calls_where_there_is_nothing_else(shared: Path) -> None:
    gloo = _rank(shared, "hta/cpu_only_gloo300/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz")
    assert _count(gloo, "primitive", "library", "classified_by") == {("all_reduce", "gloo", "annotation"): 10}
    assert "reduce-scatter" in gloo.stats.notes[0]
    nccl = _rank(shared, "hta/rank_non_gpu/rank_non_gpu.json.gz")
    assert _count(nccl, "primitive", "library", "classified_by") == {("all_to_all", "nccl", "annotation"): 6}

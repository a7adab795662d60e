"""Captured jobs whose layout is known: every answer is right or null, with and without names, from all ranks or one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import parsers
from heuristics.label import label
from heuristics.labelled import LabelledRank
from heuristics.layout import infer
from heuristics.verdict import Layout
from tests.truth.scoring import judge

MAX_NULL_SHARE = 0.1
PROMISE = 0.9


@cache
def labelled(case: Path) -> tuple[LabelledRank, ...]:
    return tuple(label(trace) for file in files(case) for trace in parsers.read(file))


def files(case: Path) -> list[Path]:
    return sorted(path for path in case.glob("*.json*") if path.name != "truth.json")


def cases(folder: Path) -> list[Path]:
    found = [path.parent for path in sorted(folder.glob("*/truth.json"))]
    assert found, f"no captured jobs in {folder}"
    return found


def score(folder: Path, *, use_names: bool, one_rank: bool = False) -> tuple[list[str], float]:
    """Wrong fields over all cases, and the share of fields that are null."""
    wrong: list[str] = []
    nulls = fields = 0
    for case in cases(folder):
        ranks = labelled(case)[:1] if one_rank else labelled(case)
        mistakes, null = judge(infer(ranks, use_names=use_names).layout, case)
        wrong += [f"{case.name}: {mistake}" for mistake in mistakes]
        nulls += len(null)
        fields += 10
    return wrong, nulls / fields


def test_bundled_samples_from_all_ranks(sample_traces: Path) -> None:
    wrong, null = score(sample_traces, use_names=True)
    assert wrong == []
    assert null <= MAX_NULL_SHARE


def test_bundled_samples_without_names(sample_traces: Path) -> None:
    wrong, null = score(sample_traces, use_names=False)
    assert wrong == []
    assert null <= MAX_NULL_SHARE


def test_bundled_samples_from_one_rank(sample_traces: Path) -> None:
    wrong, _ = score(sample_traces, use_names=False, one_rank=True)
    assert wrong == []


def test_captures_from_all_ranks(shared: Path) -> None:
    wrong, null = score(shared / "data" / "captures", use_names=True)
    assert wrong == []
    assert null <= MAX_NULL_SHARE


def test_captures_without_names(shared: Path) -> None:
    wrong, null = score(shared / "data" / "captures", use_names=False)
    assert wrong == []
    assert null <= MAX_NULL_SHARE


def test_captures_from_one_rank(shared: Path) -> None:
    wrong, _ = score(shared / "data" / "captures", use_names=False, one_rank=True)
    assert wrong == []


def test_names_change_no_degree(shared: Path) -> None:
    for case in cases(shared / "data" / "captures"):
        ranks = labelled(case)
        named, unnamed = infer(ranks).layout, infer(ranks, use_names=False).layout
        assert _degrees(named) == _degrees(unnamed), case.name


def _degrees(layout: Layout) -> tuple[int | None, ...]:
    return (layout.tp, layout.cp, layout.pp, layout.dp, layout.ep)


def test_real_traces_give_their_layout_or_null(shared: Path) -> None:
    """What the publishers of the traces say of them, or what their kernels leave no doubt about."""
    known = {
        "megatron_tp8_2024": {"tp": 8, "pp": 1, "dp": 1, "zero_stage": 0, "sequence_parallel": False},
        "megatron_tp2_2024": {"tp": 2, "pp": 1, "dp": 1},
        "torchtitan_fsdp4_2026": {"tp": 1, "dp": 4, "zero_stage": 3, "dp_shard": 4},
        "nanogpt_overlap_before": {"tp": 1, "dp": 8, "zero_stage": 1},
        "nanogpt_overlap_after": {"tp": 1, "dp": 8, "zero_stage": 1},
        "ao_ep2_nccl": {"tp": 1, "ep": 2},
        "ao_ep2_symmetric": {"tp": 1, "ep": 2},
        "lightllm_ep8_decode": {"tp": 1, "ep": 8},
        "lightllm_tp8_decode": {"tp": 8, "pp": 1, "dp": 1},
        "rccl_ddp8_mi300": {"tp": 1, "dp": 8, "zero_stage": 0},
        "vllm_tp8_b200": {"tp": 8, "pp": 1, "dp": 1},
        "torchrec_mp4": {"tp": 1, "dp": 4, "ep": None},
        "sglang_tp1_decode": {"tp": 1, "dp": 1},
        "hta/nccl_parser_config": {"tp": 1, "dp": 2, "zero_stage": 0},
        "hta/dlrm_8rank_v100": {"dp": 8, "tp": 1, "ep": None},
        "hta/df_index_resolver": {"dp": 2, "tp": 1},
    }
    for name, expected in known.items():
        layout = infer(labelled(shared / "data" / "real" / name)).layout
        assert {key: getattr(layout, key) for key in expected} == expected, name

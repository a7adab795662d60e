"""Layouts of simulated jobs whose traces say nothing but kernel names, streams and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analyzer.summary.make import summarize
from analyzer.summary.table import to_table, views_of
from benchmarks.synthesis.generate import simulate
from benchmarks.synthesis.spec import Spec, Writing
from heuristics.label import label
from heuristics.labelled import LabelledRank
from heuristics.layout import infer, infer_views
from heuristics.observe import view
from heuristics.verdict import Layout
from parsers import read


def job(folder: Path, framework: str, layout: str, **changes: Any) -> list[LabelledRank]:
    """All ranks of a simulated job, written without arguments."""
    spec = Spec.parse(framework, layout, **changes)
    simulate(spec).write(folder, replace(spec.writing, level="d"))
    files = sorted(folder.glob("rank*.json.gz"), key=lambda path: int(path.name[4:-8]))
    return [label(trace) for file in files for trace in read(file)]


def degrees(layout: Layout) -> tuple[int | None, ...]:
    """TP, CP, PP, DP, EP."""
    return (layout.tp, layout.cp, layout.pp, layout.dp, layout.ep)


@pytest.mark.parametrize(
    ("framework", "layout", "changes", "expected"),
    [
        ("megatron", "tp2-dp2", {}, (2, 1, 1, 2, 1)),
        ("megatron", "tp4", {"sp": False}, (4, 1, 1, 1, 1)),
        ("megatron", "pp2-dp2", {}, (1, 1, 2, 2, 1)),
        ("megatron", "tp2-pp2", {}, (2, 1, 2, 1, 1)),
        ("megatron", "cp4", {"cp_kind": "all_gather"}, (1, 4, 1, 1, 1)),
        ("megatron", "cp2-dp2", {"cp_kind": "ulysses"}, (1, 2, 1, 2, 1)),
        ("megatron", "cp2-dp2", {}, (1, 2, 1, 2, 1)),
        ("megatron", "ep2-dp4", {}, (1, 1, 1, 4, 2)),
        ("megatron", "ep4-dp4", {"options": (("dispatcher", "allgather"),)}, (1, 1, 1, 4, 4)),
        ("torchtitan", "tp2-dp2", {}, (2, 1, 1, 2, 1)),
        ("torchtitan", "cp2-dp2", {}, (1, 2, 1, 2, 1)),
        ("torchtitan", "dp4-rep2", {}, (1, 1, 1, 4, 1)),
        ("torch", "dp4", {}, (1, 1, 1, 4, 1)),
        ("torch", "pp4", {"schedule": "gpipe"}, (1, 1, 4, 1, 1)),
        ("deepspeed", "tp2-dp2", {}, (2, 1, 1, 2, 1)),
        ("inference", "tp2-pp2", {}, (2, 1, 2, 1, 1)),
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value),
)
def test_layout_from_names_streams_and_times(
    tmp_path: Path, framework: str, layout: str, changes: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert degrees(infer(job(tmp_path, framework, layout, **changes)).layout) == expected


def test_groups_are_those_that_finish_together(tmp_path: Path) -> None:
    found = infer(job(tmp_path, "megatron", "tp2-dp2")).layout
    assert found.dimensions["tp"].groups == ((0, 1), (2, 3))
    assert found.dimensions["dp"].groups == ((0, 2), (1, 3))
    assert found.sequence_parallel is True
    assert found.confidence >= 0.9


def test_clocks_of_two_hosts_are_put_right_by_what_ends_together(tmp_path: Path) -> None:
    ranks = job(tmp_path, "megatron", "tp2-dp2", gpus_per_node=2)
    assert degrees(infer(ranks).layout) == (2, 1, 1, 2, 1)


def test_experts_within_tensor_ranks_are_left_open(tmp_path: Path) -> None:
    """Gathers and scatters around experts on the ranks of TP: the experts may be whole or split."""
    found = infer(job(tmp_path, "megatron", "tp2-ep2-dp2", options=(("dispatcher", "allgather"),))).layout
    assert degrees(found) == (2, 1, 1, 2, None)
    assert "split among the tp ranks" in found.dimensions["ep"].against[0]


@pytest.mark.parametrize("which", [slice(0, 1), slice(0, 3)])
def test_missing_ranks_leave_groups_open_and_one_is_named(tmp_path: Path, which: slice) -> None:
    found = infer(job(tmp_path, "megatron", "tp2-dp2")[which]).layout
    assert degrees(found) == (None, None, 1, None, None)
    assert f"give the trace of rank {which.stop}" in found.dimensions["tp"].against[0]
    assert found.dimensions["pp"].evidence == ("a whole step passes without a message to another stage",)


@pytest.mark.parametrize(
    ("framework", "layout", "changes", "expected"),
    [
        ("torch", "dp4", {}, (1, 1, 1, 4, 1)),  # nothing but gradients: replicas, however many the world has
        ("torchtitan", "dp4", {}, (None, None, 1, None, None)),  # parameters are gathered in forward: by whom is open
        ("torch", "pp4", {"schedule": "gpipe"}, (1, None, None, None, None)),  # experts may be on other stages
        ("megatron", "tp2-pp2", {"sp": False}, (None, None, None, None, None)),
        ("megatron", "ep2-dp4", {}, (None,) * 5),  # of the kernels of an all-to-all, any may be messages
        ("inference", "tp4", {"options": (("comm", "nccl"),)}, (None,) * 5),  # no backward to tell by
        ("inference", "tp8", {}, (8, 1, 1, 1, 1)),  # kernels of custom all-reduces say how many take part
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value),
)
def test_one_rank_rules_out_what_none_of_its_calls_can_serve(
    tmp_path: Path, framework: str, layout: str, changes: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    found = infer(job(tmp_path, framework, layout, **changes)[1:2]).layout
    assert degrees(found) == expected
    assert found.confidence < 0.9


def test_tables_of_embeddings_split_no_context(shared: Path) -> None:
    """A recommendation model (torchrec): rows of tables by all-to-all, dense gradients by all-reduce in backward."""
    file = shared / "data" / "real" / "torchrec_mp4" / "rank0.json.gz"
    found = infer([label(trace) for trace in read(file)]).layout
    assert degrees(found) == (1, 1, 1, 4, None)


def test_a_step_with_calls_of_unknown_kind_rules_nothing_out(tmp_path: Path) -> None:
    one = view(job(tmp_path, "torch", "dp4")[0])
    unnamed = replace(one, families=(replace(one.families[0], primitive=""), *one.families[1:]))
    assert degrees(infer_views([unnamed]).layout) == (None,) * 5
    forward_only = replace(one, has_backward=False)
    assert degrees(infer_views([forward_only]).layout) == (None,) * 5


def test_one_name_for_every_primitive_leaves_all_open_and_says_so(tmp_path: Path) -> None:
    found = infer(job(tmp_path, "megatron", "tp2-dp2", writing=Writing(library="rccl"))).layout
    assert degrees(found) == (None,) * 5
    reason = found.dimensions["tp"].against[0]
    assert "calls are kernels of one name for every primitive: they end together on groups of 2" in reason
    assert "give traces that record collectives, or an NCCL log" in reason


def test_a_summary_keeps_the_times(tmp_path: Path) -> None:
    ranks = job(tmp_path, "megatron", "tp2-dp2")
    table = to_table([summarize(rank) for rank in ranks])
    assert infer_views(views_of(table)).layout == infer(ranks).layout


def test_every_call_has_its_dimension(tmp_path: Path) -> None:
    ranks = job(tmp_path, "megatron", "tp2-dp2")
    dims = infer(ranks).dims[0]
    streams: Sequence[int] = ranks[0].collectives.column("stream").to_pylist()
    names = ranks[0].collectives.column("primitive").to_pylist()
    scattered = {(s, d) for s, d, n in zip(streams, dims, names, strict=True) if n == "reduce_scatter"}
    assert {d for _, d in scattered} == {"tp", "dp"}
    assert len({s for s, d in scattered if d == "dp"}) == 1


def test_clusters_of_end_times_without_any_mark(shared: Path) -> None:
    """All-reduces end in pairs, scatters and gathers in fours; the files name no rank's world."""
    files = sorted((shared / "data" / "pains" / "15_no_group_metadata").glob("rank*.json"))
    found = infer([label(trace) for file in files for trace in read(file)]).layout
    assert degrees(found) == (2, 1, 1, 4, 1)
    assert found.dimensions["tp"].groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert found.dimensions["dp"].groups == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert found.confidence < 0.9  # how many ranks there are is only the number of files


def test_more_ranks_than_can_be_compared_are_left_open(tmp_path: Path) -> None:
    one = view(job(tmp_path, "torch", "dp2")[0])
    found = infer_views([replace(one, rank=number, world_size=129) for number in range(129)])
    assert degrees(found.layout) == (None,) * 5
    assert "times of 129 ranks are too many to compare" in " ".join(found.layout.dimensions["tp"].against)
    assert set(found.dims[128]) == {"unknown"}

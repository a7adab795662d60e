"""Calls without a size or a group: what order and number alone tell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import analyzer
from heuristics.layout import infer_views
from heuristics.view import GroupView, RankView
from tests.heuristics.jobs import Call, gather, rank, reduce, scatter

if TYPE_CHECKING:
    from heuristics.verdict import Layout

UNNAMED = GroupView(0, None, "", "", declared=False)


def job(calls: list[Call], world: int = 4) -> Layout:
    views: list[RankView] = [rank(calls, [UNNAMED], world=world, number=number) for number in range(world)]
    return infer_views(views).layout


def test_parameters_gathered_before_use_and_again_are_sharded_over_every_rank() -> None:
    # FSDP: each of twelve units is gathered in forward and again in backward, where its gradient is scattered.
    calls = [gather(-1, "F")] * 12 + [reduce(-1, "F")] + [gather(-1, "B"), scatter(-1, "B")] * 12
    layout = job(calls)
    assert (layout.tp, layout.cp, layout.pp, layout.dp, layout.ep) == (1, 1, 1, 4, 1)
    assert (layout.zero_stage, layout.data_parallel, layout.dp_shard) == (3, "zero3", 4)
    # Keys and values of context parallelism can look the same, so this is no promise.
    assert 0.5 <= layout.confidence < 0.9
    said = " ".join(layout.dimensions["dp"].evidence)
    assert "12 tensors of unknown size per step are reduce-scattered in or after backward" in said
    assert "24 gathers for 12 reduce-scatters: parameters are gathered again" in said


def test_gathers_in_pairs_around_attention_may_be_keys_and_values() -> None:
    pair = [gather(-1, "F", attention=1), gather(-1, "F")]
    calls = pair * 8 + [scatter(-1, "B"), scatter(-1, "B")] * 8
    layout = job(calls)
    assert layout.zero_stage is None
    assert layout.confidence < 0.9


def test_a_loss_among_gradients_of_unknown_size_is_no_tensor_parallelism() -> None:
    layout = job([reduce(-1, "F")] + [reduce(-1, "B")] * 20)
    assert layout.tp != 4
    assert layout.confidence < 0.9


def test_layer_outputs_of_unknown_size_speak_for_it() -> None:
    layout = job([reduce(-1, "F")] * 24 + [reduce(-1, "B")] * 24)
    assert "tensors of unknown size are all-reduced 24 times in forward" in " ".join(layout.dimensions["tp"].evidence)


def test_a_captured_job_of_jax_without_sizes(shared: Path) -> None:
    document = analyzer.analyze(str(shared / "data/formats/nsys_jax/pax_fsdp4_4proc"))
    layout = document.layout
    assert (layout.tp, layout.cp, layout.pp, layout.dp, layout.ep) == (1, 1, 1, 4, 1)
    assert (layout.data_parallel, layout.zero_stage, layout.dp_shard) == ("zero3", 3, 4)
    assert {(row.dim, row.primitive) for row in document.collectives} == {
        ("dp", "all_gather"),
        ("dp", "reduce_scatter"),
        ("control", "all_reduce"),
    }

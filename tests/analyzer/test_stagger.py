"""Pipelines that only time shows: kernels without arguments, or one message per pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analyzer.model import Analysis
from analyzer.pipeline import analyze
from tests.analyzer.time_files import GEMM, KERNEL, Writer, analysed, gpipe

SEND_RECV = KERNEL.format("SendRecv")


def degrees(found: Analysis) -> dict[str, int | None]:
    layout = found.layout
    return {dim: getattr(layout, dim) for dim in ("tp", "cp", "pp", "dp", "ep")}


def stages(found: Analysis) -> dict[str, int]:
    assert found.pipeline is not None
    return found.pipeline.stage_of_rank


@pytest.fixture(scope="module")
def expect(shared: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((shared / "data" / "pains" / "EXPECT.json").read_text())
    return said


def test_messages_without_arguments_show_their_pipeline(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["16_coalesced_p2p"]
    found = analyze(shared / "data" / "pains" / "16_coalesced_p2p")
    assert (found.layout.pp, found.layout.microbatches) == (said["pp"], said["microbatches"])
    assert stages(found) == {str(rank): stage for stage, rank in enumerate(said["stage_order"])}
    assert {row.dim for row in found.collectives} == {"pp"}


def test_receives_that_wait_show_their_pipeline(shared: Path, expect: dict[str, Any]) -> None:
    said = expect["25_bubble_as_recv"]
    found = analyze(shared / "data" / "pains" / "25_bubble_as_recv")
    assert (found.layout.pp, found.layout.microbatches) == (said["pp"], said["microbatches"])
    assert found.layout.confidence < 0.9


def forward_only(order: list[int], microbatches: int, turn: float, *, steps: int = 2) -> list[Writer]:
    """Stages in the order of ``order``; messages leave a stage as kernels that say nothing about themselves."""
    ranks = []
    world = len(order)
    for rank in range(world):
        made, stage = Writer(rank, world), order.index(rank)
        length = (microbatches + world + 4) * turn
        for n in range(steps):
            b = 1_000.0 + n * length
            made.step(n, b, length)
            for m in range(microbatches):
                at = b + turn / 5 + (m + stage) * turn
                if stage:
                    made.kernel(SEND_RECV, at - 0.08 * turn, 0.06 * turn, 28)
                made.kernel(GEMM, at, 0.7 * turn)
                if stage < world - 1:
                    made.kernel(SEND_RECV, at + 0.72 * turn, 0.06 * turn, 28)
        ranks.append(made)
    return ranks


@pytest.mark.parametrize(
    ("order", "microbatches", "turn"), [([0, 1], 4, 700.0), ([2, 0, 1], 12, 250.0), ([0, 1, 2, 3, 4, 5], 3, 4_000.0)]
)
def test_stages_of_inference_follow_each_other(
    tmp_path: Path, order: list[int], microbatches: int, turn: float
) -> None:
    found = analysed(tmp_path, forward_only(order, microbatches, turn))
    assert degrees(found) == {"tp": 1, "cp": 1, "pp": len(order), "dp": 1, "ep": 1}
    assert found.layout.microbatches == microbatches
    assert stages(found) == {str(rank): order.index(rank) for rank in range(len(order))}
    assert found.layout.confidence < 0.9


@pytest.mark.parametrize(
    ("count", "microbatches", "forward", "backward"),
    [(2, 5, 800.0, 1_500.0), (3, 16, 90.0, 200.0), (6, 6, 500.0, 500.0)],
)
def test_stages_of_training_work_longer_than_the_next(
    tmp_path: Path, count: int, microbatches: int, forward: float, backward: float
) -> None:
    found = analysed(tmp_path, gpipe(count, microbatches, forward, backward, lead=20, slack=300))
    assert (found.layout.pp, found.layout.microbatches) == (count, microbatches)
    assert stages(found) == {str(r): r for r in range(count)}
    assert found.layout.pp_schedule is None  # GPipe and 1F1B take the same time


def test_a_missing_stage_leaves_the_pipeline_undecided(tmp_path: Path) -> None:
    assert analysed(tmp_path, forward_only([0, 1, 2, 3], 6, 500.0)[:-1]).layout.pp is None


def test_ranks_that_start_together_are_no_pipeline(tmp_path: Path) -> None:
    """Every rank passes something around a ring at the same time."""
    ranks = []
    for r in range(4):
        rank = Writer(r, 4)
        for n in range(2):
            b = 1_000.0 + n * 9_000
            rank.step(n, b, 9_000)
            for i in range(8):
                rank.kernel(GEMM, b + 100 + 1_000 * i, 700)
                rank.kernel(SEND_RECV, b + 810 + 1_000 * i, 60, 28)
        ranks.append(rank)
    assert analysed(tmp_path, ranks).layout.pp != 4


def test_uneven_delays_decide_nothing(tmp_path: Path) -> None:
    ranks = forward_only([0, 1, 2, 3], 6, 500.0)
    for event in ranks[2].events:
        event["ts"] += 200.0
    assert analysed(tmp_path, ranks).layout.pp is None

"""What pictures are drawn from, held against hand arithmetic and captured jobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analyzer.details import Details, Missing
from analyzer.options import Options
from analyzer.pipeline import examine
from tests.analyzer.time_files import GEMM, Writer


def details(folder: Path, ranks: list[Writer]) -> Details:
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        (folder / f"rank{rank.rank}.json").write_text(rank.text())
    return Details(examine(folder, Options()))


def late_pair() -> list[Writer]:
    """Two ranks, four steps of 1000 µs; rank 1 computes 300 µs longer and arrives last at an all-reduce of 200 µs."""
    ranks = []
    for rank in range(2):
        writer = Writer(rank, 2)
        for step in range(4):
            at = 10_000 + 1000 * step
            compute = 300 + 300 * rank
            writer.step(step, at, 1000)
            writer.kernel(GEMM, at + 50, compute)
            writer.collective("allreduce", at + 50 + compute, 850 - 50 - compute, 1 << 20)
        ranks.append(writer)
    return ranks


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Details:
    return details(tmp_path_factory.mktemp("late"), late_pair())


@pytest.fixture(scope="module")
def captured(sample_traces: Path) -> Details:
    return Details(examine(sample_traces / "tp2_pp2_dp2", Options()))


def test_parts_of_the_step_sum_to_it_and_waiting_is_a_part_of_its_own(late: Details) -> None:
    found = late.anatomy
    assert not isinstance(found, Missing)
    of = dict(zip(found.parts, found.us.T.tolist(), strict=True))
    assert of["wait"] == pytest.approx([300, 0], abs=2)
    (dim,) = set(of) & {"dp", "tp", "unknown"}
    assert of[dim] == pytest.approx([200, 200], abs=2)
    assert of["compute"] == pytest.approx([300, 600], abs=2)
    assert late.analysis.exposure is not None
    assert found.us.sum(axis=1) == pytest.approx([r.step_us for r in late.analysis.exposure.by_rank])


def test_parts_sum_to_the_step_in_a_captured_pipeline(captured: Details) -> None:
    found = captured.anatomy
    assert not isinstance(found, Missing)
    assert captured.analysis.exposure is not None
    assert found.us.sum(axis=1) == pytest.approx([r.step_us for r in captured.analysis.exposure.by_rank])
    assert found.us.min() >= 0
    assert not found.waits_known


def test_hidden_communication_is_no_part_of_the_step(tmp_path: Path) -> None:
    ranks = []
    for rank in range(2):
        writer = Writer(rank, 2)
        for step in range(4):
            at = 10_000 + 1000 * step
            writer.step(step, at, 1000)
            writer.kernel(GEMM, at + 50, 800)
            writer.collective("allreduce", at + 100, 300, 1 << 20)
        ranks.append(writer)
    found = details(tmp_path / "hidden", ranks).anatomy
    assert not isinstance(found, Missing)
    assert set(found.parts) == {"compute", "idle"}
    assert found.us.tolist() == [[800, pytest.approx(200, abs=60)]] * 2


def test_the_rank_that_computes_longer_stands_out(late: Details) -> None:
    found = late.ratios
    assert not isinstance(found, Missing)
    # The median of 300 and 600 µs is 450 µs.
    assert found.ratio == pytest.approx(np.array([[2 / 3] * 4, [4 / 3] * 4]), rel=0.01)
    assert found.steps == (0, 1, 2, 3)


def test_an_all_reduce_is_spread_evenly_over_the_rest_of_its_group(late: Details) -> None:
    found = late.traffic
    assert not isinstance(found, Missing)
    # 2 (n-1)/n of 2 MiB in bfloat16, to the one other rank.
    assert found.sent_bytes.tolist() == [[0, 1 << 21], [1 << 21, 0]]


def test_messages_go_to_their_peer(captured: Details) -> None:
    found = captured.traffic
    assert not isinstance(found, Missing)
    # Three microbatches of 32 kB each way between stages 0 and 1 (ranks 0 and 4), as the ledger has it.
    assert found.sent_bytes[0, 4] == found.sent_bytes[4, 0] == 3 * 32_768
    assert found.sent_bytes[0, 7] == 0
    assert found.sent_bytes.sum() == pytest.approx(
        sum(row.sent_bytes_per_step or 0 for row in captured.analysis.collectives) * 8, rel=1e-6
    )


def test_the_first_waits_for_the_last_in_the_worst_collective(late: Details) -> None:
    found = late.worst
    assert not isinstance(found, Missing)
    assert [lane.label for lane in found[0].lanes] == ["rank 0, first", "rank 1, last"]
    assert found[0].cost_us == pytest.approx(300, abs=2)
    first, last = found[0].lanes
    begin, end = first.waiting[np.argmax(first.waiting[:, 1] - first.waiting[:, 0])]
    assert end - begin == pytest.approx(300, abs=2)
    assert not any(b - a > 2 for a, b in last.waiting if begin < a < end + 10)


def test_bandwidth_is_from_transfer_where_waiting_is_known(late: Details) -> None:
    found = late.bandwidths
    assert not isinstance(found, Missing)
    (one,) = found
    assert one.waits_known
    assert one.size_bytes.tolist() == [1 << 21]
    # 2 MiB in 200 µs, times the bus factor of two ranks, which is 1.
    assert one.busbw_gbps[0] == pytest.approx((1 << 21) / 200e3, rel=0.02)
    assert one.peak_gbps is None


def test_ranks_nodes_and_groups_of_the_mesh(captured: Details) -> None:
    found = captured.mesh
    assert not isinstance(found, Missing)
    assert found.world == 8
    assert found.dims["tp"] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert found.place[5] == {"tp": 1, "pp": 1, "dp": 0}
    assert found.nodes == (tuple(range(8)),)


@pytest.mark.parametrize(
    ("case", "batches", "first", "last"),
    [
        ("tp2_pp2_dp2", 3, "F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"),
        ("pp4_1f1b", 8, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7", "F0 B0 F1 B1 F2 B2 F3 B3"),
        ("pp2_gpipe", 4, "F0 F1 F2 F3 B0 B1 B2 B3", "F0 F1 F2 F3 B0 B1 B2 B3"),
    ],
)
def test_stages_take_their_turns_in_the_order_of_the_schedule(
    sample_traces: Path, case: str, batches: int, first: str, last: str
) -> None:
    found = Details(examine(sample_traces / case, Options())).pipeline
    assert not isinstance(found, Missing)
    assert found.microbatches == batches

    def order(lane: int) -> str:
        turns = sorted(found.lanes[lane].turns, key=lambda turn: turn.start_us)
        return " ".join(f"{turn.phase[0].upper()}{turn.microbatch}" for turn in turns)

    assert order(0) == first
    assert order(-1).startswith(last)


def test_virtual_stages_take_rounds_through_every_chunk(sample_traces: Path) -> None:
    found = Details(examine(sample_traces / "pp4_interleaved_v2", Options())).pipeline
    assert not isinstance(found, Missing)
    forward = [(t.microbatch, t.chunk) for t in found.lanes[0].turns if t.phase == "forward"]
    assert forward == [
        *((b, 0) for b in range(4)),
        *((b, 1) for b in range(4)),
        *((b, 0) for b in range(4, 8)),
        *((b, 1) for b in range(4, 8)),
    ]
    backward = [(t.microbatch, t.chunk) for t in found.lanes[-1].turns if t.phase == "backward"]
    assert backward[:8] == [*((b, 1) for b in range(4)), *((b, 0) for b in range(4))]


def test_without_matched_clocks_expert_loads_are_those_of_one_rank(sample_traces: Path) -> None:
    found = Details(examine(sample_traces / "ep4_dp8", Options())).experts
    assert not isinstance(found, Missing)
    assert found.of_group
    assert found.load.mean() == pytest.approx(1)
    assert (found.layers, found.ranks) == ((0, 1, 2), (0, 1, 2, 3))


def test_what_is_not_there_says_why(sample_traces: Path) -> None:
    found = Details(examine(sample_traces / "ddp4", Options()))
    assert found.pipeline == Missing("the job has no pipeline")
    assert found.experts == Missing("no dispatch of tokens to experts names its split sizes")

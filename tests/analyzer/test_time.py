"""Waiting, lateness and causes on jobs written with known numbers; several numbers per kind of fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analyzer.caused import own_lateness
from analyzer.matching import Meetings
from analyzer.model import Analysis, Finding
from tests.analyzer.time_files import GEMM, Writer, analysed, gpipe, one_bad_step


def causes(found: Analysis) -> dict[str, float]:
    assert found.exposure is not None
    return {f"cause.{c.cause}": c.exposed_us for c in found.exposure.causes}


def named(found: Analysis, kind: str) -> Finding:
    (item,) = (f for f in found.findings if f.id == kind)
    return item


@pytest.mark.parametrize(
    ("world", "late", "by", "transfer", "offsets"),
    [(3, 0, 2_500.0, 45.0, (0, -4000, 700)), (6, 5, 70_000.0, 800.0, (0, 31, -12, 999, -999, 5))],
)
def test_a_rank_that_computes_longer_is_the_culprit(
    tmp_path: Path, world: int, late: int, by: float, transfer: float, offsets: tuple[int, ...]
) -> None:
    ranks = []
    for r in range(world):
        rank = Writer(r, world)
        for n in range(4):
            b = 5_000.0 + n * 200_000 + offsets[r]
            rank.step(n, b, 200_000)
            more = by if r == late else 0.0
            rank.kernel(GEMM, b + 200, 3_000 + more)
            rank.collective("allreduce", b + 3_300 + more, transfer + by - more, 1_000_000)
        ranks.append(rank)
    found = analysed(tmp_path, ranks)
    (item,) = found.stragglers
    assert (item.rank, item.late_us_per_step, item.share_of_waits, item.cause) == (late, by, 1.0, "slower compute")
    assert found.trust.clock.offset_us == {str(r): float(o) for r, o in enumerate(offsets)}
    assert found.exposure is not None
    for part in found.exposure.by_rank:
        (time,) = part.by_dimension.values()
        assert (time.transfer_us, time.wait_us) == (transfer, 0 if part.rank == late else by)


@pytest.mark.parametrize(
    ("cat", "name", "cause"),
    [
        ("cpu_op", "aten::item", "device sync: aten::item"),
        ("cuda_runtime", "cudaDeviceSynchronize", "device sync: cudaDeviceSynchronize"),
        (
            "user_annotation",
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
            "data loading: enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        ),
        ("cpu_op", "Python GC", "garbage collection: Python GC"),
        (None, "", "host gap before launch"),
    ],
)
def test_what_held_a_late_rank_up_is_named(tmp_path: Path, cat: str | None, name: str, cause: str) -> None:
    ranks = []
    for r in range(4):
        rank = Writer(r, 4)
        for n in range(3):
            b = 1_000.0 + n * 60_000
            rank.step(n, b, 60_000)
            rank.kernel(GEMM, b + 100, 900)
            late = 18_000.0 if r == 1 else 0.0
            if late and cat:
                rank.event(cat, name, b + 1_100, 17_500, 1)
            rank.collective("allreduce", b + 1_200 + late, 18_300 - late, 2_048)
        ranks.append(rank)
    (item,) = analysed(tmp_path, ranks).stragglers
    assert (item.rank, item.cause, item.late_us_per_step) == (1, cause, 18_000)


def test_a_rank_that_was_itself_made_to_wait_is_not_the_culprit(tmp_path: Path) -> None:
    """Ranks 0 and 1 meet first; 1 computes long, so 0 is as late as 1 where both meet the others."""
    ranks = []
    for r in range(4):
        rank = Writer(r, 4)
        pair = [0, 1] if r < 2 else [2, 3]
        for n in range(3):
            b = 1_000.0 + n * 40_000
            rank.step(n, b, 40_000)
            slow = 9_000.0 if r == 1 else 0.0
            rank.kernel(GEMM, b + 100, 1_000 + slow)
            done = 9_000.0 if r < 2 else 0.0
            rank.collective("allreduce", b + 1_200 + slow, 50 + done - slow, 500_000, group=f"p{pair[0]}", ranks=pair)
            cross = [r % 2, r % 2 + 2]
            at = b + 1_300 + done
            rank.collective("allreduce", at, 9_080 - done, 800_000, stream=24, group=f"x{r % 2}", ranks=cross)
        ranks.append(rank)
    found = analysed(tmp_path, ranks)
    assert [(s.rank, s.cause) for s in found.stragglers] == [(1, "slower compute")]


def test_waiting_on_two_streams_at_once_is_waiting_once(tmp_path: Path) -> None:
    """Two collectives wait 6 ms for rank 1 at the same time, and a third waits 2 ms for rank 2.

    Rank 1 waits 2 ms, rank 2 waits 6, and each of the other three 8. Of these 32 ms 24 are rank 1's, and 8 rank 2's.
    """
    ranks = []
    for r in range(5):
        rank = Writer(r, 5)
        for n in range(3):
            b = 1_000.0 + n * 40_000
            rank.step(n, b, 40_000)
            first, second = 6_000.0 * (r == 1), 2_000.0 * (r == 2)
            rank.kernel(GEMM, b + 100, 1_000 + first)
            for stream, group in ((20, "a"), (24, "b")):
                at = b + 1_200 + first
                rank.collective("allreduce", at, 6_400 - first, 2_000_000, stream=stream, group=group)
            rank.kernel(GEMM, b + 8_000, 1_000 + second)
            rank.collective("allreduce", b + 9_100 + second, 2_400 - second, 1_000_000, group="a")
        ranks.append(rank)
    found = analysed(tmp_path, ranks).stragglers
    assert [(s.rank, s.late_us_per_step, s.share_of_waits) for s in found] == [(1, 6_000, 0.75), (2, 2_000, 0.25)]


def test_a_lateness_that_was_waited_for_is_somebody_elses() -> None:
    """Of 9 µs of lateness 4 were spent waiting; where it goes on, these 4 stay somebody else's."""
    key, rank = np.repeat(np.arange(2), 2), np.array([0, 1, 0, 1])
    start = np.array([0, 9_000, 20_000, 31_000])
    none = np.zeros(4, dtype=np.int64)
    met = Meetings(key, rank, key, start, start + 10_000, kind=none, rooted=none, source=none, base=0)
    before = np.array([-1, -1, 0, 1])
    lateness = np.array([-9_000.0, 9_000.0, -11_000.0, 11_000.0])
    more = np.array([-4_000.0, 4_000.0, 0.0, 0.0])
    assert own_lateness(met, lateness, more, before).tolist() == [0.0, 5_000.0, 0.0, 7_000.0]


def test_one_bad_step_is_told_from_a_habit(tmp_path: Path) -> None:
    found = analysed(tmp_path, one_bad_step(5, bad=3, late=20_000))
    assert [(s.rank, s.late_us_per_step) for s in found.stragglers] == [(2, 4_000)]
    assert "in one of 5 steps" in named(found, "rank.late").detail


def test_where_all_slow_groups_meet_is_the_slow_link(tmp_path: Path) -> None:
    ranks = []
    for r in range(8):
        rank = Writer(r, 8)
        node = [r // 2 * 2, r // 2 * 2 + 1]
        for n in range(3):
            b = 1_000.0 + n * 20_000
            rank.step(n, b, 20_000)
            rank.kernel(GEMM, b + 100, 1_000)
            slow = 700.0 if 4 in node else 200.0
            rank.collective("allreduce", b + 1_200, slow, 4_000_000, group=f"n{node[0]}", ranks=node)
            across = [c for c in range(8) if c % 2 == r % 2]
            for i in range(3):
                rank.collective("allreduce", b + 3_000 + i * 900, 300, 900_000, group=f"a{r % 2}", ranks=across)
        ranks.append(rank)
    item = named(analysed(tmp_path, ranks), "link.slow")
    assert item.ranks == [4, 5]
    assert item.cost_us == 500


@pytest.mark.parametrize(("layers", "gather", "compute"), [(3, 700, 900), (9, 150, 2_000)])
def test_gathers_between_layers_are_not_prefetched(tmp_path: Path, layers: int, gather: int, compute: int) -> None:
    rank = Writer(0, 16)
    length = layers * (gather + compute) + 500
    for n in range(3):
        b = 1_000.0 + n * length
        rank.step(n, b, length)
        for i in range(layers):
            at = b + 100 + i * (gather + compute)
            rank.collective("_allgather_base", at, gather, 5_000_000)
            rank.kernel(GEMM, at + gather, compute)
    found = analysed(tmp_path, [rank])
    assert causes(found) == {"cause.no_prefetch": layers * gather}
    assert found.exposure is not None
    assert found.exposure.exposed_us == layers * gather


def test_a_launch_that_finds_the_gpu_idle_is_late(tmp_path: Path) -> None:
    rank = Writer(0, 8)
    for n in range(3):
        b = 1_000.0 + n * 10_000
        rank.step(n, b, 10_000)
        rank.kernel(GEMM, b + 100, 2_000)
        rank.collective("allreduce", b + 1_000, 500, 6_000_000)
        rank.collective("allreduce", b + 3_500, 600, 6_000_000)  # 1385 us after the GPU ran dry
        rank.kernel(GEMM, b + 4_100, 2_000)
        rank.collective("allreduce", b + 4_200, 500, 6_000_000)
    assert causes(analysed(tmp_path, [rank])) == {"cause.late_launch": 600}


def test_a_call_behind_another_group_on_its_stream_is_serialised(tmp_path: Path) -> None:
    rank = Writer(0, 8)
    for n in range(3):
        b = 1_000.0 + n * 10_000
        rank.step(n, b, 10_000)
        rank.kernel(GEMM, b + 100, 3_000)
        rank.collective("allreduce", b + 1_000, 2_100, 6_000_000)
        rank.collective("allreduce", b + 3_101, 400, 6_000_000, group="1", ranks=[0, 4], lag=2_000)
        rank.kernel(GEMM, b + 3_501, 2_000)
    assert causes(analysed(tmp_path, [rank])) == {"cause.serialised": 400}


def test_small_messages_cost_latency(tmp_path: Path) -> None:
    rank = Writer(0, 8)
    for n in range(3):
        b = 1_000.0 + n * 3_000
        rank.step(n, b, 3_000)
        for i in range(10):
            rank.kernel(GEMM, b + 100 + i * 250, 200)
            rank.collective("allreduce", b + 300 + i * 250, 50, 4_096)
    assert causes(analysed(tmp_path, [rank])) == {"cause.latency": 500}


@pytest.mark.parametrize(("alone", "beside"), [(400, 500), (90, 160)])
def test_the_same_kernel_beside_communication_shows_the_tax(tmp_path: Path, alone: int, beside: int) -> None:
    rank = Writer(0, 8)
    for n in range(2):
        b = 1_000.0 + n * 10_000
        rank.step(n, b, 10_000)
        for i in range(10):
            at = b + 100 + i * 900
            rank.kernel(GEMM, at, beside if i % 2 else alone)
            if i % 2:
                rank.collective("_allgather_base", at + 1, beside - 2, 3_000_000)
    item = named(analysed(tmp_path, [rank]), "overlap.tax")
    assert item.cost_us == 5 * (beside - alone)
    assert f"{beside / alone:.3f} times" in item.detail


@pytest.mark.parametrize(("stages", "microbatches", "forward", "backward"), [(4, 8, 1000, 2000), (3, 12, 400, 900)])
def test_waiting_in_receives_is_bubble(
    tmp_path: Path, stages: int, microbatches: int, forward: int, backward: int
) -> None:
    """GPipe: the receives of the first forward and of the first backward pass wait for the stages before and behind."""
    span = (microbatches + stages - 1) * (forward + backward)
    found = analysed(tmp_path, gpipe(stages, microbatches, forward, backward, lead=40, slack=400))
    assert found.pipeline is not None
    ideal = (stages - 1) / (microbatches + stages - 1)
    assert found.pipeline.bubble_fraction.observed == pytest.approx(ideal, rel=0.01)
    assert found.pipeline.stage_of_rank == {str(r): r for r in range(stages)}
    assert set(causes(found)) == {"cause.bubble"}
    for r, stage in enumerate(found.pipeline.by_stage):
        behind = stages - 1 - r
        waiting = (r * forward - 50 if r else 0) + (behind * (forward + backward) - 10 if behind else 0)
        computing = microbatches * (forward + backward)
        assert (stage.stage, stage.ranks, stage.step_us) == (r, [r], span + 400)
        assert (stage.compute_us, stage.waiting_us, stage.transfer_us) == (computing, waiting, None)
        assert (stage.other_exposed_us, stage.memcpy_us) == (0, 0)
        assert stage.idle_us == span + 400 - computing - waiting
        assert stage.bubble_us == (stages - 1) * (forward + backward)
        assert stage.bubble_fraction == pytest.approx(ideal, abs=1e-6)


def test_waiting_and_transfer_of_a_stage_are_apart_where_both_ends_are_there(tmp_path: Path) -> None:
    """Stage 0 computes 1000 µs, then sends for 100; stage 1 receives from the beginning, computes, and both reduce."""
    ranks = [Writer(0, 2), Writer(1, 2)]
    for n in range(3):
        b = 1_000.0 + n * 5_000
        # Activations, then the gradients: (operation, begin, end) on either stage.
        messages = (
            (("send", 1_000, 1_100), ("recv", 1_110, 2_200)),
            (("recv", 0, 1_100), ("send", 2_100, 2_200)),
        )
        for rank in ranks:
            rank.step(n, b - 100, 5_000)
            rank.kernel(GEMM, b + 1_100 * rank.rank, 1_000)
            for op, begin, end in messages[rank.rank]:
                peer = 1 - rank.rank
                rank.collective(op, b + begin, end - begin, 700_000, stream=28, group="7", ranks=[0, 1], peer=peer)
            rank.kernel(GEMM, b + 2_200, 500)
            rank.collective("allreduce", b + 2_800, 300, 9_000_000)
    found = analysed(tmp_path, ranks)
    assert found.pipeline is not None
    seen = {
        stage.stage: (stage.compute_us, stage.waiting_us, stage.transfer_us, stage.other_exposed_us, stage.idle_us)
        for stage in found.pipeline.by_stage
    }
    assert seen == {0: (1_500, 990, 200, 300, 2_010), 1: (1_500, 1_000, 200, 300, 2_000)}


def test_gathers_and_reductions_that_wait_at_once_show_one_lateness(tmp_path: Path) -> None:
    """Rank 3 computes 1,000 µs more in each step; a gather and a reduction on two streams wait for it together."""
    ranks = [Writer(r, 4) for r in range(4)]
    for rank in ranks:
        longer = 1_000 if rank.rank == 3 else 0
        for n in range(3):
            b = 1_000.0 + n * 10_000
            rank.step(n, b, 10_000)
            rank.kernel(GEMM, b + 100, 4_000 + longer)
            begin = b + 4_100 + longer
            rank.collective("_allgather_base", begin, b + 5_300 - begin, 1_000_000, stream=20, lag=10)
            rank.collective("allreduce", begin + 5, b + 5_400 - begin - 5, 9_000_000, stream=21, lag=10)
            rank.kernel(GEMM, b + 5_500, 500)
            rank.collective("allreduce", b + 6_100, 300, 9_000_000, stream=21, lag=10)
    (late,) = analysed(tmp_path, ranks).stragglers
    assert (late.rank, late.cause) == (3, "slower compute")
    assert late.late_us_per_step == pytest.approx(1_000, abs=1)


def test_one_rank_can_bound_its_waiting_from_below(tmp_path: Path) -> None:
    rank = Writer(0, 8)
    for n in range(3):
        b = 1_000.0 + n * 10_000
        rank.step(n, b, 10_000)
        for i, length in enumerate((100, 400, 1_600)):
            rank.kernel(GEMM, b + 100 + i * 3_000, 500)
            rank.collective("allreduce", b + 600 + i * 3_000, length, 6_000_000)
    found = analysed(tmp_path, [rank])
    assert named(found, "wait.bound").cost_us == 300 + 1_500
    assert all(row.wait_us_per_step is None for row in found.collectives)


def test_kernels_before_their_launch_show_two_clocks(tmp_path: Path) -> None:
    rank = Writer(0, 8)
    rank.step(0, 1_000, 10_000)
    for i in range(4):
        rank.kernel(GEMM, 2_000.0 + 500 * i, 400, lag=15 if i else -130)
    rank.collective("allreduce", 5_000, 400, 3_000_000)
    assert "1 GPU event before the launch, by up to 130 µs: two clocks that differ" in (
        analysed(tmp_path, [rank]).trust.warnings
    )

"""What must hold whatever the job: parts sum to wholes, clocks come out as put in, ranks that disagree are named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from analyzer.model import Analysis, Exposure
from analyzer.options import Options
from analyzer.pipeline import analyze, examine
from tests.analyzer.time_files import GEMM, Writer, analysed, one_bad_step

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
CASES = sorted(path.parent.name for path in SAMPLES.glob("*/truth.json"))


def named(found: Analysis) -> dict[str, float | None]:
    return {f.id: f.cost_us for f in found.findings}


def nanoseconds(us: float) -> int:
    return round(us * 1000)


def adds_up(found: Exposure) -> None:
    """Dimensions sum to the exposed time, and causes to that of each dimension, to the nanosecond."""
    total = nanoseconds(found.exposed_us)
    assert sum(nanoseconds(time.exposed_us) for time in found.by_dimension.values()) == total
    assert sum(nanoseconds(cause.exposed_us) for cause in found.causes) == total
    for dim, time in found.by_dimension.items():
        mine = [cause for cause in found.causes if cause.dim == dim]
        assert sum(nanoseconds(cause.exposed_us) for cause in mine) == nanoseconds(time.exposed_us)
    for rank in found.by_rank:
        parts = sum(nanoseconds(time.exposed_us) for time in rank.by_dimension.values())
        assert parts == nanoseconds(rank.exposed_us)


@pytest.mark.parametrize("case", CASES)
def test_dimensions_and_causes_of_the_bundled_captures_sum_to_the_exposed_time(case: str) -> None:
    found = analyze(SAMPLES / case)
    assert found.exposure is not None
    adds_up(found.exposure)


def test_dimensions_and_causes_of_every_capture_sum_to_the_exposed_time(shared: Path) -> None:
    """One rank of each job: what one rank is charged, the mean over ranks is charged as well."""
    jobs = sorted((shared / "data" / "captures").glob("*/"))
    assert len(jobs) >= 60
    for job in jobs:
        found = analyze(min(job.glob("rank*.json.gz")))
        if found.exposure is not None:
            adds_up(found.exposure)


@pytest.mark.parametrize(
    "name", ["torchrec_mp4", "nanogpt_overlap_after", "rccl_ddp8_mi300", "hta/dlrm_8rank_v100", "torchtitan_fsdp4_2026"]
)
def test_dimensions_and_causes_of_gpu_traces_sum_to_the_exposed_time(shared: Path, name: str) -> None:
    found = analyze(shared / "data" / "real" / name)
    assert found.exposure is not None
    adds_up(found.exposure)


def test_every_single_collective_of_dlrm_is_waiting_plus_transfer(shared: Path) -> None:
    """Call by call: no waiting is negative or longer than its kernel, and the last to arrive does not wait."""
    done = examine(shared / "data" / "real" / "hta" / "dlrm_8rank_v100", Options())
    met = done.matching.meetings
    assert met.count == 8
    shortest = np.full(met.count, np.iinfo(np.int64).max)
    for place, rank in enumerate(done.ranks):
        line = rank.source.line
        known = rank.wait_ns >= 0
        length = line.call_end - line.call_start
        assert (rank.wait_ns[known] <= length[known]).all()
        mine = met.rank == place
        assert (rank.wait_ns[met.row[mine]] >= 0).all()
        np.minimum.at(shortest, met.key[mine], rank.wait_ns[met.row[mine]])
    assert (shortest == 0).all()
    clock = done.analysis.trust.clock
    assert clock.aligned
    assert clock.residual_us is not None
    assert 0 < clock.residual_us < 5
    assert len(clock.offset_us) == 8


@pytest.mark.parametrize(
    ("offsets", "drift", "jitter", "base_us"),
    [
        ((0.0, 4_500.0, -120.0, 31.0), (0.0, 0.0, 0.0, 0.0), 0.0, 0),
        ((0.0, -900.0, 77.0, 77.0), (0.0, 40e-6, 0.0, 0.0), 1.0, 0),
        ((0.0, 12.0, 8_000_000.0, 8_000_020.0), (0.0, 0.0, -25e-6, -25e-6), 2.0, 50_000),
    ],
)
def test_clocks_come_out_as_they_were_put_in(
    tmp_path: Path, offsets: tuple[float, ...], drift: tuple[float, ...], jitter: float, base_us: int
) -> None:
    """Four ranks, two of one host and two of another; a base of time per file; nobody is late."""
    world, count, pitch = len(offsets), 40, 20_000.0
    for r in range(world):
        rank = Writer(r, world)
        base = r * base_us

        def local(t: float, r: int = r, base: int = base) -> float:
            return t * (1 + drift[r]) + offsets[r] - base

        start = 10_000_000.0
        for n in range(4):
            rank.step(n, local(start + n * 10 * pitch), 10 * pitch)
        for i in range(count):
            at = start + i * pitch
            rank.kernel(GEMM, local(at + 100), 5_000)
            noise = jitter * ((r * 7 + i * 3) % 5 - 2) / 2
            rank.collective("allreduce", local(at + 6_000 + noise), 400, 1_000_000)
        document = json.loads(rank.text())
        document["baseTimeNanoseconds"] = base * 1000
        (tmp_path / f"rank{r}.json").write_text(json.dumps(document))
    found = analyze(tmp_path)
    clock = found.trust.clock
    assert clock.aligned
    assert clock.residual_us is not None
    assert clock.residual_us <= 1.5 * jitter + 0.5
    # Offsets hold at the first collective; a drift moves them by at most 25 us from the middle of the window on.
    for r in range(world):
        at_first = offsets[r] + drift[r] * 10_006_400.0
        middle = offsets[0] + drift[0] * 10_006_400.0
        assert clock.offset_us[str(r)] == pytest.approx(at_first - middle, abs=2 * jitter + 1)
    assert found.stragglers == []


def test_a_lateness_below_the_residual_is_not_reported(tmp_path: Path) -> None:
    """Rank 1 arrives 300 us late, but the ends of the collectives scatter by as much."""
    for late, said in ((300.0, 0), (5_000.0, 1)):
        ranks = []
        for r in range(4):
            rank = Writer(r, 4)
            for n in range(12):
                b = 1_000.0 + n * 20_000
                rank.step(n, b, 20_000)
                more = late if r == 1 else 0.0
                scatter = 500.0 * ((r * 5 + n * 3) % 7 - 3) / 3
                rank.kernel(GEMM, b + 200, 3_000 + more)
                rank.collective("allreduce", b + 4_000 + more, 6_000 - more + scatter, 1_000_000)
            ranks.append(rank)
        found = analysed(tmp_path / str(said), ranks)
        assert found.trust.clock.residual_us is not None
        assert found.trust.clock.residual_us > 300
        assert len(found.stragglers) == said


@pytest.mark.parametrize(("skew", "steps"), [(40_000.0, 3), (9_000.0, 6)])
def test_the_first_collective_of_a_capture_shows_when_profilers_started(
    tmp_path: Path, skew: float, steps: int
) -> None:
    ranks = []
    for r in range(4):
        rank = Writer(r, 4)
        for n in range(steps):
            b = 1_000.0 + n * 80_000
            rank.step(n, b, 80_000)
            wait = skew if n == 0 and r != 3 else 0.0
            rank.kernel(GEMM, b + 50_000 - wait, 500)
            rank.collective("allreduce", b + 51_000 - wait, 400 + wait, 1_000_000)
            rank.kernel(GEMM, b + 60_000, 500)
            rank.collective("allreduce", b + 61_000, 400, 1_000_000)
        ranks.append(rank)
    found = analysed(tmp_path, ranks)
    assert found.exposure is not None
    adds_up(found.exposure)
    charged = {cause.cause: cause.exposed_us for cause in found.exposure.causes}
    assert charged["capture_start"] == pytest.approx(skew * 3 / 4 / steps, abs=0.01)
    assert "waiting" not in charged
    assert found.stragglers == []


def test_one_rank_shows_the_first_collective_of_a_capture_too(tmp_path: Path) -> None:
    """All-reduces of 400 µs; the first takes 9 400: at least 9 000 of it, over three steps, is the capture's edge."""
    rank = Writer(0, 4)
    for n in range(3):
        b = 1_000.0 + n * 80_000
        rank.step(n, b, 80_000)
        for i, wait in enumerate((9_000.0 if n == 0 else 0.0, 700.0, 0.0)):
            rank.kernel(GEMM, b + 20_000 * (i + 1) - 600, 500)
            rank.collective("allreduce", b + 20_000 * (i + 1), 400 + wait, 1_000_000)
    found = analysed(tmp_path, [rank])
    assert found.exposure is not None
    adds_up(found.exposure)
    charged = {cause.cause: cause.exposed_us for cause in found.exposure.causes}
    assert charged["capture_start"] == pytest.approx(9_000 / 3, abs=0.01)


def test_a_bad_step_behind_the_edge_of_the_capture_is_a_stragglers(tmp_path: Path) -> None:
    """Steps 1 to 3 are measured; in the first of them rank 2 is late, and all had been recorded for a step by then."""
    for each in one_bad_step(4, bad=1, late=9_000):
        (tmp_path / f"rank{each.rank}.json").write_text(each.text())
    found = analyze(tmp_path, steps=(1, 3))
    assert found.exposure is not None
    assert "capture_start" not in {cause.cause for cause in found.exposure.causes}
    assert [(s.rank, s.late_us_per_step, s.share_of_waits) for s in found.stragglers] == [(2, 3_000, 1.0)]


def test_waiting_that_recurs_is_no_edge_of_the_capture(tmp_path: Path) -> None:
    ranks = []
    for r in range(4):
        rank = Writer(r, 4)
        for n in range(3):
            b = 1_000.0 + n * 40_000
            rank.step(n, b, 40_000)
            wait = 0.0 if r == 3 else 9_000.0 + 2_000.0 * (n == 0)
            rank.kernel(GEMM, b + 100, 20_000 - wait)
            rank.collective("allreduce", b + 21_000 - wait, 400 + wait, 1_000_000)
        ranks.append(rank)
    found = analysed(tmp_path, ranks)
    assert found.exposure is not None
    assert "capture_start" not in {cause.cause for cause in found.exposure.causes}
    assert [s.rank for s in found.stragglers] == [3]


def test_ranks_that_disagree_are_findings_in_the_words_of_the_flight_recorder(tmp_path: Path) -> None:
    """Of eight collectives one differs in size, one in type, one in primitive, and one has a rank missing."""
    ranks = []
    for r in range(3):
        rank = Writer(r, 3)
        rank.step(0, 1_000, 40_000)
        for i in range(8):
            if (r, i) == (1, 5):
                continue
            before = len(rank.events)
            op = "_allgather_base" if (r, i) == (2, 4) else "allreduce"
            rank.collective(op, 2_000.0 + 4_000 * i, 300, 500 if (r, i) == (0, 2) else 600)
            for event in rank.events[before:]:
                if "Collective name" in event["args"]:
                    event["args"]["Seq"] = i
                    if (r, i) == (1, 3):
                        event["args"]["dtype"] = "Float"
        ranks.append(rank)
    found = analysed(tmp_path, ranks)
    said = {f.id: (f.ranks, f.detail) for f in found.findings if f.id.startswith("comm.")}
    assert said["comm.size_or_syntax_mismatch"][0] == [0, 1, 2]
    assert "sequence number 2" in said["comm.size_or_syntax_mismatch"][1]
    assert "sequence number 3" in said["comm.collective_dtype_mismatch"][1]
    assert "sequence number 4" in said["comm.collective_type_mismatch"][1]
    assert said["comm.undecided"][0] == [1]
    assert "sequence number 5" in said["comm.undecided"][1]


def test_waiting_for_the_counts_of_experts_is_bounded_from_one_rank(tmp_path: Path) -> None:
    """Notify kernels carry no tokens. Dispatch carries some, nobody says how many: nothing is said of its waiting."""
    rank = Writer(0, 16)
    for n in range(3):
        b = 1_000.0 + n * 20_000
        rank.step(n, b, 20_000)
        for i, wait in enumerate((0.0, 1_500.0, 700.0)):
            at = b + 100 + 6_000 * i
            rank.kernel(GEMM, at, 900)
            rank.kernel("void deep_ep::internode::notify_dispatch<false, 8>(int const*, int*)", at + 900, 30 + wait, 30)
            rank.kernel("void deep_ep::internode::dispatch<8, 768, 8192>(int4*)", at + 3_000, 200 + wait / 2, 30)
    found = analysed(tmp_path, [rank])
    (bound,) = (f for f in found.findings if f.id == "wait.bound")
    assert bound.cost_us == pytest.approx(2_200, abs=0.01)
    assert "lower bound" in bound.detail
    assert all(row.wait_us_per_step is None for row in found.collectives)

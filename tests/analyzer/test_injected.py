"""Faults of known size in synthetic jobs: who is late, by how much, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer import analyze
from analyzer.model import Analysis
from analyzer.work import EXPERTS, SEQUENCES, more_work
from benchmarks.synthesis.faults import Fault
from benchmarks.synthesis.generate import simulate
from benchmarks.synthesis.spec import MODELS, Spec

STEPS = 3
NOISE_US = 1_200
"""3 % of the step: the ranks' own compute varies by 4 % kernel for kernel, and launching anew takes its time."""


def job(folder: Path, framework: str, layout: str, *faults: Fault, **changes: object) -> Analysis:
    return analyze(simulate(Spec.parse(framework, layout, steps=STEPS, **changes), faults).write(folder))


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("data_loading", "data loading: enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"),
        ("garbage_collection", "garbage collection: Python GC"),
        ("device_sync", "device sync: aten::item"),
        ("host_gap", "host gap before launch"),
    ],
)
@pytest.mark.parametrize(("rank", "us"), [(2, 20_000.0), (0, 9_000.0)])
def test_what_holds_a_host_up_is_found_with_its_rank_and_its_time(
    tmp_path: Path, kind: str, cause: str, rank: int, us: float
) -> None:
    found = job(tmp_path, "torch", "dp4", Fault(kind, rank, us=us))
    (late,) = found.stragglers
    assert (late.rank, late.cause) == (rank, cause)
    assert late.late_us_per_step == pytest.approx(us, abs=NOISE_US)


def test_one_bad_step_is_said_to_be_one(tmp_path: Path) -> None:
    found = job(tmp_path, "torch", "dp4", Fault("data_loading", 1, us=30_000, steps=(1,)))
    (late,) = found.stragglers
    assert (late.rank, late.late_us_per_step) == (1, pytest.approx(10_000, abs=NOISE_US))
    (said,) = (item for item in found.findings if item.id == "rank.late")
    assert f"in one of {STEPS} steps" in said.detail


def test_a_slow_gpu_is_found_and_its_kernels_named(tmp_path: Path) -> None:
    """Kernels of rank 3 take 1.3 times as long: it is late by three tenths of what the others compute before."""
    found = job(tmp_path, "torch", "dp4", Fault("slow_compute", 3, factor=1.3))
    (late,) = found.stragglers
    assert (late.rank, late.cause) == (3, "slower compute")
    assert found.exposure is not None
    compute = min(rank.compute_us for rank in found.exposure.by_rank)
    assert late.late_us_per_step == pytest.approx(0.3 * compute, rel=0.15)


SHARDED = [("torchtitan", "dp4"), ("torch", "dp4-zero3"), ("deepspeed", "dp4-zero3"), ("torchtitan", "dp8-rep2")]


@pytest.mark.parametrize(("framework", "layout"), SHARDED)
def test_a_slow_gpu_holds_gathers_and_reductions_up_once(tmp_path: Path, framework: str, layout: str) -> None:
    """Gathers and reduce-scatters of one group wait for the same three tenths of compute: it is one lateness."""
    found = job(tmp_path, framework, layout, Fault("slow_compute", 3, factor=1.3))
    (late,) = found.stragglers
    assert (late.rank, late.cause) == (3, "slower compute")
    assert found.exposure is not None
    compute = sorted(rank.compute_us for rank in found.exposure.by_rank)
    assert late.late_us_per_step == pytest.approx(compute[-1] - compute[len(compute) // 2], abs=NOISE_US)


@pytest.mark.parametrize(("framework", "layout"), SHARDED)
def test_a_held_up_host_of_sharded_parameters_is_late_by_that_time(tmp_path: Path, framework: str, layout: str) -> None:
    found = job(tmp_path, framework, layout, Fault("host_gap", 2, us=9_000))
    (late,) = found.stragglers
    assert (late.rank, late.cause) == (2, "host gap before launch")
    assert late.late_us_per_step == pytest.approx(9_000, rel=0.03)


def all_waiting(found: Analysis) -> float:
    assert found.exposure is not None
    return sum(time.wait_us or 0.0 for rank in found.exposure.by_rank for time in rank.by_dimension.values())


@pytest.mark.parametrize("framework", ["torch", "deepspeed"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_causes_the_waiting_that_is_not_there_without_its_fault(
    tmp_path: Path, framework: str, rank: int
) -> None:
    """Collectives of these jobs follow each other, so no wait is beside another, and waits can be summed."""
    sound = all_waiting(job(tmp_path / "sound", framework, "dp4-zero3"))
    found = job(tmp_path / "faulty", framework, "dp4-zero3", Fault("host_gap", rank, us=9_000))
    (late,) = found.stragglers
    assert late.share_of_waits == pytest.approx(1 - sound / all_waiting(found), abs=0.02)


def test_a_rank_that_is_late_in_two_dimensions_is_late_once(tmp_path: Path) -> None:
    """Its tensor-parallel partner and its replicas wait for the same compute."""
    found = job(tmp_path, "torchtitan", "tp2-dp4", Fault("slow_compute", 3, factor=1.3))
    (late,) = found.stragglers
    assert (late.rank, late.cause) == (3, "slower compute")
    assert found.exposure is not None
    compute = sorted(rank.compute_us for rank in found.exposure.by_rank)
    assert late.late_us_per_step == pytest.approx(compute[-1] - compute[4], rel=0.05)


def test_ranks_whose_steps_merely_vary_are_not_blamed(tmp_path: Path) -> None:
    """Every kernel of every rank varies by 4 %: all are last now and then, and none is a straggler."""
    for seed in range(3):
        found = job(tmp_path / str(seed), "torch", "dp4", seed=seed)
        assert found.stragglers == []


def test_longer_sequences_are_no_slow_gpu(tmp_path: Path) -> None:
    found = job(tmp_path, "megatron", "tp2-dp4", Fault("long_sequences", 4, factor=1.4))
    assert {late.rank for late in found.stragglers} <= {4, 5}
    assert found.stragglers
    for late in found.stragglers:
        assert late.cause is not None
        assert late.cause.startswith("longer sequences: moves 1.")
        assert 1.2 < float(late.cause.split()[3]) < 1.7


def test_a_rank_whose_experts_are_sought_after_is_no_slow_gpu(tmp_path: Path) -> None:
    found = job(tmp_path, "torchtitan", "dp4-ep4", model=MODELS["moe"], options=(("hot", 2.0),))
    late = found.stragglers[0]
    assert late.rank == 0
    assert late.cause is not None
    assert late.cause.startswith("expert imbalance: receives ")
    assert found.experts is not None
    assert found.experts.imbalance.mean > 1.4


def test_a_slow_link_is_where_all_slow_groups_meet(tmp_path: Path) -> None:
    """Each call of a group with rank 5 takes 400 µs longer: its tensor-parallel group and its replicas."""
    found = job(tmp_path, "megatron", "tp2-dp4", Fault("slow_link", 5, us=400), sp=False)
    (said,) = (item for item in found.findings if item.id == "link.slow")
    assert 5 in said.ranks
    assert set(said.ranks) <= {4, 5}
    assert found.exposure is not None
    assert sum(c.exposed_us for c in found.exposure.causes if c.cause == "slow_link") > 0


@pytest.mark.parametrize(
    ("ratios", "longer", "said"),
    [
        ({EXPERTS: 1.5, SEQUENCES: None}, 400.0, "expert imbalance: receives 1.50 times the rows of the others"),
        ({EXPERTS: 1.5, SEQUENCES: None}, 700.0, None),  # half as much again explains 500 of 700 µs: less than 80 %
        ({EXPERTS: None, SEQUENCES: 1.5}, 1_250.0, "longer sequences: moves 1.50 times the activations of the others"),
        ({EXPERTS: None, SEQUENCES: 1.5}, 1_600.0, None),  # with the square of the length: at most 1250 of 1600
        ({EXPERTS: 1.01, SEQUENCES: 1.0}, 10.0, None),
        ({EXPERTS: None, SEQUENCES: None}, 400.0, None),
    ],
)
def test_work_explains_what_is_in_proportion_to_it(
    ratios: dict[str, float | None], longer: float, said: str | None
) -> None:
    """The others compute 1000 µs."""
    assert more_work(ratios, 1_000.0, longer) == said

"""Exposed time as predicted, and its causes: reckoned by hand, and on jobs whose link speed is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from analyzer import causes
from analyzer.call_speed import call_speeds
from analyzer.causes import Charge
from analyzer.links_fit import Fit
from analyzer.measured import Measured
from analyzer.model import Exposure, ExposurePrediction
from analyzer.outlook import predictions
from analyzer.pipeline import analyze
from analyzer.step_time import exposure
from benchmarks.synthesis.generate import generate
from benchmarks.synthesis.spec import Spec
from heuristics.labelled import GpuRole
from heuristics.links import Nodes
from ledger.clusters import Cluster, Link
from tests.analyzer.hand_made import Call, Kernel, labelled, measured

ROOT = Path(__file__).resolve().parents[2]
COMM = GpuRole.COMM
PLAIN = Cluster("plain", 8, Link("nvlink", 400, 200, latency_us=10), Link("ib", 50))
NODES = Nodes(8, {}, "option")
NO_BUBBLE = (None, None)


def rank_of(
    dims: Sequence[str], primitive: str, lengths: Sequence[float], waits: Sequence[float] | None = None
) -> Measured:
    """600 µs of compute in a step of 2 ms, then calls of 1 MB (sending 1 MB) one after the other."""
    kernels, calls, at = [Kernel(0, 600)], [], 600.0
    for i, length in enumerate(lengths):
        kernels.append(Kernel(at, length, COMM, 20, call=i))
        calls.append(
            Call(ts=at, dur=length, primitive=primitive, size_bytes=1_000_000, sent_bytes=1_000_000, step=0, size=2)
        )
        at += length
    rank = labelled(kernels, calls, steps=[(0, 0, 2000)])
    return measured(rank, dims, link="intra_node", wait_us=waits)


def outlook(
    rank: Measured,
    charges: Sequence[Charge] = (),
    *,
    cluster: Cluster | None = None,
    fits: Sequence[Fit] = (),
    hideable: dict[str, dict[str, float]] | None = None,
) -> tuple[ExposurePrediction, dict[str, float | None]]:
    times = exposure([rank])
    assert times is not None
    speeds = call_speeds([rank], fits, cluster, NODES)
    (found,), explained = predictions([rank], speeds, times, charges, hideable or {}, NO_BUBBLE)
    return found, {part.cause: part.avoidable_us for part in explained}


def test_hideable_transfers_are_exposed_at_their_edge_only() -> None:
    """Three reductions, the shortest of 100 µs, beside 600 µs of compute: the last one has nothing beside it."""
    found, _ = outlook(rank_of(["dp"] * 3, "all_reduce", [100, 150, 120]))
    assert (found.observed_us, found.transfer_us, found.predicted_us, found.lower_bound_us) == (370, 300, 100, 0)
    assert (found.speeds, found.hideable["yes"]) == ("measured", 1.0)


def test_what_compute_cannot_cover_stays_exposed() -> None:
    """Nine of 100 µs: 900 - 600 = 300 µs are left over, more than the last one alone."""
    found, _ = outlook(rank_of(["dp"] * 9, "all_reduce", [100] * 9))
    assert (found.predicted_us, found.lower_bound_us) == (300, 300)


def test_transfers_on_the_critical_path_are_predicted_whole_and_waiting_is_not_predicted() -> None:
    found, _ = outlook(rank_of(["tp"] * 3, "all_reduce", [100, 150, 120], waits=[0, 50, 20]))
    assert (found.observed_us, found.predicted_us, found.lower_bound_us) == (370, 300, 300)


def test_shares_of_bytes_decide_how_much_can_be_hidden() -> None:
    """Of 400 µs half is hideable, a quarter perhaps, a quarter not: 200 + max(200 - 600, half of the last one)."""
    shares = {"tp": {"yes": 0.5, "partial": 0.25, "no": 0.25}}
    found, _ = outlook(rank_of(["tp"] * 4, "all_reduce", [100] * 4), hideable=shares)
    assert (found.predicted_us, found.lower_bound_us) == (200 + 50, 100)


def test_a_cluster_s_links_are_held_against_the_run() -> None:
    """1 MB over 200 GB/s is 5 µs, and 10 µs of latency; the line rate of 400 GB/s needs 2.5 µs."""
    found, _ = outlook(rank_of(["tp"] * 2, "all_gather", [100, 100]), cluster=PLAIN)
    assert (found.transfer_us, found.least_transfer_us, found.speeds) == (30, 5, "cluster")
    assert (found.predicted_us, found.lower_bound_us) == (30, 5)


def test_a_fitted_line_is_used_for_its_kind_of_call() -> None:
    fit = Fit("tp", "all_gather", 2, "intra_node", 20.0, 100.0, 0.01, 50)
    found, _ = outlook(rank_of(["tp"] * 2, "all_gather", [100, 100]), fits=[fit])
    assert (found.transfer_us, found.least_transfer_us, found.speeds) == (60, 20, "fitted")


def test_what_goes_beyond_the_prediction_is_avoidable_the_most_preventable_cause_first() -> None:
    """370 µs of which 70 wait; 100 are predicted: of the other 300, 200 are avoidable."""
    charges = [
        Charge("dp", causes.WAIT, 70),
        Charge("dp", causes.BUCKET, 180),
        Charge("dp", causes.LATE, 120),
    ]
    found, avoidable = outlook(rank_of(["dp"] * 3, "all_reduce", [100, 150, 120]), charges)
    assert avoidable == {"waiting": 70, "last_bucket": 80, "late_launch": 120}
    assert found.avoidable_us == 270
    assert found.waiting_us == 70


def test_nothing_is_claimed_of_calls_of_unknown_size_or_dimension() -> None:
    rank = rank_of(["tp"] * 2, "all_gather", [100, 100])
    table = rank.source.collectives
    none = table.set_column(table.schema.get_field_index("size_bytes"), "size_bytes", pa.nulls(2, pa.int64()))
    unknown = replace(rank, source=replace(rank.source, collectives=none))
    charges = [Charge("tp", causes.DESIGN, 200)]
    found, avoidable = outlook(unknown, charges)
    assert (found.predicted_us, found.lower_bound_us, avoidable) == (None, None, {"by_design": None})
    assert found.reason == "nothing says how long 2 calls should take: payload or links are not known"
    lost, _ = outlook(rank_of(["unknown"] * 2, "all_gather", [100, 100]))
    assert lost.predicted_us is None
    assert lost.reason is not None
    assert "dimension" in lost.reason
    assert lost.lower_bound_us == 0


def test_the_bubble_is_avoidable_as_far_as_it_exceeds_its_schedule_s() -> None:
    rank = rank_of(["pp"], "send_recv", [100])
    times = exposure([rank])
    assert times is not None
    charges = [Charge("pp", causes.BUBBLE, 90), Charge("pp", causes.DESIGN, 10)]
    speeds = call_speeds([rank], (), None, NODES)
    _, parts = predictions([rank], speeds, times, charges, {}, (0.3, 0.2))
    assert {part.cause: part.avoidable_us for part in parts} == {"bubble": 30, "by_design": 0}


@cache
def job(framework: str, layout: str, folder: Path) -> Path:
    return generate(Spec.parse(framework, layout, seed=3), folder / f"{framework}-{layout}")


JOBS = [("torch", "dp4"), ("torchtitan", "dp4"), ("megatron", "tp2-pp2-dp2"), ("deepspeed", "dp4-zero3")]


@pytest.mark.parametrize(("framework", "layout"), JOBS)
def test_transfers_on_links_of_known_speed_are_predicted(
    tmp_path_factory: pytest.TempPathFactory, framework: str, layout: str
) -> None:
    """The synthetic links: 300 GB/s and 12 µs inside a node, each call 0.94 to 1.10 times that, 1.02 on average.

    Members end a call up to a third of that later than the first, 4 % on average.
    """
    folder = tmp_path_factory.getbasetemp()
    own = folder / "links.yaml"
    own.write_text(
        "gpus_per_node: 8\nintra_node: {kind: nvlink, gbps: 300, latency_us: 12}\ninter_node: {kind: ib, gbps: 42}\n"
    )
    found = analyze(job(framework, layout, folder), cluster=str(own)).exposure
    assert found is not None
    for item in found.prediction:
        seen = found.by_dimension[item.dim].transfer_us
        if seen is None or item.transfer_us is None or item.dim == "control":
            continue
        # Of messages of a launch that waits for several, a part of the transfer counts as waiting for the last.
        assert item.transfer_us == pytest.approx(seen, rel=0.15 if item.dim == "pp" else 0.1), item.dim
        assert item.lower_bound_us is not None
        assert item.predicted_us is not None
        assert item.lower_bound_us <= item.predicted_us


def exact(found: Exposure) -> None:
    """Causes sum to the exposed time, to the nanosecond, in every dimension and in all."""
    for dim, time in found.by_dimension.items():
        charged = sum(round(c.exposed_us * 1000) for c in found.causes if c.dim == dim)
        assert charged == round(time.exposed_us * 1000), dim
    assert sum(round(c.exposed_us * 1000) for c in found.causes) == round(found.exposed_us * 1000)
    for cause in found.causes:
        assert cause.avoidable_us is None or 0 <= cause.avoidable_us <= cause.exposed_us + 0.0005


@pytest.mark.parametrize(
    "case", sorted(p.name for p in (ROOT / "sample_traces").iterdir() if (p / "truth.json").exists())
)
def test_causes_sum_to_the_exposed_time_on_every_sample(case: str, sample_traces: Path) -> None:
    found = analyze(sample_traces / case).exposure
    assert found is not None
    assert found.exposed_us > 0
    exact(found)


@pytest.mark.parametrize(("framework", "layout"), JOBS)
def test_causes_sum_to_the_exposed_time_on_synthetic_jobs(
    tmp_path_factory: pytest.TempPathFactory, framework: str, layout: str
) -> None:
    found = analyze(job(framework, layout, tmp_path_factory.getbasetemp())).exposure
    assert found is not None
    exact(found)
    assert found.prediction

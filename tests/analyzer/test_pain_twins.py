"""Reported faults of other tools with other numbers than in the files of `data/pains`; see also `test_time`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analyzer.model import Analysis, Exposure
from analyzer.pipeline import analyze
from tests.analyzer.time_files import GEMM, Writer, analysed

ELEMENTS = 3_000_000


def step(found: Analysis) -> Exposure:
    assert found.exposure is not None
    return found.exposure


def causes(found: Analysis) -> dict[str, float | None]:
    return {f.id: f.cost_us for f in found.findings if f.id.startswith("cause.")}


def data_parallel(
    rank: int,
    world: int,
    *,
    steps: int,
    layers: int,
    compute: float,
    reduce: float,
    marked: bool = True,
    gap: float = 0.4,
) -> tuple[Writer, float]:
    """Layers that compute, each reduced beside the next; the last ``gap`` of a step is idle. With the step's length."""
    made = Writer(rank, world)
    length = (layers * compute + reduce) / (1 - gap)
    for n in range(steps):
        b = 1_000.0 + n * length
        if marked:
            made.step(n, b, length)
        for i in range(layers):
            made.kernel(GEMM, b + 30 + i * compute, compute)
            made.collective("allreduce", b + 31 + (i + 1) * compute, reduce, ELEMENTS)
    return made, length


@pytest.mark.parametrize(
    ("steps", "layers", "compute", "reduce"), [(3, 2, 900.0, 300.0), (5, 7, 210.0, 200.0), (8, 3, 20_000.0, 6_000.0)]
)
def test_steps_that_nobody_marked(tmp_path: Path, steps: int, layers: int, compute: float, reduce: float) -> None:
    """Twin of 07."""
    rank, length = data_parallel(0, 4, steps=steps, layers=layers, compute=compute, reduce=reduce, marked=False)
    found = analysed(tmp_path, [rank])
    assert found.trust.steps.source == "inferred"
    assert found.trust.steps.complete == list(range(steps))
    assert step(found).step_us == pytest.approx(length, abs=0.001)
    (row,) = found.collectives
    assert row.calls_per_step == layers


@pytest.mark.parametrize(("zeros", "negative", "tiny"), [(1, 0, 3), (25, 4, 1), (0, 2, 0)])
def test_durations_of_nothing_and_less(tmp_path: Path, zeros: int, negative: int, tiny: int) -> None:
    """Twin of 08: kernels at time zero that took no time, kernels of negative length, and short ones that are sound."""
    rank, length = data_parallel(0, 4, steps=3, layers=4, compute=500, reduce=100)
    for i in range(zeros):
        rank.event("kernel", GEMM, 0, 0, 7, device=0, stream=7, correlation=10_000 + i)
    for i in range(negative):
        rank.kernel("late", 1_700.0 + i, -3)
    for i in range(tiny):
        rank.kernel("tiny", 1_000.0 + length - 50 - i, 0.25)
    found = analysed(tmp_path, [rank])
    assert found.trust.events_quarantined == zeros + negative
    assert step(found).step_us == pytest.approx(length, abs=0.001)
    assert step(found).compute_us == pytest.approx(2_000 + tiny * 0.25 / 3, abs=0.001)


@pytest.mark.parametrize(("count", "length", "broken"), [(40, 55.0, (7,)), (150, 9.0, (0, 31, 32, 149))])
def test_durations_that_outlast_their_stream(
    tmp_path: Path, count: int, length: float, broken: tuple[int, ...]
) -> None:
    """Twin of 09: a copy of seconds between kernels of microseconds; the last of a stream ends with the step."""
    rank = Writer(0, 1)
    pitch = length + 5
    rank.step(0, 0, count * pitch + 200)
    for i in range(count):
        wrong = i in broken and i < count - 1
        name = "Memcpy DtoH (Device -> Pageable)" if wrong else GEMM
        rank.kernel(name, 100 + i * pitch, 2.7e6 if wrong else length)
    found = analysed(tmp_path, [rank])
    wrong = sum(i < count - 1 for i in broken)
    assert found.trust.events_clipped == wrong
    busy = step(found).compute_us + step(found).memcpy_us
    assert busy == pytest.approx(count * length + wrong * 5, abs=0.01)


@pytest.mark.parametrize(("layers", "compute"), [(3, 1_000.0), (6, 77.0)])
def test_the_unit_of_display_changes_nothing(tmp_path: Path, layers: int, compute: float) -> None:
    """Twin of 10."""
    rank, length = data_parallel(0, 4, steps=4, layers=layers, compute=compute, reduce=compute / 2)
    found = []
    for unit in ("ms", "ns"):
        folder = tmp_path / unit
        folder.mkdir()
        (folder / "rank0.json").write_text(json.dumps({**json.loads(rank.text()), "displayTimeUnit": unit}))
        found.append(analyze(folder))
    assert found[0].exposure == found[1].exposure
    assert step(found[0]).step_us == pytest.approx(length, abs=0.001)


@pytest.mark.parametrize(("world", "base_us"), [(2, 1_000), (3, 250_000)])
def test_the_same_identifiers_on_several_ranks(tmp_path: Path, world: int, base_us: int) -> None:
    """Twin of 12: process, threads and correlations are the same, the bases of time are not."""
    for r in range(world):
        rank, _ = data_parallel(r, world, steps=3, layers=3, compute=400, reduce=150)
        document = json.loads(rank.text())
        for event in document["traceEvents"]:
            event["pid"] = event["pid"] if event["cat"] == "kernel" else 77
        document["baseTimeNanoseconds"] = 1_700_000_000_000_000_000 + r * base_us * 1_000
        (tmp_path / f"rank{r}.json").write_text(json.dumps(document))
    found = analyze(tmp_path)
    assert found.trust.ranks_present == list(range(world))
    assert found.trust.clock.offset_us == {str(r): float(r * base_us) for r in range(world)}
    assert found.trust.clock.residual_us == 0
    assert [rank.exposed_us for rank in step(found).by_rank] == [150] * world
    assert found.stragglers == []


@pytest.mark.parametrize(("layers", "lost"), [(2, 3), (4, 2), (2, 9)])
def test_launches_that_left_nothing(tmp_path: Path, layers: int, lost: int) -> None:
    """Twin of 19: the first kernels of the record were dropped, compute or collectives; their steps are cut."""
    rank, length = data_parallel(0, 4, steps=4, layers=layers, compute=600, reduce=200)
    kernels = sorted((e for e in rank.events if e["cat"] == "kernel"), key=lambda e: float(e["ts"]))
    gone = kernels[:lost]
    rank.events = [e for e in rank.events if not any(e is other for other in gone)]
    cut = sorted({int((e["ts"] - 1_000) // length) for e in gone})
    found = analysed(tmp_path, [rank])
    assert f"{lost} launches left nothing on the GPU" in found.trust.warnings
    assert found.trust.steps.incomplete == cut
    assert found.trust.steps.complete == [n for n in range(4) if n not in cut]
    assert step(found).compute_us == layers * 600


@pytest.mark.parametrize(("buckets", "compute", "reduce", "last"), [(2, 800, 300, 500), (6, 3_000, 2_900, 950)])
def test_the_last_bucket_alone_is_exposed(tmp_path: Path, buckets: int, compute: int, reduce: int, last: int) -> None:
    """Twin of 21."""
    rank = Writer(0, 16)
    length = (buckets + 1) * compute + last + 700
    for n in range(3):
        b = 1_000.0 + n * length
        rank.step(n, b, length)
        for i in range(buckets + 1):
            rank.kernel(GEMM, b + 100 + i * compute, compute)
        for i in range(buckets):
            rank.collective("allreduce", b + 100 + (i + 1) * compute, reduce, ELEMENTS)
        rank.collective("allreduce", b + 100 + (buckets + 1) * compute, last, ELEMENTS)
    found = analysed(tmp_path, [rank])
    assert causes(found) == {"cause.last_bucket": last}
    assert (step(found).exposed_us, step(found).overlapped_us) == (last, buckets * reduce)
    assert 100 * step(found).exposed_us / step(found).step_us == pytest.approx(100 * last / length, abs=0.01)


@pytest.mark.parametrize(("calls", "compute", "reduce"), [(3, 700, 400), (2, 2_000, 900)])
def test_communication_on_the_stream_of_compute(tmp_path: Path, calls: int, compute: int, reduce: int) -> None:
    """Twin of 22."""
    rank = Writer(0, 16)
    pitch = compute + reduce + 20
    rank.step(0, 0, calls * pitch + 300)
    for i in range(calls):
        rank.kernel(GEMM, 100 + i * pitch, compute)
        rank.collective("allreduce", 100 + i * pitch + compute, reduce, ELEMENTS, stream=7)
    found = analysed(tmp_path, [rank])
    assert (step(found).compute_us, step(found).exposed_us) == (calls * compute, calls * reduce)
    assert "NCCL on the compute stream" in {f.title for f in found.findings}

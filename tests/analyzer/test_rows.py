from __future__ import annotations

import pytest

from analyzer.rows import bus_factor, collect
from analyzer.step_time import exposure
from heuristics.labelled import GpuRole
from tests.analyzer.hand_made import Call, Kernel, labelled, measured

COMM = GpuRole.COMM
AR = Call(size=8, size_bytes=256 * 2**20, sent_bytes=448 * 2**20, step=0)


@pytest.mark.parametrize(
    ("primitive", "n", "factor"),
    [
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("send_recv", 2, 1.0),
        ("broadcast", None, 1.0),
        ("all_reduce", None, None),
        ("barrier", 8, None),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(primitive: str, n: int | None, factor: float | None) -> None:
    assert bus_factor(primitive, n) == factor


def test_bandwidth_comes_from_transfer_and_not_from_waiting() -> None:
    # 256 MiB in a group of 8, 2 ms in the kernel of which 1 ms waiting: nccl-tests' 268.4 and 469.8 GB/s.
    rank = labelled([Kernel(0, 2000, COMM, 20, call=0)], [AR], steps=[(0, 0, 4000)])
    (row,) = collect([measured(rank, ["dp"], wait_us=[1000])])
    assert (row.time_us_per_step, row.wait_us_per_step, row.transfer_us_per_step) == (2000, 1000, 1000)
    assert row.algbw_gbps == pytest.approx(268.435, abs=0.001)
    assert row.busbw_gbps == pytest.approx(469.762, abs=0.001)


def test_bandwidth_is_null_where_waiting_is_not_known() -> None:
    rank = labelled([Kernel(0, 2000, COMM, 20, call=0)], [AR], steps=[(0, 0, 4000)])
    (row,) = collect([measured(rank, ["dp"])])
    assert (row.wait_us_per_step, row.transfer_us_per_step, row.algbw_gbps, row.busbw_gbps) == (None,) * 4


def test_calls_that_differ_in_a_key_make_rows_of_their_own() -> None:
    calls = [Call(), Call(), Call(dtype="float32"), Call(phase="backward"), Call(op="_allreduce_base"), Call(size=4)]
    kernels = [Kernel(i * 10, 5, COMM, 20, call=i) for i in range(6)]
    rows = collect([measured(labelled(kernels, calls), ["dp"] * 6)])
    assert sorted(row.calls_per_step for row in rows) == [1, 1, 1, 1, 2]
    rows = collect([measured(labelled(kernels[:2], calls[:2]), ["dp", "tp"])])
    assert [row.dim for row in rows] == ["tp", "dp"]


def test_figures_are_means_per_step_and_then_per_rank() -> None:
    # Rank 0: two steps with 3 calls in all; rank 1: one step without any.
    calls = [Call(step=0, sent_bytes=100), Call(step=1, sent_bytes=100), Call(step=1, sent_bytes=100)]
    kernels = [Kernel(10 + 40 * i, 20, COMM, 20, call=i) for i in range(3)]
    one = measured(labelled(kernels, calls, steps=[(0, 0, 50), (1, 50, 100)]), ["dp"] * 3)
    other = measured(labelled([Kernel(0, 10)], steps=[(0, 0, 50)], rank=1), [])
    (row,) = collect([one, other])
    assert row.calls_per_step == 0.75
    assert row.sent_bytes_per_step == 75
    assert row.time_us_per_step == 15
    assert row.exposed_us_per_step == 15


def test_calls_outside_of_the_measured_steps_do_not_count() -> None:
    calls = [Call(step=0), Call(step=1), Call(step=None)]
    kernels = [Kernel(10, 5, COMM, 20, call=0), Kernel(110, 5, COMM, 20, call=1), Kernel(210, 5, COMM, 20, call=2)]
    rank = labelled(kernels, calls, steps=[(0, 0, 100), (1, 100, 100)], cut=[0])
    (row,) = collect([measured(rank, ["dp"] * 3)])
    assert row.calls_per_step == 1
    assert row.time_us_per_step == 5


def test_one_call_without_bytes_makes_the_bytes_of_its_row_unknown() -> None:
    kernels = [Kernel(i * 10, 5, COMM, 20, call=i) for i in range(2)]
    rank = labelled(kernels, [Call(), Call(size_bytes=None, sent_bytes=None)])
    (row,) = collect([measured(rank, ["dp"] * 2)])
    assert (row.size_bytes, row.sent_bytes_per_step) == (None, None)


def test_the_median_size_is_one_of_the_sizes() -> None:
    calls = [Call(size_bytes=size) for size in (40, 10, 20, 30)]
    kernels = [Kernel(i * 10, 5, COMM, 20, call=i) for i in range(4)]
    (row,) = collect([measured(labelled(kernels, calls), ["dp"] * 4)])
    assert row.size_bytes is not None
    assert (row.size_bytes.min, row.size_bytes.p50, row.size_bytes.max) == (10, 20, 40)


def test_exposed_time_of_the_dimensions_sums_to_the_exposed_time_of_every_rank_and_of_the_mean() -> None:
    ranks = []
    for r in range(3):
        kernels = [
            Kernel(0, 100 + r),
            Kernel(50, 100.007 + r, COMM, 20, call=0),
            Kernel(90, 77.013, COMM, 24, call=1),
            Kernel(120, 31.001 * r, COMM, 28, call=2),
        ]
        calls = [Call(step=0), Call(step=0), Call(step=0)]
        rank = labelled(kernels, calls, rank=r, steps=[(0, 0, 400)])
        ranks.append(measured(rank, ["dp", "tp", "pp"]))
    result = exposure(ranks)
    assert result is not None
    for part in (result, *result.by_rank):
        total = sum(d.exposed_us for d in part.by_dimension.values())
        assert total == pytest.approx(part.exposed_us, abs=1e-9)
        assert part.compute_us + part.exposed_us + part.memcpy_us + part.idle_us == pytest.approx(
            part.step_us, abs=1e-9
        )
        for dim in part.by_dimension.values():
            assert dim.exposed_us + dim.overlapped_us == pytest.approx(dim.busy_us, abs=1e-9)
    assert result.step_us == 400


def test_waiting_of_a_dimension_is_known_only_if_that_of_all_its_calls_is() -> None:
    kernels = [Kernel(0, 10, COMM, 20, call=0), Kernel(20, 10, COMM, 20, call=1), Kernel(40, 10, COMM, 24, call=2)]
    calls = [Call(step=0), Call(step=0), Call(step=0)]
    rank = measured(labelled(kernels, calls, steps=[(0, 0, 100)]), ["dp", "dp", "tp"], wait_us=[4, -0.001, 3])
    result = exposure([rank])
    assert result is not None
    assert result.by_dimension["dp"].wait_us is None
    assert (result.by_dimension["tp"].wait_us, result.by_dimension["tp"].transfer_us) == (3, 7)


def test_kernels_that_only_arrange_data_are_compute_and_no_calls() -> None:
    kernels = [Kernel(0, 10, COMM, 20, call=0), Kernel(20, 10, GpuRole.COMPUTE, 20, call=1)]
    rank = measured(labelled(kernels, [Call(), Call(role="pack", primitive="all_to_all")]), ["ep", "ep"])
    (row,) = collect([rank])
    assert (row.primitive, row.calls_per_step, row.time_us_per_step) == ("all_reduce", 1, 10)
    assert rank.time.compute.tolist() == [10_000]

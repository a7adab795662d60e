"""Single steps of ranks made by hand; every expected number is arithmetic on the picture below."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from analyzer.gate.metrics import anatomy
from analyzer.gate.samples import Samples, samples_of
from analyzer.measured import Measured
from heuristics.labelled import GpuRole
from tests.analyzer.gate.runs import FACTS
from tests.analyzer.hand_made import Call, Kernel, labelled, measured

STEPS = 3


def rank(dim: str = "dp", *, number: int = 0, cut: tuple[int, ...] = (), wait: float | None = 10.0) -> Measured:
    """Three steps of 100 µs, in each (µs):

    0-40 compute, 40-70 communication of which 10 are waiting, 80-95 compute. The second compute is launched at 78, when
    the GPU has had nothing to do for 8 µs; the first of the next step at its begin, after 5 µs of nothing.
    """
    kernels, calls = [], []
    for step in range(STEPS):
        at = 100.0 * step
        kernels += [
            Kernel(at, 40, launched=at),
            Kernel(at + 40, 30, GpuRole.COMM, 20, call=step, launched=at + 1),
            Kernel(at + 80, 15, launched=at + 78),
        ]
        calls.append(Call(at + 40, 30, step=step, size_bytes=1000 * (step + 1), sent_bytes=1000 * (step + 1)))
    steps = [(n, 100.0 * n, 100) for n in range(STEPS)]
    made = labelled(kernels, calls, steps=steps, cut=cut, rank=number)
    return measured(made, [dim] * STEPS, wait_us=None if wait is None else [wait] * STEPS)


def samples(*ranks: Measured) -> Samples:
    found = samples_of(ranks)
    assert found is not None
    return found


def us(values: np.ndarray | None) -> list[float]:
    assert values is not None
    return [round(float(v) / 1000, 6) for v in values]


def test_steps_are_divided_one_by_one() -> None:
    found = samples(rank())
    assert found.numbers == (0, 1, 2)
    assert us(found.parts["step"]) == [100, 100, 100]
    assert us(found.parts["compute"]) == [55, 55, 55]
    assert us(found.parts["exposed"]) == [30, 30, 30]
    assert us(found.parts["idle"]) == [15, 15, 15]
    # 8 before the second compute of each step, 5 before the first of the next
    assert us(found.launch_gap) == [13, 13, 8]
    dim = found.dims["dp"]
    assert (us(dim.exposed), us(dim.exposed_wait)) == ([30, 30, 30], [10, 10, 10])
    assert (us(dim.wait), us(dim.transfer)) == ([10, 10, 10], [20, 20, 20])
    # two ranks: an all-reduce of S has a bus factor of 2·(2-1)/2 = 1
    assert dim.bus_bytes is not None
    assert dim.bus_bytes.tolist() == [1000, 2000, 3000]


def test_bytes_and_calls_are_counted_per_step_and_averaged_over_ranks() -> None:
    quiet = measured(labelled([Kernel(0, 290)], steps=[(n, 100.0 * n, 100) for n in range(STEPS)], rank=1), [])
    traffic = samples(rank(), quiet).traffic["dp", "all_reduce"]
    assert traffic.calls.tolist() == [0.5, 0.5, 0.5]
    assert traffic.sent is not None
    assert traffic.sent.tolist() == [500, 1000, 1500]
    assert (traffic.dtypes, traffic.groups) == ({"bfloat16"}, {2})


def test_only_steps_that_every_rank_has_are_compared() -> None:
    found = samples(rank(), rank(number=1, cut=(0,)))
    assert found.numbers == (1, 2)
    assert us(found.parts["step"]) == [100, 100]
    assert found.traffic["dp", "all_reduce"].calls.tolist() == [1, 1]


def test_parts_of_the_mean_step_sum_to_it() -> None:
    found = anatomy(samples(rank()), FACTS)
    assert found == {
        "compute": 55_000,
        "exposed.dp": 20_000,
        "wait": 10_000,
        "launch gaps": round((13 + 13 + 8) / 3 * 1000),
        "other": 100_000 - 55_000 - 20_000 - 10_000 - round(34 / 3 * 1000),
    }
    assert sum(found.values()) == 100_000


def test_waiting_that_is_not_known_stays_exposed() -> None:
    found = anatomy(samples(rank(wait=None)), FACTS)
    assert (found["exposed.dp"], "wait" in found) == (30_000, False)
    assert sum(found.values()) == 100_000


def test_bubble_is_idle_time_with_work_launched_and_waiting_for_a_stage() -> None:
    pipeline = msgspec.structs.replace(FACTS, layout={"tp": 1, "cp": 1, "pp": 2, "dp": 1, "ep": 1})
    found = anatomy(samples(rank("pp")), pipeline)
    idle_with_work = 15 - 34 / 3
    assert found["bubble"] == round((idle_with_work + 10) * 1000)
    assert (found["exposed.pp"], found["wait"]) == (20_000, 0)
    assert sum(found.values()) == 100_000


def test_trace_without_steps_is_one_sample_without_a_number() -> None:
    found = samples(measured(labelled([Kernel(0, 40), Kernel(60, 40)], [Call(10, 5)]), ["dp"]))
    assert (found.numbers, us(found.parts["step"])) == ((), [100])
    assert found.traffic["dp", "all_reduce"].calls.tolist() == [1]


def test_no_time_gives_no_samples() -> None:
    assert samples_of([measured(labelled(), [])]) is None


def test_work_that_was_launched_in_time_leaves_no_launch_gap() -> None:
    kernels = [Kernel(0, 40, launched=0), Kernel(60, 40, launched=1)]
    found = samples(measured(labelled(kernels, steps=[(0, 0, 100)]), []))
    assert us(found.launch_gap) == [0]
    assert us(found.parts["idle"]) == pytest.approx([20])

"""The error rates that docs/ci.md promises, on the repeated runs that they were measured on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gate import BEGIN, DETECTION, DOCUMENT, END, FALSE_ALARMS, PLACES, Runs, product, rate, window


@pytest.fixture(scope="module")
def runs(shared: Path) -> Runs:
    found: Runs = json.loads((shared / "data/ground_truth/mlperf_step_series.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(("name", "start"), PLACES)
def test_five_step_windows_keep_the_promise(runs: Runs, name: str, start: int | None) -> None:
    got = rate(runs, window(start, 5), product)
    assert got.pairs == 8016
    assert got.false_alarms <= FALSE_ALARMS
    assert got.detected >= DETECTION
    row = f"| **the gate** | 5 steps, {name} | {got.false_alarms:.2f} % | {got.detected:.2f} % |"
    assert row in DOCUMENT.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].splitlines()


def test_windows() -> None:
    series = [float(i) for i in range(10)]
    assert window(0, 5)(series) == [0, 1, 2, 3, 4]
    assert window(8, 5)(series) == [5, 6, 7, 8, 9]
    assert window(None, 4)(series) == [3, 4, 5, 6]
    assert window(-1, 3)(series) == [7, 8, 9]
    assert window(None, None)(series) == series

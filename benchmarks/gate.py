"""False alarms and detection of the step-time gate on repeated real runs.

    python -m benchmarks.gate SERIES.json            # prints the table
    python -m benchmarks.gate SERIES.json --write    # and puts it into docs/ci.md

``SERIES.json`` maps a configuration to its runs and each run to its step times, as read from the logs of the MLPerf
Training results v4.1 to v5.1: {"configuration": {"0": [seconds, ...], ...}, ...}. Runs of one configuration differ in
nothing but the seed (and often the nodes). Every ordered pair of them is an A/A test: whatever the gate reports is a
false alarm. Multiplying the second run by 1.05 makes it a test of detection.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

from analyzer.gate.noisy import compare_noisy
from analyzer.gate.record import Series

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "ci.md"
BEGIN, END = "<!-- gate: begin -->\n", "<!-- gate: end -->\n"
INJECTED = 1.05
FALSE_ALARMS, DETECTION = 0.3, 98.0
"""Per cent: what the gate promises for windows of five steps."""

Window = Callable[[Sequence[float]], Sequence[float]]
Runs = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Rate:
    """Per cent of the ordered pairs that fail, as they are and with 5 % injected."""

    pairs: int
    false_alarms: float
    detected: float


def window(start: int | None, steps: int | None) -> Window:
    """So many steps from a place that exists in every run; counted from the end where ``start`` is negative."""

    def cut(run: Sequence[float]) -> Sequence[float]:
        if steps is None:
            return run
        last = max(len(run) - steps, 0)
        begin = last // 2 if start is None else min(start, last) if start >= 0 else last
        return run[begin : begin + steps]

    return cut


def gate(before: Sequence[float], after: Sequence[float], tolerance: float, floor: float) -> bool:
    """Whether the product's own rule fails the second run."""
    a, b = (Series(unit="us", samples=list(s), lower_is_better=True, worth_us=1.0) for s in (before, after))
    floor_us = floor * float(np.mean(before))
    return compare_noisy("step_us", a, b, tolerance=tolerance, floor_us=floor_us, level="error").status == "regressed"


def rate(runs: Runs, cut: Window, fails: Callable[[Sequence[float], Sequence[float]], bool]) -> Rate:
    """Try every ordered pair of runs of the same configuration."""
    pairs = alarms = found = 0
    for of_configuration in runs.values():
        windows = [cut(run) for run in of_configuration.values()]
        for before, after in permutations(windows, 2):
            pairs += 1
            alarms += fails(before, after)
            found += fails(before, [t * INJECTED for t in after])
    return Rate(pairs, 100 * alarms / pairs, 100 * found / pairs)


def by_rule(statistic: Callable[[Sequence[float]], float], tolerance: float) -> Callable[..., bool]:
    """A plain rule: one number per run, and a ratio."""
    return lambda before, after: statistic(after) > statistic(before) * (1 + tolerance)


def product(before: Sequence[float], after: Sequence[float]) -> bool:
    """The gate with its defaults."""
    return gate(before, after, 0.03, 0.005)


PLACES = (
    ("first steps", 0),
    ("from step 1", 1),
    ("from step 2", 2),
    ("from step 5", 5),
    ("middle", None),
    ("last", -1),
)


def table(runs: Runs) -> tuple[list[str], bool]:
    """The table as markdown, and whether the promise for five steps is kept at every place."""
    lines = [
        "| rule | window | false alarms | +5 % found |",
        "| :-- | :-- | --: | --: |",
    ]
    kept = True
    pairs = 0
    for name, start in PLACES:
        got = rate(runs, window(start, 5), product)
        pairs = got.pairs
        kept &= got.false_alarms <= FALSE_ALARMS and got.detected >= DETECTION
        lines.append(_line("**the gate**", f"5 steps, {name}", got))
    longer = (("3 steps, middle", 3), ("10 steps, middle", 10), ("20 steps, middle", 20), ("whole run", None))
    lines += [_line("the gate", name, rate(runs, window(None, steps), product)) for name, steps in longer]
    for rule, statistic in (("minimum", min), ("median", np.median), ("mean", np.mean)):
        for tolerance in (0.03, 0.05):
            for name, start in (PLACES[0], PLACES[4]):
                got = rate(runs, window(start, 5), by_rule(statistic, tolerance))  # type: ignore[arg-type]
                lines.append(_line(f"{rule} over {tolerance:.0%}", f"5 steps, {name}", got))
    count = sum(len(r) for r in runs.values())
    lines.append("")
    lines.append(f"{len(runs)} configurations, {count} runs, {pairs:,} ordered pairs of runs of one configuration.")
    return lines, kept


def _line(rule: str, where: str, got: Rate) -> str:
    return f"| {rule} | {where} | {got.false_alarms:.2f} % | {got.detected:.2f} % |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("series", type=Path)
    parser.add_argument("--write", action="store_true", help="put the table into docs/ci.md")
    given = parser.parse_args()
    lines, kept = table(json.loads(given.series.read_text(encoding="utf-8")))
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if given.write:
        document = DOCUMENT.read_text(encoding="utf-8")
        before, rest = document.split(BEGIN)
        DOCUMENT.write_text(before + BEGIN + text + END + rest.split(END)[1], encoding="utf-8")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()

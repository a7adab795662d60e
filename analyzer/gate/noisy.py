"""A noisy metric against its baseline: worse by more than a share, worth more than a floor, and not by chance."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from analyzer.gate.record import Series
from analyzer.gate.rows import Row
from analyzer.gate.statistics import ALPHA, FEWEST, LONG, estimates, mann_whitney, p90


def compare_noisy(
    name: str, baseline: Series, current: Series, *, tolerance: float, floor_us: float, level: str
) -> Row:
    """Judge one metric.

    Args:
        name: of the metric.
        baseline: its steps there.
        current: its steps here.
        tolerance: share by which it may be worse.
        floor_us: what a change must be worth, per step.
        level: warn | error.
    """
    steps = min(len(baseline.samples), len(current.samples))
    lower = baseline.lower_is_better
    before = estimates(baseline.samples, steps, lower_is_better=lower)
    after = estimates(current.samples, steps, lower_is_better=lower)
    if not before or not after:
        had = f"{_steps(baseline)} in the baseline, {_steps(current)} here"
        return Row.open(name, "noisy", level, f"too few steps: {had}; {FEWEST} are needed")
    p = _chance(baseline, current) if steps >= LONG else None
    floor = 0.0 if baseline.unit == "B" else floor_us
    worse = _beyond(before, after, lower, tolerance, floor, baseline.worth_us)
    better = _beyond(after, before, lower, tolerance, floor, baseline.worth_us)
    sure = p is None or p < ALPHA
    if worse and sure:
        status = "regressed"
    elif better and (p is None or 1 - p < ALPHA):
        status = "improved"
    else:
        status = "pass"
    change = _ratio(before[0], after[0])
    said = "at zero before" if change == inf else f"{change:+.1%}"
    return Row(
        metric=name,
        kind="noisy",
        level=level,
        status=status,
        baseline=round(before[0], 6),
        current=round(after[0], 6),
        unit=baseline.unit,
        change=None if change == inf else round(change, 6),
        cost_us=round((after[0] - before[0]) * baseline.worth_us * (1 if lower else -1), 3),
        why=f"{said}, {_statistic(steps)}" + (f", p = {p:.2g}" if p is not None else ""),
        p_value=p,
    )


def tail_of(baseline: Series, current: Series, *, tolerance: float, floor_us: float) -> Row | None:
    """The 90th percentile of the steps, which the best step hides; None where there are too few for one."""
    before, after = p90(baseline.samples), p90(current.samples)
    if before is None or after is None:
        return None
    worse = after - before > tolerance * before and after - before >= floor_us
    better = before - after > tolerance * after and before - after >= floor_us
    change = _ratio(before, after)
    return Row(
        metric="step_us.p90",
        kind="noisy",
        level="warn",
        status="regressed" if worse else "improved" if better else "pass",
        baseline=round(before, 3),
        current=round(after, 3),
        unit="us",
        change=None if change == inf else round(change, 6),
        cost_us=round(after - before, 3),
        why=f"{change:+.1%}, one step in ten is slower",
    )


def _steps(series: Series) -> str:
    return "only a mean" if len(series.samples) == 1 else f"{len(series.samples)} steps"


def _chance(baseline: Series, current: Series) -> float:
    if baseline.lower_is_better:
        return mann_whitney(baseline.samples, current.samples)
    return mann_whitney(current.samples, baseline.samples)


def _beyond(
    before: Sequence[float], after: Sequence[float], lower: bool, tolerance: float, floor_us: float, worth: float
) -> bool:
    """Whether every number that stands for the run is worse by more than the share and worth the floor."""
    for a, b in zip(before, after, strict=True):
        low, high = (a, b) if lower else (b, a)
        if high - low <= tolerance * low or (high - low) * worth < floor_us:
            return False
    return True


def _ratio(before: float, after: float) -> float:
    if before == after:
        return 0.0
    return after / before - 1 if before else inf


def _statistic(steps: int) -> str:
    return f"median of {steps} steps" if steps >= LONG or steps < 5 else f"best of {steps} steps"

"""Two runs of the same job, metric by metric."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from analyzer.gate.noisy import compare_noisy, tail_of
from analyzer.gate.policy import Policy
from analyzer.gate.record import Record, Series, Value
from analyzer.gate.rows import Row

GOVERNED = ("step_us", "exposed_us", "exposed.")
"""Noisy metrics whose regression fails by default: what a job pays for. The others say where it comes from."""

SMALLER_IS_BETTER = ("ledger_residual_bytes", "missing_collectives", "extra_collectives")

INFERRED = ("layout.", "world_size", *SMALLER_IS_BETTER)
"""Exact metrics that not every input decides: not knowing them is no failure, a change is."""


def against(a: Record, b: Record, policy: Policy) -> Iterator[Row]:
    """Rows of every metric of two runs of the same job.

    Args:
        a: the baseline.
        b: the run that is judged.
        policy: how strictly.
    """
    names = dict.fromkeys((*a.exact, *b.exact))
    for name in names:
        if name in a.noisy and name in b.noisy:
            continue
        row = _exact(name, _value(a, name), _value(b, name), a, b, policy)
        if row is not None:
            yield row
    step = _mean(a.noisy.get("step_us"))
    for name in dict.fromkeys((*a.noisy, *b.noisy)):
        if name in a.exact or name in b.exact:
            continue
        yield from _noisy(name, a, b, step, policy)


def _value(record: Record, name: str) -> Value:
    series = record.noisy.get(name)
    return round(sum(series.samples) / len(series.samples), 3) if series is not None else record.exact.get(name)


def _mean(series: Series | None) -> float:
    return sum(series.samples) / len(series.samples) if series is not None and series.samples else 0.0


def _exact(name: str, before: Value, after: Value, a: Record, b: Record, policy: Policy) -> Row | None:
    """Row of an exact metric; None where neither run says anything."""
    if name.startswith(("calls.", "bytes.")):
        # A row that is not there made no calls and sent nothing.
        before = 0 if name not in a.exact and name not in a.noisy else before
        after = 0 if name not in b.exact and name not in b.noisy else after
    elif name.startswith(("dtype.", "groups.")) and not (name in a.exact and name in b.exact):
        return None
    if before is None and after is None:
        return None
    default = "error"
    if None in (before, after):
        default = "warn" if name.startswith(INFERRED) else "error"
        status, why = "inconclusive", f"not determined {'in the baseline' if before is None else 'here'}"
    elif before == after:
        status, why = "pass", "unchanged"
    else:
        better = name in SMALLER_IS_BETTER and _number(after) < _number(before)
        status, why = ("improved" if better else "changed"), f"{_shown(before)} → {_shown(after)}"
    return Row(
        metric=name,
        kind="exact",
        level=policy.budget.level_of(name, default),
        status=status,
        baseline=before,
        current=after,
        unit="B" if "bytes" in name else "",
        change=_share(before, after),
        cost_us=None,
        why=why,
    )


def _number(value: Value) -> float:
    return value if isinstance(value, (int, float)) else 0.0


def _share(before: Value, after: Value) -> float | None:
    if isinstance(before, (int, float)) and isinstance(after, (int, float)) and before:
        return round(after / before - 1, 6)
    return None


def _shown(value: Value) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


def _noisy(name: str, a: Record, b: Record, step: float, policy: Policy) -> Iterator[Row]:
    one, two = a.noisy.get(name), b.noisy.get(name)
    governed = name.startswith(GOVERNED)
    level = policy.budget.level_of(name, "error" if governed else "warn")
    if level == "off":
        return
    tolerance = policy.budget.tolerance_of(name, policy.tolerance)
    one, two = _paired(name, one, a, two), _paired(name, two, b, one)
    if one is None or two is None:
        where = "in the baseline" if one is None else "here"
        yield Row.open(name, "noisy", policy.budget.level_of(name, "warn"), f"not measured {where}")
        return
    yield compare_noisy(name, one, two, tolerance=tolerance, floor_us=policy.floor * step, level=level)
    if name == "step_us":
        tail = tail_of(one, two, tolerance=tolerance, floor_us=policy.floor * step)
        if tail is not None:
            yield msgspec.structs.replace(tail, level=policy.budget.level_of("step_us.p90", "warn"))


def _paired(name: str, series: Series | None, record: Record, other: Series | None) -> Series | None:
    """A dimension that does not communicate in one run exposed nothing there."""
    if series is None and other is not None and name.startswith("exposed.") and record.steps:
        return Series(unit="us", samples=[0.0] * len(record.steps), lower_is_better=True, worth_us=1.0)
    return series


def per_token(a: Record, b: Record, policy: Policy) -> Iterator[Row]:
    """Different layouts share no bytes and no counts: what can be compared is the time of a token on the whole job."""
    one, two = a.facts.tokens_per_step, b.facts.tokens_per_step
    names = [n for n in a.noisy if n in b.noisy and n.startswith((*GOVERNED, "compute_us")) and a.noisy[n].unit == "us"]
    for name in names:
        metric = f"{name} per token"
        level = policy.budget.level_of(name, "error" if name == "step_us" else "warn")
        if one is None or two is None:
            where = "of the baseline" if one is None else "of this run"
            yield Row.open(metric, "noisy", level, f"the tokens of a step {where} are not known: give --tokens")
            continue
        tolerance = policy.budget.tolerance_of(name, policy.tolerance)
        floor = policy.floor * _mean(a.noisy["step_us"]) / one
        yield compare_noisy(
            metric,
            _divided(a.noisy[name], one),
            _divided(b.noisy[name], two),
            tolerance=tolerance,
            floor_us=floor,
            level=level,
        )


def _divided(series: Series, tokens: int) -> Series:
    return msgspec.structs.replace(series, samples=[v / tokens for v in series.samples])

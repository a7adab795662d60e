"""A run against one limit of a budget."""

from __future__ import annotations

from analyzer.gate.budget import Rule
from analyzer.gate.policy import Policy
from analyzer.gate.record import Record, Series
from analyzer.gate.rows import Row
from analyzer.gate.statistics import FEWEST, estimates, p90
from analyzer.rows import DIM_ORDER
from ledger.errors import LedgerError
from parsers.errors import InputError


def check_rule(rule: Rule, current: Record, baseline: Record | None, policy: Policy) -> Row:
    """Judge one limit.

    Args:
        rule: the limit.
        current: the run.
        baseline: where ``x baseline`` is read; None: nowhere.
        policy: levels, and the speed of links for times that the ledger predicts.
    """
    level = policy.budget.level_of(rule.metric, "error")
    name = str(rule)
    value = _value(current, rule.metric)
    if isinstance(value, _Unknown):
        return Row.open(name, "budget", level, value.why)
    limit = _limit(rule, current, baseline, policy)
    if isinstance(limit, _Unknown):
        return Row.open(name, "budget", level, limit.why)
    holds = rule.holds(value, limit)
    numbers = isinstance(value, (int, float)) and isinstance(limit, (int, float))
    unit = _unit(current, rule.metric)
    return Row(
        metric=name,
        kind="budget",
        level=level,
        status="pass" if holds else "over",
        baseline=limit,
        current=value,
        unit=unit,
        change=round(value / limit - 1, 6) if numbers and limit else None,  # type: ignore[operator]
        cost_us=round(value - limit, 3) if numbers and unit == "us" else None,  # type: ignore[operator]
        why=f"{_said(value, unit)}, the limit is {_said(limit, unit)}",
    )


class _Unknown:
    """No value, and why."""

    def __init__(self, why: str) -> None:
        self.why = why


def _said(value: float | str, unit: str) -> str:
    from analyzer.reporters import format as fmt

    if isinstance(value, str):
        return value
    if unit == "us":
        return fmt.time(value)
    if unit == "B":
        return fmt.size(value)
    return fmt.percent(value) if unit == "share" else f"{value:g}"


def _unit(record: Record, metric: str) -> str:
    if metric in record.noisy:
        return record.noisy[metric].unit
    if metric.startswith("bytes.") or metric == "ledger_residual_bytes":
        return "B"
    return "us" if metric.startswith(("exposed.", "wait.", "transfer.")) or metric.endswith(("_us", ".p90")) else ""


def _value(record: Record, metric: str) -> float | str | _Unknown:
    tail = metric.endswith(".p90")
    series = record.noisy.get(metric.removesuffix(".p90"))
    if series is not None:
        return _of_series(series, tail)
    if metric in record.exact:
        value = record.exact[metric]
        return _Unknown("not determined from these traces") if value is None else value
    if metric.startswith(("calls.", "bytes.", "exposed.")) and record.anatomy_ns:
        return 0.0  # what is not there made no calls
    return _Unknown("not measured in these traces")


def _of_series(series: Series, tail: bool) -> float | _Unknown:
    lower = series.lower_is_better
    if tail:
        late = p90(series.samples, lower_is_better=lower)
        return _Unknown(f"{len(series.samples)} steps are too few for a 90th percentile") if late is None else late
    if series.unit == "B":
        return sum(series.samples) / len(series.samples)
    found = estimates(series.samples, len(series.samples), lower_is_better=lower)
    if not found:
        return _Unknown(f"too few steps: {len(series.samples)} of {FEWEST} that are needed")
    return found[0]


def _limit(rule: Rule, current: Record, baseline: Record | None, policy: Policy) -> float | str | _Unknown:
    if rule.metric == "layout" and isinstance(rule.value, str):
        return _layout(rule.value)
    if rule.reference is None or isinstance(rule.value, str):
        return rule.value
    base: float | str | _Unknown
    if rule.reference == "ledger":
        base = _ledger(rule.metric, current, policy)
    elif rule.reference == "step":
        base = _value(current, "step_us")
    else:
        base = _Unknown("there is no comparable baseline") if baseline is None else _value(baseline, rule.metric)
    if isinstance(base, str):
        raise InputError(f"{rule}: {rule.metric} is no number")
    return base if isinstance(base, _Unknown) else rule.value * base


def _layout(text: str) -> str:
    """As records name it: every degree, in the same order.

    Raises:
        InputError: not a layout.
    """
    from analyzer.gate.record import layout_name
    from analyzer.reconcile import declared_degrees

    try:
        degrees = declared_degrees(text) or {}
    except LedgerError as error:
        raise InputError(f"layout: {error}") from error
    return layout_name({dim: degrees.get(dim, 1) for dim in ("tp", "cp", "pp", "dp", "ep")})


def _ledger(metric: str, record: Record, policy: Policy) -> float | _Unknown:
    """What the ledger predicts: bytes of a row, or the time that a dimension's bytes need on their links."""
    head, _, rest = metric.partition(".")
    if not record.ledger:
        return _Unknown("the ledger made no prediction")
    if head == "bytes":
        mine = [row.predicted for row in record.ledger if f"{row.dim}.{row.primitive}" == rest]
        return float(sum(mine)) if mine else _Unknown(f"the ledger has no {rest}")
    dims = [rest] if head in ("exposed", "transfer", "wait") else list(DIM_ORDER) if head == "exposed_us" else []
    rows = [row for row in record.ledger if row.dim in dims]
    if not rows:
        return _Unknown(f"the ledger says nothing of {metric}")
    links = {row.link or "unknown" for row in rows}
    missing = sorted(link for link in links if link not in policy.budget.links)
    if missing:
        return _Unknown(f"the speed of {', '.join(missing)} links is not known: set it in [links]")
    return sum(row.predicted / (policy.budget.links[row.link or "unknown"] * 1e3) for row in rows)  # GB/s: kB per µs

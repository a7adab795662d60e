"""The verdict: every metric against the baseline and against its budget, and what that means for a CI job."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from analyzer import __version__
from analyzer.gate.against import INFERRED, against, per_token
from analyzer.gate.attribution import Attribution, CollectiveChange, attribute, collective_changes
from analyzer.gate.comparable import Difference, differences
from analyzer.gate.limits import check_rule
from analyzer.gate.policy import Policy
from analyzer.gate.record import Record
from analyzer.gate.rows import Row
from analyzer.model import Tool

SCHEMA_VERSION = 1
PASS, REGRESSION, INCONCLUSIVE = 0, 1, 3


class GuardRow(msgspec.Struct, frozen=True, kw_only=True):
    """A difference that makes runs incomparable, as the document has it."""

    kind: str
    baseline: str
    current: str
    allowed: bool


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `compare` and `check`.

    Attributes:
        verdict: pass | regression | inconclusive.
        reason: in one sentence.
        per_token: whether times are divided by the tokens of a step, because layouts differ.
        differences: what makes the runs incomparable.
        rows: every metric that has a level, failures first.
        attribution: where the difference of the mean steps comes from.
        collectives: rows of collectives that changed.
    """

    schema_version: int
    tool: Tool
    verdict: str
    exit_code: int
    reason: str
    per_token: bool
    baseline_fingerprint: str | None
    current_fingerprint: str
    steps: dict[str, int]
    differences: list[GuardRow]
    notes: list[str]
    rows: list[Row]
    attribution: Attribution | None
    collectives: list[CollectiveChange]


def compare(baseline: Record | None, current: Record, policy: Policy | None = None) -> Comparison:
    """Judge a run.

    Args:
        baseline: the run to compare with; None: budgets alone decide.
        current: the run that is judged.
        policy: how strictly.
    """
    policy = policy or Policy()
    guard = [] if baseline is None else differences(baseline, current, policy.allow)
    blocked = [d for d in guard if not d.allowed]
    divided = any(d.kind == "layout" for d in guard) and not blocked
    rows = [check_rule(rule, current, baseline if not blocked else None, policy) for rule in policy.budget.rules]
    notes = [] if baseline is None else _notes(baseline, current)
    if baseline is not None and not blocked:
        rows += per_token(baseline, current, policy) if divided else against(baseline, current, policy)
    measured = baseline is None or any(_measured(row) for row in rows)
    rows = sorted((row for row in rows if row.level != "off"), key=_order)
    verdict, reason = _verdict(rows, blocked, baseline, measured=measured)
    whole = baseline is not None and not blocked and not divided
    return Comparison(
        schema_version=SCHEMA_VERSION,
        tool=Tool(name="commlens", version=__version__),
        verdict=verdict,
        exit_code=_exit_code(verdict, policy),
        reason=reason,
        per_token=divided,
        baseline_fingerprint=baseline.fingerprint if baseline is not None else None,
        current_fingerprint=current.fingerprint,
        steps={"current": len(current.steps), **({"baseline": len(baseline.steps)} if baseline is not None else {})},
        differences=[GuardRow(kind=d.kind, baseline=d.baseline, current=d.current, allowed=d.allowed) for d in guard],
        notes=notes,
        rows=rows,
        attribution=attribute(baseline, current) if whole and baseline is not None else None,
        collectives=collective_changes(baseline, current) if whole and baseline is not None else [],
    )


def _notes(a: Record, b: Record) -> list[str]:
    notes = []
    if a.steps and b.steps and len(a.steps) != len(b.steps):
        notes.append(f"{len(a.steps)} steps in the baseline, {len(b.steps)} here: the shorter run sets the statistic")
    if a.tool.version != b.tool.version:
        notes.append(f"the baseline was written by {a.tool.name} {a.tool.version}, this is {b.tool.version}")
    return notes


def _order(row: Row) -> tuple[bool, bool, bool, bool, float, bool, str]:
    """Failures first; among them what is certain before what is measured, then by what it costs."""
    return (
        not (row.failed and row.level == "error"),
        not row.failed,
        row.status != "inconclusive",
        row.kind == "noisy",
        -abs(row.cost_us or 0.0),
        row.metric != "step_us",
        row.metric,
    )


def _measured(row: Row) -> bool:
    """Whether a row is about what a job did or was allowed, and not only about what kind of job it is."""
    return row.kind == "budget" or not row.metric.startswith(("layout", *INFERRED))


def _verdict(
    rows: Sequence[Row], blocked: Sequence[Difference], baseline: Record | None, *, measured: bool
) -> tuple[str, str]:
    failed = [row for row in rows if row.failed and row.level == "error"]
    if failed:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        return "regression", f"{failed[0].metric}: {failed[0].why}{more}"
    if blocked:
        return "inconclusive", "the runs cannot be compared: " + "; ".join(str(d) for d in blocked)
    open_ = [row for row in rows if row.status == "inconclusive" and row.level == "error"]
    if open_:
        more = f" and {len(open_) - 1} more" if len(open_) > 1 else ""
        return "inconclusive", f"{open_[0].metric}: {open_[0].why}{more}"
    if not measured:
        return "inconclusive", "neither calls nor times are recorded in these runs: there is nothing to compare"
    if baseline is None and not rows:
        return "pass", "there is nothing to check: neither a baseline nor a limit"
    warned = sum(row.failed for row in rows)
    said = "nothing is worse than allowed"
    return "pass", said if not warned else f"{said}; {warned} {'warning' if warned == 1 else 'warnings'}"


def _exit_code(verdict: str, policy: Policy) -> int:
    if verdict == "inconclusive":
        return INCONCLUSIVE if policy.inconclusive == "fail" else PASS
    return REGRESSION if verdict == "regression" else PASS


def to_json(comparison: Comparison) -> bytes:
    """The comparison as UTF-8 JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n"

"""Bytes: data types, and what the ledger says of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from analyzer.findings.base import Facts, finding
from analyzer.model import Finding, LedgerRow
from heuristics.verdict import DIMENSIONS


def dtypes(facts: Facts) -> Iterator[Finding]:
    """The same primitive of the same dimension in more than one floating-point type."""
    seen: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in facts.rows:
        if row.dtype and "float" in row.dtype and row.sent_bytes_per_step and row.dim in DIMENSIONS:
            seen[row.dim, row.primitive][row.dtype] += row.sent_bytes_per_step
    for (dim, primitive), by_type in seen.items():
        if len(by_type) > 1:
            said = ", ".join(f"{sent:,} B in {name}" for name, sent in sorted(by_type.items(), key=lambda i: -i[1]))
            yield finding(
                "dtype.mixed",
                "info",
                f"{dim} {primitive} travels in {len(by_type)} data types",
                f"Sent per step and rank: {said}.",
                dim=dim,
                action="Check that each is meant: gradients in float32 cost twice the bytes of bfloat16.",
            )


def ledger_bytes(facts: Facts) -> Iterator[Finding]:
    """Bytes that the ledger does not explain, or why there is no ledger."""
    ledger = facts.ledger
    if facts.rows and facts.ledger_refused:
        yield finding(
            "ledger.no_comparison",
            "info",
            "bytes are not compared with the ledger",
            facts.ledger_refused,
            action="Give traces of whole steps."
            if all(rank.source.view.fragment for rank in facts.ranks)
            else "Give --model and --layout, or the traces of more ranks.",
        )
    if ledger is None:
        return
    for row in ledger.rows:
        if row.verdict in ("missing", "differs", "extra"):
            yield finding(
                f"ledger.{row.verdict}",
                "warning" if row.verdict != "extra" else "info",
                f"{row.dim} {row.primitive}: " + _BYTES_SAID[row.verdict],
                row.explanation
                or f"predicted {row.predicted_bytes or 0:,} B, observed {row.observed_bytes:,} B per step and rank",
                dim=row.dim if row.dim in DIMENSIONS else None,
                cost=_cost(facts, row),
                action=_TO_DO[row.verdict],
            )
    if ledger.residual_bytes:
        yield finding(
            "ledger.residual",
            "info",
            f"{ledger.residual_bytes:,} B per step and rank are not explained",
            f"What the {ledger.profile} profile does not predict and no named cause covers.",
            action="Look at the rows above that differ; --ledger-profile tries another framework's rules.",
        )


_BYTES_SAID = {
    "missing": "the ledger expects it, the trace has none",
    "differs": "bytes differ from the ledger",
    "extra": "the ledger does not expect it",
}

_TO_DO = {
    "missing": "Check that the model and the framework's settings are those of this run.",
    "differs": "Check model, data types and accumulation steps; --ledger-profile tries another framework's rules.",
    "extra": "Find out who issues it: the collectives table has its phase and sizes.",
}


def _cost(facts: Facts, row: LedgerRow) -> float:
    """Exposed time of the bytes beyond the prediction, in proportion."""
    exposed = sum(r.exposed_us_per_step or 0 for r in facts.rows if (r.dim, r.primitive) == (row.dim, row.primitive))
    beyond = max(row.observed_bytes - (row.predicted_bytes or 0), 0)
    return exposed * beyond / row.observed_bytes if row.observed_bytes else 0.0

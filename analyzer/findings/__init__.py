"""What a person should look at: rules over what was measured, each with its reason and its cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from analyzer.findings import causes, exposed, inputs, layout, sources, traffic, waiting
from analyzer.findings.base import Facts
from analyzer.findings.claims import without_doubles
from analyzer.model import Finding

__all__ = ["Facts", "findings"]

_RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    sources.unfinished,
    sources.contradictions,
    sources.alone,
    inputs.incomplete,
    inputs.impossible,
    inputs.communication,
    layout.layout_verdict,
    layout.links,
    layout.regather,
    exposed.exposed,
    exposed.same_stream,
    causes.exposed_causes,
    causes.overlap_tax,
    causes.bubble,
    waiting.slowdown,
    waiting.late_ranks,
    waiting.slow_link,
    waiting.disagreements,
    waiting.unknown_waiting,
    waiting.link_speeds,
    traffic.dtypes,
    traffic.ledger_bytes,
)


def findings(facts: Facts) -> list[Finding]:
    """All findings, each microsecond counted once: errors first, then warnings, then by cost."""
    found = without_doubles([item for rule in _RULES for item in rule(facts)], facts)
    weight = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda f: (weight[f.severity], -(f.cost_us or 0)))

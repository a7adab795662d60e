"""One line of a verdict."""

from __future__ import annotations

from typing import Self

import msgspec

from analyzer.gate.record import Value

FAILED = ("changed", "regressed", "over")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A metric and what became of it.

    Attributes:
        metric: its name.
        kind: exact | noisy | budget.
        level: off | warn | error: what a failure means.
        status: pass | improved | changed | regressed | over | inconclusive.
        baseline: value there; of a budget: the limit.
        current: value here.
        unit: us | share | GB/s | B | none.
        change: current over baseline, less one.
        cost_us: what the change is worth, in time per step.
        p_value: of the Mann-Whitney test, where there are steps enough.
        why: in words.
    """

    metric: str
    kind: str
    level: str
    status: str
    baseline: Value
    current: Value
    unit: str
    change: float | None
    cost_us: float | None
    why: str
    p_value: float | None = None

    @property
    def failed(self) -> bool:
        """Whether it is worse than allowed, whatever that means at its level."""
        return self.status in FAILED

    @classmethod
    def open(cls, metric: str, kind: str, level: str, why: str) -> Self:
        """A row that nothing can be said about."""
        return cls(
            metric=metric,
            kind=kind,
            level=level,
            status="inconclusive",
            baseline=None,
            current=None,
            unit="",
            change=None,
            cost_us=None,
            why=why,
        )

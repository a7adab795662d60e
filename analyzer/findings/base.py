"""What every rule looks at, and how it says what it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analyzer.measured import Measured
from analyzer.model import CollectiveRow, Exposure, Finding, JobSlowdown, LayoutDoc, LedgerDoc, Trust

if TYPE_CHECKING:
    from analyzer.timing import Timing
    from analyzer.witnesses import Sources
    from parsers.known_formats import KnownFormat

NOISE = 0.01
"""Share of a step below which time is not worth a finding: steps of a healthy job vary by 1 to 2 % (Llama 3, 3.3.4)."""


@dataclass(frozen=True, eq=False)
class Facts:
    """What rules may look at; times are µs per step."""

    ranks: Sequence[Measured]
    trust: Trust
    world_size: int | None
    layout: LayoutDoc
    declared: dict[str, int] | None
    rows: Sequence[CollectiveRow]
    exposure: Exposure | None
    ledger: LedgerDoc | None
    ledger_refused: str | None
    timing: Timing | None = None
    slowdown: JobSlowdown | None = None
    sources: Sources | None = None

    @property
    def alone(self) -> tuple[KnownFormat, ...]:
        """The formats of what is analysed, where none of them holds a timeline of a device: logs, dumps, lists."""
        from parsers.known_formats import KNOWN

        formats = {rank.source.format for rank in self.ranks}
        found = tuple(one for one in KNOWN if one.name in formats)
        return found if all(one.alone[0] for one in found) else ()


def finding(
    kind: str,
    severity: str,
    title: str,
    detail: str,
    *,
    dim: str | None = None,
    ranks: Sequence[int] = (),
    cost: float | None = None,
    action: str = "",
) -> Finding:
    """One finding; ``cost`` in µs per step, ``action`` what to do next."""
    return Finding(
        id=kind,
        severity=severity,
        title=title,
        detail=detail,
        dim=dim,
        ranks=list(ranks),
        cost_us=None if cost is None else round(cost, 3),
        action=action,
    )

"""Rows of the collectives table folded over operation and phase: what fits a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from analyzer.model import Analysis, CollectiveRow, LedgerRow

T = TypeVar("T", int, float)

PHASES = ("forward", "backward", "optimizer", "unknown")
"""Phases in the order of a step."""


@dataclass(frozen=True)
class FoldedRow:
    """Rows with the same dimension, primitive, group size, link and dtype, added up.

    Times are µs per step and rank, bytes per step and rank, bandwidth GB/s; None as in the document.

    Attributes:
        phases: the phases with calls, in the order of a step.
        size_bytes: median of the largest row by calls.
        ledger: the ledger's row for the same dimension, primitive and link, on the first folded row of these only.
    """

    dim: str
    primitive: str
    group_size: int | None
    link: str | None
    link_type: str | None
    dtype: str | None
    phases: tuple[str, ...]
    calls: float
    size_bytes: int | None
    sent_bytes: int | None
    time_us: float | None
    wait_us: float | None
    exposed_us: float | None
    busbw_gbps: float | None
    ledger: LedgerRow | None


def fold(analysis: Analysis) -> list[FoldedRow]:
    """The collectives of an analysis, folded, in the order of the document."""
    groups: dict[tuple[object, ...], list[CollectiveRow]] = {}
    for row in analysis.collectives:
        key = (row.dim, row.primitive, row.group_size, row.link, row.link_type, row.dtype)
        groups.setdefault(key, []).append(row)
    ledger = {(r.dim, r.primitive, r.link): r for r in analysis.ledger.rows} if analysis.ledger else {}
    out = []
    for rows in groups.values():
        first = rows[0]
        # A ledger that was computed without links has one row for all of them.
        of_link = ledger.pop((first.dim, first.primitive, first.link), None)
        out.append(_folded(rows, of_link or ledger.pop((first.dim, first.primitive, None), None)))
    return out


def _folded(rows: Sequence[CollectiveRow], ledger: LedgerRow | None) -> FoldedRow:
    first = rows[0]
    usual = max(rows, key=lambda row: row.calls_per_step)
    return FoldedRow(
        dim=first.dim,
        primitive=first.primitive,
        group_size=first.group_size,
        link=first.link,
        link_type=first.link_type,
        dtype=first.dtype,
        phases=tuple(p for p in PHASES if any(row.phase == p for row in rows)),
        calls=round(sum(row.calls_per_step for row in rows), 6),
        size_bytes=usual.size_bytes.p50 if usual.size_bytes else None,
        sent_bytes=_sum([row.sent_bytes_per_step for row in rows]),
        time_us=_sum([row.time_us_per_step for row in rows]),
        wait_us=_sum([row.wait_us_per_step for row in rows]),
        exposed_us=_sum([row.exposed_us_per_step for row in rows]),
        busbw_gbps=_busbw(rows),
        ledger=ledger,
    )


def _sum(values: Sequence[T | None]) -> T | None:
    """Sum, None where any part is."""
    known = [v for v in values if v is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(values) else None


def _busbw(rows: Sequence[CollectiveRow]) -> float | None:
    """Bandwidth of all rows together: each weighs as much as its transfer took."""
    weighed = [(row.busbw_gbps, row.transfer_us_per_step) for row in rows]
    known = [(bw, us) for bw, us in weighed if bw is not None and us]
    total = sum(us for _, us in known)
    return sum(bw * us for bw, us in known) / total if len(known) == len(weighed) and total else None

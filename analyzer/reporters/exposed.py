"""Why communication was exposed, and how much of it need not be: the section of a report."""

from __future__ import annotations

from analyzer.causes import SLUGS
from analyzer.model import Exposure, OverlapTax
from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Cell, Column, Facts, Section, Table, Tone, without_empty

_WORDS = {slug: cause for cause, slug in SLUGS.items()}


SHOWN = 0.005
"""Share of the step from which a cause has a row of its own: half of what is worth a finding."""


def exposed_section(exposure: Exposure | None) -> Section | None:
    """Observed, predicted and least exposed time per dimension, and its causes; None where nothing was exposed."""
    if exposure is None or exposure.exposed_us <= 0 or not exposure.causes:
        return None
    parts: list[Facts | Table] = [_by_dimension(exposure), _causes(exposure)]
    reasons: dict[str, list[str]] = {}
    for item in exposure.prediction:
        if item.reason is not None and item.observed_us > 0:
            reasons.setdefault(item.reason, []).append(item.dim)
    notes = [(f"{', '.join(dims)}", reason) for reason, dims in reasons.items()]
    if exposure.overlap_tax is not None and exposure.overlap_tax.us_per_step > 0:
        notes.append(("overlap tax", _tax(exposure.overlap_tax)))
    if notes:
        parts.append(Facts(notes))
    lead = "per step and rank; predicted and least are transfers alone, without waiting"
    return Section("Exposed", lead, parts)


def _tax(tax: OverlapTax) -> str:
    return f"{fmt.time(tax.us_per_step)} a step of compute that is slower beside communication; not exposed time"


def _by_dimension(exposure: Exposure) -> Table:
    shown = [item for item in exposure.prediction if item.observed_us > 0]
    unit = fmt.time_unit([exposure.exposed_us])
    columns = [
        Column("dim"),
        Column(f"exposed {unit.name}", right=True),
        Column("waiting", right=True),
        Column("predicted", right=True),
        Column("at least", right=True),
        Column("avoidable", right=True),
        Column("hideable"),
        Column("speeds", spare=1),
    ]
    rows: list[list[str | Cell]] = [
        [
            item.dim,
            fmt.number(item.observed_us, unit),
            fmt.number(item.waiting_us, unit),
            fmt.number(item.predicted_us, unit),
            fmt.number(item.lower_bound_us, unit),
            fmt.number(item.avoidable_us, unit),
            _hideable(item.hideable),
            item.speeds or fmt.DASH,
        ]
        for item in shown
    ]
    return without_empty(Table(columns, rows), ("dim",), fmt.DASH)


def _hideable(shares: dict[str, float]) -> str:
    most = max(shares, key=lambda kind: shares[kind], default="no")
    return most if shares.get(most, 0.0) in (0.0, 1.0) else f"{most} {fmt.percent(shares[most])}"


def _causes(exposure: Exposure) -> Table:
    unit = fmt.time_unit([exposure.exposed_us])
    columns = [
        Column("dim"),
        Column("why it is exposed"),
        Column(unit.name, right=True),
        Column("of step", right=True),
        Column("avoidable", right=True),
    ]
    shown = [cause for cause in exposure.causes if cause.exposed_us >= SHOWN * exposure.step_us]
    small = [cause for cause in exposure.causes if cause.exposed_us < SHOWN * exposure.step_us]
    if len(small) == 1:
        shown, small = [*shown, *small], []

    def row(dim: str, why: str, exposed: float, avoidable: float | None) -> list[str | Cell]:
        share = fmt.percent(exposed / exposure.step_us if exposure.step_us else None)
        amount = Cell(fmt.number(avoidable, unit), Tone.BAD if avoidable else Tone.PLAIN)
        return [dim, why, fmt.number(exposed, unit), share, amount]

    rows = [row(c.dim, _WORDS[c.cause], c.exposed_us, c.avoidable_us) for c in shown]
    if small:
        amounts = [c.avoidable_us for c in small if c.avoidable_us is not None]
        known = sum(amounts) if len(amounts) == len(small) else None
        rows.append(row("", f"{len(small)} smaller ones", sum(c.exposed_us for c in small), known))
    return without_empty(Table(columns, rows), ("dim",), fmt.DASH)

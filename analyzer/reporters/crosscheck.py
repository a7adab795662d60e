"""A crosscheck as sections."""

from __future__ import annotations

from analyzer.crosscheck.check import NEAR, Crosscheck, RankCheck, causes_of
from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Cell, Column, Facts, Section, Table, Tone

NAMES = {
    "overlap_percent": ("overlap", "%"),
    "compute_us": ("compute", "µs"),
    "idle_us": ("idle", "µs"),
    "span_us": ("span", "µs"),
}


def crosscheck_sections(found: Crosscheck) -> list[Section]:
    """Each rank's figures side by side, with what each difference comes of; then what the causes mean."""
    verdict = (
        Cell("every difference is explained", Tone.GOOD)
        if found.explained
        else Cell("some differences are not explained", Tone.DOUBT)
    )
    sections = [Section(f"Beside {found.other}", [verdict])]
    sections += [_rank(rank) for rank in found.ranks]
    causes = causes_of(found)
    if causes:
        sections.append(Section("Causes", "what the other tool does", [Facts(list(causes.items()))]))
    return sections


def _rank(rank: RankCheck) -> Section:
    if rank.error is not None:
        return Section(f"Rank {rank.rank}", [Cell(f"the other tool has no answer: {rank.error}", Tone.DOUBT)])
    columns = [Column("figure"), Column("here", right=True), Column("there", right=True), Column("difference by cause")]
    rows = []
    for item in rank.figures:
        name, unit = NAMES[item.metric]
        parts = [f"{change.cause} {change.change:+,.2f}" for change in item.differences]
        if item.unexplained is not None and abs(item.unexplained) > NEAR[item.metric]:
            parts.append(f"not explained {item.unexplained:+,.2f}")
        rows.append([f"{name} {unit}", _number(item.ours), _number(item.theirs), "; ".join(parts) or "none"])
    parts_of: list[Table | Facts] = [Table(columns, rows)]
    if rank.cpu_rows:
        parts_of.append(Facts([("note", f"{rank.cpu_rows} CPU operators carry a stream and count there as GPU work")]))
    return Section(f"Rank {rank.rank}", "", parts_of)


def _number(value: float | None) -> str:
    return fmt.DASH if value is None else f"{value:,.2f}"

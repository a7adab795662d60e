"""A comparison as sections for a terminal or a ticket, and as markdown for a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.gate.attribution import Attribution
from analyzer.gate.record import Value
from analyzer.gate.rows import Row
from analyzer.gate.verdict import Comparison
from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Cell, Column, Facts, Item, Section, Table, Tone
from analyzer.reporters.markdown import markdown

MOST_BYTES = 64_000
"""A comment on GitHub holds 65,536 characters."""

WORDS = {
    "pass": ("pass", Tone.GOOD),
    "improved": ("better", Tone.GOOD),
    "changed": ("changed", Tone.BAD),
    "regressed": ("worse", Tone.BAD),
    "over": ("over", Tone.BAD),
    "inconclusive": ("unknown", Tone.DOUBT),
}
VERDICTS = {"pass": Tone.GOOD, "regression": Tone.BAD, "inconclusive": Tone.DOUBT}
BAR = 24
MUCH = 10
"""From here a change is a factor rather than a percentage."""


def comparison_sections(c: Comparison, most: int | None = None, *, everything: bool = False) -> list[Section]:
    """What a reader wants to know, in that order: the verdict, what changed, and where it comes from.

    Args:
        c: the comparison.
        most: rows to show of each table at most.
        everything: also metrics that did not change.
    """
    sections = [_verdict(c)]
    if c.rows:
        sections.append(_metrics(c, most, everything))
    if c.attribution is not None:
        sections.append(_attribution(c.attribution))
    if c.collectives:
        sections.append(_collectives(c, most))
    return sections


def comparison_markdown(c: Comparison) -> str:
    """Markdown for a pull request: changed metrics only, a waterfall, at most 64 kB."""
    most: int | None = None
    while True:
        text = markdown(comparison_sections(c, most), f"Communication: {c.verdict}")
        if c.attribution is not None:
            text += f"\n```text\n{waterfall(c.attribution)}```\n"
        if len(text.encode()) <= MOST_BYTES:
            return text
        most = (most or 512) // 2


def waterfall(attribution: Attribution) -> str:
    """From the old step to the new one, part by part, as bars of characters."""
    step = attribution.step
    unit = fmt.time_unit([step.baseline_ns / 1e3, step.current_ns / 1e3])
    bars: list[tuple[str, str, int, int]] = [("before", _us(step.baseline_ns, unit), 0, step.baseline_ns)]
    level = step.baseline_ns
    for part in attribution.parts:
        if part.difference_ns:
            upto = level + part.difference_ns
            bars.append((part.name, _signed(part.difference_ns / 1e3, unit), level, upto))
            level = upto
    bars.append(("after", _us(step.current_ns, unit), 0, step.current_ns))
    # Bars of parts show only the range in which the step moves: the rest of it is the same on every line.
    inner = [end for _, _, low, high in bars[1:-1] for end in (low, high)] or [0, 1]
    low, high = min(inner), max(inner)
    names, values = max(len(b[0]) for b in bars), max(len(b[1]) for b in bars)
    lines = []
    for name, value, begin, end in bars:
        shown = _bar(begin, end, low, max(high, low + 1)) if name not in ("before", "after") else ""
        lines.append(f"{name:<{names}}  {value:>{values}} {unit.name}  {shown}".rstrip())
    return "\n".join(lines) + "\n"


def _bar(begin: int, end: int, low: int, high: int) -> str:
    first, last = sorted((begin, end))
    left = round((first - low) / (high - low) * BAR)
    right = max(left + 1, round((last - low) / (high - low) * BAR))
    return " " * left + ("█" if end > begin else "░") * (right - left)


def _us(ns: int, unit: fmt.Unit) -> str:
    return fmt.number(ns / 1e3, unit)


def _signed(us: float, unit: fmt.Unit) -> str:
    shown = fmt.number(us, unit)
    return f"+{shown}" if us > 0 else shown


def _verdict(c: Comparison) -> Section:
    facts: list[tuple[str, str | Cell]] = []
    for d in c.differences:
        said = f"{d.kind}: {d.baseline} in the baseline, {d.current} here"
        facts.append(("allowed" if d.allowed else "differs", Cell(said, Tone.QUIET if d.allowed else Tone.DOUBT)))
    if c.per_token:
        facts.append(("per token", "layouts differ: times are divided by the tokens of a step"))
    facts += [("note", note) for note in c.notes]
    facts.append(("steps", ", ".join(f"{n} {name}" for name, n in sorted(c.steps.items()))))
    return Section("Verdict", [Cell(c.verdict, VERDICTS[c.verdict]), f": {c.reason}"], [Facts(facts)])


def _metrics(c: Comparison, most: int | None, everything: bool) -> Section:
    shown = [row for row in c.rows if everything or _tells(row)]
    rest = len(c.rows) - len(shown)
    lead = f"{rest} more {'is' if rest == 1 else 'are'} as before" if rest else ""
    if most is not None and len(shown) > most:
        lead = f"the {most} worst of {len(shown)}" + (f"; {lead}" if lead else "")
        shown = shown[:most]
    columns = [
        Column(""),
        Column("metric"),
        Column("baseline", right=True),
        Column("now", right=True),
        Column("change", right=True),
        Column("per token" if c.per_token else "per step", right=True),
        Column("why", spare=1),
    ]
    return Section("Metrics", lead, [Table(columns, [_row(row) for row in shown])] if shown else [])


def _tells(row: Row) -> bool:
    """Whether a row is worth a line: what changed, the limits that were set, and the step itself."""
    return row.status != "pass" or row.kind == "budget" or row.metric == "step_us"


def _row(row: Row) -> list[str | Cell]:
    word, tone = WORDS[row.status]
    if row.failed and row.level == "warn":
        word, tone = f"{word} (warning)", Tone.DOUBT
    cost = fmt.DASH if not row.cost_us else ("+" if row.cost_us > 0 else "") + fmt.time(row.cost_us)
    change = fmt.DASH
    if row.change is not None:
        change = f"{row.change:+.1%}" if row.change < MUCH else f"x {row.change + 1:,.0f}"
    return [
        Cell(word, tone),
        row.metric,
        said(row.baseline, row.unit),
        said(row.current, row.unit),
        change,
        cost,
        row.why,
    ]


def said(value: Value, unit: str) -> str:
    """A value in its unit."""
    if value is None:
        return fmt.DASH
    if isinstance(value, str):
        return value
    if unit == "us":
        return fmt.time(value)
    if unit == "B":
        return f"{value:,.0f} B"
    if unit == "share":
        return fmt.percent(value)
    return f"{value:,.1f} {unit}" if unit else f"{value:,g}"


def _attribution(a: Attribution) -> Section:
    unit = fmt.time_unit([a.step.baseline_ns / 1e3, a.step.current_ns / 1e3])
    columns = [
        Column("per step and rank"),
        *(Column(f"{n} {unit.name}", right=True) for n in ("baseline", "now", "difference")),
    ]
    rows: list[Sequence[str | Cell]] = [
        [p.name, _us(p.baseline_ns, unit), _us(p.current_ns, unit), _signed(p.difference_ns / 1e3, unit)]
        for p in (*a.parts, a.step)
    ]
    lead = f"mean of all steps: {_signed(a.step.difference_ns / 1e3, unit)} {unit.name}"
    return Section("Where the difference comes from", lead, [Table(columns, rows)])


def _collectives(c: Comparison, most: int | None) -> Section:
    shown = c.collectives[:most]
    lead = f"{len(shown)} of {len(c.collectives)}" if len(shown) < len(c.collectives) else ""
    items = [
        Item([Cell(f"{change.kind} ", Tone.DOUBT), Cell(change.row, Tone.HEAD), f"  {change.what}"], "")
        for change in shown
    ]
    return Section("Collectives that changed", lead, items)

"""A comparison as one self-contained HTML page with a waterfall from the old step to the new one."""

from __future__ import annotations

from html import escape

from analyzer.gate.attribution import Attribution
from analyzer.gate.verdict import Comparison
from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Facts, Item, Section, Table, cells
from analyzer.reporters.comparison import comparison_sections

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}
h1 span{padding:.1em .5em;border-radius:.3em;color:#fff}
.pass{background:#1a7f37}.regression{background:#c0272d}.inconclusive{background:#9a6700}
table{border-collapse:collapse;margin:.7rem 0}td,th{padding:.2rem .8rem;border-bottom:1px solid #d0d7de;text-align:left}
.right{text-align:right;font-variant-numeric:tabular-nums}svg text{font:13px system-ui,sans-serif}
"""
WIDTH, ROW, LEFT, RIGHT = 900, 26, 150, 130
WHOLE, MORE, LESS = "#57606a", "#c0272d", "#1a7f37"


def comparison_html(c: Comparison) -> str:
    """The page; nothing is loaded from elsewhere, and every name from a trace is escaped."""
    sections = comparison_sections(c)
    parts = [f'<h1>Communication <span class="{escape(c.verdict)}">{escape(c.verdict)}</span></h1>']
    for section in sections:
        parts.append(section_html(section))
        if c.attribution is not None and section.title.startswith("Where"):
            parts.append(waterfall_svg(c.attribution))
    head = f'<meta charset="utf-8"><title>Communication: {escape(c.verdict)}</title><style>{STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _text(words: object) -> str:
    return escape("".join(cell.text for cell in cells(words)))  # type: ignore[arg-type]


def section_html(section: Section) -> str:
    """A section as HTML; every name in it is escaped."""
    out = [f"<h2>{escape(section.title)}</h2>"]
    lead = _text(section.lead)
    if lead:
        out.append(f"<p>{lead}</p>")
    items = [part for part in section.parts if isinstance(part, Item)]
    for part in section.parts:
        if isinstance(part, Facts):
            rows = "".join(f"<tr><th>{escape(name)}</th><td>{_text(words)}</td></tr>" for name, words in part.rows)
            out.append(f"<table>{rows}</table>")
        elif isinstance(part, Table):
            out.append(_table(part))
    if items:
        out.append("<ul>" + "".join(f"<li>{_text(item.head)}</li>" for item in items) + "</ul>")
    return "\n".join(out)


def _table(table: Table) -> str:
    kinds = [' class="right"' if column.right else "" for column in table.columns]
    head = "".join(f"<th{kind}>{escape(column.header)}</th>" for kind, column in zip(kinds, table.columns, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{kind}>{_text(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def waterfall_svg(a: Attribution) -> str:
    """The picture: the old step, what each part adds or takes, the new step."""
    unit = fmt.time_unit([a.step.baseline_ns / 1e3, a.step.current_ns / 1e3])
    bars = [("before", 0, a.step.baseline_ns, WHOLE)]
    level = a.step.baseline_ns
    for part in a.parts:
        if part.difference_ns:
            bars.append((part.name, level, level + part.difference_ns, MORE if part.difference_ns > 0 else LESS))
            level += part.difference_ns
    bars.append(("after", 0, a.step.current_ns, WHOLE))
    low = min(0, *(min(begin, end) for _, begin, end, _ in bars))
    span = max(max(begin, end) for _, begin, end, _ in bars) - low or 1
    scale = (WIDTH - LEFT - RIGHT) / span
    out = [
        f'<svg viewBox="0 0 {WIDTH} {ROW * len(bars)}" width="{WIDTH}" role="img" aria-label="waterfall of the step">'
    ]
    for row, (name, begin, end, colour) in enumerate(bars):
        x = LEFT + (min(begin, end) - low) * scale
        width, y = max(abs(end - begin) * scale, 1.0), row * ROW
        value = fmt.number((end - begin) / 1e3, unit)
        sign = "+" if colour == MORE else ""
        out.append(f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{escape(name)}</text>')
        out.append(f'<rect x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="{ROW - 8}" fill="{colour}"/>')
        out.append(f'<text x="{x + width + 6:.1f}" y="{y + 17}">{sign}{value} {unit.name}</text>')
    return "\n".join([*out, "</svg>"])

"""A job in a notebook: its report as a fragment of HTML that keeps to itself."""

from __future__ import annotations

from html import escape

from analyzer.model import Analysis
from analyzer.reporters.comparison_html import section_html
from analyzer.reporters.sections import sections

OPEN = ("Layout", "Step")
"""Sections that are shown at once; the others unfold."""

STYLE = """
.commlens{max-width:70rem;font-size:13px}.commlens table{border-collapse:collapse;margin:.4rem 0}
.commlens td,.commlens th{padding:.1rem .7rem;text-align:left;vertical-align:top;background:none}
.commlens .right{text-align:right;font-variant-numeric:tabular-nums}.commlens h2{display:none}
.commlens summary{font-weight:600;cursor:pointer}
"""


def notebook(analysis: Analysis) -> str:
    """The report; nothing is loaded from elsewhere, no script runs, and every name from a trace is escaped."""
    parts = []
    for section in sections(analysis):
        state = " open" if section.title in OPEN else ""
        parts.append(f"<details{state}><summary>{escape(section.title)}</summary>{section_html(section)}</details>")
    return f'<div class="commlens"><style>{STYLE}</style>{"".join(parts)}</div>'

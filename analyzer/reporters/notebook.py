"""A job in a notebook: its report as a fragment of HTML that keeps to itself."""

from __future__ import annotations

from analyzer.model import Analysis
from analyzer.reporters.html import fragment
from analyzer.reporters.sections import sections

OPEN = ("Layout", "Step")
"""Sections that are shown at once; the others unfold."""


def notebook(analysis: Analysis) -> str:
    """The report; nothing is loaded from elsewhere, no script runs, and every name from a trace is escaped."""
    return fragment(sections(analysis), OPEN)

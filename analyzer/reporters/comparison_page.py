"""A comparison as a report: what `analyze check` says, with the way from the old step to the new one drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from analyzer.gate.attribution import Attribution
from analyzer.gate.verdict import Comparison
from analyzer.plots.waterfall import waterfall
from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Picture, Section
from analyzer.reporters.comparison import comparison_sections
from analyzer.reporters.report import Report

CAPTION = (
    "Each bar is what one part adds to the step or takes from it, mean over steps and ranks, and begins where the one "
    "above ends; the dots are the steps themselves. The scale does not begin at zero."
)


def comparison_report(c: Comparison) -> Report:
    """The comparison as a page has it."""
    drawn = [] if c.attribution is None else [waterfall_picture(c.attribution)]
    return Report(
        title=f"Communication: {c.verdict}",
        source="a run against its baseline" if c.baseline_fingerprint is not None else "a run against its limits",
        verdict=c.reason,
        unknown=[],
        tiles=list(_tiles(c)),
        sections=[_section(section, drawn) for section in comparison_sections(c)],
        made_by=f"{c.tool.name} {c.tool.version}",
    )


def _section(section: Section, drawn: Sequence[Picture]) -> Section:
    """A section of the text as the page has it: the verdict stands at its head already, the picture leads its table."""
    if section.title == "Verdict":
        return replace(section, title="Runs", lead="")
    if section.title == "Where the difference comes from":
        return replace(section, parts=[*drawn, *section.parts])
    return section


def waterfall_picture(found: Attribution) -> Picture:
    """The step before, what each part adds or takes, the step after."""
    step = found.step
    worst = max(found.parts, key=lambda part: abs(part.difference_ns), default=None)
    alt = f"The mean step goes from {fmt.time(step.baseline_ns / 1e3)} to {fmt.time(step.current_ns / 1e3)}"
    if worst is not None and worst.difference_ns:
        verb = "adds" if worst.difference_ns > 0 else "takes away"
        alt += f"; {worst.name} {verb} most, {fmt.time(abs(worst.difference_ns) / 1e3)}"
    return Picture("waterfall", partial(waterfall, found), f"{alt}.", CAPTION)


def _tiles(c: Comparison) -> Iterator[tuple[str, str, str]]:
    if c.attribution is not None:
        step = c.attribution.step
        change = step.difference_ns / step.baseline_ns if step.baseline_ns else 0.0
        yield "step", fmt.time(step.current_ns / 1e3), f"{change:+.1%} of {fmt.time(step.baseline_ns / 1e3)}"
    failed = sum(row.failed and row.level == "error" for row in c.rows)
    yield "metrics worse", str(failed), f"of {len(c.rows)}"
    if c.collectives:
        yield "collectives changed", str(len(c.collectives)), ""
    yield "steps", str(c.steps["current"]), f"{c.steps['baseline']} in the baseline" if "baseline" in c.steps else ""

"""The postmortem: every section in the order in which it is read, with its pictures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from analyzer.details import Details, Missing
from analyzer.headline import degrees, headline
from analyzer.model import Analysis, CollectiveRow
from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Cell, Column, Facts, Picture, Section, Table, Tone, without_empty
from analyzer.reporters.hang import hang_sections
from analyzer.reporters.pictures import (
    SIMPLE,
    anatomy_picture,
    divergence_picture,
    layout_picture,
    slowness_pictures,
)
from analyzer.reporters.sections import DTYPES, LINKS, VERDICTS, sections
from analyzer.words import plural

if TYPE_CHECKING:
    from heuristics.hang import HangReport


@dataclass(frozen=True)
class Report:
    """A report before it becomes a page or a document.

    Attributes:
        title: of the page.
        source: where the traces were found.
        verdict: one sentence.
        unknown: what the input does not decide.
        tiles: the few numbers to see first: name, value, remark.
        sections: in order.
        made_by: name and version of the program.
    """

    title: str
    source: str
    verdict: str
    unknown: Sequence[str]
    tiles: Sequence[tuple[str, str, str]]
    sections: Sequence[Section]
    made_by: str


def report(job: Details) -> Report:
    """Everything there is to say about a job."""
    analysis = job.analysis
    said = headline(analysis)
    absent: list[tuple[str, str]] = []
    every = {section.title: section for section in sections(analysis)}
    parts = _hang(job.hang) if job.hang is not None else []
    parts.append(every.pop("Trust"))
    parts.append(_with(every.pop("Layout"), [layout_picture(job)], absent))
    parts.append(_with(_step(every.pop("Step")), [anatomy_picture(job)], absent))
    collectives, ledger, findings = (every.pop(name) for name in ("Collectives", "Ledger", "Findings"))
    parts += every.values()
    parts += [replace(collectives, parts=[_table(analysis)] if analysis.collectives else []), ledger]
    for title, make in SIMPLE.items():
        if title == "Pipeline":
            parts += _alone("Slow ranks", list(slowness_pictures(job)), absent)
        parts += _alone(title, [make(job)], absent)
    parts.append(findings)
    if absent:
        lead = "pictures that this input cannot show, and why"
        parts.append(Section("Not shown", lead, [Facts([(name, reason) for name, reason in absent])]))
    verdict = said.sentence if job.hang is None else f"Hang: {job.hang.verdict}. {said.sentence}"
    return Report(
        title=f"Communication of a job: {degrees(analysis)}",
        source=_source(analysis),
        verdict=verdict,
        unknown=said.unknown,
        tiles=list(_tiles(analysis)),
        sections=parts,
        made_by=f"{analysis.tool.name} {analysis.tool.version}",
    )


def hang_page(found: HangReport) -> Report:
    """Flight Recorder dumps alone."""
    return Report(
        title="A job that hangs",
        source=f"Flight Recorder dumps of {plural(len(found.ranks), 'rank')}",
        verdict=found.verdict[0].upper() + found.verdict[1:] + ".",
        unknown=[f"where rank {fmt.ranks(found.absent)} is: no dump"] if found.absent else [],
        tiles=[],
        sections=_hang(found),
        made_by=f"commlens {version('commlens')}",
    )


def _hang(found: HangReport) -> list[Section]:
    """The hang's sections, what diverges drawn."""
    first, *rest = hang_sections(found)
    drawn = [divergence_picture(found)] if found.divergences else []
    return [replace(first, parts=[*first.parts, *drawn]), *rest]


def markdown_sections(found: Report) -> list[Section]:
    """The report for readers of plain documents: the verdict becomes a section of its own."""
    rows: list[tuple[str, str]] = [(name, f"{value} {remark}".strip()) for name, value, remark in found.tiles]
    if found.unknown:
        rows.append(("not known", "; ".join(found.unknown)))
    return [Section("Verdict", found.verdict, [Facts(rows)]), *found.sections]


def _source(analysis: Analysis) -> str:
    """The file, or the directory that holds all of them."""
    paths = [item.path for item in analysis.inputs]
    if len(set(paths)) <= 1:
        return paths[0] if paths else ""
    return f"{os.path.commonpath(paths) or '.'}, {plural(len(set(paths)), 'file')}"


def _with(section: Section, found: Sequence[Picture | Missing], absent: list[tuple[str, str]]) -> Section:
    """The section with its pictures first."""
    absent += [(section.title.lower(), one.reason) for one in found if isinstance(one, Missing)]
    return replace(section, parts=[*(p for p in found if isinstance(p, Picture)), *section.parts])


def _alone(title: str, found: Sequence[Picture | Missing], absent: list[tuple[str, str]]) -> list[Section]:
    """A section of pictures, where there is at least one."""
    section = _with(Section(title, ""), found, absent)
    return [replace(section, lead="")] if section.parts else []


def _step(section: Section) -> Section:
    """Without the bars that the picture draws better."""
    drawn = [p for p in section.parts if not (isinstance(p, Table) and any(_bar(cell) for r in p.rows for cell in r))]
    return replace(section, parts=drawn)


def _bar(cell: str | Cell) -> bool:
    return isinstance(cell, Cell) and cell.bar is not None


def _tiles(analysis: Analysis) -> Iterator[tuple[str, str, str]]:
    layout, exposure, trust = analysis.layout, analysis.exposure, analysis.trust
    yield "layout", degrees(analysis), f"confidence {layout.confidence:.2f}"
    if exposure is not None and exposure.step_us:
        what = "step" if trust.steps.complete else "whole trace"
        yield what, fmt.time(exposure.step_us), f"mean of {len(exposure.by_rank)} ranks" if exposure.by_rank[1:] else ""
        yield "exposed", fmt.percent(exposure.exposed_us / exposure.step_us), "of the step"
        waits = [d.wait_us for d in exposure.by_dimension.values()]
        known = [w for w in waits if w is not None]
        if waits and len(known) == len(waits):
            yield "waiting", fmt.time(sum(known)), "in communication, hidden or not"
        yield "compute", fmt.percent(exposure.compute_us / exposure.step_us), "of the step"
    bubble = analysis.pipeline.bubble_fraction if analysis.pipeline is not None else None
    if bubble is not None and (bubble.observed is not None or bubble.predicted is not None):
        shown = bubble.observed if bubble.observed is not None else bubble.predicted
        remark = "by schedule, not measured" if bubble.observed is None else "observed"
        if bubble.observed is not None and bubble.predicted is not None:
            remark = f"{fmt.percent(bubble.predicted)} by schedule"
        yield "bubble", fmt.percent(shown), remark
    world = "?" if analysis.world_size is None else str(analysis.world_size)
    yield "ranks read", f"{len(trust.ranks_present) or len(analysis.inputs)} of {world}", ""


def _table(analysis: Analysis) -> Table:
    """Every row of the document: operations and phases apart."""
    rows = analysis.collectives
    size = fmt.byte_unit(r.size_bytes.p50 for r in rows if r.size_bytes is not None)
    sent, time = fmt.byte_unit(r.sent_bytes_per_step for r in rows), fmt.time_unit(r.time_us_per_step for r in rows)
    columns = [
        Column("dim"),
        Column("primitive"),
        Column("operation"),
        Column("n", right=True),
        Column("link"),
        Column("dtype"),
        Column("phase"),
        Column("calls", right=True),
        Column(f"size {size.name}", right=True),
        Column(f"sent {sent.name}", right=True),
        Column(f"time {time.name}", right=True),
        Column(f"wait {time.name}", right=True),
        Column(f"exposed {time.name}", right=True),
        Column("busbw GB/s", right=True),
        Column("ledger"),
        Column("told by"),
    ]
    verdicts = {(r.dim, r.primitive): r for r in analysis.ledger.rows} if analysis.ledger is not None else {}
    lines = []
    for row in rows:
        against = verdicts.get((row.dim, row.primitive))
        verdict = "" if against is None else against.verdict
        lines.append(_line(row, size, sent, time, Cell(verdict, VERDICTS.get(verdict, Tone.PLAIN))))
    if len({words for *_, words in lines}) == 1:  # the same for all: the trust block says it already
        columns, lines = columns[:-1], [line[:-1] for line in lines]
    return without_empty(Table(columns, lines, "collectives"), ("dim", "primitive"), fmt.DASH)


def _line(row: CollectiveRow, size: fmt.Unit, sent: fmt.Unit, time: fmt.Unit, verdict: Cell) -> list[str | Cell]:
    def number(value: float | None, unit: fmt.Unit) -> Cell:
        return Cell(fmt.number(value, unit), value=value)

    n, told = row.group_size, sorted(row.classified_by, key=lambda source: -row.classified_by[source])
    return [
        row.dim,
        row.primitive,
        row.op or fmt.DASH,
        Cell(fmt.DASH if n is None else str(n), value=n),
        row.link_type or LINKS.get(row.link or "", fmt.DASH),
        DTYPES.get(row.dtype or "", row.dtype or fmt.DASH),
        row.phase if row.phase != "unknown" else fmt.DASH,
        Cell(fmt.count(row.calls_per_step), value=row.calls_per_step),
        number(row.size_bytes.p50 if row.size_bytes is not None else None, size),
        number(row.sent_bytes_per_step, sent),
        number(row.time_us_per_step, time),
        number(row.wait_us_per_step, time),
        number(row.exposed_us_per_step, time),
        number(row.busbw_gbps, fmt.GB_PER_S),
        verdict,
        ", ".join(source.replace("_", " ") for source in told),
    ]

"""What a term means, and what is behind a finding of a job: its numbers, how they came about, and the events."""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.export.window import pick
from analyzer.glossary import Entry, entries, lookup
from analyzer.measured import Measured
from analyzer.model import Analysis, Finding
from analyzer.moments import describe, moment
from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Cell, Facts, Section, Tone, Words


def explain_term(entry: Entry) -> list[Section]:
    """A term of the glossary."""
    return [Section(entry.title, _also(entry), [_meaning(entry)])]


def explain_all() -> list[Section]:
    """Every term, a line each."""
    rows: list[tuple[str, Words]] = [(entry.title, _first_sentence(entry.means)) for entry in entries()]
    return [Section("Terms", "", [Facts(rows)])]


def whole_glossary() -> list[Section]:
    """Every term with all that is said of it."""
    return [section for entry in entries() for section in explain_term(entry)]


def explain_finding(asked: str, analysis: Analysis, ranks: Sequence[Measured]) -> list[Section]:
    """A finding: its own numbers, the events that show it, and what such findings mean.

    Args:
        asked: its identifier; ``ID#2`` for the second of several.
        analysis: the document.
        ranks: the ranks behind it.

    Raises:
        InputError: there is no such finding.
    """
    finding = pick(asked, analysis.findings)
    sections = [Section(finding.id, finding.title, [Facts(_numbers(finding, analysis)), *_events(finding, ranks)])]
    entry = lookup(finding.id)
    if entry is not None:
        sections.append(Section("What it means", "", [_meaning(entry)]))
    return sections


def _numbers(finding: Finding, analysis: Analysis) -> list[tuple[str, Words]]:
    rows: list[tuple[str, Words]] = [("said", finding.detail)]
    if finding.action:
        rows.append(("do", finding.action))
    step = analysis.exposure.step_us if analysis.exposure else None
    if finding.cost_us is not None:
        share = f", {finding.cost_us / step * 100:.1f} % of it" if step else ""
        rows.append(("cost", f"{fmt.time(finding.cost_us)} a step{share}"))
    if finding.ranks:
        rows.append(("ranks", fmt.ranks(finding.ranks)))
    time = analysis.exposure.by_dimension.get(finding.dim) if analysis.exposure and finding.dim else None
    if time is not None:
        said = f"busy {fmt.time(time.busy_us)}, exposed {fmt.time(time.exposed_us)}"
        if time.wait_us is not None:
            said += f", waiting {fmt.time(time.wait_us)}, transfer {fmt.time(time.transfer_us)}"
        rows.append((f"{finding.dim} a step", said))
    if finding.dim is not None and finding.dim in analysis.layout.dimensions:
        evidence = analysis.layout.dimensions[finding.dim].evidence
        rows += [("evidence" if not i else "", sentence) for i, sentence in enumerate(evidence[:4])]
    return rows


def _events(finding: Finding, ranks: Sequence[Measured]) -> list[Facts]:
    """The calls in which it costs most, and how to look at them."""
    found = moment(finding, ranks)
    if found is None:
        return []
    rank = ranks[found.rank]
    who = "" if rank.source.rank is None else f" of rank {rank.source.rank}"
    began = (found.start_ns - rank.source.line.first) / 1e6
    rows: list[tuple[str, Words]] = [("shows in", f"{found.what}; {began:,.3f} ms after the first work{who}")]
    rows += [("" if i else "calls", describe(rank, row)) for i, row in enumerate(found.rows)]
    rows.append(("look", Cell(f"analyze export TRACE... --slice {finding.id} -o {finding.id}.json.gz", Tone.QUIET)))
    return [Facts(rows)]


def _meaning(entry: Entry) -> Facts:
    return Facts(
        [
            ("means", entry.means),
            ("computed", entry.computed),
            ("from", entry.events),
            ("more", f"docs/{entry.see}"),
        ]
    )


def _also(entry: Entry) -> str:
    others = [name for name in entry.names[1:] if not name.endswith(".*")]
    return f"also: {', '.join(others)}" if others else ""


def _first_sentence(text: str) -> str:
    head, point, _ = text.partition(". ")
    return head + ("." if point else "")

"""``analyze explain``: what a term means, and what is behind a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from analyzer.commands import completing, options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analyzer.reporters.blocks import Section

EPILOG = """\b
Examples:
  analyze explain tp                       a dimension, a column, a word of the report
  analyze explain cause.late_launch        what a kind of finding means
  analyze explain rank.late traces/        a finding of a job: its numbers and its events
  analyze explain exposed.dp#2 traces/     the second finding of that name
  analyze explain --list                   every term
"""


@click.command("explain", epilog=EPILOG)
@click.argument("term", required=False, metavar="TERM|FINDING", shell_complete=completing.terms)
@options.reading_optional
@options.model()
@click.option("--list", "listed", is_flag=True, help="Every term with its first sentence.")
@click.option("--all", "everything", is_flag=True, help="The whole glossary.")
@options.output("text", "json", "md")
@options.debug
def command(
    term: str | None,
    traces: tuple[str, ...],
    listed: bool,
    everything: bool,
    form: str,
    output: str,
    **given: Any,
) -> None:
    """Say what a term means, how it is computed and from which events; with a trace, what is behind a finding of it."""
    from analyzer.render import write

    if term is None and not (listed or everything):
        raise click.UsageError("name a term or a finding, or ask for --list")
    if form == "json":
        write(_document(term, traces, given), output)
        return
    from analyzer.render import render

    title = "Glossary" if term is None else f"Explanation of {term}"
    write(render(_sections(term, traces, given, everything=everything), title, form, output), output)


def _sections(term: str | None, traces: tuple[str, ...], given: dict[str, Any], *, everything: bool) -> list[Section]:
    from analyzer import explaining
    from analyzer.glossary import find

    if term is None:
        return explaining.whole_glossary() if everything else explaining.explain_all()
    if not traces:
        return explaining.explain_term(find(term))
    analysis, ranks = _analysed(traces, given)
    return explaining.explain_finding(term, analysis, ranks)


def _analysed(traces: Sequence[str], given: dict[str, Any]) -> Any:
    import dataclasses

    from analyzer.commands.gating import reading_options
    from analyzer.commands.progress import ProgressBar
    from analyzer.pipeline import analyze_measured

    with ProgressBar(not given["no_progress"] and not given["quiet"], given["verbose"]) as progress:
        asked = dataclasses.replace(reading_options(given), progress=progress.report)
        analysis, ranks = analyze_measured(list(traces), asked)
    for warning in () if given["quiet"] else analysis.trust.warnings:
        click.echo(f"warning: {warning}", err=True)
    return analysis, ranks


def _document(term: str | None, traces: tuple[str, ...], given: dict[str, Any]) -> bytes:
    import msgspec

    from analyzer.glossary import entries, find, lookup

    document: dict[str, Any] = {"schema_version": 1}
    if term is None:
        document["terms"] = entries()
    elif not traces:
        document["term"] = find(term)
    else:
        from analyzer.export.window import pick
        from analyzer.moments import describe, moment

        analysis, ranks = _analysed(traces, given)
        finding = pick(term, analysis.findings)
        found = moment(finding, ranks)
        document |= {"finding": finding, "term": lookup(finding.id), "moment": None}
        if found is not None:
            rank = ranks[found.rank]
            document["moment"] = {
                "rank": rank.source.rank,
                "start_ns": found.start_ns,
                "end_ns": found.end_ns,
                "what": found.what,
                "calls": [describe(rank, row) for row in found.rows],
            }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"

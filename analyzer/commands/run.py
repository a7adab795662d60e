"""``analyze run``: the main job."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analyzer.commands import options

if TYPE_CHECKING:
    from analyzer.model import Analysis
    from analyzer.pipeline import Examined

EPILOG = """\b
Examples:
  analyze traces/                        every trace in a directory: one job
  analyze 'traces/rank*.json.gz'         a glob
  analyze rank0.json.gz --format json    one rank, as a document
  analyze traces/ --layout tp2-pp2-dp2   verify a layout
"""


@click.command("run", epilog=EPILOG)
@options.reading
@options.model()
@options.output("text", "json", "md", "html")
@options.debug
def command(traces: tuple[str, ...], form: str, output: str, **given: Any) -> None:
    """Analyse the traces of one job: files, globs, or a directory with all its ranks.

    Prints what can be trusted, the parallel layout with its evidence, the collectives, how much communication was
    exposed, the comparison with the ledger, and findings.
    """
    from analyzer.commands.progress import ProgressBar
    from analyzer.options import Options
    from analyzer.pipeline import examine
    from analyzer.render import write

    quiet = given.pop("quiet")
    verbose = given.pop("verbose")
    show_progress = not given.pop("no_progress") and not quiet
    check_exist(traces)
    progress = ProgressBar(show_progress, verbose)
    with progress:
        job = examine(traces, Options(progress=progress.report, **for_analysis(given)))
    analysis = job.analysis
    if verbose:
        _say_inputs(analysis)
    if form != "text" and not quiet:
        for warning in analysis.trust.warnings:
            click.echo(f"warning: {warning}", err=True)
    write(reported(job, form) if form == "html" else _rendered(analysis, form, output), output)


def _rendered(analysis: Analysis, form: str, output: str) -> bytes:
    if form == "json":
        from analyzer.model import to_json

        return to_json(analysis)
    from analyzer.render import render
    from analyzer.reporters.sections import sections

    return render(sections(analysis), "Communication of a distributed job", form, output)


def reported(job: Examined, form: str) -> bytes:
    """The postmortem, ``html`` or ``md``."""
    from analyzer.details import Details
    from analyzer.reporters.report import markdown_sections, report

    found = report(Details(job))
    if form == "md":
        from analyzer.reporters.markdown import markdown

        return markdown(markdown_sections(found), found.title).encode()
    from analyzer.reporters.html import page

    return page(found).encode()


def for_analysis(given: dict[str, Any]) -> dict[str, Any]:
    """Command-line names to those of `analyzer.options.Options`."""
    given["use_names"] = not given.pop("ignore_names")
    given["workers"] = given["workers"] or options.cores()
    return given


def check_exist(traces: tuple[str, ...]) -> None:
    """A word that is no file may be a misspelled command."""
    from analyzer.cli import COMMANDS

    for name in traces:
        if not Path(name).exists() and not set(name) & set("*?[/.\\"):
            close = difflib.get_close_matches(name, COMMANDS, n=1)
            if close:
                raise click.UsageError(f"{name}: no such file or command; did you mean {close[0]!r}?")


def _say_inputs(analysis: Analysis) -> None:
    for item in analysis.inputs:
        who = "rank unknown" if item.rank is None else f"rank {item.rank}"
        state = "" if item.complete else ", cut"
        click.echo(f"{item.path}: {item.format}, {who}, {item.events} events, {item.bytes} bytes{state}", err=True)

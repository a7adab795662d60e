"""``analyze report``: the postmortem."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import click

from analyzer.commands import options
from analyzer.commands.run import check_exist, for_analysis, reported

EPILOG = """\b
Examples:
  analyze report traces/ -o report.html           the page
  analyze report traces/ -o report.md             the same for a wiki or a ticket
  analyze report job.parquet -o report.html       from a summary
  analyze report dumps/ -o hang.html              Flight Recorder dumps of a job that hangs
"""

FORMATS = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md"}
"""What the ending of the output says."""


@click.command("report", epilog=EPILOG)
@options.reading
@options.model()
@click.option("--format", "form", type=click.Choice(("html", "md")), help="Result format [default: the ending of -o].")
@options.target(required=True, what="Write the report to this file (.html or .md); - is stdout.")
@options.debug
def command(traces: tuple[str, ...], form: str | None, output: str, **given: Any) -> None:
    """Write one self-contained page about a job: verdict, what can be trusted, pictures, tables, findings.

    The page needs no network and no other file; it prints, has a light and a dark side, and can be read without seeing
    the pictures.
    """
    from analyzer.commands.progress import ProgressBar
    from analyzer.options import Options
    from analyzer.pipeline import examine
    from analyzer.render import write

    form = form or _format(output)
    quiet, verbose = given.pop("quiet"), given.pop("verbose")
    check_exist(traces)
    with ProgressBar(not given.pop("no_progress") and not quiet, verbose) as progress:
        job = examine(traces, Options(progress=progress.report, **for_analysis(given)))
    write(reported(job, form), output)


def _format(output: str) -> str:
    """From the ending of the file's name."""
    ending = PurePath(output).suffix.lower()
    if output != "-" and ending not in FORMATS:
        raise click.UsageError(f"{output}: give it the ending .html or .md, or name the format with --format")
    return FORMATS.get(ending, "html")

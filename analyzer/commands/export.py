"""``analyze export``: for Perfetto, spreadsheets and notebooks."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analyzer.commands import options
from analyzer.commands.gating import reading_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analyzer.export.anonymize import Hider
    from analyzer.measured import Measured
    from analyzer.model import Analysis
    from analyzer.options import Options

EPILOG = """\b
Examples:
  analyze export traces/ -o job.json.gz                       every rank in one trace for ui.perfetto.dev
  analyze export traces/ -o late.json.gz --slice rank.late    only the moment of a finding
  analyze export traces/ -o two.json.gz --slice steps=3:4     only some steps
  analyze export traces/ -o calls.csv                         one table, named by the file
  analyze export traces/ --tables tables/                     all tables as Parquet files
  analyze export traces/ -o public.json.gz --anonymize        nothing that tells whose job it is
"""

TABLES = (
    "inputs", "layout", "groups", "collectives", "exposure", "ranks", "steps", "ledger", "stragglers", "findings",
    "calls",
)  # fmt: skip
"""`analyzer.export.tables.NAMES`, here without importing it; a test holds the two together."""


@click.command("export", epilog=EPILOG)
@options.reading
@options.model()
@options.target(
    otherwise=None,
    what="A trace (.json, .json.gz) or a table (.parquet, .csv, .arrow, .feather); - is stdout: a trace, or --table.",
)
@click.option("--tables", "folder", metavar="DIR", help="Write every table into this directory.")
@click.option(
    "--table-format",
    type=click.Choice(("parquet", "csv", "arrow")),
    default="parquet",
    show_default=True,
    help="Of the files that --tables writes, and of --table on stdout.",
)
@click.option(
    "--table",
    "name",
    type=click.Choice(TABLES),
    help="Which table -o means [default: the one the file is named after, else collectives].",
)
@click.option(
    "--slice",
    "part",
    metavar="WHAT",
    help="Only a part of the trace: a finding's identifier (its costliest moment), steps=3:5, or ms=120:180.",
)
@click.option(
    "--context",
    "context_ms",
    type=click.FloatRange(min=0),
    metavar="MS",
    help="Milliseconds on both sides of --slice [default: as long as the moment itself, none for ranges].",
)
@click.option("--no-events", is_flag=True, help="Only the added tracks, without the job's own events.")
@click.option("--anonymize", is_flag=True, help="Replace names, hosts, paths and ids by keyed hashes; times stay.")
@click.option(
    "--salt",
    metavar="TEXT",
    envvar="COMMLENS_SALT",
    help="Key of the hashes, to hide several exports alike [default: random, thrown away].",
)
@options.debug
def command(
    traces: tuple[str, ...],
    output: str | None,
    folder: str | None,
    table_format: str,
    name: str | None,
    part: str | None,
    context_ms: float | None,
    no_events: bool,
    anonymize: bool,
    salt: str | None,
    **given: Any,
) -> None:
    """Write what other programs open: a trace for Perfetto with communication explained in it, or tables.

    The trace holds the job's own events of all ranks on one time axis, a track per dimension with its calls, exposed
    time and waiting, counters of bytes in flight and bandwidth, and arrows between the calls of one collective. Kernels
    get the dimension, bytes and bandwidth of their call as arguments.
    """
    from analyzer.commands.progress import ProgressBar

    form = _form(output, folder, table_format, part=part, no_events=no_events, name=name)
    if folder is not None:
        _check_free(Path(folder), table_format)
    hide = _hider(salt) if anonymize else None
    quiet, verbose = given["quiet"], given["verbose"]
    with ProgressBar(not given["no_progress"] and not quiet, verbose) as progress:
        asked = _asked(given, hide, progress.report)
        from analyzer.pipeline import analyze_measured

        analysis, ranks = analyze_measured(traces, asked)
    notes = list(analysis.trust.warnings)
    if folder is not None:
        _write_tables(analysis, ranks, Path(folder), table_format)
    if output is not None and form == "trace":
        notes += _write_trace(analysis, ranks, asked, output, part, context_ms, hide, events=not no_events)
    elif output is not None:
        from analyzer.export.sheets import write_table
        from analyzer.export.tables import table

        write_table(table(name or _table_of(output), analysis, ranks), output, form)
    for note in () if quiet else notes:
        click.echo(f"warning: {note}", err=True)


def _form(
    output: str | None, folder: str | None, table_format: str, *, part: str | None, no_events: bool, name: str | None
) -> str:
    """trace, or the format of a table."""
    if output is None and folder is None:
        raise click.UsageError("say where to: -o FILE or --tables DIR")
    form = "trace"
    if output is not None and output != "-":
        endings = {".parquet": "parquet", ".csv": "csv", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow"}
        form = endings.get(Path(output).suffix.lower(), "trace")
        if form == "trace" and not output.lower().endswith((".json", ".json.gz")):
            raise click.UsageError(
                f"{output}: the ending says what to write: .json or .json.gz (a trace), .parquet, .csv, .arrow, "
                ".feather"
            )
    if output == "-" and name is not None:
        form = table_format
    if form == "trace" and name is not None:
        raise click.UsageError("--table goes with a file that ends in .parquet, .csv, .arrow or .feather")
    if (part is not None or no_events) and (form != "trace" or output is None):
        raise click.UsageError(f"{'--slice' if part is not None else '--no-events'} goes with a trace: -o FILE.json.gz")
    return form


def _check_free(folder: Path, table_format: str) -> None:
    """Refuse before the work is done, not after."""
    force = options.forced(click.get_current_context())
    for name in TABLES if folder.is_dir() else ():
        options.may_write(str(folder / f"{name}.{table_format}"), force=force)


def _table_of(output: str) -> str:
    stem = Path(output).name.partition(".")[0]
    return stem if stem in TABLES else "collectives"


def _hider(salt: str | None) -> Hider:
    from analyzer.export.anonymize import Hider

    return Hider(secrets.token_bytes(32) if salt is None else salt.encode())


def _asked(given: dict[str, Any], hide: Hider | None, report: Any) -> Options:
    import dataclasses

    asked = dataclasses.replace(reading_options(given), progress=report)
    if hide is None:
        return asked
    from functools import partial

    from analyzer.export.hidden import hidden

    return dataclasses.replace(asked, change=partial(hidden, hide=hide))


def _write_tables(analysis: Analysis, ranks: Sequence[Measured], folder: Path, table_format: str) -> None:
    from analyzer.export.sheets import write_table
    from analyzer.export.tables import NAMES, table

    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        write_table(table(name, analysis, ranks), str(folder / f"{name}.{table_format}"), table_format)


def _write_trace(
    analysis: Analysis,
    ranks: Sequence[Measured],
    asked: Options,
    output: str,
    part: str | None,
    context_ms: float | None,
    hide: Hider | None,
    *,
    events: bool,
) -> list[str]:
    from analyzer.export.axis import Axis
    from analyzer.export.cut import Window
    from analyzer.export.sink import event_file
    from analyzer.export.trace import header, prepared, write_trace
    from analyzer.export.window import find_window

    said = []

    def find(axis: Axis) -> Window | None:
        if part is None:
            return None
        window, what = find_window(part, analysis.findings, ranks, axis, context_ms)
        said.append(f"only {what} is written, {window.length_ns / 1e6:,.3f} ms")
        return window

    export = prepared(analysis, ranks, find, hide)
    with event_file(output, header(export, hide)) as file:
        notes = write_trace(export, asked, file, events=events, hide=hide)
    return [*said, *notes]

"""``analyze summarize``: the map step of a large job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from analyzer.commands import options

if TYPE_CHECKING:
    from analyzer.reading.one import Loaded

EPILOG = """\b
Examples:
  analyze summarize rank0.json.gz -o rank0.parquet     one rank
  analyze summarize traces/ -o job.parquet             all ranks in one file
  analyze summarize traces/ -o summaries/              a file for each trace
  analyze job.parquet                                  the same result as from the traces
"""


@click.command("summarize", epilog=EPILOG)
@options.summarizing
@options.target(
    required=True,
    folder=True,
    what="A Parquet file for all ranks, or a directory (existing, or ending in /) for a file for each trace.",
)
@options.debug
def command(
    traces: tuple[str, ...],
    output: str,
    kernel_table: str | None,
    workers: int | None,
    dask: str | None,
    cache: str | None,
    memory_limit_bytes: int | None,
    max_expansion: float,
    max_unpacked_bytes: int,
    quiet: bool,
    verbose: bool,
    no_progress: bool,
) -> None:
    """Reduce traces to summaries, which every command takes in place of the traces, with the same result.

    A summary keeps the collectives, groups, steps, what layout inference sees and the time that compute covers: about
    30 bytes a call. It keeps no events.
    """
    from analyzer.commands.progress import ProgressBar
    from analyzer.options import Options
    from analyzer.reading import load_all
    from analyzer.reading.one import Loaded
    from parsers.discover import expand

    found = expand(traces)
    # A cluster merges tables on its way back: files of their own come one by one.
    with ProgressBar(not no_progress and not quiet, verbose) as progress:
        asked = Options(
            kernel_table=kernel_table,
            workers=workers or options.cores(),
            dask=dask,
            cache=cache,
            memory_limit_bytes=memory_limit_bytes,
            max_expansion=max_expansion,
            max_unpacked_bytes=max_unpacked_bytes,
            progress=progress.report,
        )
        results = load_all(found.paths, asked)
    loaded = [result for result in results if isinstance(result, Loaded)]
    said = [*found.notes, *(result.sentence for result in results if not isinstance(result, Loaded))]
    for note in [*said, *(note for result in loaded for note in result.notes)]:
        if not quiet:
            click.echo(f"warning: {note}", err=True)
    _write(loaded, Path(output), output.endswith("/") or Path(output).is_dir())


def _write(loaded: list[Loaded], output: Path, folder: bool) -> None:
    from analyzer.summary.file import write_table
    from analyzer.summary.table import merged, names_of

    if not loaded:
        return
    if not folder:
        write_table(merged([one.table for one in loaded]), output)
        return
    output.mkdir(parents=True, exist_ok=True)
    table = merged([one.table for one in loaded])
    for name, rows in names_of(table).items():
        write_table(table.slice(rows.start, len(rows)), output / f"{name}.parquet")

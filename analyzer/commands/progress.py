"""How far the reading is, on stderr."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from analyzer.options import Progress


class ProgressBar:
    """A bar on stderr for reads that take over a second, and a line per file when asked for."""

    def __init__(self, bar: bool, lines: bool) -> None:
        self._bar = bar and sys.stderr.isatty()
        self._lines = lines
        self._live: Any = None
        self._task: Any = None
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = monotonic()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def report(self, now: Progress) -> None:
        """One more file has been read."""
        if self._lines:
            click.echo(f"read {now.files} of {now.of_files}: {now.path}", err=True)
        if not self._bar or monotonic() - self._began < 1 or now.of_files == 1:
            return
        if self._live is None:
            self._start(now)
        self._live.update(self._task, completed=now.read_bytes or now.files, files=now.files)

    def _start(self, now: Progress) -> None:
        import rich.progress
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

        count = TextColumn("{task.fields[files]}/" + str(now.of_files) + " files")
        speed = (TransferSpeedColumn(),) if now.of_bytes else ()
        columns = (TextColumn("reading"), BarColumn(), count, *speed, TimeRemainingColumn())
        self._live = rich.progress.Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._live.add_task("reading", total=now.of_bytes or now.of_files, files=0)
        self._live.start()

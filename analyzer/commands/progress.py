"""How far the reading is, on stderr."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from analyzer.options import Progress


LINE_SECONDS = 5
"""A log in which a line came more often would hold little else."""


class ProgressBar:
    """A bar on stderr for reads that take over a second, and lines when asked for.

    A line says that a file has been read, or, every `LINE_SECONDS`, how far the reading of large ones is.
    """

    def __init__(self, bar: bool, lines: bool) -> None:
        self._bar = bar and sys.stderr.isatty()
        self._lines = lines
        self._live: Any = None
        self._task: Any = None
        self._began = self._said = 0.0
        self._files = 0

    def __enter__(self) -> Self:
        self._began = self._said = monotonic()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def report(self, now: Progress) -> None:
        """One more file has been read, or more of one."""
        if self._lines:
            self._say(now)
        if not self._bar or monotonic() - self._began < 1:
            return
        if self._live is None:
            self._start(now)
        self._live.update(self._task, completed=now.read_bytes if now.of_bytes else now.files, files=now.files)

    def _say(self, now: Progress) -> None:
        moment = monotonic()
        if now.files > self._files:
            self._files = now.files
            click.echo(f"read {now.files} of {now.of_files}: {now.path}", err=True)
        elif now.read_bytes and moment - self._said >= LINE_SECONDS:
            speed = now.read_bytes / (moment - self._began)
            left = f"{(now.of_bytes - now.read_bytes) / speed:,.0f} s left"
            done, whole = now.read_bytes / 1e6, now.of_bytes / 1e6
            click.echo(f"read {done:,.0f} of {whole:,.0f} MB, {speed / 1e6:,.0f} MB/s, {left}: {now.path}", err=True)
        else:
            return
        self._said = moment

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

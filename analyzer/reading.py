"""Files to labelled ranks, one file at a time, in one process or several."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

from analyzer.options import Options
from analyzer.summary.model import RankSummary
from parsers.summary import is_summary

if TYPE_CHECKING:
    from heuristics.kernel_table import KernelTable


def read_all(paths: Sequence[str], options: Options) -> list[RankSummary]:
    """Read and label every file.

    Args:
        paths: trace files.
        options: how; ``workers`` above 1 reads several files at a time in processes of their own.

    Returns:
        The ranks in the order of the paths (and within a file as the reader gives them), whatever the workers do.

    Raises:
        InputError: a file cannot be used.
    """
    from heuristics.kernel_table import KernelTable

    table = KernelTable.load(options.kernel_table) if options.kernel_table else None
    jobs = [(path, table, options.use_names) for path in paths]
    out: list[RankSummary] = []
    for done, found in enumerate(_run(jobs, options.workers), 1):
        out += found
        if options.progress is not None:
            options.progress(done, len(paths), paths[done - 1])
    return out


def _run(jobs: Sequence[tuple[str, KernelTable | None, bool]], workers: int) -> Iterator[list[RankSummary]]:
    workers = min(workers, len(jobs))
    if workers <= 1:
        yield from map(_read_one, jobs)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(_start_method())) as pool:
        yield from pool.map(_read_one, jobs)


def _start_method() -> str:
    """Fork is cheap, but a child forked beside running threads may find their locks held for ever."""
    return "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"


def _read_one(job: tuple[str, KernelTable | None, bool]) -> list[RankSummary]:
    path, table, use_names = job
    found = _stored(path) if is_summary(path) else summarized(path, table)
    return found if use_names else [summary.without_names() for summary in found]


def _stored(path: str) -> list[RankSummary]:
    from analyzer.summary.file import read_table
    from analyzer.summary.table import from_table

    return from_table(read_table(path))


def summarized(path: str, table: KernelTable | None = None) -> list[RankSummary]:
    """The summaries of the ranks of one trace.

    Raises:
        InputError: the file cannot be used.
    """
    from analyzer.summary.make import summarize
    from heuristics.label import label
    from parsers import read

    return [summarize(label(trace, kernel_table=table)) for trace in read(path)]

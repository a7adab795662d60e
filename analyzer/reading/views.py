"""What layout inference sees of every rank, from files of summaries: of thousands, only the columns that it needs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from analyzer.errors import InconclusiveError
from analyzer.job import roster
from analyzer.reading.pool import from_bytes, start_method, to_bytes
from analyzer.summary.columns import FOR_CALLS, FOR_LAYOUT, WITNESSES
from analyzer.summary.file import read_table
from analyzer.summary.notes import noted
from analyzer.summary.table import calls_decide, origins_of, views_of
from parsers.summary import is_summary

if TYPE_CHECKING:
    from analyzer.options import Options
    from heuristics.view import RankView

FILES_AT_A_TIME = 128
"""Files that a process reads before it answers: an answer costs as much as reading some of them."""


def views(paths: Sequence[str], options: Options) -> list[RankView] | None:
    """What layout inference sees of every rank of a job; null where that takes more than summaries.

    It does where a path is a trace, or where a summary holds what other sources are joined with.

    Args:
        paths: files of summaries.
        options: ``workers`` processes read them.

    Raises:
        InputError: a file is damaged, or they come from different jobs.
        InconclusiveError: a process that read some of them died.
    """
    if not paths or options.change is not None or options.dask is not None:
        return None
    table = noted(paths)
    if table is None:
        if not all(map(is_summary, paths)):
            return None
        table = _read(paths, ("head", *WITNESSES, *FOR_LAYOUT), options.workers)
        if any(table.column(name).null_count < table.num_rows for name in WITNESSES):
            return None
    kept = roster(origins_of(table)).keep
    found = views_of(table)
    if calls_decide(table, found):
        found = views_of(_read(paths, (*FOR_LAYOUT, *FOR_CALLS), options.workers))
    ranks = [found[place] for place in kept]
    return ranks if options.use_names else [view.without_names() for view in ranks]


def _read(paths: Sequence[str], columns: Sequence[str], workers: int) -> pa.Table:
    """Some columns of all files, in their order."""
    if min(workers, len(paths)) < 2:
        return pa.concat_tables([read_table(path, columns) for path in paths])
    shares = [paths[first : first + FILES_AT_A_TIME] for first in range(0, len(paths), FILES_AT_A_TIME)]
    context = multiprocessing.get_context(start_method())
    try:
        with ProcessPoolExecutor(min(workers, len(shares)), mp_context=context) as pool:
            return pa.concat_tables(map(from_bytes, pool.map(partial(_share, columns=tuple(columns)), shares)))
    except BrokenProcessPool as error:
        raise InconclusiveError("a process that read summaries died: was there enough memory?") from error


def _share(paths: Sequence[str], columns: Sequence[str]) -> bytes:
    return to_bytes(pa.concat_tables([read_table(path, columns, threads=False) for path in paths]).combine_chunks())

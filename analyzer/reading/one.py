"""One file to its summaries: the unit of work, wherever it is done."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from parsers.errors import InputError
from parsers.summary import is_summary

if TYPE_CHECKING:
    from heuristics.communicators import Across
    from heuristics.kernel_table import KernelTable


@dataclass(frozen=True)
class Job:
    """What there is to do.

    Attributes:
        path: a trace, or a file of summaries.
        kernel_table: a TOML file with further kernels.
        cache: the directory of the cache.
        stored_bytes: size of the file, for telling how far the reading is; 0 where not known.
        across: what the job's other reports of Nsight Systems tell of this one; null where there are none.
        optional: nobody named the file: where it cannot be used, a note says so.
    """

    path: str
    kernel_table: str | None = None
    cache: str | None = None
    stored_bytes: int = 0
    across: Across | None = None
    optional: bool = False


@dataclass(frozen=True, eq=False)
class Loaded:
    """What came of a file: its summaries (see `analyzer.summary.table`), and what is to be said of the reading."""

    table: pa.Table
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lost:
    """A file whose process died."""

    path: str
    reason: str

    @property
    def sentence(self) -> str:
        """For the user."""
        return f"{self.path} is left out: the process that read it died ({self.reason})"


def load(job: Job) -> Loaded:
    """Read one file, or take its summaries from the cache.

    Raises:
        InputError: the file cannot be used.
    """
    if not job.optional:
        return _load(job)
    try:
        return _load(job)
    except InputError as error:
        from analyzer.summary.table import to_table

        return Loaded(to_table([]), (f"left out: {error}",))


def _load(job: Job) -> Loaded:
    if is_summary(job.path):
        from analyzer.summary.file import read_table

        if job.kernel_table is not None:
            raise InputError(
                "is a summary, to which a kernel table comes too late",
                path=job.path,
                hint="summarize the trace with --kernel-table",
            )
        return Loaded(read_table(job.path))
    if job.cache is not None:
        from analyzer.reading.cache import cached

        return cached(job, summarized)
    return Loaded(summarized(job))


def summarized(job: Job) -> pa.Table:
    """The summaries of the ranks of one trace.

    Raises:
        InputError: the file cannot be used.
    """
    from analyzer.summary.make import summarize
    from analyzer.summary.table import to_table
    from heuristics.arrays import codes
    from heuristics.communicators import completed, joined
    from heuristics.label import label
    from parsers import read

    traces = read(job.path)
    if job.across is None:
        traces = joined(traces)
    else:
        traces = [completed(t, codes(t.comm_records, "group_name")[1], job.across) for t in traces]
    table = _kernel_table(job.kernel_table) if job.kernel_table is not None else None
    return to_table([summarize(label(trace, kernel_table=table)) for trace in traces])


@cache
def _kernel_table(path: str) -> KernelTable:
    """Parsed once per process: a worker reads many files."""
    from heuristics.kernel_table import KernelTable

    return KernelTable.load(path)

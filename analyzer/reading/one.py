"""One file to its summaries: the unit of work, wherever it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import pyarrow as pa

from parsers.errors import InputError
from parsers.source import Limits
from parsers.straggler_parquet import holds_operations
from parsers.summary import is_summary

if TYPE_CHECKING:
    from heuristics.communicators import Across
    from heuristics.kernel_table import KernelTable
    from heuristics.labelled import LabelledRank


Tell = Callable[[int], None]
"""Hears how many bytes of a file, as stored, have been taken."""

TELL_SECONDS = 0.25
"""How often that is told: often enough for a bar that moves."""


@dataclass(frozen=True)
class Job:
    """What there is to do.

    Attributes:
        path: a trace, or a file of summaries.
        kernel_table: a TOML file with further kernels.
        cache: the directory of the cache.
        stored_bytes: size of the file, for telling how far the reading is; 0 where not known.
        max_expansion: how many times its size a compressed file may grow.
        max_unpacked_bytes: how large it may become.
        across: what the job's other reports of Nsight Systems tell of this one; null where there are none.
    """

    path: str
    kernel_table: str | None = None
    cache: str | None = None
    stored_bytes: int = 0
    across: Across | None = None
    max_expansion: float = Limits.max_ratio
    max_unpacked_bytes: int = Limits.max_bytes

    @property
    def limits(self) -> Limits:
        """For the reader."""
        return Limits(max_ratio=self.max_expansion, max_bytes=self.max_unpacked_bytes)


@dataclass(frozen=True, eq=False)
class Loaded:
    """What came of a file: its summaries (see `analyzer.summary.table`), and what is to be said of the reading."""

    table: pa.Table
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lost:
    """A file that nothing came of.

    Attributes:
        path: the file.
        reason: why its process died; what is wrong with it.
        error: what its reader raised; null where its process died.
    """

    path: str
    reason: str
    error: InputError | None = None

    @property
    def sentence(self) -> str:
        """For the user."""
        if self.error is not None:
            return f"{self.path} is left out: {self.reason}"
        return f"{self.path} is left out: the process that read it died ({self.reason})"


def refused(job: Job, error: InputError) -> Lost:
    """A file that its reader cannot use."""
    return Lost(job.path, f"{error.place}: {error.message}" if error.place else error.message, error)


def attempt(job: Job, tell: Tell | None = None) -> Loaded | Lost:
    """As `load`, for one file of several: one that cannot be used is lost, the others count."""
    try:
        return load(job, tell)
    except InputError as error:
        return refused(job, error)


def load(job: Job, tell: Tell | None = None) -> Loaded:
    """Read one file, or take its summaries from the cache.

    Args:
        job: the file.
        tell: called now and then (`TELL_SECONDS`) with how many bytes of it, as stored, have been taken.

    Raises:
        InputError: the file cannot be used.
    """
    if is_summary(job.path) and not holds_operations(Path(job.path)):
        from analyzer.summary.file import read_table

        return Loaded(read_table(job.path))
    if job.cache is not None:
        from analyzer.reading.cache import cached

        return cached(job, partial(summarized, tell=tell))
    return Loaded(summarized(job, tell))


def summarized(job: Job, tell: Tell | None = None) -> pa.Table:
    """The summaries of the ranks of one trace.

    Raises:
        InputError: the file cannot be used.
    """
    from analyzer.summary.make import summarize
    from analyzer.summary.table import to_table

    return to_table([summarize(rank) for rank in labelled(job, tell)])


def labelled(job: Job, tell: Tell | None = None) -> Iterator[LabelledRank]:
    """The ranks of one trace with all their events.

    Raises:
        InputError: the file cannot be used.
    """
    from heuristics.arrays import codes
    from heuristics.communicators import completed, joined
    from heuristics.label import label
    from heuristics.pipelines import placed
    from parsers import read

    traces = placed(read(job.path, job.limits, None if tell is None else _now_and_then(tell)))
    if job.across is None:
        traces = joined(traces)
    else:
        traces = [completed(t, codes(t.comm_records, "group_name")[1], job.across) for t in traces]
    table = _kernel_table(job.kernel_table) if job.kernel_table is not None else None
    for trace in traces:
        yield label(trace, kernel_table=table)


def _now_and_then(tell: Tell) -> Tell:
    """Readers tell of every block, which nobody can look at: the first is passed on, and then some."""
    told = -inf

    def maybe(taken_bytes: int) -> None:
        nonlocal told
        now = monotonic()
        if now - told >= TELL_SECONDS:
            told = now
            tell(taken_bytes)

    return maybe


@cache
def _kernel_table(path: str) -> KernelTable:
    """Parsed once per process: a worker reads many files."""
    from heuristics.kernel_table import KernelTable

    return KernelTable.load(path)

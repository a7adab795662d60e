"""Files to summaries of ranks: in this process, in several, or on a cluster; in the order of the paths whatever ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.errors import InconclusiveError
from analyzer.reading.one import Job, Loaded, Lost, attempt, labelled
from parsers.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from analyzer.options import Options, Progress
    from analyzer.summary.model import RankSummary
    from heuristics.communicators import Across
    from heuristics.labelled import LabelledRank
    from parsers.nccl_log import NcclLog


@dataclass(frozen=True)
class Read:
    """What came of the files.

    Attributes:
        ranks: in the order of the paths, and within a file as its reader gives them.
        lost: files that nothing came of.
        notes: what is to be said of the reading, a sentence each.
    """

    ranks: tuple[RankSummary, ...]
    lost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_all(paths: Sequence[str], options: Options) -> Read:
    """Read every file.

    Args:
        paths: trace files and summaries.
        options: how: ``workers`` processes of this machine, or ``dask``; ``cache`` keeps summaries for the next time.

    Raises:
        InputError: no file can be used (the first says why), or the cache or the cluster cannot.
        InconclusiveError: no file was left, because every process that read one died.
    """
    from analyzer.summary.table import from_table

    results = load_all(paths, options)
    lost = [r for r in results if isinstance(r, Lost)]
    loaded = [r for r in results if isinstance(r, Loaded)]
    ranks = [rank for one in loaded for rank in from_table(one.table)]
    if not options.use_names:
        ranks = [rank.without_names() for rank in ranks]
    notes = dict.fromkeys([*(one.sentence for one in lost), *(note for one in loaded for note in one.notes)])
    return Read(tuple(ranks), tuple(one.path for one in lost), tuple(notes))


def labelled_ranks(path: str, options: Options) -> list[LabelledRank]:
    """The ranks of one trace with all their events: for what needs more than a summary keeps.

    Raises:
        InputError: the file cannot be used.
    """
    return list(labelled(_jobs([path], options)[0]))


def load_all(paths: Sequence[str], options: Options) -> list[Loaded | Lost]:
    """The summaries of every file as tables, in the order of the paths; of some files perhaps nothing, but not of all.

    On a cluster the tables of neighbouring files may come merged into one.

    Raises:
        InputError, InconclusiveError: as `read_all`.
    """
    results = _load_all(paths, options)
    lost = [r for r in results if isinstance(r, Lost)]
    if lost and not any(isinstance(r, Loaded) and r.table.num_rows for r in results):
        raise lost[0].error or InconclusiveError(f"nothing could be read: {lost[0].sentence}")
    return results


def _load_all(paths: Sequence[str], options: Options) -> list[Loaded | Lost]:
    jobs = _jobs(paths, options)
    count = _Count(jobs, options.progress)
    if options.dask is not None:
        from analyzer.reading.cluster import run_on_cluster

        return run_on_cluster(jobs, options.dask, count.done)
    if min(options.workers, len(jobs)) > 1:
        from analyzer.reading.pool import run_in_processes

        return run_in_processes(jobs, options.workers, count.done, options.memory_limit_bytes, count.within)
    out: list[Loaded | Lost] = []
    for job in jobs:
        out.append(attempt(job, partial(count.within, job)))
        count.done(job)
    return out


def _jobs(paths: Sequence[str], options: Options) -> list[Job]:
    if options.cache is not None:
        from analyzer.reading.cache import prepare

        prepare(options.cache)
    across = _across(paths)
    if options.kernel_table is not None:
        _no_summaries(paths)
    return [
        Job(
            path,
            options.kernel_table,
            options.cache,
            _stored_bytes(path),
            across,
            max_expansion=options.max_expansion,
            max_unpacked_bytes=options.max_unpacked_bytes,
        )
        for path in paths
    ]


def _no_summaries(paths: Sequence[str]) -> None:
    """A kernel table comes too late for a summary; that is no reason to leave the summary out."""
    from parsers.summary import is_summary

    for path in paths:
        try:
            is_one = is_summary(path)
        except InputError:  # its reader will say so
            continue
        if is_one:
            raise InputError(
                "is a summary, to which a kernel table comes too late",
                path=path,
                hint="summarize the trace with --kernel-table",
            )


def _across(paths: Sequence[str]) -> Across | None:
    """What reports of Nsight Systems are told by each other and by NCCL's logs: who is in which communicator."""
    if len(paths) < 2:
        return None
    from parsers.nsys import places_of

    found = []
    for path in paths:
        with suppress(InputError):  # its reader will say so
            found += [(path, place) for place in places_of(path)]
    if not found:
        return None
    from heuristics.communicators import across
    from heuristics.joining import members_of_logs

    return across(found, members_of_logs(_logs(paths)))


def _logs(paths: Sequence[str]) -> Iterator[NcclLog]:
    """The logs of NCCL among local files; what cannot be read is told when its turn comes."""
    from parsers import nccl_log
    from parsers.errors import InputError
    from parsers.source import open_source

    for path in paths:
        if "://" in path or not Path(path).is_file():
            continue
        try:
            with open_source(path) as source:
                traces = nccl_log.read(source) if nccl_log.sniff(source.head) else []
        except InputError:
            continue
        if traces and isinstance(traces[0].witness, nccl_log.NcclLog):
            yield traces[0].witness


def _stored_bytes(path: str) -> int:
    """Size of a file or of all files of a directory; 0 for what is not on this machine."""
    place = Path(path)
    if "://" in path or not place.exists():
        return 0
    if place.is_dir():
        return sum(child.stat().st_size for child in place.rglob("*") if child.is_file())
    return place.stat().st_size


class _Count:
    """How far the reading is, told after each file and now and then within one."""

    def __init__(self, jobs: Sequence[Job], report: Callable[[Progress], None] | None) -> None:
        self._report = report
        self._of_files, self._of_bytes = len(jobs), sum(job.stored_bytes for job in jobs)
        self._files = self._bytes = 0
        self._under_way: dict[str, int] = {}

    def done(self, job: Job) -> None:
        """A file has been read."""
        self._under_way.pop(job.path, None)
        self._files += 1
        self._bytes += job.stored_bytes
        self._tell(job)

    def within(self, job: Job, taken_bytes: int) -> None:
        """So much of a file has been taken."""
        self._under_way[job.path] = min(taken_bytes, job.stored_bytes)
        self._tell(job)

    def _tell(self, job: Job) -> None:
        if self._report is not None:
            from analyzer.options import Progress

            read_bytes = self._bytes + sum(self._under_way.values())
            self._report(Progress(self._files, self._of_files, read_bytes, self._of_bytes, job.path))

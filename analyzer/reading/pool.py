"""Several files at a time, each in a process of its own; one that dies takes only its file with it.

`concurrent.futures` gives up the whole pool when a process is killed (which is what the kernel does when memory runs
out), and does not say which file it was at. Here every process has a pipe of its own and at most one file.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from analyzer.reading.memory import Estimate, keep_freed_memory, peak_bytes
from analyzer.reading.one import Job, Loaded, Lost, attempt

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess


STOP_SECONDS = 5
"""How long a process may take to clean up before it is killed."""


def run_in_processes(
    jobs: Sequence[Job],
    workers: int,
    tell: Callable[[Job], None],
    memory_limit_bytes: int | None = None,
    within: Callable[[Job, int], None] | None = None,
) -> list[Loaded | Lost]:
    """Read every file.

    Args:
        jobs: what to read.
        workers: how many processes; no more files are under way at any time.
        tell: called after each file, in the order in which they are done.
        memory_limit_bytes: no file is begun beside others where they would together take more than this, by
            `analyzer.reading.memory.Estimate`; alone, every file is.
        within: called now and then with a file that is being read, and how many bytes of it have been taken.

    Returns:
        Per job, what came of it, in the order of the jobs.
    """
    with tempfile.TemporaryDirectory(prefix="commlens-") as scratch:
        pool = _Pool(jobs, tell, memory_limit_bytes, scratch, within)
        try:
            pool.run(min(workers, len(jobs)))
        finally:
            pool.stop()
    return [pool.results[place] for place in range(len(jobs))]


def to_bytes(table: pa.Table) -> bytes:
    """A table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_bytes(data: bytes) -> pa.Table:
    """The table of an Arrow IPC stream, without a copy."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    place: int = -1  # of the job it is at


class _Pool:
    """The processes, what they are at, and what came of it."""

    def __init__(
        self,
        jobs: Sequence[Job],
        tell: Callable[[Job], None],
        memory_limit_bytes: int | None,
        scratch: str,
        within: Callable[[Job, int], None] | None,
    ) -> None:
        self.jobs = jobs
        self._limit = memory_limit_bytes
        self._estimate = Estimate()
        self._scratch = scratch  # temporary files of the processes: they go with the directory, whoever is killed
        self._idle: list[_Worker] = []
        self.results: dict[int, Loaded | Lost] = {}
        self._tell, self._within = tell, within
        self._next = 0
        self._failed: tuple[int, Exception] | None = None
        self._context = multiprocessing.get_context(start_method())
        self._workers: list[_Worker] = []

    def run(self, workers: int) -> None:
        """Until every job is done, or one has failed and those before it are done."""
        while self._next < len(self.jobs) and len(self._workers) < workers and self._fits():
            self._give(self._start())
        while self._workers:
            busy = [worker for worker in self._workers if worker not in self._idle]
            for pipe in wait([worker.pipe for worker in busy]):
                worker = next(w for w in self._workers if w.pipe is pipe)
                if self._take(worker):
                    self._idle.append(worker)
            while self._idle and (self._is_over() or self._fits()):
                self._give(self._idle.pop())
            while not self._is_over() and len(self._workers) < workers and self._fits():
                self._give(self._start())
        if self._failed is not None:
            raise self._failed[1]

    def stop(self) -> None:
        """End what still runs."""
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(STOP_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def _is_over(self) -> bool:
        return self._next >= len(self.jobs) or self._failed is not None

    def _fits(self) -> bool:
        """Whether the next file may be begun beside those that are being read."""
        if self._limit is None:
            return True
        under_way = [self.jobs[w.place].stored_bytes for w in self._workers if w not in self._idle and w.place >= 0]
        sizes = [*under_way, self.jobs[self._next].stored_bytes]
        return not under_way or sum(self._estimate.of(size) for size in sizes) <= self._limit

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        forked = self._context.get_start_method() == "fork"
        process = self._process(self._context, theirs, ours if forked else None, self._scratch)
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    @staticmethod
    def _process(context: BaseContext, theirs: Connection, ours: Connection | None, scratch: str) -> BaseProcess:
        made: Any = context
        process: BaseProcess = made.Process(target=_serve, args=(theirs, ours, scratch), daemon=True)
        return process

    def _give(self, worker: _Worker) -> None:
        """The next job, or the end."""
        if self._is_over():
            self._dismiss(worker)
            return
        worker.place = self._next
        self._next += 1
        try:
            worker.pipe.send(self.jobs[worker.place])
        except OSError:  # it has died since its last job: waiting for its answer finds that out
            return

    def _dismiss(self, worker: _Worker) -> None:
        """Closing the pipe would not do: processes forked later hold copies of this end."""
        self._workers.remove(worker)
        with suppress(OSError):
            worker.pipe.send(None)
        worker.process.join()
        worker.pipe.close()

    def _take(self, worker: _Worker) -> bool:
        """What a process answers; whether it can be given another file."""
        job = self.jobs[worker.place]
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker, job)
            return False
        if kind == "at":
            if self._within is not None:
                self._within(job, value)
            return False
        if kind == "failed":
            if self._failed is None or worker.place < self._failed[0]:
                self._failed = (worker.place, value)
        elif kind == "lost":
            self.results[worker.place] = value
        else:
            data, notes, peak_bytes = value
            self.results[worker.place] = Loaded(from_bytes(data), notes)
            self._estimate.learn(job.stored_bytes, peak_bytes)
        self._tell(job)
        return True

    def _bury(self, worker: _Worker, job: Job) -> None:
        """Note the loss and put another process in its place."""
        worker.pipe.close()
        worker.process.join()
        self._workers.remove(worker)
        self.results[worker.place] = Lost(job.path, _cause(worker.process.exitcode))
        self._tell(job)


def _serve(pipe: Connection, other_end: Connection | None, scratch: str) -> None:
    """What a process does: read files until nobody asks any more."""
    if other_end is not None:  # forked: as long as it is open here, the end of the parent would go unnoticed
        other_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends its children
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    tempfile.tempdir = scratch
    keep_freed_memory()
    while True:
        try:
            job = pipe.recv()
        except EOFError:  # the parent is gone
            return
        if job is None:
            return
        try:
            answer = _answer(attempt(job, partial(_send_taken, pipe)))
        except MemoryError:
            answer = ("lost", Lost(job.path, "there was not enough memory"))
        except Exception as error:
            answer = ("failed", error)
        try:
            pipe.send(answer)
        except OSError:  # the parent is gone
            return


def _send_taken(pipe: Connection, taken_bytes: int) -> None:
    with suppress(OSError):  # the parent is gone: the answer will find that out
        pipe.send(("at", taken_bytes))


def _answer(result: Loaded | Lost) -> tuple[str, object]:
    if isinstance(result, Lost):
        return "lost", result
    return "loaded", (to_bytes(result.table), result.notes, peak_bytes())


def start_method() -> str:
    """Fork is cheap, but a child forked beside running threads may find their locks held for ever."""
    return "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
        return f"killed by {name}" + (": was there enough memory?" if -code == signal.SIGKILL else "")
    return f"exit code {code}"

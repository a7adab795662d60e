"""Several files at a time, each in a process of its own; one that dies takes only its file with it.

`concurrent.futures` gives up the whole pool when a process is killed (which is what the kernel does when memory runs
out), and does not say which file it was at. Here every process has a pipe of its own and at most one file.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from analyzer.reading.one import Job, Loaded, Lost, load

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess


def run_in_processes(jobs: Sequence[Job], workers: int, tell: Callable[[Job], None]) -> list[Loaded | Lost]:
    """Read every file.

    Args:
        jobs: what to read.
        workers: how many processes; no more files are under way at any time.
        tell: called after each file, in the order in which they are done.

    Returns:
        Per job, what came of it, in the order of the jobs.

    Raises:
        InputError: a file cannot be used; of several, the first in the order of the jobs.
    """
    pool = _Pool(jobs, tell)
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

    def __init__(self, jobs: Sequence[Job], tell: Callable[[Job], None]) -> None:
        self.jobs = jobs
        self.results: dict[int, Loaded | Lost] = {}
        self._tell = tell
        self._next = 0
        self._failed: tuple[int, Exception] | None = None
        self._context = multiprocessing.get_context(_start_method())
        self._workers: list[_Worker] = []

    def run(self, workers: int) -> None:
        """Until every job is done, or one has failed and those before it are done."""
        while self._next < len(self.jobs) and len(self._workers) < workers:
            self._give(self._start())
        while self._workers:
            for pipe in wait([worker.pipe for worker in self._workers]):
                worker = next(w for w in self._workers if w.pipe is pipe)
                if self._take(worker):
                    self._give(worker)
        if self._failed is not None:
            raise self._failed[1]

    def stop(self) -> None:
        """End what still runs."""
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        forked = self._context.get_start_method() == "fork"
        process = self._process(self._context, theirs, ours if forked else None)
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    @staticmethod
    def _process(context: BaseContext, theirs: Connection, ours: Connection | None) -> BaseProcess:
        made: Any = context
        process: BaseProcess = made.Process(target=_serve, args=(theirs, ours), daemon=True)
        return process

    def _give(self, worker: _Worker) -> None:
        """The next job, or the end."""
        if self._next >= len(self.jobs) or self._failed is not None:
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
        """What a process answers; whether it can go on."""
        job = self.jobs[worker.place]
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker, job)
            return False
        if kind == "failed":
            if self._failed is None or worker.place < self._failed[0]:
                self._failed = (worker.place, value)
        else:
            data, notes = value
            self.results[worker.place] = Loaded(from_bytes(data), notes)
        self._tell(job)
        return True

    def _bury(self, worker: _Worker, job: Job) -> None:
        """Note the loss and put another process in its place."""
        worker.pipe.close()
        worker.process.join()
        self._workers.remove(worker)
        self.results[worker.place] = Lost(job.path, _cause(worker.process.exitcode))
        self._tell(job)
        if self._next < len(self.jobs) and self._failed is None:
            self._give(self._start())


def _serve(pipe: Connection, other_end: Connection | None) -> None:
    """What a process does: read files until nobody asks any more."""
    if other_end is not None:  # forked: as long as it is open here, the end of the parent would go unnoticed
        other_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends its children
    while True:
        try:
            job = pipe.recv()
        except EOFError:  # the parent is gone
            return
        if job is None:
            return
        try:
            loaded = load(job)
            answer: tuple[str, object] = ("loaded", (to_bytes(loaded.table), loaded.notes))
        except Exception as error:
            answer = ("failed", error)
        pipe.send(answer)


def _start_method() -> str:
    """Fork is cheap, but a child forked beside running threads may find their locks held for ever."""
    return "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
        return f"killed by {name}" + (": was there enough memory?" if -code == signal.SIGKILL else "")
    return f"exit code {code}"

"""Many files on the workers of a Dask cluster: map = summarize, tree-reduce = merge of summaries.

Only paths travel to the workers and only summaries, as Arrow streams, come back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from analyzer.reading.one import Job, Loaded, Lost, load, refused
from analyzer.reading.pool import from_bytes, to_bytes
from parsers.errors import InputError

LARGEST_BATCH = 32
"""Files of one task at most: a task costs the scheduler about as much as reading a small file."""

TASKS_PER_WORKER = 4
"""Tasks there should be for every worker, so that none waits long for the last."""

FAN_IN = 16
"""Tables that one merge puts together."""

_LOCAL = re.compile(r"local(?::(\d+))?")


def run_on_cluster(jobs: Sequence[Job], address: str, tell: Callable[[Job], None]) -> list[Loaded | Lost]:
    """Read every file on a cluster.

    Args:
        jobs: what to read; the paths must mean the same on every worker (a shared file system, or URLs).
        address: a scheduler (``tcp://host:8786``), or ``local:N`` for N processes of this machine.
        tell: called after each file that was read, in the order in which they are done.

    Returns:
        What came of the files, in the order of the jobs: one merged table, and the files on which workers died. A file
        is given up only when it was alone in its task and its worker died as often as the cluster allows.

    Raises:
        InputError: a file cannot be used (of several, the first), Dask is not installed, or there is no such cluster.
    """
    with _client(address) as client:
        results = _mapped(client, jobs, tell)
        lost = [result for _, result in results if isinstance(result, Lost)]
        level = [result for _, result in results if not isinstance(result, Lost)]
        while len(level) > 1:
            level = [client.submit(_merge, level[i : i + FAN_IN], pure=False) for i in range(0, len(level), FAN_IN)]
        merged = [_loaded(client.gather(level[0]))] if level else []
    return [*merged, *lost]


def _mapped(client: Any, jobs: Sequence[Job], tell: Callable[[Job], None]) -> list[tuple[int, Any]]:
    """(place, future or `Lost`) of every batch, in the order of the jobs."""
    distributed = import_module("distributed")
    size = batch_size(len(jobs), len(client.scheduler_info(n_workers=-1)["workers"]))
    pending: dict[Any, int] = {}
    batches = {place: jobs[place : place + size] for place in range(0, len(jobs), size)}
    for place, batch in batches.items():
        pending[client.submit(_summarize, list(batch), pure=False)] = place
    done: dict[int, Any] = {}
    failed: dict[int, Exception] = {}
    suspects: list[int] = []
    queue = distributed.as_completed(list(pending))
    for future in queue:
        place = pending.pop(future)
        if future.status == "finished":
            done[place] = future
        elif not isinstance(error := future.exception(), distributed.KilledWorker | InputError):
            failed[place] = error
        elif len(batches[place]) == 1 and isinstance(error, InputError):
            done[place] = refused(batches[place][0], error)
        elif len(batches[place]) == 1:
            suspects.append(place)
            continue
        else:  # one of these files kills, or cannot be used: find out which
            for offset, job in enumerate(batches[place]):
                single = client.submit(_summarize, [job], pure=False)
                batches[place + offset] = [job]
                pending[single] = place + offset
                queue.add(single)
            continue
        for job in batches[place]:
            tell(job)
    for place in suspects:
        done[place] = _alone(client, batches[place][0])
        tell(batches[place][0])
    if failed:
        raise failed[min(failed)]
    return sorted(done.items())


def _alone(client: Any, job: Job) -> Any:
    """A file read again with no other task about: the scheduler blames all tasks that a dying worker had been given."""
    distributed = import_module("distributed")
    future = client.submit(_summarize, [job], pure=False)
    distributed.wait(future)
    if isinstance(future.exception(), distributed.KilledWorker):
        return Lost(job.path, "its workers were killed again and again")
    return future


def batch_size(files: int, workers: int) -> int:
    """Files of one task."""
    return max(1, min(LARGEST_BATCH, files // (TASKS_PER_WORKER * max(workers, 1))))


def _summarize(jobs: Sequence[Job]) -> tuple[bytes, tuple[str, ...]]:
    return _packed([load(job) for job in jobs])


def _merge(parts: Sequence[tuple[bytes, tuple[str, ...]]]) -> tuple[bytes, tuple[str, ...]]:
    return _packed([_loaded(part) for part in parts])


def _packed(parts: Sequence[Loaded]) -> tuple[bytes, tuple[str, ...]]:
    from analyzer.summary.table import merged

    return to_bytes(merged([part.table for part in parts])), tuple(note for part in parts for note in part.notes)


def _loaded(part: tuple[bytes, tuple[str, ...]]) -> Loaded:
    return Loaded(from_bytes(part[0]), part[1])


@contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise InputError("--dask needs Dask", hint="pip install 'commlens[dask]'") from None
    local = _LOCAL.fullmatch(address)
    if local is not None:
        processes = int(local[1] or 0) or None
        with (
            distributed.LocalCluster(
                n_workers=processes, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client
        return
    try:
        found = distributed.Client(address, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(
            f"no Dask scheduler answers ({' '.join(str(error).split())})",
            path=address,
            hint="give tcp://HOST:PORT or local:N",
        ) from error
    with found as client:
        yield client

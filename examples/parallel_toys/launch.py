"""Starts the four processes of an experiment, checks its result, and traces it where asked to."""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.profiler import ProfilerActivity, profile, schedule

from sample_traces.capture import recorder
from sample_traces.capture.job import free_port
from sample_traces.capture.trim import trim, write

WORLD = 4
TRACED_STEPS = 3
TRACED_SCALE = 64
"""Messages of a few bytes are flags and counters in any real job; the traced run works on so many times more rows."""

Step = Callable[[], Any]
"""The parallel computation on this rank; returns what the report needs from it."""


class Experiment(Protocol):
    """A module of this package."""

    def prepare(self, rank: int, scale: int = 1) -> Step:
        """Make data, groups and the single-process reference; return the parallel computation.

        `scale` multiplies the rows (tokens, elements) of the data.
        """

    def report(self, outcomes: Sequence[Any]) -> str:
        """What to print, given what the step of each rank returned."""


def find(name: str) -> Experiment:
    """The experiment of that name."""
    return cast(Experiment, importlib.import_module(f"examples.parallel_toys.{name}"))


def _trace(step: Step, path: Path) -> None:
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=TRACED_STEPS, repeat=1),
        record_shapes=True,
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(1 + TRACED_STEPS):
            step()
            profiler.step()


def _process(rank: int, name: str, port: int, folder: Path, traced: bool) -> None:
    torch.set_num_threads(1)
    backend = recorder.register() if traced else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    experiment = find(name)
    outcomes: list[Any] = [None] * WORLD
    dist.all_gather_object(outcomes, experiment.prepare(rank)())
    if rank == 0:
        (folder / "report").write_text(experiment.report(outcomes), encoding="utf-8")
    if traced:
        _trace(experiment.prepare(rank, TRACED_SCALE), folder / f"rank{rank}.json")
    dist.barrier()
    dist.destroy_process_group()


def run(name: str, trace_to: Path | None = None) -> str:
    """Run one experiment and return its report.

    Args:
        name: of a module of this package.
        trace_to: a folder for ``rank{r}.json.gz``; no tracing without it.
    """
    traced = trace_to is not None
    if traced:
        recorder.build()
    with tempfile.TemporaryDirectory() as folder:
        spawn(_process, args=(name, free_port(), Path(folder), traced), nprocs=WORLD)
        if trace_to is not None:
            trace_to.mkdir(parents=True, exist_ok=True)
            for rank in range(WORLD):
                trace = json.loads(Path(folder, f"rank{rank}.json").read_text(encoding="utf-8"))
                write(trim(trace, rank), trace_to / f"rank{rank}.json.gz")
        return Path(folder, "report").read_text(encoding="utf-8")

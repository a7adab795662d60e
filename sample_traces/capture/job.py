"""Runs one case: its processes, its steps, and either the counter or the profiler around them."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.profiler import ProfilerActivity, profile, schedule

from sample_traces.capture import recorder
from sample_traces.capture.counter import CollectiveCounter, tabulate
from sample_traces.capture.model import ModelConfig

BEFORE, STEPS = 2, 3
"""Steps run before the profiled ones (DDP settles its buckets, pipelines exchange shapes), and steps profiled."""

Step = Callable[[], None]
Mode = Literal["count", "trace"]


@dataclass(frozen=True)
class TrueLayout:
    """How a case divides its job; the keys of ``truth.json``."""

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1  # replicas of dense parameters
    ep: int = 1
    zero_stage: int = 0
    zero_by_traffic: int = 0  # the stage that the traffic shows, where a configuration degenerates to another one
    sp: bool = False
    schedule: str | None = None
    microbatches: int = 1
    vp: int = 1
    cp_kind: str | None = None
    hsdp_shard: int | None = None
    hsdp_replicate: int | None = None


@dataclass(frozen=True)
class Case:
    """A job with a known layout.

    ``build`` runs in every process after ``init_process_group`` and returns the training step.
    """

    name: str
    world: int
    about: str
    config: ModelConfig
    layout: TrueLayout
    build: Callable[[ModelConfig], Step]
    recorded: bool = True  # with process-group metadata; else what plain gloo writes
    facts: dict[str, Any] = field(default_factory=dict)  # more keys for truth.json


def _profiled(step: Step, path: Path) -> None:
    plan = schedule(wait=BEFORE - 1, warmup=1, active=STEPS, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        record_shapes=True,
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(BEFORE + STEPS):
            step()
            profiler.step()


def _counted(step: Step, path: Path) -> None:
    for _ in range(BEFORE):
        step()
    calls = []
    for _ in range(STEPS):
        with CollectiveCounter() as counter:
            step()
        calls.append(counter.calls)
    path.write_text(json.dumps(tabulate(calls)))


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _process(rank: int, case: Case, mode: Mode, folder: Path, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(case.world),
        "LOCAL_RANK": str(rank),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backend = recorder.register() if mode == "trace" and case.recorded else "gloo"
    dist.init_process_group(
        backend,
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=case.world,
        timeout=timedelta(minutes=3),
    )
    step = case.build(case.config)
    if mode == "trace":
        _profiled(step, folder / f"rank{rank}.json")
    else:
        _counted(step, folder / f"count{rank}.json")
    dist.barrier()
    dist.destroy_process_group()


def run(case: Case, folder: Path) -> dict[str, Any]:
    """Run a case twice, once under the counter and once under the profiler.

    The two runs are the same program from the same seed; a dispatch mode slows every operator down, so it stays out of
    the profiled run.

    Args:
        case: the job.
        folder: an existing folder; receives ``rank{r}.json``, the raw traces.

    Returns:
        The contents of ``truth.json``.
    """
    if case.recorded:
        recorder.build()  # once, before the processes would all compile it
    with tempfile.TemporaryDirectory() as scratch:
        spawn(_process, args=(case, "count", Path(scratch), free_port()), nprocs=case.world)
        counts = {str(r): json.loads(Path(scratch, f"count{r}.json").read_text()) for r in range(case.world)}
    spawn(_process, args=(case, "trace", folder, free_port()), nprocs=case.world)
    return {
        "case": case.name,
        "about": case.about,
        "framework": f"torch {torch.__version__}",
        "backend": "gloo",
        "param_comms": case.recorded,
        "world_size": case.world,
        **asdict(case.layout),
        **asdict(case.config),
        "params": case.config.params,
        "dtype": "float32",
        "steps": STEPS,
        "captured_ranks": list(range(case.world)),
        **case.facts,
        "observed_per_step": counts,
    }

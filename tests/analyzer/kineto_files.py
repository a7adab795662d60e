"""Small Kineto traces written by hand: a data-parallel job whose every number is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_kernel"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
BUCKETS = (1_000_000, 2_000_000, 3_000_000, 500_000)
"""Elements of the four gradient buckets."""


def ddp_trace(rank: int, world: int = 2, *, steps: int = 3, late_us: float = 0.0, comm: bool = True) -> dict[str, Any]:
    """A rank of a job: per step of 6000 µs four GEMMs of 1000 µs, one forward, and four buckets reduced in 400 µs each.

    The last all-reduce has no GEMM beside it: 400 µs per step are exposed, 1200 µs overlapped. ``late_us`` lets this
    rank arrive that much later in its all-reduces than the others, and so stay that much shorter in them.
    """
    events: list[dict[str, Any]] = []
    correlation = iter(range(1, 10_000))

    def launch(name: str, ts: float, dur: float, stream: int, args: dict[str, Any]) -> None:
        number = next(correlation)
        cpu = {"ph": "X", "pid": 100 + rank, "tid": 100 + rank}
        if args:
            events.append(
                {**cpu, "cat": "cpu_op", "name": "record_param_comms", "ts": ts - 40, "dur": 30, "args": args}
            )
        call = {"correlation": number}
        events.append({**cpu, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts - 20, "dur": 5, "args": call})
        gpu = {"ph": "X", "cat": "kernel", "pid": rank, "tid": stream, "name": name, "ts": ts, "dur": dur}
        events.append({**gpu, "args": {"device": rank, "stream": stream, "correlation": number, **args}})

    for step in range(steps):
        begin = 1000.0 + 6000 * step
        mark = {"ph": "X", "cat": "user_annotation", "pid": 100 + rank, "tid": 100 + rank}
        events.append({**mark, "name": f"ProfilerStep#{step}", "ts": begin, "dur": 6000, "args": {}})
        backward = {"ph": "X", "cat": "cpu_op", "pid": 100 + rank, "tid": 100 + rank, "dur": 3600, "args": {}}
        events.append({**backward, "name": "autograd::engine::evaluate_function: MmBackward0", "ts": begin + 1000})
        optimizer = {**mark, "name": "Optimizer.step#AdamW.step", "ts": begin + 5000, "dur": 500, "args": {}}
        events.append(optimizer)
        for i in range(4):
            launch(GEMM, begin + 100 + 1000 * i, 1000, 7, {})
        for i in range(4 if comm else 0):
            launch(
                ALL_REDUCE,
                begin + 1100 + 1000 * i + late_us,
                400 - late_us,
                20,
                {
                    "Collective name": "allreduce",
                    "In msg nelems": BUCKETS[i],
                    "Out msg nelems": BUCKETS[i],
                    "Group size": world,
                    "dtype": "BFloat16",
                    "Process Group Name": "0",
                    "Process Group Description": "default_pg",
                    "Process Group Ranks": str(list(range(world))),
                    "Seq": 4 * step + i,
                },
            )
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": world}
    return {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": world,
            "pg_count": 1,
            "pg_config": [{**group, "ranks": list(range(world))}],
        },
        "deviceProperties": [{"id": i, "name": "NVIDIA H100 80GB HBM3"} for i in range(world)],
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": events,
    }


def write_job(folder: Path, world: int = 2, **how: Any) -> Path:
    """All ranks of such a job in a directory; rank 1 is 100 µs late."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(world):
        trace = ddp_trace(rank, world, late_us=100.0 if rank == 1 else 0.0, **how)
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    return folder

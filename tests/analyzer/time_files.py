"""Kineto traces written event by event, for jobs whose waiting, lateness and causes are known by construction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analyzer.model import Analysis
from analyzer.pipeline import analyze

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x256x64_kernel"
KERNEL = "ncclDevKernel_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class Writer:
    """One rank's trace; times in µs."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.events: list[dict[str, Any]] = []
        self._next = 1

    def event(self, cat: str, name: str, ts: float, dur: float, tid: int, **args: Any) -> None:
        """Any event."""
        pid = self.rank if cat == "kernel" else 500 + self.rank
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    def step(self, number: int, ts: float, dur: float) -> None:
        """A profiler step."""
        self.event("user_annotation", f"ProfilerStep#{number}", ts, dur, 1)

    def kernel(self, name: str, ts: float, dur: float, stream: int = 7, lag: float = 15, **args: Any) -> None:
        """A kernel and its launch, ``lag`` before it."""
        number = self._next
        self._next += 1
        self.event("cuda_runtime", "cudaLaunchKernel", ts - lag, 4, 1, correlation=number)
        self.event("kernel", name, ts, dur, stream, device=self.rank, stream=stream, correlation=number, **args)

    def collective(
        self,
        op: str,
        ts: float,
        dur: float,
        elements: int,
        *,
        stream: int = 20,
        group: str = "0",
        ranks: Sequence[int] | None = None,
        lag: float = 15,
        peer: int | None = None,
    ) -> None:
        """A collective in bfloat16; of a send or receive, ``peer`` is the other end."""
        members = list(range(self.world)) if ranks is None else list(ranks)
        word = {"allreduce": "AllReduce_Sum_bf16", "_allgather_base": "AllGather"}.get(op, "SendRecv")
        grown = elements * len(members) if op == "_allgather_base" else elements
        args = {
            "Collective name": op,
            "In msg nelems": elements,
            "Out msg nelems": grown,
            "Group size": len(members),
            "dtype": "BFloat16",
            "Process Group Name": group,
            "Process Group Description": "default_pg" if group == "0" else f"group_{group}",
            "Process Group Ranks": str(members),
        }
        if peer is not None:
            args["Dst Rank" if op == "send" else "Src Rank"] = peer
        self.event("cpu_op", "record_param_comms", ts - lag - 10, 20, 1, **args)
        self.kernel(KERNEL.format(word), ts, dur, stream, lag, **args)

    def text(self) -> str:
        """The file."""
        every = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": self.world}
        head = {"backend": "nccl", "rank": self.rank, "world_size": self.world, "pg_count": 1}
        return json.dumps(
            {
                "schemaVersion": 1,
                "distributedInfo": {**head, "pg_config": [{**every, "ranks": list(range(self.world))}]},
                "deviceProperties": [{"id": self.rank, "name": "SYNTH"}],
                "traceEvents": self.events,
            }
        )


def analysed(folder: Path, ranks: Sequence[Writer]) -> Analysis:
    """Write the traces and analyse them."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        (folder / f"rank{rank.rank}.json").write_text(rank.text())
    return analyze(folder)


def one_bad_step(steps: int, *, bad: int, late: float) -> list[Writer]:
    """Four ranks that meet once in each step of 40 ms; in one step rank 2 computes ``late`` µs longer."""
    ranks = []
    for r in range(4):
        rank = Writer(r, 4)
        for n in range(steps):
            b = 1_000.0 + n * 40_000
            rank.step(n, b, 40_000)
            wait = late if n == bad else 0.0
            more = wait if r == 2 else 0.0
            rank.kernel(GEMM, b + 100, 2_000 + more)
            rank.collective("allreduce", b + 2_200 + more, 100 + wait - more, 500_000)
        ranks.append(rank)
    return ranks


def gpipe(
    stages: int, microbatches: int, forward: float, backward: float, *, lead: float, slack: float
) -> list[Writer]:
    """Two steps of GPipe, a rank per stage, with one receive in front of each pass of the whole batch.

    The first receive begins ``lead`` µs into the step and ends 10 µs early, as the other does; the step ends with
    ``slack`` µs of nothing.
    """
    ranks = []
    for r in range(stages):
        rank = Writer(r, stages)
        turn = (microbatches + stages - 1) * forward
        span = turn + (microbatches + stages - 1) * backward
        for n in range(2):
            b = 1_000.0 + n * (span + slack)
            rank.step(n, b, span + slack)
            if r:
                wait = r * forward - lead - 10
                rank.collective("recv", b + lead, wait, 70_000, stream=28, group=f"s{r}", ranks=[r - 1, r])
            for i in range(microbatches):
                rank.kernel(GEMM, b + (r + i) * forward, forward)
            behind = stages - 1 - r
            if behind:
                at, wait = b + (r + microbatches) * forward, behind * (forward + backward) - 10
                rank.collective("recv", at, wait, 70_000, stream=28, group=f"s{r + 1}", ranks=[r, r + 1])
            for i in range(microbatches):
                rank.kernel(GEMM, b + turn + (behind + i) * backward, backward)
        ranks.append(rank)
    return ranks

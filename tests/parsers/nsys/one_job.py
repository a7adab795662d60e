"""One job, described once, written as Kineto traces and as reports of Nsight Systems."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.parsers.nsys.export import Export

EPOCH = 1_767_225_600_000_000_000
WORLD = 4
STEP_NS = 4_000_000
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_kernel"
KERNEL_ARGUMENTS = "(ncclDevKernelArgsStorage<(unsigned long)4096>)"
# Type: bytes, Kineto's name, the name in kernels.
TYPES = {"bf16": (2, "BFloat16", "bf16"), "f32": (4, "Float", "f32"), "i64": (8, "Long", "u64")}
# Function: Kineto's name, NCCL's kernel.
FUNCTIONS = {
    "ncclAllReduce": ("allreduce", "AllReduce_Sum_{}_RING_LL"),
    "ncclAllGather": ("_allgather_base", "AllGather_RING_LL"),
    "ncclReduceScatter": ("_reduce_scatter_base", "ReduceScatter_Sum_{}_RING_LL"),
    "ncclBroadcast": ("broadcast", "Broadcast_RING_LL"),
    "ncclReduce": ("reduce", "Reduce_Sum_{}_RING_LL"),
    "ncclSend": ("send", "SendRecv"),
    "ncclRecv": ("recv", "SendRecv"),
    "all_to_all": ("all_to_all", "SendRecv"),
}


@dataclass(frozen=True)
class Group:
    """A process group with its communicator."""

    name: str
    ranks: tuple[int, ...]
    hash: int


@dataclass(frozen=True)
class Call:
    """A call; several with the same ``kernel_at`` are one launch.

    Attributes:
        count: NCCL's argument: elements of one rank (of a peer's share, in an all-to-all).
        at: when the CPU asks, ns.
        launch: when the kernel is launched.
        kernel_at: when it starts.
        kernel_ns: how long it takes.
        peer: group rank of the other side, or the root.
    """

    function: str
    group: Group
    kind: str
    count: int
    at: int
    launch: int
    kernel_at: int
    kernel_ns: int
    stream: int
    peer: int | None = None


def groups_of(rank: int) -> dict[str, Group]:
    """All ranks; pairs of neighbours; pairs two apart."""
    pair, place = divmod(rank, 2)
    return {
        "world": Group("0", tuple(range(WORLD)), 0xAAAA_0000_1111_2222),
        "tp": Group(str(1 + pair), (2 * pair, 2 * pair + 1), 0x1111_0000_0000_0000 + pair),
        "dp": Group(str(3 + place), (place, place + 2), 0xD000_0000_0000_0000 + place),
    }


def calls_of(rank: int, step: int) -> Iterator[Call]:
    """The calls of a step, 200 µs apart; groups close 5 µs after their first call."""
    groups = groups_of(rank)
    plan = (
        ("ncclAllReduce", "tp", "bf16", 1 << 20, None),
        ("ncclAllReduce", "tp", "bf16", 1 << 20, None),
        ("ncclReduceScatter", "dp", "f32", 1 << 18, None),
        ("ncclAllGather", "dp", "bf16", 1 << 18, None),
        ("ncclBroadcast", "world", "i64", 1000, 2),
        ("ncclReduce", "world", "f32", 4096, 1),
        ("all_to_all", "world", "bf16", 1 << 14, None),
    )
    at = step * STEP_NS + 100_000
    for number, (function, group, kind, count, peer) in enumerate(plan):
        when = at + 200_000 * number
        kernel = when + 50_000 + 1000 * rank
        yield Call(function, groups[group], kind, count, when, when + 7000, kernel, 100_000, 20 + number, peer)
    when = at + 200_000 * len(plan)
    other = 1 - groups["dp"].ranks.index(rank)
    for number, function in enumerate(("ncclSend", "ncclRecv")):
        begin = when + 2000 * number
        yield Call(function, groups["dp"], "bf16", 4096, begin, when + 7000, when + 60_000, 80_000, 40, other)


def kernel_name(call: Call) -> str:
    """As NCCL 2.22 and later name it."""
    return "ncclDevKernel_" + FUNCTIONS[call.function][1].format(TYPES[call.kind][2]) + KERNEL_ARGUMENTS


# -- Kineto


def write_kineto(folder: Path, steps: int = 3) -> list[Path]:
    """One file per rank."""
    folder.mkdir(exist_ok=True)
    paths = []
    for rank in range(WORLD):
        path = folder / f"rank{rank}.json"
        path.write_text(json.dumps(_kineto(rank, steps)))
        paths.append(path)
    return paths


def _kineto(rank: int, steps: int) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    correlation = iter(range(1, 100_000))

    def x(cat: str, name: str, start: int, dur: int, pid: int, tid: int, **args: Any) -> None:
        times = {"ts": start / 1000, "dur": dur / 1000}
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": args})

    def launch(name: str, at: int, start: int, dur: int, stream: int, args: Mapping[str, Any]) -> None:
        number = next(correlation)
        x("cuda_runtime", "cudaLaunchKernelExC", at, 1000, 100 + rank, 100 + rank, correlation=number)
        x("kernel", name, start, dur, rank % 2, stream, device=rank % 2, stream=stream, correlation=number, **args)

    for step in range(steps):
        x("user_annotation", f"ProfilerStep#{step}", step * STEP_NS, STEP_NS, 100 + rank, 100 + rank)
        launch(GEMM, step * STEP_NS + 10_000, step * STEP_NS + 20_000, 90_000, 7, {})
        launched: set[int] = set()
        for call in calls_of(rank, step):
            args = _arguments(call, rank)
            last = call.function not in ("ncclSend",)
            batch = call.function in ("ncclSend", "ncclRecv")
            dur = 1500 if batch else 12_000
            x("cpu_op", "record_param_comms", call.at, dur, 100 + rank, 100 + rank, **args)
            if last and call.kernel_at not in launched:
                launched.add(call.kernel_at)
                launch(
                    kernel_name(call), call.launch, call.kernel_at, call.kernel_ns, call.stream, {} if batch else args
                )
    groups = [
        {
            "pg_name": g.name,
            "pg_desc": "",
            "backend_config": "cuda:nccl",
            "pg_size": len(g.ranks),
            "ranks": list(g.ranks),
        }
        for g in groups_of(rank).values()
    ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": WORLD, "pg_config": groups},
        "deviceProperties": [{"id": i, "name": "GPU"} for i in range(2)],
        "baseTimeNanoseconds": EPOCH,
        "traceEvents": events,
    }


def _arguments(call: Call, rank: int) -> dict[str, Any]:
    n = len(call.group.ranks)
    ins, outs = call.count, call.count
    if call.function == "ncclAllGather":
        outs *= n
    elif call.function == "ncclReduceScatter":
        ins *= n
    elif call.function == "all_to_all":
        ins, outs = ins * n, outs * n
    args: dict[str, Any] = {
        "Collective name": FUNCTIONS[call.function][0],
        "In msg nelems": ins,
        "Out msg nelems": outs,
        "Group size": n,
        "dtype": TYPES[call.kind][1],
        "Process Group Name": call.group.name,
        "Process Group Ranks": str(list(call.group.ranks)),
        "Rank": call.group.ranks.index(rank) if call.peer is None else call.peer,
    }
    if call.function in ("ncclSend", "ncclRecv"):
        args["Dst Rank" if call.function == "ncclSend" else "Src Rank"] = call.group.ranks[call.peer or 0]
    return args


# -- Nsight Systems


def write_nsys(
    folder: Path, steps: int = 3, *, per_rank: bool = True, torch: bool = False, from_start: bool = True, **how: Any
) -> list[Path]:
    """One report per rank on two nodes, or one with all processes.

    Args:
        folder: made here.
        steps: how many.
        per_rank: whether every rank has a report of its own.
        torch: whether PyTorch's own ranges lie around those of NCCL.
        from_start: whether the capture shows communicators being made.
        how: passed to `Export`.
    """
    folder.mkdir(exist_ok=True)
    paths = []
    whole = Export(**how)
    for rank in range(WORLD):
        export = Export(**how) if per_rank else whole
        skew = rank * 1_000_000 if per_rank else 0
        _nsys(export, rank, steps, torch=torch, skew=skew, from_start=from_start)
        if per_rank:
            text = f"SLURM_PROCID={rank};SLURM_NTASKS={WORLD};API_TOKEN=secret-{rank}"
            export.environment(text, f"node-{rank // 2}", EPOCH + rank * 1_000_000)
            paths.append(export.sqlite(folder / f"job_{rank}.sqlite"))
    if not per_rank:
        whole.environment("API_TOKEN=secret", "node-0", EPOCH)
        paths.append(whole.sqlite(folder / "job.sqlite"))
    return paths


def _nsys(export: Export, rank: int, steps: int, *, torch: bool, skew: int, from_start: bool) -> None:
    """Times of a session begin when it does: later, by ``skew``, where every rank has its own."""
    pid = 100 + rank
    owner = export.process(pid, domain=1 + rank % 2)
    device = rank % 2
    at = -4_000_000 - skew
    for group in groups_of(rank).values() if from_start else ():
        said = {"comm": group.hash, "nranks": len(group.ranks), "rank": group.ranks.index(rank), "device": device}
        export.nccl_range(owner, pid, "ncclCommInitRankConfig", at, at + 900_000, **said)
        at += 1_000_000
    for step in range(steps):
        begin = step * STEP_NS - skew
        export.range(owner, pid, f"iteration {step}", begin, begin + STEP_NS)
        export.kernel(owner, GEMM, begin + 20_000, begin + 110_000, device=device, tid=pid, at=begin + 10_000)
        calls = list(calls_of(rank, step))
        for number, call in enumerate(calls):
            if call.function != "ncclRecv":
                fused = calls[number : number + 2] if call.function == "ncclSend" else [call]
                _launch(export, owner, pid, device, fused, torch=torch, skew=skew)


def _launch(export: Export, owner: int, pid: int, device: int, calls: list[Call], *, torch: bool, skew: int) -> None:
    first = calls[0]
    at, size = first.at - skew, TYPES[first.kind][0] * first.count
    export.nccl_range(owner, pid, "ncclGroupStart", at - 500, at - 400)
    later = 100 if torch else 0
    for call in calls if torch else ():
        begin, dur = call.at - skew, 1700 if len(calls) > 1 else 12_200
        export.range(owner, pid, f"record_param_comms, op_id = {begin}", begin - 100, begin + dur)
        export.range(owner, pid, f"nccl:{FUNCTIONS[call.function][0]}, op_id = {begin + 1}", begin, begin + dur - 50)
    if first.function == "all_to_all":
        for place in range(len(first.group.ranks)):
            for half, name in enumerate(("ncclSend", "ncclRecv")):
                begin = at + 1000 * place + 400 * half + later
                export.nccl_range(owner, pid, name, begin, begin + 300, comm=first.group.hash, bytes=size, peer=place)
    for call in calls:
        if call.function != "all_to_all":
            said = {"comm": call.group.hash, "bytes": size, "redop": 0}
            said |= {} if call.peer is None else {"peer": call.peer, "root": call.peer}
            begin = call.at - skew + later
            export.nccl_range(owner, pid, call.function, begin, begin + 1500, **said)
    export.nccl_range(owner, pid, "ncclGroupEnd", at + 5000, at + 12_000)
    start = first.kernel_at - skew
    launch = {"tid": pid, "at": first.launch - skew, "device": device, "stream": first.stream}
    export.kernel(owner, kernel_name(first), start, start + first.kernel_ns, **launch)

"""The ranks of a report: which process and GPU each is, and which rows are its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from parsers.columns import NULL, Ints
from parsers.nsys.communicators import Member, members_of, shows_beginning, with_log
from parsers.nsys.gpu import KERNEL, THREAD_MASK
from parsers.nsys.work import launch_of

if TYPE_CHECKING:
    from parsers.nsys.build import Report

Rows = Ints | None
"""Numbers of rows; None for all of a table."""


@dataclass(frozen=True)
class Part:
    """One rank's share of a report.

    Attributes:
        process: as in `parsers.nsys.gpu.GpuRows`.
        device: CUDA device; None where the process used no GPU, or its number is not recorded.
        gpu: its rows of the GPU table.
        launches: its rows of the launches.
        nccl: its ranges of NCCL.
        others: its other ranges.
        members: its places in communicators.
        from_start: whether ``members`` is complete.
        left_out: rows of other GPUs of the process that belong to no rank.
    """

    process: int
    device: int | None
    gpu: Rows
    launches: Rows
    nccl: Ints
    others: Ints
    members: tuple[Member, ...]
    from_start: bool
    left_out: int = 0

    @property
    def pid(self) -> int:
        """The operating system's number of the process."""
        return self.process & THREAD_MASK


def find_seats(report: Report) -> list[Part]:
    """Divide a report by processes, and processes by the GPUs on which they communicate.

    A process that communicates on one GPU is one rank, whatever it touched on the others; one that communicates on
    several (as JAX does, and nccl-tests) is as many ranks. Where nothing communicates, every GPU that ran kernels is
    one. Processes without a GPU count where they called NCCL or an operator of communication.
    """
    gpu, nccl, others = report.gpu, report.nvtx.nccl, report.nvtx.others
    processes = np.unique(gpu.process).tolist()
    parts: list[Part] = []
    for process in processes:
        devices, extra = _devices(report, process)
        parts += _share(report, process, devices, extra, alone=len(processes) == 1)
    talking = np.concatenate([nccl.process, others.process[report.kinds.layer >= 0]])
    return parts + [_without_gpu(report, process) for process in sorted(set(talking.tolist()) - set(processes))]


def _devices(report: Report, process: int) -> tuple[list[int], int]:
    """The GPUs of a process that are ranks, and how many rows ran on its others."""
    gpu = report.gpu
    mine = gpu.process == process
    device = gpu.device[mine]
    used, count = np.unique(device, return_counts=True)
    if len(used) == 1:
        return used.tolist(), 0
    rows = report.links.gpu_row
    talking = np.unique(gpu.device[rows[gpu.process[rows] == process]])
    computing = np.unique(device[gpu.kind[mine] == KERNEL])
    chosen = talking if len(talking) else computing if len(computing) else used[:1]
    return chosen.tolist(), int(count[~np.isin(used, chosen)].sum())


def _share(report: Report, process: int, devices: Sequence[int], extra: int, *, alone: bool) -> list[Part]:
    gpu, launches, nvtx = report.gpu, report.launches, report.nvtx
    nccl = np.flatnonzero(nvtx.nccl.process == process)
    others = np.flatnonzero(nvtx.others.process == process)
    from_start = shows_beginning(nvtx.nccl.take(nccl))
    members = members_of(nvtx.nccl.take(nccl))
    if len(devices) == 1:
        whole = alone and not extra
        mine = None if whole else np.flatnonzero((gpu.process == process) & (gpu.device == devices[0]))
        own = None if whole and (launches.process == process).all() else _launches_of(report, process, mine)
        known = with_log(members, report.log, process & THREAD_MASK, None)
        device = None if devices[0] < 0 else devices[0]
        return [Part(process, device, mine, own, nccl, others, tuple(known), from_start, extra)]
    parts = []
    owner = _owner_of_ranges(report, process, devices, nccl)
    threads = _threads(report, process)
    other_owner = np.array([threads.get(tid, -1) for tid in nvtx.others.tid[others].tolist()], np.int64)
    for device in devices:
        mine = np.flatnonzero((gpu.process == process) & (gpu.device == device))
        known = [member for member in members if member.device in (None, device)]
        known = with_log(known, report.log, process & THREAD_MASK, device)
        parts.append(
            Part(
                process,
                device,
                mine,
                _launches_of(report, process, mine),
                nccl[owner == device],
                others[(other_owner == device) | (other_owner == -1)],
                tuple(known),
                from_start,
                extra if device == devices[0] else 0,
            )
        )
    return parts


def _launches_of(report: Report, process: int, rows: Rows) -> Ints:
    """The launches of a process behind the given rows of the GPU table (all of its rows for None)."""
    launches, gpu = report.launches, report.gpu
    mine = np.flatnonzero(launches.process == process)
    wanted = gpu.correlation[gpu.process == process] if rows is None else gpu.correlation[rows]
    kept: Ints = mine[np.isin(launches.correlation[mine], wanted)]
    return kept


def _threads(report: Report, process: int) -> dict[int, int]:
    """The GPU on which a thread launched most, for threads that launched at all."""
    gpu, launches = report.gpu, report.launches
    rows = np.flatnonzero(gpu.process == process)
    launch = launch_of(launches, gpu, rows)
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    pairs, count = np.unique(np.stack([launches.tid[launch], gpu.device[rows]], axis=1), axis=0, return_counts=True)
    best: dict[int, tuple[int, int]] = {}
    for (tid, device), number in zip(pairs.tolist(), count.tolist(), strict=True):
        best[tid] = max(best.get(tid, (0, 0)), (number, device))
    total = {tid: int(count[pairs[:, 0] == tid].sum()) for tid in best}
    return {tid: device for tid, (number, device) in best.items() if 2 * number > total[tid]}


def _owner_of_ranges(report: Report, process: int, devices: Sequence[int], rows: Ints) -> npt.NDArray[np.int64]:
    """The GPU of each range of NCCL: that of its kernel, else of its payload, else of its thread, else the first."""
    gpu, links, nccl = report.gpu, report.links, report.nvtx.nccl
    by_link = {
        link: device
        for link, device in zip(links.gpu_link.tolist(), gpu.device[links.gpu_row].tolist(), strict=True)
        if link != NULL
    }
    threads = _threads(report, process)
    said = nccl.said["device"]
    owner = [
        by_link.get(link) if link in by_link else device if device in devices else threads.get(tid, devices[0])
        for link, device, tid in zip(
            links.of_range[rows].tolist(), said[rows].tolist(), nccl.tid[rows].tolist(), strict=True
        )
    ]
    return np.array(owner, np.int64)


def _without_gpu(report: Report, process: int) -> Part:
    nvtx = report.nvtx
    nccl = np.flatnonzero(nvtx.nccl.process == process)
    members = with_log(members_of(nvtx.nccl.take(nccl)), report.log, process & THREAD_MASK, None)
    return Part(
        process=process,
        device=None,
        gpu=np.empty(0, np.int64),
        launches=np.empty(0, np.int64),
        nccl=nccl,
        others=np.flatnonzero(nvtx.others.process == process),
        members=tuple(members),
        from_start=shows_beginning(nvtx.nccl.take(nccl)),
    )

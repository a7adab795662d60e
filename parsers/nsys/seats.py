"""The ranks of a report: which process and GPU each is, and which rows are its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from parsers.columns import NULL, Ints
from parsers.nsys.communicators import members_of, shows_beginning, with_log
from parsers.nsys.gpu import KERNEL, wide
from parsers.nsys.owners import THREAD_MASK
from parsers.nsys.places import Member
from parsers.nsys.work import launch_of

if TYPE_CHECKING:
    from parsers.nsys.build import Report


@dataclass(frozen=True)
class Part:
    """One rank's share of a report.

    Attributes:
        owner: number of its process.
        process: the process's global id without the thread's bits.
        device: CUDA device; None where the process used no GPU, or its number is not recorded.
        whole: whether all rows of the process are its own, on whatever GPU.
        nccl: its ranges of NCCL.
        others: its other ranges.
        members: its places in communicators.
        from_start: whether ``members`` is complete.
        left_out: rows of other GPUs of the process that belong to no rank.
    """

    owner: int
    process: int
    device: int | None
    whole: bool
    nccl: Ints
    others: Ints
    members: tuple[Member, ...]
    from_start: bool
    left_out: int = 0

    @property
    def pid(self) -> int:
        """The operating system's number of the process."""
        return self.process & THREAD_MASK

    def gpu_rows(self, report: Report) -> npt.NDArray[np.bool_]:
        """Its rows of the report's GPU table."""
        mine: npt.NDArray[np.bool_] = report.gpu.owner == self.owner
        return mine if self.whole else mine & (report.gpu.device == (-1 if self.device is None else self.device))


def find_seats(report: Report) -> list[Part]:
    """Divide a report by processes, and processes by the GPUs on which they communicate.

    A process that communicates on one GPU is one rank, whatever it touched on the others; one that communicates on
    several (as JAX does, and nccl-tests) is as many ranks. Where nothing communicates, every GPU that ran kernels is
    one. Processes without a GPU count where they called NCCL or an operator of communication.
    """
    nccl, others = report.nvtx.nccl, report.nvtx.others
    owners = np.unique(report.gpu.owner).tolist()
    parts = [part for owner in owners for part in _share(report, owner)]
    talking = np.concatenate([nccl.owner, others.owner[report.kinds.layer >= 0]])
    return parts + [_part(report, owner, None, whole=True) for owner in sorted(set(talking.tolist()) - set(owners))]


def _share(report: Report, owner: int) -> list[Part]:
    """The ranks of one process with GPUs."""
    gpu = report.gpu
    mine = gpu.owner == owner
    device = gpu.device[mine]
    used, count = np.unique(device, return_counts=True)
    if len(used) == 1:
        return [_part(report, owner, used[0], whole=True)]
    rows = report.links.gpu_row
    talking = np.unique(gpu.device[rows[gpu.owner[rows] == owner]])
    computing = np.unique(device[gpu.kind[mine] == KERNEL])
    chosen = talking if len(talking) else computing if len(computing) else used[:1]
    extra = int(count[~np.isin(used, chosen)].sum())
    if len(chosen) == 1:
        return [_part(report, owner, chosen[0], whole=False, left_out=extra)]
    return _several(report, owner, chosen.tolist(), extra)


def _part(report: Report, owner: int, device: int | None, *, whole: bool, left_out: int = 0) -> Part:
    nvtx, process = report.nvtx, report.owners.values[owner]
    nccl = np.flatnonzero(nvtx.nccl.owner == owner)
    members = with_log(members_of(nvtx.nccl.take(nccl)), report.log, process & THREAD_MASK, None)
    return Part(
        owner=owner,
        process=process,
        device=None if device is None or device < 0 else int(device),
        whole=whole,
        nccl=nccl,
        others=np.flatnonzero(nvtx.others.owner == owner),
        members=tuple(members),
        from_start=shows_beginning(nvtx.nccl.take(nccl)),
        left_out=left_out,
    )


def _several(report: Report, owner: int, devices: Sequence[int], extra: int) -> list[Part]:
    """The ranks of a process that communicates on several GPUs."""
    nvtx, process = report.nvtx, report.owners.values[owner]
    whole = _part(report, owner, None, whole=True)
    members = members_of(nvtx.nccl.take(whole.nccl))
    threads = _threads(report, owner)
    of_nccl = _owner_of_ranges(report, whole.nccl, devices, threads)
    of_others = np.array([threads.get(tid, -1) for tid in nvtx.others.tid[whole.others].tolist()], np.int64)
    return [
        Part(
            owner=owner,
            process=process,
            device=device,
            whole=False,
            nccl=whole.nccl[of_nccl == device],
            others=whole.others[(of_others == device) | (of_others == -1)],
            members=tuple(
                with_log(
                    [member for member in members if member.device in (None, device)],
                    report.log,
                    process & THREAD_MASK,
                    device,
                )
            ),
            from_start=whole.from_start,
            left_out=extra if device == devices[0] else 0,
        )
        for device in devices
    ]


def _threads(report: Report, owner: int) -> dict[int, int]:
    """The GPU on which a thread launched most, for threads that launched more than half of their work there."""
    gpu, launches = report.gpu, report.launches
    rows = np.flatnonzero(gpu.owner == owner)
    launch = launch_of(launches, gpu, rows)
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    columns = np.stack([wide(launches.tid, launch), wide(gpu.device, rows)], axis=1)
    pairs, count = np.unique(columns, axis=0, return_counts=True)
    best: dict[int, tuple[int, int]] = {}
    for (tid, device), number in zip(pairs.tolist(), count.tolist(), strict=True):
        best[tid] = max(best.get(tid, (0, 0)), (number, device))
    total = {tid: int(count[pairs[:, 0] == tid].sum()) for tid in best}
    return {tid: device for tid, (number, device) in best.items() if 2 * number > total[tid]}


def _owner_of_ranges(report: Report, rows: Ints, devices: Sequence[int], threads: dict[int, int]) -> Ints:
    """The GPU of each range of NCCL: that of its kernel, else of its payload, else of its thread, else the first."""
    gpu, links, nccl = report.gpu, report.links, report.nvtx.nccl
    by_link = dict(zip(links.gpu_link.tolist(), gpu.device[links.gpu_row].tolist(), strict=True))
    by_link.pop(NULL, None)
    said = zip(links.of_range[rows].tolist(), nccl.said["device"][rows].tolist(), nccl.tid[rows].tolist(), strict=True)
    owner = [
        by_link[link] if link in by_link else device if device in devices else threads.get(tid, devices[0])
        for link, device, tid in said
    ]
    return np.array(owner, np.int64)

"""Which rank each process and GPU of a report is, and what said so.

In this order: MPI's own ranks; the launcher's environment, where the report holds one process with a GPU (the
environment is that of nsys); the communicator that has all ranks in it; the file's name; the order of the GPUs of a
node, which is a guess, and called so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parsers.nsys.facts import RANK_SETTINGS, Facts
from parsers.nsys.owners import THREAD_MASK
from parsers.nsys.places import Member
from parsers.rank_identity import rank_from_path
from parsers.tables import RankIdentity

_NUMBERED = re.compile(r"_(?P<number>\d{1,5})(?P<end>_pqtdir|_arwdir|\.sqlite|\.arrows|\.nsys-rep)?\Z")

MPI, ENVIRONMENT, COMMUNICATOR, FILE_NAME, GPU_ORDER = "metadata", "metadata", "communicator", "file_name", "gpu_order"


@dataclass(frozen=True)
class Seat:
    """A process with one of its GPUs: what a rank is.

    Attributes:
        process: as in `parsers.nsys.gpu.GpuRows`.
        device: CUDA device; None where the process used no GPU.
        members: its places in communicators.
    """

    process: int
    device: int | None
    members: Sequence[Member] = ()

    @property
    def pid(self) -> int:
        """The operating system's number of the process."""
        return self.process & THREAD_MASK


def identities(seats: Sequence[Seat], facts: Facts, path: Path) -> tuple[list[RankIdentity], list[str]]:
    """The rank behind every seat of a report, and sentences on what was guessed or contradictory."""
    notes: list[str] = []
    ranks, source, world = _decide(seats, facts, path, notes)
    return [
        RankIdentity(
            rank=rank,
            rank_source=None if rank is None else source,
            world_size=world,
            host=facts.host,
            pid=seat.pid,
            device=seat.device,
            backend="nccl" if seat.members else None,
        )
        for seat, rank in zip(seats, ranks, strict=True)
    ], notes


Decision = tuple[list[int | None], str | None, int | None]


def _decide(seats: Sequence[Seat], facts: Facts, path: Path, notes: list[str]) -> Decision:
    by_mpi = [facts.mpi_rank.get(seat.process) for seat in seats]
    if all(rank is not None for rank in by_mpi) and len(set(by_mpi)) == len(seats):
        return by_mpi, MPI, facts.mpi_size
    alone = len(seats) == 1
    settings = _by_settings(facts) if alone else None
    if settings is not None:
        return [settings[0]], ENVIRONMENT, settings[1]
    named = _by_name(path) if alone else None
    launched = _by_torchrun(facts)
    by_comm = _by_communicator(seats, launched)
    if by_comm is not None:
        ranks, size = by_comm
        if named is None or ranks == [named]:
            return list(ranks), COMMUNICATOR, size
        notes.append(f"the file's name says rank {named}, its largest communicator rank {ranks[0]} of {size}")
    if named is not None:
        return [named], FILE_NAME, launched
    return _by_order(seats, facts, launched, notes)


def _by_settings(facts: Facts) -> tuple[int, int | None] | None:
    for rank_name, size_name in RANK_SETTINGS:
        if rank_name in facts.settings:
            rank, size = facts.settings[rank_name], facts.settings.get(size_name)
            return rank, size if size is not None and size > rank else None
    return None


def _by_torchrun(facts: Facts) -> int | None:
    """The number of ranks that torchrun was told to start, on all nodes."""
    nodes, each = facts.torchrun.get("nnodes", 1), facts.torchrun.get("nproc_per_node")
    return None if each is None else nodes * each


def _by_communicator(seats: Sequence[Seat], world: int | None) -> tuple[list[int], int] | None:
    """Ranks in the largest communicator, if it is the same on all seats and no two have the same place in it."""
    largest = [
        max(
            (m for m in seat.members if m.rank is not None and m.size is not None),
            key=lambda member: member.size or 0,
            default=None,
        )
        for seat in seats
    ]
    found = [(m.rank, m.size, m.name) for m in largest if m is not None and m.rank is not None and m.size is not None]
    if len(found) != len(seats) or not found or len({(size, name) for _, size, name in found}) != 1:
        return None
    ranks, size = [rank for rank, _, _ in found], found[0][1]
    if len(set(ranks)) != len(ranks) or size < 2 or (world is not None and world != size):
        return None
    return ranks, size


def _by_name(path: Path) -> int | None:
    """A rank in the file's name; a number at its end counts where files beside it are numbered from 0 in that way."""
    labelled = rank_from_path(path)
    if labelled is not None:
        return labelled
    match = _NUMBERED.search(path.name)
    if match is None:
        return None
    number = int(match["number"])

    def sibling(other: int) -> bool:
        text = str(other).zfill(len(match["number"]) if match["number"].startswith("0") else 0)
        return path.with_name(path.name[: match.start()] + "_" + text + (match["end"] or "")).exists()

    return number if sibling(0) and sibling(number - 1 if number else 1) else None


def _by_order(seats: Sequence[Seat], facts: Facts, world: int | None, notes: list[str]) -> Decision:
    """Launchers give the ranks of a node its GPUs in order."""
    on_gpu = [seat for seat in seats if seat.device is not None]
    if len(on_gpu) < 2 or len(on_gpu) != len(seats):
        return [None] * len(seats), None, world
    each = facts.torchrun.get("nproc_per_node")
    if facts.torchrun.get("nnodes", 1) > 1 and ("node_rank" not in facts.torchrun or each is None):
        notes.append("the ranks are not known: the job ran on several nodes, and nothing says which this is")
        return [None] * len(seats), None, world
    first = facts.torchrun.get("node_rank", 0) * (each or 0)
    order = sorted(range(len(seats)), key=lambda index: _place(seats[index], facts))
    places = {index: first + place for place, index in enumerate(order)}
    notes.append("the ranks are guessed from the order of the GPUs: nothing in the report says them")
    return [places[index] for index in range(len(seats))], GPU_ORDER, world


def _place(seat: Seat, facts: Facts) -> tuple[str, int, int]:
    gpu = facts.gpus.get((seat.process, seat.device or 0)) or facts.gpus.get((-1, seat.device or 0)) or {}
    return str(gpu.get("busLocation", "")), seat.device or 0, seat.pid

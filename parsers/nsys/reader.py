"""From an export of Nsight Systems to one `RankTrace` per rank."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from parsers.columns import NULL
from parsers.errors import InputError
from parsers.nsys.build import Report, rank_trace
from parsers.nsys.communicators import hash_name, log_of, members_of, with_log
from parsers.nsys.dynamic import nccl_version
from parsers.nsys.facts import Facts, captured_output, read_facts
from parsers.nsys.gpu import read_gpu, read_launches
from parsers.nsys.identity import Seat, identities
from parsers.nsys.marks import sort_out
from parsers.nsys.nvtx import NcclRanges, read_nccl, read_nvtx
from parsers.nsys.owners import THREAD_MASK, Owners
from parsers.nsys.places import Place
from parsers.nsys.seats import find_seats
from parsers.nsys.shares import divide
from parsers.nsys.store import Store
from parsers.nsys.work import link_work
from parsers.tables import RankTrace

FORMAT = "nsys"

_OWN_THREAD = re.compile(r"\[?NCCL[\] ]")  # "NCCL Progress 3", "NCCL Service 0" (src/proxy.cc ncclSetThreadName)


def read_store(store: Store, path: Path, name: str, file_bytes: int) -> list[RankTrace]:
    """Read an opened export.

    Args:
        store: its tables.
        path: where it is, for the rank in its name.
        name: as the user named it.
        file_bytes: its size.

    Returns:
        One `RankTrace` per rank (a process with one of its GPUs), by rank.

    Raises:
        InputError: the report holds neither work of a GPU nor ranges of communication.
    """
    owners = Owners(name)
    gpu = read_gpu(store, owners)
    launches = read_launches(store, gpu, owners)
    nvtx = read_nvtx(store, owners)
    facts = read_facts(store)
    log = log_of(captured_output(store), name)
    nvtx = replace(nvtx, nccl=_of_callers(nvtx.nccl, owners, facts))
    links = link_work(store, owners, gpu, launches, nvtx.nccl)
    report = Report(
        name=name,
        file_bytes=file_bytes,
        owners=owners,
        gpu=gpu,
        launches=launches,
        nvtx=nvtx,
        facts=facts,
        links=links,
        kinds=sort_out(nvtx.others, operators=not len(gpu.start)),
        log=log,
        nccl_version=nccl_version(store),
        faults=tuple(store.faults),
        cut=store.cut,
    )
    seats = find_seats(report)
    if not seats and store.faults:
        raise InputError(store.faults[0], path=name, hint="export the report again")
    if not seats:
        hint = "capture with: nsys profile --trace=cuda,nvtx --cuda-graph-trace=node"
        raise InputError("holds no work of a GPU and no ranges of NCCL or PyTorch", path=name, hint=hint)
    who, notes = identities([Seat(part.process, part.device, part.members) for part in seats], facts, path)
    shares = divide(report, seats)
    traces = [
        rank_trace(report, part, share, identity, notes)
        for part, share, identity in zip(seats, shares, who, strict=True)
    ]
    return sorted(traces, key=lambda trace: (trace.identity.rank is None, trace.identity.rank or 0))


def _of_callers(ranges: NcclRanges, owners: Owners, facts: Facts) -> NcclRanges:
    """The ranges without those of NCCL's own threads, which nsys's tracing of NCCL shows moving the data."""
    own = [key for key, name in facts.threads.items() if _OWN_THREAD.match(name)]
    mine = np.zeros(len(ranges.start), np.bool_)
    for process, tid in own:
        mine |= (ranges.owner == owners.number(process)) & (ranges.tid == tid)
    return ranges.take(np.flatnonzero(~mine)) if mine.any() else ranges


def read_places(store: Store, path: Path, name: str) -> list[Place]:
    """Only who is in which communicator: what the reports of a job need of each other before they are read.

    Args:
        store: the tables of the export.
        path: where it is, for the rank in its name.
        name: as the user named it.

    Returns:
        One entry per rank that called NCCL, as `read_store` would tell them apart.
    """
    owners = Owners(name)
    ranges = read_nccl(store, owners)
    facts, log = read_facts(store), log_of(captured_output(store), name)
    seats: list[Seat] = []
    used: list[frozenset[str]] = []
    for owner in np.unique(ranges.owner).tolist():
        own = ranges.take(np.flatnonzero(ranges.owner == owner))
        process = owners.values[owner]
        members = with_log(members_of(own), log, process & THREAD_MASK, None)
        found = sorted({member.device for member in members if member.device is not None})
        devices: list[int | None] = [*found] or [None]
        comms = np.unique(own.said["comm"])
        for device in devices:
            mine = [member for member in members if device is None or member.device in (None, device)]
            seats.append(Seat(process, device, mine))
            used.append(frozenset(hash_name(comm) for comm in comms[comms != NULL].tolist()))
    who, _ = identities(seats, facts, path)
    return [Place(identity, tuple(seat.members), names) for identity, seat, names in zip(who, seats, used, strict=True)]

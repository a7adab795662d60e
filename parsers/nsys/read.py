"""From an export of Nsight Systems to one `RankTrace` per rank."""

from __future__ import annotations

from pathlib import Path

from parsers.errors import InputError
from parsers.nsys.build import Report, rank_trace
from parsers.nsys.communicators import log_of
from parsers.nsys.dynamic import nccl_version
from parsers.nsys.facts import captured_output, read_facts
from parsers.nsys.gpu import Owners, read_gpu, read_launches
from parsers.nsys.identity import Seat, identities
from parsers.nsys.marks import sort_out
from parsers.nsys.nvtx import read_nvtx
from parsers.nsys.seats import find_seats
from parsers.nsys.shares import divide
from parsers.nsys.store import Store
from parsers.nsys.work import link_work
from parsers.tables import RankTrace

FORMAT = "nsys"


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
    owners = Owners()
    gpu = read_gpu(store, owners)
    launches = read_launches(store, gpu, owners)
    nvtx = read_nvtx(store, owners)
    facts = read_facts(store)
    log = log_of(captured_output(store), name)
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

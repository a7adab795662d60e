"""The tables of one rank from the columns of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parsers import tables
from parsers.columns import NULL, Columns, Ints, Lists, Names, whole_number
from parsers.kineto_comm import COMM_LAYERS
from parsers.nsys.communicators import groups_of, hash_name
from parsers.nsys.facts import Facts
from parsers.nsys.functions import CALL, INIT
from parsers.nsys.gpu import GpuRows, Launches
from parsers.nsys.marks import MARK_KINDS, STEP, Sorted, sizes_of, steps
from parsers.nsys.nvtx import Nvtx
from parsers.nsys.owners import Owners
from parsers.nsys.places import NsysWitness
from parsers.nsys.seats import Part
from parsers.nsys.shares import Shares
from parsers.nsys.work import NcclLinks
from parsers.tables import Health, RankIdentity, RankTrace

if TYPE_CHECKING:
    from parsers.nccl_log import NcclLog

NVTX_LAYER, REPLAY_LAYER = "nvtx", "gpu_nvtx"
_LAYERS = (*COMM_LAYERS, NVTX_LAYER, REPLAY_LAYER)
_FUSED = "ncclGroupEnd"
_PAYLOADS_SINCE = 2024  # release whose exports hold the payloads of NVTX ranges
# Where NCCL's count is what comes out, not what goes in (nccl.h).
_COUNTS_OUT = frozenset({"ncclReduceScatter", "ncclRecv", "ncclScatter"})

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Report:
    """One report, read."""

    name: str
    file_bytes: int
    owners: Owners
    gpu: GpuRows
    launches: Launches
    nvtx: Nvtx
    facts: Facts
    links: NcclLinks
    kinds: Sorted
    log: NcclLog | None
    nccl_version: str | None
    faults: tuple[str, ...]
    cut: bool


def rank_trace(report: Report, part: Part, shares: Shares, identity: RankIdentity, notes: Sequence[str]) -> RankTrace:
    """One rank of a report."""
    facts = report.facts
    others = report.nvtx.others
    nccl = report.nvtx.nccl
    number, start, dur = steps(others, part.others, nccl.start[part.nccl][nccl.kind[part.nccl] == CALL])
    step_table = Columns(tables.STEPS, {})
    step_table.add(len(number), {"number": number, "ts_ns": start + facts.base_ns, "dur_ns": dur})
    metadata: dict[str, object] = {
        "threads": {tid: name for (process, tid), name in facts.threads.items() if process == part.process}
    }
    known = {"baseTimeNanoseconds": facts.base_ns if facts.absolute else None, "nsys_version": facts.version}
    known["nccl_version"] = (report.log.version if report.log is not None else None) or report.nccl_version
    metadata |= {key: value for key, value in known.items() if value is not None}
    return RankTrace(
        path=report.name,
        format="nsys",
        identity=identity,
        gpu_events=shares.gpu_events,
        comm_records=_comm_records(report, part, shares),
        launches=shares.launches,
        cpu_marks=_cpu_marks(report, part),
        steps=step_table.table(),
        groups=groups_of(part.members, complete=part.from_start),
        health=_health(report, part, shares, notes),
        devices=_devices(facts),
        metadata=metadata,
        witness=NsysWitness(part.members, part.from_start, report.log),
    )


def _devices(facts: Facts) -> tuple[Mapping[str, object], ...]:
    """The GPUs of the machine, each once."""
    found = {str(gpu.get("uuid") or gpu.get("id")): gpu for gpu in facts.gpus.values()}
    return tuple(found[key] for key in sorted(found))


def _cpu_marks(report: Report, part: Part) -> pa.Table:
    others = report.nvtx.others
    rows = part.others[report.kinds.mark[part.others] >= 0]
    columns = Columns(tables.CPU_MARKS, {"kind": Names(MARK_KINDS), "name": Names(others.names)})
    columns.add(
        len(rows),
        {
            "ts_ns": others.start[rows] + report.facts.base_ns,
            "dur_ns": others.end[rows] - others.start[rows],
            "tid": others.tid[rows],
            "kind": report.kinds.mark[rows],
            "name": others.name[rows],
        },
    )
    return columns.table()


# -- communication


def _comm_records(report: Report, part: Part, shares: Shares) -> pa.Table:
    names, groups, dtypes = Names(), Names(), Names(report.nvtx.nccl.dtypes)
    dims = Lists(
        lambda raw: None if (found := sizes_of([raw.decode("utf-8", "replace")])[0]) is None else (found, False)
    )
    nothing = Lists(lambda _: None)
    shared: dict[str, Names | Lists] = {
        "layer": Names(_LAYERS),
        "name": names,
        "collective": Names(),
        "dtype": dtypes,
        "group_name": groups,
        "group_desc": Names(),
        "input_dims": dims,
        **dict.fromkeys(("in_split", "out_split", "group_ranks", "input_types", "concrete_inputs"), nothing),
    }
    columns = Columns(tables.COMM_RECORDS, shared)
    sizes = _group_sizes(report)
    for made in (
        _calls(report, part, names, groups, sizes),
        _replays(report, shares, names, groups, sizes),
        _operators(report, part, names, dims),
    ):
        columns.add(len(made["ts_ns"]), made)
    columns.reorder(np.argsort(columns.column("ts_ns"), kind="stable"))
    return columns.table()


def _group_sizes(report: Report) -> dict[int, int]:
    """Sizes of the communicators that the report saw being made, by hash."""
    nccl = report.nvtx.nccl
    made = np.flatnonzero((nccl.kind == INIT) & (nccl.said["color"] == NULL) & (nccl.said["comm"] != NULL))
    pairs = zip(nccl.said["comm"][made].tolist(), nccl.said["nranks"][made].tolist(), strict=True)
    sizes = {comm: size for comm, size in pairs if size > 0}
    if report.log is not None:
        columns = report.log.communicators.select(["comms_id", "size"]).to_pylist()
        sizes |= {row["comms_id"]: row["size"] for row in columns if row["comms_id"] is not None and row["size"]}
    return sizes


def _calls(report: Report, part: Part, names: Names, groups: Names, sizes: Mapping[int, int]) -> Arrays:
    """Calls of NCCL on the CPU; those that were recorded into a graph ran nothing and are left to its replays."""
    nccl = report.nvtx.nccl
    wanted = (nccl.kind == CALL) & (nccl.end != NULL) & ~report.links.captured
    rows = part.nccl[wanted[part.nccl]]
    return {
        "ts_ns": nccl.start[rows] + report.facts.base_ns,
        "dur_ns": nccl.end[rows] - nccl.start[rows],
        "tid": nccl.tid[rows],
        "layer": np.full(len(rows), _LAYERS.index(NVTX_LAYER), np.int32),
        "external_id": report.links.of_range[rows],
        **_said(report, rows, names, groups, sizes),
    }


def _replays(report: Report, shares: Shares, names: Names, groups: Names, sizes: Mapping[int, int]) -> Arrays:
    """Work replayed from a CUDA graph, with what was said when it was recorded into it."""
    links, replays = report.links, report.links.replays
    place = shares.place_of(replays.row)
    mine = np.flatnonzero(place >= 0)
    call = links.replay_call[mine]
    said = _said(report, call, names, groups, sizes)
    fused = links.replay_calls[mine] > 1  # several calls in one kernel: only what they have in common
    said["name"] = np.where(fused, names[_FUSED], said["name"])
    for name in ("message_bytes", "rank_arg", "seq", "in_nelems", "out_nelems"):
        said[name] = np.where(fused, NULL, said[name])
    return {
        "ts_ns": replays.start[mine] + report.facts.base_ns,
        "dur_ns": replays.dur[mine],
        "layer": np.full(len(mine), _LAYERS.index(REPLAY_LAYER), np.int32),
        "device": np.where(replays.device[mine] < 0, NULL, replays.device[mine]),
        "stream": replays.stream[mine],
        "correlation": replays.correlation[mine],
        "gpu_event": place[mine],
        **said,
    }


def _said(report: Report, rows: Ints, names: Names, groups: Names, sizes: Mapping[int, int]) -> Arrays:
    """What the payloads of calls say."""
    nccl = report.nvtx.nccl
    name_codes = np.array([*(names[name] for name in nccl.names), -1], np.int64)
    comms, which = np.unique(nccl.said["comm"][rows], return_inverse=True)
    group_codes = [-1 if comm == NULL else groups[hash_name(comm)] for comm in comms.tolist()]
    size = [sizes.get(comm, NULL) for comm in comms.tolist()]
    out = np.array([*(name in _COUNTS_OUT for name in nccl.names), False])[nccl.name[rows]]
    count = nccl.said["count"][rows]
    return {
        "name": name_codes[nccl.name[rows]],
        "dtype": nccl.dtype[rows],
        "group_name": np.array([*group_codes, -1], np.int64)[which],
        "group_size": np.array([*size, NULL], np.int64)[which],
        "message_bytes": nccl.said["bytes"][rows],
        "rank_arg": nccl.said["arg"][rows],
        "seq": nccl.said["seq"][rows],
        "in_nelems": np.where(out, NULL, count),
        "out_nelems": np.where(out, count, NULL),
    }


def _operators(report: Report, part: Part, names: Names, dims: Lists) -> Arrays:
    """PyTorch's operators and annotations of communication."""
    others = report.nvtx.others
    rows = part.others[report.kinds.layer[part.others] >= 0]
    name_codes = np.array([*(names[name] for name in others.names), -1], np.int64)
    texts = [text.encode() for text in others.size_texts]
    dim_codes = np.array([*dims.codes(texts).tolist(), -1], np.int64)
    return {
        "ts_ns": others.start[rows] + report.facts.base_ns,
        "dur_ns": others.end[rows] - others.start[rows],
        "tid": others.tid[rows],
        "layer": report.kinds.layer[rows],
        "name": name_codes[others.name[rows]],
        "input_dims": dim_codes[others.sizes[rows]],
    }


# -- what was wrong


def _health(report: Report, part: Part, shares: Shares, notes: Sequence[str]) -> Health:
    gpu, nccl, facts = report.gpu, report.nvtx.nccl, report.facts
    said = [*report.faults, *facts.lost, *notes]
    said += [f"{count} GPU rows set aside: {reason}" for reason, count in gpu.quarantined.items()]
    if shares.graphs:
        said.append(
            f"{shares.graphs} launches of CUDA graphs hide the kernels in them: capture with --cuda-graph-trace=node"
        )
    without_end = int(((nccl.end == NULL) & (nccl.kind == CALL))[part.nccl].sum())
    if without_end:
        said.append(f"{without_end} calls of NCCL were still open when the capture ended")
    if nccl.unknown_payloads:
        said.append(f"{nccl.unknown_payloads} payloads of NCCL have no known form")
    if (nccl.kind[part.nccl] == CALL).any() and not nccl.has_payload:
        said.append(_how_to_get_sizes(facts.version))
    if report.links.by_order:
        said.append(f"{report.links.by_order} kernels were matched with their calls by their order alone")
    if part.left_out:
        said.append(f"{part.left_out} rows of other GPUs of process {part.pid} left out: it does not communicate there")
    return Health(
        complete=not report.cut,
        file_bytes=report.file_bytes,
        events=gpu.read + report.launches.read + report.nvtx.read,
        quarantined=sum(gpu.quarantined.values()),
        notes=tuple(said),
    )


def _how_to_get_sizes(version: str | None) -> str:
    year = whole_number((version or "").split(".", 1)[0])
    if year is not None and year < _PAYLOADS_SINCE:
        return (
            f"nsys {year} does not export the sizes of NCCL's calls: export with a newer one and --include-blobs=true"
        )
    return "the sizes of NCCL's calls were not exported: export with --include-blobs=true --include-json=true"


__all__ = ["STEP", "Report", "rank_trace"]

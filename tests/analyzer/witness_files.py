"""What a job leaves besides its traces, made from these: NCCL's logs and Flight Recorder's dumps of the same run."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heuristics.label import label
from heuristics.labelled import LabelledRank
from parsers import read
from tests.parsers.flight_dumps import as_pickle, dump, entry

_TYPES = {"int8": 0, "uint8": 1, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "bfloat16": 9}
_C10 = {"float32": "Float", "bfloat16": "BFloat16", "int64": "Long", "int32": "Int", "float16": "Half"}
_NAMES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
}
_RECORDED = {
    "all_reduce": "all_reduce",
    "all_gather": "_all_gather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "broadcast": "broadcast",
}


@dataclass(frozen=True)
class Run:
    """A job as its traces show it.

    Attributes:
        ranks: labelled, by rank.
        hosts: by rank.
        pids: by rank.
    """

    ranks: Mapping[int, LabelledRank]
    hosts: Mapping[int, str] = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, per_host: int | None = None) -> Run:
        """Read the traces of a folder; hosts are those of the traces, else ``per_host`` ranks share one."""
        ranks = {}
        for path in sorted(folder.glob("rank*.json*")):
            rank = label(read(path)[0])
            assert rank.trace.identity.rank is not None
            ranks[rank.trace.identity.rank] = rank
        hosts = {r: one.trace.identity.host or f"node{r // (per_host or 8)}" for r, one in ranks.items()}
        return cls(ranks, hosts, {r: one.trace.identity.pid or 1000 + r for r, one in ranks.items()})

    def groups(self, rank: int) -> list[tuple[int, dict[str, Any]]]:
        """Row and description of the groups of several ranks."""
        rows = self.ranks[rank].groups.to_pylist()
        return [(i, row) for i, row in enumerate(rows) if row["ranks"] and len(row["ranks"]) > 1]


def write_logs(
    run: Run,
    folder: Path,
    *,
    network: str = "IB",
    one_file: bool = False,
    calls: bool = True,
    scale: int = 1,
    cut_group: int | None = None,
) -> list[Path]:
    """``NCCL_DEBUG_FILE=%h.%p``: one file per process, or all in one.

    Args:
        run: the job.
        folder: where to.
        network: the layer of the devices between hosts: ``IB`` or ``RoCE``; ``Socket`` for none.
        one_file: all processes in one file.
        calls: with the lines of ``NCCL_DEBUG_SUBSYS=COLL``.
        scale: the counts of calls are multiplied by it: another job.
        cut_group: say that communicators of this size have one rank more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[Path, list[str]] = {}
    for rank in run.ranks:
        name = "nccl.log" if one_file else f"nccl.{run.hosts[rank]}.{run.pids[rank]}.log"
        written.setdefault(folder / name, []).extend(_log(run, rank, network, calls, scale, cut_group))
    for path, lines in written.items():
        path.write_text("\n".join(lines) + "\n")
    return list(written)


def _log(run: Run, rank: int, network: str, calls: bool, scale: int, cut_group: int | None) -> list[str]:
    host, pid = run.hosts[rank], run.pids[rank]
    device = [r for r in sorted(run.hosts) if run.hosts[r] == host].index(rank)
    start = f"{host}:{pid}:{pid} [{device}] NCCL INFO"
    lines = [f"{start} NCCL version 2.27.5+cuda12.8"]
    if network == "Socket":
        lines.append(f"{start} NET/Socket : Using [0]eth0:10.0.0.1<0>")
    else:
        lines.append(f"{start} NET/IB : Using [0]mlx5_0:1/{network} [RO]; OOB eth0:10.0.0.1<0>")
    pointers = {}
    for number, (row, group) in enumerate(run.groups(rank)):
        ranks = group["ranks"]
        pointers[row] = f"0x{0x7F00_0000 + number * 0x1000:x}"
        place, size = ranks.index(rank), len(ranks) + (1 if cut_group == len(ranks) else 0)
        comm_id = f"0x{zlib.crc32(repr((group['name'], ranks)).encode()):08x}0001"
        init = (
            f"{start} ncclCommInitRankConfig comm {pointers[row]} rank {place} nranks {size} cudaDev {device} "
            f"nvmlDev {device} busId {device + 1}000 commId {comm_id} - Init"
        )
        lines += [f"{init} START", f"{start} NVLS multicast support is available on dev {device}"]
        after = ranks[(place + 1) % len(ranks)]
        way = "via P2P/CUMEM"
        if run.hosts[after] != host:
            way = f"[send] via NET/{'Socket' if network == 'Socket' else 'IB'}/0"
            way += "" if network == "Socket" else "/GDRDMA"
        lines.append(f"{start} Channel 00/0 : {place}[{device}] -> {(place + 1) % len(ranks)}[0] {way}")
        lines.append(f"{init} COMPLETE")
    return lines + (_calls(run.ranks[rank], start, pointers, scale) if calls else [])


def _calls(rank: LabelledRank, start: str, pointers: Mapping[int, str], scale: int) -> list[str]:
    groups = rank.groups.to_pylist()
    lines = []
    for number, row in enumerate(rank.collectives.to_pylist()):
        if row["primitive"] not in _NAMES or row["group"] not in pointers or row["in_nelems"] is None:
            continue
        count = min(row["in_nelems"], row["out_nelems"]) * scale
        lines.append(
            f"{start} {_NAMES[row['primitive']]}: opCount {number:x} sendbuff 0x7f10 recvbuff 0x7f20 count {count} "
            f"datatype {_TYPES[row['dtype']]} op 0 root 0 comm {pointers[row['group']]} "
            f"[nranks={len(groups[row['group']]['ranks'])}] stream 0x55"
        )
    return lines


def write_dumps(
    run: Run,
    folder: Path,
    *,
    missing: int | None = None,
    scale: int = 1,
    other_members: Mapping[int, Sequence[int]] | None = None,
) -> list[Path]:
    """``comm_lib_trace_rank_<r>``, a pickle per rank.

    Args:
        run: the job.
        folder: where to.
        missing: a rank that does not come to its last collective, in which the others of the group wait.
        scale: the sizes of calls are multiplied by it: another job.
        other_members: by rank, what is said of the members of its first group of two.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    last = _entries(run.ranks[missing], dict(_named(run, missing)), scale)[-1] if missing is not None else None
    for rank, one in run.ranks.items():
        groups = _named(run, rank)
        if other_members and rank in other_members:
            pair = next(name for name, (_, ranks) in groups.items() if len(ranks) == 2)
            groups[pair] = (groups[pair][0], list(other_members[rank]))
        path = folder / f"comm_lib_trace_rank_{rank}"
        entries = _entries(one, groups, scale)
        if last is not None and missing in groups.get(last["process_group"][0], ("", ()))[1]:
            same = [i for i, e in enumerate(entries) if _key(e) == _key(last)]
            entries = entries[: same[0]] if rank == missing else entries[: same[0] + 1]
            if rank != missing:
                entries[-1] |= {"state": "started", "retired": False}
        path.write_bytes(as_pickle(dump(entries, groups)))
        paths.append(path)
    return paths


def _named(run: Run, rank: int) -> dict[str, tuple[str, Sequence[int]]]:
    return {g["name"]: (g["desc"] or "", g["ranks"]) for _, g in run.groups(rank)}


def _key(said: Mapping[str, Any]) -> tuple[str, int]:
    return said["process_group"][0], said["collective_seq_id"]


def _entries(one: LabelledRank, groups: Mapping[str, tuple[str, Sequence[int]]], scale: int) -> list[dict[str, Any]]:
    names = one.groups.column("name").to_pylist()
    found = []
    for row in one.collectives.to_pylist():
        name = names[row["group"]] if row["group"] is not None else None
        if row["primitive"] not in _RECORDED or name not in groups or row["seq"] is None:
            continue
        found.append(
            entry(
                _RECORDED[row["primitive"]],
                row["seq"],
                (name, groups[name][0]),
                given=[[row["in_nelems"] * scale]],
                taken=[[row["out_nelems"] * scale]],
                dtype=_C10[row["dtype"]],
                record_id=len(found),
            )
        )
    return found

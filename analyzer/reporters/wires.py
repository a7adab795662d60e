"""What connects the ranks, communicator by communicator: the section of a report."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.model_sources import WireRow, WiresDoc
from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Column, Facts, Section, Table, Words, without_empty
from analyzer.words import plural

_HOSTS = 8
"""Hosts that are listed; what is beyond is counted."""

_WIRES = {
    "nvlink": "NVLink",
    "xgmi": "xGMI",
    "pcie": "PCIe",
    "shm": "host memory",
    "ib": "InfiniBand",
    "roce": "RoCE",
    "efa": "EFA",
    "tcp": "TCP",
}
_LIBRARIES = {"nccl": "NCCL", "rccl": "RCCL"}
_SOURCES = {"nccl_inspector": "NCCL Inspector", "nccl_profiler": "a profiler plugin of NCCL"}


def wires_section(wires: WiresDoc | None) -> Section | None:
    """Communicators by size, hosts and wires, and what says so; None where no source tells."""
    if wires is None:
        return None
    columns = [
        Column("number", right=True),
        Column("ranks", right=True),
        Column("hosts", right=True),
        Column("inside a host"),
        Column("between hosts"),
        Column("as logged", spare=1),
        Column("NICs", spare=2),
    ]
    table = Table(columns, [_row(row) for row in wires.communicators])
    kept = ("number", "ranks", "hosts")
    return Section("Wires", _lead(wires), [without_empty(table, kept, fmt.DASH), Facts(list(_facts(wires)))])


def _lead(wires: WiresDoc) -> str:
    said = [_named_library(name) for name in wires.libraries]
    said += [_SOURCES[name] for name in wires.sources if name in _SOURCES]
    if wires.networks:
        said.append(f"network {', '.join(wires.networks)}")
    if wires.hosts:
        ranks = sum(len(ranks) for ranks in wires.hosts.values())
        said.append(f"{plural(ranks, 'rank')} on {plural(len(wires.hosts), 'host')} in the log")
    return "; ".join(said)


def _named_library(name: str) -> str:
    kind, _, version = name.partition(" ")
    return f"{_LIBRARIES.get(kind, kind)} {version}"


def _row(row: WireRow) -> list[str]:
    alone = row.size == 1
    return [
        f"{row.communicators:,}",
        fmt.DASH if row.size is None else f"{row.size:,}",
        fmt.DASH if row.nodes is None else f"{row.nodes:,}",
        "no other rank" if alone else _wire(row.intra, unused=row.link == "inter_node"),
        "" if alone else _between(row),
        ", ".join(row.transports) or fmt.DASH,
        fmt.ranks(row.nics, 4) if row.nics else fmt.DASH,
    ]


def _wire(wire: str | None, *, unused: bool) -> str:
    if wire is None:
        return "" if unused else "not known"
    return _WIRES.get(wire, wire)


def _between(row: WireRow) -> str:
    wire = _wire(row.inter, unused=row.link == "intra_node")
    return f"{wire}, GPUDirect RDMA" if row.gpudirect_rdma else wire


def _facts(wires: WiresDoc) -> Iterator[tuple[str, Words]]:
    label = "hosts"
    for host, ranks in list(wires.hosts.items())[:_HOSTS]:
        what = "rank" if len(ranks) == 1 else "ranks"
        yield label, f"{host}: {f'{what} {fmt.ranks(ranks)}' if ranks else 'ranks not known'}"
        label = ""
    if len(wires.hosts) > _HOSTS:
        yield "", f"and {len(wires.hosts) - _HOSTS} more"
    if wires.settings:
        yield "set", ", ".join(f"{name}={'|'.join(values)}" for name, values in wires.settings.items())
    sentences = dict.fromkeys(sentence for row in wires.communicators for sentence in row.evidence if row.size != 1)
    label = "because"
    for sentence in sentences:
        yield label, sentence
        label = ""
    borrowed = sum(row.unlogged for row in wires.communicators)
    if borrowed:
        logged = sum(row.communicators for row in wires.communicators if row.size != 1)
        said = f"no connection of {borrowed} of {logged} communicators is logged: others of the job speak for them"
        yield "note", said

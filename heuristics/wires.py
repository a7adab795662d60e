"""Over which wire ranks are connected, as the logs of NCCL or RCCL show it.

A log says how two ranks are connected (memory of the other GPU, host memory, a network device), not what the copper is.
Between GPUs of a node the path class that NCCL prints tells NVLink from PCIe, and so do things that exist only with the
one: reductions in the NVLink switch, a GPU registered with a switch fabric, the chunk size NCCL takes where every path
is NVLink. Without any of these the wire is null. The network's layer comes from the list of its devices: a plugin
called IB drives RoCE as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from heuristics.links import INTER_NODE, INTRA_NODE, link_of, link_over

if TYPE_CHECKING:
    from parsers.nccl_log import NcclLog

_PATHS = {
    "NVL": "nvlink",
    "NVB": "nvlink",
    "XGMI": "xgmi",
    "PIX": "pcie",
    "PXB": "pcie",
    "PHB": "pcie",
    "SYS": "pcie",
}
"""Path classes (NCCL src/graph/topo.h `topoPathTypeStr`; RCCL prints XGMI for NVL) that are a wire."""

_LAYERS = {"IB": "ib", "RoCE": "roce", "Ethernet": "roce"}
_NVLINK_CHUNK = 1 << 19
"""NCCL_P2P_NVL_CHUNKSIZE (src/init.cc): taken on one node where all paths are NVLink, a fourth of it elsewhere."""

_FABRIC_COMPLETED = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED: the GPU is attached to an NVLink switch."""

_XGMI_ONLY = frozenset({"gfx942", "gfx950"})
"""MI300 and MI350: boards that connect all GPUs of a node by Infinity Fabric (AMD Instinct data sheets)."""


UNLOGGED = "no connection of this group is logged: judged by others of the same job"
"""Said of a group whose wires are those that its hosts use otherwise."""


@dataclass(frozen=True)
class GroupLinks:
    """The wires of one group.

    Attributes:
        link: ``intra_node``, ``inter_node`` or ``mixed``, as `heuristics.links.link_of`; null where hosts are unknown.
        intra: wire between its ranks of one node: ``nvlink``, ``xgmi``, ``pcie``, ``shm``, a network's name, or null.
        inter: wire between its nodes: ``ib``, ``roce``, ``tcp``, ``efa``, ``nvlink``, ..., or null.
        direct: whether the network reads GPU memory itself (GPUDirect RDMA); null without network links.
        evidence: what was seen, in sentences; for a null, why.
    """

    link: str | None
    intra: str | None
    inter: str | None
    direct: bool | None = None
    evidence: tuple[str, ...] = ()

    @property
    def link_type(self) -> str | None:
        """The contract's one word: the wire between nodes where the group spans some, else the one inside."""
        return self.intra if self.link == INTRA_NODE else self.inter


@dataclass
class Communicator:
    """One communicator, put together from its members: their hosts by global rank, and how many nodes it spans."""

    size: int
    counted: int | None = None  # nodes, as the library counts them
    members: dict[int | None, str] = field(default_factory=dict)

    @property
    def nodes(self) -> int | None:
        """The library's own count, else that of the hosts where all members are known."""
        if self.counted is None and len(self.members) == self.size:
            return len(set(self.members.values()))
        return self.counted

    @property
    def ranks(self) -> tuple[int, ...] | None:
        """Its global ranks, ascending; null where some are not known."""
        known = sorted(rank for rank in self.members if rank is not None)
        return tuple(known) if len(known) == self.size else None

    @property
    def link(self) -> str | None:
        """As `link_of`."""
        return link_over(self.size, self.nodes)


@dataclass(frozen=True, eq=False)
class Wires:
    """All that the logs of one job say about connections."""

    logs: tuple[NcclLog, ...]
    hosts: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, logs: Iterable[NcclLog]) -> Wires:
        """From the logs of one job, of one process each or of all."""
        every = tuple(dict.fromkeys(logs))
        hosts: dict[int, str] = {}
        for log in every:
            for row in log.processes.select(["rank", "host"]).to_pylist():
                if row["rank"] is not None:
                    hosts.setdefault(row["rank"], row["host"])
        return cls(every, MappingProxyType(hosts))

    @cached_property
    def _by_source(self) -> Mapping[int, list[dict[str, Any]]]:
        found: dict[int, list[dict[str, Any]]] = {}
        for row in self._rows:
            if row["src_rank"] is not None and row["dst_rank"] is not None:
                found.setdefault(row["src_rank"], []).append(row)
        return found

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return [row for log in self.logs for row in log.links.to_pylist()]

    @cached_property
    def _by_group(self) -> Mapping[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self._rows:
            found.setdefault(row["group"], []).append(row)
        return found

    @cached_property
    def communicators(self) -> Mapping[str, Communicator]:
        """By id, as in `NcclLog.communicators`."""
        place = {
            (row["host"], row["pid"]): row["rank"]
            for log in self.logs
            for row in log.processes.select(["host", "pid", "rank"]).to_pylist()
        }
        found: dict[str, Communicator] = {}
        for log in self.logs:
            for row in log.communicators.select(["group", "nodes", "size", "host", "pid"]).to_pylist():
                one = found.setdefault(row["group"], Communicator(row["size"]))
                one.counted = row["nodes"] if row["nodes"] is not None else one.counted
                one.members[place.get((row["host"], row["pid"]))] = row["host"]
        return found

    def _names(self, ranks: Sequence[int]) -> list[str]:
        """Communicators that can be the group of these ranks: of its size, and without any other rank."""
        inside = set(ranks)
        return [
            name for name, one in self.communicators.items() if one.size == len(inside) and one.members.keys() <= inside
        ]

    @cached_property
    def _inside(self) -> tuple[str | None, tuple[str, ...]]:
        return _inside_wire(self.logs)

    def group(self, ranks: Sequence[int] | None, name: str | None = None, link: str | None = None) -> GroupLinks:
        """The wires of one group.

        Args:
            ranks: its global ranks, null where not known.
            name: its communicator id as in `NcclLog.communicators`, where known.
            link: as `link_of`, where that is known from elsewhere.

        Returns:
            What the connections between its ranks show; where none of them was made, what the same hosts use otherwise.
        """
        names = (
            [name]
            if name is not None and name in self.communicators
            else self._names(ranks)
            if ranks is not None
            else []
        )
        counted = [self.communicators[n].link for n in names]
        link = link or link_of(ranks, None, self.hosts) or next((one for one in counted if one is not None), None)
        rows = [row for n in names for row in self._by_group.get(n, ())]
        if not rows and ranks is not None:
            inside = set(ranks)
            rows = [row for rank in ranks for row in self._by_source.get(rank, ()) if row["dst_rank"] in inside]
        said = []
        local, remote = self._apart(rows)
        if not rows and link is not None and self._rows:
            local, remote = self._whole_job
            said.append(UNLOGGED)
        intra, why_intra = (None, ()) if link == INTER_NODE else self._local_wire(local)
        inter, why_inter = (None, ()) if link == INTRA_NODE else _remote_wire(remote)
        direct = {row["gdr"] for row in remote if row["kind"] == "net"} if link != INTRA_NODE else set()
        return GroupLinks(link, intra, inter, all(direct) if direct else None, (*said, *why_intra, *why_inter))

    def connections(self, name: str) -> Sequence[Mapping[str, Any]]:
        """The rows of `NcclLog.links` that are a communicator's own."""
        return self._by_group.get(name, ())

    @cached_property
    def _whole_job(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return self._apart(self._rows)

    def _apart(self, rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Connections inside hosts, and those between them."""
        local: list[dict[str, Any]] = []
        remote: list[dict[str, Any]] = []
        for row in rows:
            (local if self._same_host(row) else remote).append(row)
        return local, remote

    def _same_host(self, row: Mapping[str, Any]) -> bool:
        """Whether both ends are on one host; of ends that did not log, networks lead to another host."""
        ends = [self.hosts.get(row[end]) if row[end] is not None else None for end in ("src_rank", "dst_rank")]
        if None in ends:
            return row["kind"] in ("p2p", "shm") and row["how"] != "MNNVL"
        return ends[0] == ends[1]

    def _local_wire(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str | None, tuple[str, ...]]:
        kinds = {row["kind"] for row in rows}
        if not kinds:
            return None, ("no connection inside a node is logged",)
        if kinds == {"shm"}:
            return "shm", ("ranks of one node exchange through host memory",)
        if "p2p" not in kinds:
            return _remote_wire(rows)
        if any(row["read"] for row in rows) and not self._set("NCCL_P2P_READ_ENABLE"):
            return "nvlink", ("the receiver reads (/read), which NCCL does over NVLink only",)
        wire, why = self._inside
        mixed = ("some pairs of one node exchange through host memory",) if "shm" in kinds else ()
        return wire, (*why, *mixed)

    def _set(self, name: str) -> bool:
        return any(name in log.settings for log in self.logs)


def links_of_group(logs: Iterable[NcclLog], ranks: Sequence[int] | None, name: str | None = None) -> GroupLinks:
    """`Wires.group` for one group; make a `Wires` where there are several."""
    return Wires.of(logs).group(ranks, name)


def _remote_wire(rows: Sequence[Mapping[str, Any]]) -> tuple[str | None, tuple[str, ...]]:
    wires = {_network(row) for row in rows}
    if not wires:
        return None, ("no connection between nodes is logged",)
    plugins = ", ".join(sorted({f"{row['kind']} {row['how']}" for row in rows}))
    if len(wires) > 1:
        named = ", ".join(sorted(wire or "unknown" for wire in wires))
        return None, (f"nodes are connected in several ways ({named})",)
    wire = next(iter(wires))
    if wire is None:
        return None, (f"nodes are connected by {plugins}; the log does not list its devices",)
    return wire, (f"nodes are connected by {plugins}",)


def _network(row: Mapping[str, Any]) -> str | None:
    """The wire behind a network connection."""
    how = row["how"] or ""
    if row["kind"] == "p2p":
        return "nvlink" if how == "MNNVL" else None
    if how == "Socket":
        return "tcp"
    if "Libfabric" in how or how.startswith("OFI"):
        return "efa"
    return _LAYERS.get(row["layer"] or "")


def _inside_wire(logs: Sequence[NcclLog]) -> tuple[str | None, tuple[str, ...]]:
    """The wire between GPUs of a node that reach each other's memory, from what exists only with one of them."""
    found: dict[str, list[str]] = {}
    for log in logs:
        for wire, sentence in _signs(log):
            if sentence not in found.setdefault(wire, []):
                found[wire].append(sentence)
    if len(found) == 1:
        wire, sentences = next(iter(found.items()))
        return wire, tuple(sentences)
    if not found:
        return None, ("GPUs reach each other's memory; the log does not say over NVLink or PCIe",)
    said = "; ".join(f"{wire}: {sentences[0]}" for wire, sentences in sorted(found.items()))
    return None, (f"signs of different wires ({said})",)


def _signs(log: NcclLog) -> Iterable[tuple[str, str]]:
    rows = log.communicators.to_pylist()
    fast = "xgmi" if log.library == "rccl" else "nvlink"
    hosts: dict[str, set[str]] = {}
    for row in rows:
        hosts.setdefault(row["group"], set()).add(row["host"])
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["group"]] = counts.get(row["group"], 0) + 1
    for row in rows:
        wire = _PATHS.get(row["path"] or "")
        if wire is not None:
            yield fast if wire == "nvlink" else wire, f"the ring's worst path between GPUs is {row['path']}"
        if row["nvls"]:
            yield "nvlink", "reductions in the NVLink switch are available"
        alone = row["nodes"] == 1 or (len(hosts[row["group"]]) == 1 and counts[row["group"]] == row["size"])
        settled = log.settings.keys() & {"NCCL_P2P_PCI_CHUNKSIZE", "NCCL_P2P_NET_CHUNKSIZE"}
        if alone and row["size"] > 1 and row["p2p_chunk_bytes"] == _NVLINK_CHUNK and not settled:
            yield fast, "NCCL takes the chunk size that it takes where all GPUs of a node are connected by it"
    for row in log.processes.select(["fabric_state", "architecture"]).to_pylist():
        if row["fabric_state"] == _FABRIC_COMPLETED:
            yield "nvlink", "the GPUs are registered with an NVLink switch fabric"
        if row["architecture"] in _XGMI_ONLY:
            yield "xgmi", f"GPUs of kind {row['architecture']} are connected by Infinity Fabric"

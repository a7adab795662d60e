"""Over which wire: whether a group stays inside a node, and what connects its GPUs there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from parsers.tables import RankIdentity

INTRA_NODE, INTER_NODE, MIXED = "intra_node", "inter_node", "mixed"

_BY_DEVICE = (
    # Modules on boards that connect every GPU of the node with every other (NVIDIA HGX, AMD Instinct data sheets).
    ("nvlink", re.compile(r"\b[AH][18]00-SXM|\bH[18]00 80GB HBM3|\bH(?:200|20)(?: SXM\w*)?$|\bG?B[23]00\b")),
    ("xgmi", re.compile(r"\bMI2[15]0X?\b|\bMI3[025][05][AX]\b")),
    # Cards that have no other connector. Cards that take bridges (A100 PCIe, H100 NVL) and boards that connect some
    # pairs only (V100) are not here.
    ("pcie", re.compile(r"\b(?:T4|L4|L40S?|A2|A16|L20|RTX [45]0\d\d)\b")),
)


class OfRank(Protocol):
    """Who a rank is and what its host has: a trace, or the summary of one."""

    @property
    def identity(self) -> RankIdentity:
        """Who wrote it."""

    @property
    def devices(self) -> Sequence[Mapping[str, object]]:
        """The GPUs of its host."""


@dataclass(frozen=True)
class Nodes:
    """Which ranks share a node.

    Attributes:
        gpus_per_node: ranks ``[k·g, (k+1)·g)`` share a node; null where not known.
        hosts: host name by rank, where the files say it.
        source: ``option``, ``hosts``, ``devices`` or ``none``: what said so.
    """

    gpus_per_node: int | None
    hosts: Mapping[int, str]
    source: str

    def link(self, ranks: Sequence[int] | None) -> str | None:
        """`link_of` a group."""
        return link_of(ranks, self.gpus_per_node, self.hosts)


def link_of(
    ranks: Sequence[int] | None, gpus_per_node: int | None, hosts: Mapping[int, str] | None = None
) -> str | None:
    """Whether a group of ranks stays inside a node.

    Args:
        ranks: global ranks of the group; null where not known.
        gpus_per_node: ranks per node, in rank order (torchrun and mpirun fill one node after the other).
        hosts: host name by rank; used where it names every rank of the group, before ``gpus_per_node``.

    Returns:
        ``intra_node`` where all ranks share a node, ``inter_node`` where no two do, ``mixed`` where some do (a ring
        then crosses the network at the nodes' edges only); null where it is not known, and for groups of one.
    """
    if ranks is None or len(ranks) < 2:
        return None
    if hosts and all(rank in hosts for rank in ranks):
        nodes: set[object] = {hosts[rank] for rank in ranks}
    elif gpus_per_node:
        nodes = {rank // gpus_per_node for rank in ranks}
    else:
        return None
    return link_over(len(ranks), len(nodes))


def link_over(size: int | None, nodes: int | None) -> str | None:
    """`link_of` a group of so many ranks on so many nodes."""
    if size is None or nodes is None or size < 2:
        return None
    if nodes == 1:
        return INTRA_NODE
    return INTER_NODE if nodes == size else MIXED


def find_nodes(traces: Sequence[OfRank], gpus_per_node: int | None = None) -> Nodes:
    """Work out which ranks share a node.

    In this order: what the user says; host names, where every host that is named holds the same number of ranks and all
    ranks of the job are there; the number of GPUs in `deviceProperties`, where all files agree. One visible GPU says
    nothing: jobs often show each process its own only.

    Args:
        traces: the ranks of one job.
        gpus_per_node: the user's word.
    """
    hosts = {t.identity.rank: t.identity.host for t in traces if t.identity.rank is not None and t.identity.host}
    if gpus_per_node is not None:
        return Nodes(gpus_per_node, {}, "option")
    world = next((t.identity.world_size for t in traces if t.identity.world_size), None)
    if hosts and len(hosts) == world:
        sizes = set(Counter(hosts.values()).values())
        return Nodes(sizes.pop() if len(sizes) == 1 else None, hosts, "hosts")
    counts = {len(t.devices) for t in traces if t.devices}
    if len(counts) == 1 and (count := counts.pop()) > 1:
        return Nodes(count, hosts, "devices")
    return Nodes(None, hosts, "hosts" if len(hosts) > 1 else "none")


def link_type(link: str | None, device_names: Sequence[str]) -> str | None:
    """What connects the GPUs of a group: ``nvlink``, ``xgmi`` or ``pcie``; null unless certain.

    Only inside a node, and only where the product's name fixes the connector; the network between nodes does not show.

    Args:
        link: from `link_of`.
        device_names: names of the GPUs of the group's ranks, from `deviceProperties`.
    """
    if link != INTRA_NODE or not device_names:
        return None
    found = {next((kind for kind, name in _BY_DEVICE if name.search(device)), None) for device in device_names}
    return found.pop() if len(found) == 1 else None

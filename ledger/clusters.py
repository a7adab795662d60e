"""How fast the links of well-known clusters are, and a cluster from a name or a file.

Speeds are those of one GPU in one direction, decimal GB/s: half of what vendors print as "bidirectional".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ledger.errors import LedgerError
from ledger.files import Config, construct, names_a_file, read_mapping
from ledger.names import meant, spelled

LINK_TYPES = ("nvlink", "xgmi", "pcie", "ib", "roce", "efa", "tcp")


@dataclass(frozen=True)
class Link:
    """One kind of link, seen from one GPU.

    Attributes:
        kind: one of `LINK_TYPES`.
        gbps: line rate in one direction, GB/s: nothing is faster.
        busbw_gbps: what collectives reach at large payloads, as the bus bandwidth of nccl-tests; None: the line rate.
        latency_us: of an empty transfer, without its hops.
        hop_us: of each hop of a ring or tree.
        in_network: whether switches reduce and multicast, so that an all-reduce crosses a GPU's link once, not twice.
        source: where the figures come from.
    """

    kind: str
    gbps: float
    busbw_gbps: float | None = None
    latency_us: float = 0.0
    hop_us: float = 0.0
    in_network: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            LedgerError: a field is out of its range.
        """
        if self.kind not in LINK_TYPES:
            raise LedgerError(f"kind {self.kind!r} is not one of {', '.join(LINK_TYPES)}", key="kind")
        for name in ("gbps", "busbw_gbps"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise LedgerError(f"{name} must be a positive number, not {value!r}", key=name)
        for name in ("latency_us", "hop_us"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise LedgerError(f"{name} must not be negative, but is {getattr(self, name)!r}", key=name)

    @property
    def reached_gbps(self) -> float:
        """What collectives reach."""
        return self.gbps if self.busbw_gbps is None else self.busbw_gbps


@dataclass(frozen=True)
class Cluster:
    """A kind of cluster.

    Attributes:
        name: of the preset, or of the file.
        gpus_per_node: GPUs of one host.
        intra_node: the link inside a domain.
        inter_node: the network beyond it; the share of one GPU.
        gpus_per_domain: GPUs that ``intra_node`` joins; None: those of one host.
    """

    name: str
    gpus_per_node: int
    intra_node: Link
    inter_node: Link
    gpus_per_domain: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            LedgerError: a number of GPUs is not positive, or a domain is smaller than a host.
        """
        if self.gpus_per_node < 1:
            raise LedgerError(f"gpus_per_node must be at least 1, not {self.gpus_per_node}", key="gpus_per_node")
        if self.gpus_per_domain is not None and self.gpus_per_domain < self.gpus_per_node:
            raise LedgerError(
                f"gpus_per_domain {self.gpus_per_domain} is less than gpus_per_node {self.gpus_per_node}",
                key="gpus_per_domain",
            )

    @property
    def domain(self) -> int:
        """GPUs that the fast link joins."""
        return self.gpus_per_domain or self.gpus_per_node


_TUNING = "latencies: NCCL src/graph/tuning.cc (ring, LL)"
_TOPO = "busbw: links x GB/s of NCCL src/graph/topo.h"


def _nvlink(gbps: float, links: int, payload: float, sheet: str, *, sharp: bool) -> Link:
    """NVLink as NCCL reckons with it: ``links`` times ``payload`` GB/s of data each."""
    busbw = round(links * payload, 1)
    return Link("nvlink", gbps, busbw, 6.6, 0.6, sharp, f"{sheet}; {_TOPO}; {_TUNING}")


def _network(kind: str, gigabits: float, sheet: str, share: float = 1.0) -> Link:
    """A network of ``gigabits`` Gb/s per GPU; NCCL reckons with the line rate."""
    return Link(kind, gigabits / 8, None if share == 1 else round(gigabits / 8 * share, 2), 6.6, 2.7, False, sheet)


_A100 = _nvlink(300, 12, 20.0, "NVIDIA A100 data sheet: NVLink 600 GB/s both ways", sharp=False)
_H100 = _nvlink(450, 18, 20.6, "NVIDIA H100 data sheet: NVLink 900 GB/s both ways, NVLink SHARP", sharp=True)
_H200 = _nvlink(450, 18, 20.6, "NVIDIA H200 data sheet: NVLink 900 GB/s both ways, NVLink SHARP", sharp=True)
_B200 = _nvlink(900, 18, 40.1, "NVIDIA DGX B200 data sheet: NVLink 14.4 TB/s over 8 GPUs both ways", sharp=True)
_B300 = _nvlink(900, 18, 40.1, "NVIDIA DGX B300 data sheet: NVLink 14.4 TB/s over 8 GPUs both ways", sharp=True)
_GB200 = _nvlink(900, 18, 40.1, "NVIDIA GB200 NVL72 data sheet: NVLink 130 TB/s over 72 GPUs both ways", sharp=True)
_GB300 = _nvlink(900, 18, 40.1, "NVIDIA GB300 NVL72 data sheet: NVLink 130 TB/s over 72 GPUs both ways", sharp=True)
_V100 = _nvlink(150, 6, 20.0, "NVIDIA V100 data sheet: NVLink 300 GB/s both ways", sharp=False)
_MI300X = Link(
    "xgmi",
    448,
    336,
    6.6,
    0.6,
    False,
    "AMD, Understanding RCCL Bandwidth and xGMI Performance on MI300X (2025): 7 links of 64 GB/s, 48 of them usable; "
    + _TUNING,
)
_MI325X = dataclasses.replace(_MI300X, source="AMD MI325X data sheet: the links of MI300X; " + _MI300X.source)
_MI355X = Link("xgmi", 537.6, None, 6.6, 0.6, False, "AMD MI355X data sheet: 7 links of 153.6 GB/s both ways")
_L40S = Link("pcie", 32, None, 6.6, 1.0, False, "NVIDIA L40S data sheet: PCIe Gen4 x16, 64 GB/s both ways")
_H100_PCIE = Link("pcie", 64, None, 6.6, 1.0, False, "NVIDIA H100 data sheet: PCIe Gen5, 128 GB/s both ways")

_EFA = "AWS EC2, accelerated computing instances: {} Gbps of EFA over {} GPUs"
_GCP = "Google Cloud, Networking and GPU machines: {}"


def _presets() -> tuple[Cluster, ...]:
    ndr = _network("ib", 400, "NVIDIA DGX H100/H200/B200 data sheets: 400 Gb/s InfiniBand per GPU (ConnectX-7, NDR)")
    hdr = _network("ib", 200, "NVIDIA DGX A100 data sheet: 200 Gb/s InfiniBand per GPU (ConnectX-6, HDR)")
    xdr = _network("ib", 800, "NVIDIA DGX B300 and GB300 NVL72 data sheets: 800 Gb/s per GPU (ConnectX-8, XDR)")
    roce400 = _network("roce", 400, "400 Gb/s Ethernet per GPU, as in Meta's 24k-GPU clusters (2024)")
    roce200 = _network("roce", 200, "200 Gb/s Ethernet per GPU (ConnectX-6)")
    edr = _network("ib", 50, "NVIDIA DGX-1 V100 data sheet: 4 x 100 Gb/s InfiniBand (EDR) for 8 GPUs")
    plain = _network("tcp", 12.5, "100 Gb/s Ethernet for 8 GPUs")
    gcp = "8 ConnectX-7 with 3,200 Gbps for 8 GPUs"
    return (
        Cluster("v100-edr", 8, _V100, edr),
        Cluster("a100-hdr", 8, _A100, hdr),
        Cluster("a100-roce", 8, _A100, roce200),
        Cluster("h100-ndr", 8, _H100, ndr),
        Cluster("h100-roce", 8, _H100, roce400),
        Cluster("h200-ndr", 8, _H200, ndr),
        Cluster("h200-roce", 8, _H200, roce400),
        Cluster("b200-ndr", 8, _B200, ndr),
        Cluster("b200-roce", 8, _B200, roce400),
        Cluster("b300-xdr", 8, _B300, xdr),
        Cluster("gb200-nvl72-ndr", 4, _GB200, ndr, 72),
        Cluster("gb300-nvl72-xdr", 4, _GB300, xdr, 72),
        Cluster("mi300x-ndr", 8, _MI300X, _network("ib", 400, "Azure ND MI300X v5: 8 x 400 Gb/s InfiniBand (NDR)")),
        Cluster("mi300x-roce", 8, _MI300X, roce400),
        Cluster("mi325x-roce", 8, _MI325X, roce400),
        Cluster("mi355x-roce", 8, _MI355X, roce400),
        Cluster("h100-pcie-ndr200", 8, _H100_PCIE, _network("ib", 200, "200 Gb/s InfiniBand per GPU (NDR200)")),
        Cluster("l40s-100gbe", 8, _L40S, plain),
        Cluster("aws-p4d", 8, _A100, _network("efa", 50, _EFA.format("400", 8))),
        Cluster("aws-p5", 8, _H100, _network("efa", 400, _EFA.format("3,200", 8))),
        Cluster("aws-p5en", 8, _H200, _network("efa", 400, _EFA.format("3,200", 8))),
        Cluster("aws-p6-b200", 8, _B200, _network("efa", 400, _EFA.format("3,200", 8))),
        Cluster("aws-p6e-gb200", 4, _GB200, _network("efa", 400, _EFA.format("28,800", 72)), 72),
        Cluster("azure-nd-a100-v4", 8, _A100, hdr),
        Cluster("azure-nd-h100-v5", 8, _H100, ndr),
        Cluster("gcp-a3-high", 8, _H100, _network("tcp", 100, _GCP.format("4 x 200 Gbps for 8 GPUs, GPUDirect-TCPX"))),
        Cluster("gcp-a3-mega", 8, _H100, _network("tcp", 200, _GCP.format("1,600 Gbps for 8 GPUs, GPUDirect-TCPXO"))),
        Cluster("gcp-a3-ultra", 8, _H200, _network("roce", 400, _GCP.format(gcp))),
        Cluster("gcp-a4", 8, _B200, _network("roce", 400, _GCP.format(gcp))),
        Cluster("gcp-a4x", 4, _GB200, _network("roce", 400, _GCP.format("1,600 Gbps for 4 GPUs")), 72),
    )


CLUSTERS: Mapping[str, Cluster] = MappingProxyType({cluster.name: cluster for cluster in _presets()})
"""The presets, by name. Networks' latencies are those of NCCL's tuning model (ring, LL), like those of links."""

_ALIASES = MappingProxyType(
    {
        "a100": "a100-hdr",
        "h100": "h100-ndr",
        "h200": "h200-ndr",
        "b200": "b200-ndr",
        "b300": "b300-xdr",
        "gb200": "gb200-nvl72-ndr",
        "gb300": "gb300-nvl72-xdr",
        "mi300x": "mi300x-ndr",
        "mi325x": "mi325x-roce",
        "mi355x": "mi355x-roce",
        "v100": "v100-edr",
        "dgx-a100": "a100-hdr",
        "dgx-h100": "h100-ndr",
        "dgx-h200": "h200-ndr",
        "dgx-b200": "b200-ndr",
        "dgx-b300": "b300-xdr",
    }
)
"""What people call the usual one of several."""


def aliases_of(name: str) -> tuple[str, ...]:
    """Further names of a preset."""
    return tuple(short for short, known in _ALIASES.items() if known == name)


def load_cluster(name_or_path: str) -> Cluster:
    """The cluster meant by a preset's name or by the path of a YAML, JSON or TOML file.

    A file is a mapping of `Cluster`'s fields, with ``intra_node`` and ``inter_node`` as mappings of `Link`'s, and, if
    wanted, ``preset`` to start from a known cluster; then only what differs is given.

    Raises:
        LedgerError: unknown name, unreadable file, missing, unknown or ill-typed key; the message names it.
    """
    if not names_a_file(name_or_path):
        return cluster(name_or_path)
    config = read_mapping(Path(name_or_path), "cluster")
    try:
        return _from_fields(config, Path(name_or_path).stem)
    except LedgerError as error:
        raise LedgerError(f"{name_or_path}: {error.message}", key=error.key) from None


def cluster(name: str) -> Cluster:
    """The preset called ``name``, whatever its case; ``_`` and spaces count as ``-``.

    Raises:
        LedgerError: no such preset; the message offers the closest names.
    """
    key = spelled(name)
    known = _ALIASES.get(key, key)
    if known in CLUSTERS:
        return CLUSTERS[known]
    hint = meant(key, [*CLUSTERS, *_ALIASES], "`analyze clusters` lists the known ones")
    raise LedgerError(f"unknown cluster {name!r}; {hint}", key="cluster")


def _from_fields(config: Config, name: str) -> Cluster:
    fields: dict[str, Any] = dict(config)
    base = fields.pop("preset", None)
    start = cluster(str(base)) if base is not None else None
    for key in ("intra_node", "inter_node"):
        given = fields.get(key)
        if isinstance(given, Mapping):
            own = dataclasses.asdict(getattr(start, key)) if start is not None else {}
            if own and ("gbps" in given or "busbw_gbps" in given):
                own["source"] = ""
                own["busbw_gbps"] = None
            fields[key] = _link({**own, **given}, key)
        elif key in fields:
            raise LedgerError(f"{key} must be a mapping with kind and gbps, not {given!r}", key=key)
    known = {} if start is None else {f.name: getattr(start, f.name) for f in dataclasses.fields(Cluster)}
    return construct(Cluster, {**known, "name": name, **fields}, "")


def _link(fields: Config, key: str) -> Link:
    try:
        return construct(Link, fields, f"{key}.")
    except LedgerError as error:
        said = error.message if error.message.find(f"{key}.") >= 0 else f"{key}.{error.message}"
        raise LedgerError(said, key=error.key) from None

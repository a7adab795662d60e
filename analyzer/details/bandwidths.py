"""Bandwidth by payload: every call whose size and time are known, folded by kind and size."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from analyzer.details.model import Bandwidth, Missing
from analyzer.intervals import Floats, Ints
from analyzer.matching.collectives import SYMMETRIC
from analyzer.measured import Measured
from analyzer.pipeline import Examined
from analyzer.rows import bus_factor
from heuristics.arrays import NULL, codes, ints

PEAKS = (
    (re.compile(r"\b[H](?:100|200|20)\b|\bH100 80GB HBM3"), 450.0),
    (re.compile(r"\b[AH]800\b"), 200.0),
    (re.compile(r"\bA100"), 300.0),
    (re.compile(r"\bG?B[23]00\b"), 900.0),
    (re.compile(r"\bMI300[XA]\b"), 448.0),
    (re.compile(r"\bMI325X\b"), 448.0),
)
"""What a GPU's links to the others of its node carry in one direction, decimal GB/s: half the NVLink bandwidth of the
data sheets (A100 600, A800 and H800 400, H100, H200 and H20 900, B200 and GB200 1800 GB/s), seven Infinity Fabric links
of 64 GB/s each (MI300X and MI325X). Reductions inside the switch can exceed them."""

IN_NODE = ("nvlink", "xgmi")


def bandwidths(job: Examined) -> list[Bandwidth] | Missing:
    """Per kind of collective, the bus bandwidth at each size."""
    kinds: dict[tuple[str, str, int | None, str | None], list[tuple[Ints, Floats, bool]]] = {}
    for rank in job.ranks:
        for key, size, ns, told in _calls(rank):
            kinds.setdefault(key, []).append((size, ns, told))
    out = []
    for (dim, primitive, n, link), parts in kinds.items():
        factor = bus_factor(primitive, n)
        if factor is None:
            continue
        sizes, ns = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        unique, at = np.unique(sizes, return_inverse=True)
        rate = [float(np.median((sizes / ns)[at.ravel() == i])) * factor for i in range(len(unique))]
        out.append(
            Bandwidth(
                dim=dim,
                primitive=primitive,
                group_size=n,
                link=link,
                size_bytes=unique.astype(np.float64),
                busbw_gbps=np.array(rate),
                calls=tuple(np.bincount(at.ravel()).tolist()),
                waits_known=all(part[2] for part in parts),
                peak_gbps=_peak(job, dim, primitive, link),
            )
        )
    return out or Missing("no call has both a size and a time of its own")


def _calls(rank: Measured) -> Iterator[tuple[tuple[str, str, int | None, str | None], Ints, Floats, bool]]:
    """Size and transfer time of the calls of each kind; the whole time where waiting is not known."""
    table, line = rank.source.collectives, rank.source.line
    size, n, group = ints(table, "size_bytes"), ints(table, "group_size"), ints(table, "group")
    code, primitives = codes(table, "primitive")
    length = line.call_end - line.call_start
    told = rank.wait_ns != NULL
    ns = np.where(told, length - np.maximum(rank.wait_ns, 0), length)
    usable = rank.counted & (size > 0) & (ns > 0) & (code >= 0)
    dims = np.array([*rank.dims, ""], dtype=object)[:-1]
    links = np.array([*rank.links, None], dtype=object)[group]
    keys: dict[tuple[str, str, int | None, str | None], list[int]] = {}
    for row in np.flatnonzero(usable).tolist():
        key = (dims[row], primitives[code[row]], int(n[row]) if n[row] > 0 else None, links[row])
        keys.setdefault(key, []).append(row)
    for key, rows in keys.items():
        symmetric = key[1] in SYMMETRIC or key[1] == "send_recv"
        yield key, size[rows], ns[rows].astype(np.float64), bool(told[rows].all()) and symmetric


def _peak(job: Examined, dim: str, primitive: str, link: str | None) -> float | None:
    """Of the link inside the node, where all GPUs are of one kind that is known."""
    rows = [r for r in job.analysis.collectives if (r.dim, r.primitive, r.link) == (dim, primitive, link)]
    if not rows or any(r.link_type not in IN_NODE for r in rows):
        return None
    names = {str(d.get("name", "")) for rank in job.ranks for d in rank.source.devices}
    found = {next((peak for name, peak in PEAKS if name.search(device)), None) for device in names}
    return found.pop() if len(found) == 1 else None

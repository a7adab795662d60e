"""Bandwidth by payload: every call whose size and time are known, folded by kind and size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from analyzer.details.model import Bandwidth, Missing
from analyzer.intervals import Floats, Ints
from analyzer.matching.collectives import SYMMETRIC
from analyzer.measured import Measured
from analyzer.pipeline import Examined
from analyzer.rows import bus_factor
from heuristics.arrays import NULL, codes, ints
from ledger.clusters import load_cluster

GPUS = ("gb300", "gb200", "b300", "b200", "h200", "h100", "a100", "v100", "mi355x", "mi325x", "mi300x")
"""GPUs whose name says what joins them inside a node: aliases of presets of `ledger.clusters`, longest name first."""

MOST_SIZES = 32
"""Sizes of one kind that are kept apart; exchanges of tokens have a size of their own each time."""

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
        middle, at = _folded(sizes)
        rate = [float(np.median((sizes / ns)[at == i])) * factor for i in range(len(middle))]
        out.append(
            Bandwidth(
                dim=dim,
                primitive=primitive,
                group_size=n,
                link=link,
                size_bytes=middle,
                busbw_gbps=np.array(rate),
                calls=tuple(np.bincount(at).tolist()),
                waits_known=all(part[2] for part in parts),
                peak_gbps=_peak(job, dim, primitive, link),
            )
        )
    return out or Missing("no call has both a size and a time of its own")


def _folded(sizes: Ints) -> tuple[Floats, Ints]:
    """The distinct sizes, and which of them each call has; of many, the medians of equal shares of the range."""
    unique, at = np.unique(sizes, return_inverse=True)
    if len(unique) <= MOST_SIZES:
        return unique.astype(np.float64), at.ravel().astype(np.int64)
    edges = np.geomspace(unique[0], unique[-1], MOST_SIZES + 1)
    found, at = np.unique(np.searchsorted(edges[1:-1], sizes), return_inverse=True)
    at = at.ravel().astype(np.int64)
    return np.array([float(np.median(sizes[at == i])) for i in range(len(found))]), at


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
    """Line rate in one direction: of the cluster that was given, else of the GPUs' own links inside a node."""
    given = None if job.options.cluster is None else load_cluster(job.options.cluster)
    if given is not None:
        return {"intra_node": given.intra_node.gbps, "inter_node": given.inter_node.gbps}.get(link or "")
    rows = [r for r in job.analysis.collectives if (r.dim, r.primitive, r.link) == (dim, primitive, link)]
    if not rows or any(r.link_type not in IN_NODE for r in rows):
        return None
    names = {str(d.get("name", "")).lower() for rank in job.ranks for d in rank.source.devices}
    found = {next((gpu for gpu in GPUS if gpu in name), None) for name in names}
    gpu = found.pop() if len(found) == 1 else None
    return None if gpu is None else load_cluster(gpu).intra_node.gbps

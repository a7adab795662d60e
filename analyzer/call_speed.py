"""What each call should have taken, and the least it could have: from a cluster's links, or from the job's own calls.

In this order: the links of ``--cluster``; the line fitted to the job's transfers of that kind (`analyzer.links_fit`);
the median transfer (least: the shortest call) among all calls of the same primitive, group size, link and payload. A
call of unknown payload has nothing to be compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from analyzer.intervals import Floats, Ints
from analyzer.links_fit import Fit
from analyzer.measured import Measured
from heuristics.arrays import NULL, codes, ints
from heuristics.columns import distinct
from heuristics.links import Nodes
from ledger.clusters import Cluster
from ledger.transfer import MESSAGES, expected_us, least_us

CLUSTER, FITTED, MEASURED = SOURCES = ("cluster", "fitted", "measured")

Kind = tuple[str, str, int, str | None, int, int]
"""Dimension, primitive, ranks, link, payload, sent bytes."""


@dataclass(frozen=True, eq=False)
class CallSpeeds:
    """Per call of one rank.

    Attributes:
        expected_ns: float64, NaN where nothing says.
        least_ns: float64, NaN likewise.
        source: position in `SOURCES`, -1 for none.
    """

    expected_ns: Floats
    least_ns: Floats
    source: Ints


def call_speeds(
    ranks: Sequence[Measured], fits: Sequence[Fit], cluster: Cluster | None, nodes: Nodes
) -> list[CallSpeeds]:
    """What the calls of every rank should have taken.

    Args:
        ranks: measured ranks.
        fits: of the job's own transfers.
        cluster: link speeds, where the user gave them.
        nodes: which ranks share a host.
    """
    kinds = [_kinds(rank) for rank in ranks]
    measured = _measured(ranks, kinds) if cluster is None else {}
    lines = {(fit.dim, fit.primitive, fit.group_size, fit.link): fit for fit in fits}
    out = []
    for rank, (of_call, names) in zip(ranks, kinds, strict=True):
        places = _places(rank, cluster, nodes) if cluster is not None else None
        found = [_one(kind, lines, measured) for kind in names]
        table = np.array([*found, (np.nan, np.nan, NULL)], dtype=np.float64).reshape(-1, 3)
        expected, least, source = table[of_call].T
        if cluster is not None and places is not None:
            expected, least = _on_links(rank, cluster, places)
            source = np.where(np.isnan(expected), NULL, SOURCES.index(CLUSTER))
        out.append(CallSpeeds(expected, least, source.astype(np.int64)))
    return out


def _kinds(rank: Measured) -> tuple[Ints, list[Kind]]:
    """A number per call, -1 where it is not counted or its payload is not known, and what the numbers stand for."""
    table, line = rank.source.collectives, rank.source.line
    primitive, primitives = codes(table, "primitive")
    group, n = ints(table, "group"), ints(table, "group_size")
    size, sent = ints(table, "size_bytes"), ints(table, "sent_bytes")
    dims = sorted(set(rank.dims))
    dim = np.array([dims.index(d) for d in rank.dims], dtype=np.int64)
    of_call = np.full(len(dim), NULL, dtype=np.int64)
    known = rank.counted & (line.call_end > line.call_start) & (size != NULL) & (primitive >= 0)
    rows = np.flatnonzero(known)
    if not len(rows):
        return of_call, []
    columns = np.stack((dim, primitive, n, group, size, sent), axis=1)[rows]
    first, of_call[rows] = distinct(*columns.T)
    links = [*rank.links, None]
    kinds = columns[first].tolist()
    return of_call, [(dims[d], primitives[p], size_n, links[g], b, s) for d, p, size_n, g, b, s in kinds]


def _measured(ranks: Sequence[Measured], kinds: Sequence[tuple[Ints, list[Kind]]]) -> dict[Kind, tuple[float, float]]:
    """Median transfer and shortest call of each kind, over all ranks."""
    transfers: dict[Kind, list[Ints]] = {}
    shortest: dict[Kind, int] = {}
    for rank, (of_call, names) in zip(ranks, kinds, strict=True):
        if not rank.source.on_gpu:
            continue
        length = rank.source.line.call_end - rank.source.line.call_start
        order = np.argsort(of_call, kind="stable")  # not one look at all calls per kind: each may be of its own
        edges = np.searchsorted(of_call[order], np.arange(len(names) + 1))
        for kind, (begin, end) in zip(names, pairwise(edges.tolist()), strict=True):
            mine = order[begin:end]
            shortest[kind] = min(shortest.get(kind, int(length[mine].min())), int(length[mine].min()))
            known = mine[rank.wait_ns[mine] != NULL]
            transfers.setdefault(kind, []).append(length[known] - rank.wait_ns[known])
    out = {}
    for kind, parts in transfers.items():
        every = np.concatenate(parts)
        middle = float(np.median(every)) if len(every) else float(shortest[kind])
        out[kind] = (middle, min(float(shortest[kind]), float(every.min()) if len(every) else float("inf")))
    return out


def _one(
    kind: Kind, lines: dict[tuple[str, str, int, str | None], Fit], measured: dict[Kind, tuple[float, float]]
) -> tuple[float, float, int]:
    fit = lines.get(kind[:4])
    if fit is not None and kind[5] != NULL:
        moving = kind[5] / fit.busbw_gbps
        return fit.latency_us * 1000 + moving, moving, SOURCES.index(FITTED)
    if kind in measured:
        return *measured[kind], SOURCES.index(MEASURED)
    return np.nan, np.nan, NULL


def _places(rank: Measured, cluster: Cluster, nodes: Nodes) -> Ints:
    """Per group, the most of its ranks that share a fast domain; -1 where that is not known. Ends with a -1."""
    per_domain = _ranks_per_domain(cluster, nodes)
    out = []
    for members, link in zip(rank.source.groups.column("ranks").to_pylist(), rank.links, strict=True):
        if members:
            out.append(max(Counter(member // per_domain for member in members).values()))
        else:
            out.append({"intra_node": 1 << 30, "inter_node": 1}.get(link or "", NULL))
    return np.array([*out, NULL], dtype=np.int64)


def _ranks_per_domain(cluster: Cluster, nodes: Nodes) -> int:
    """Ranks in one fast domain: a job may use fewer GPUs of a host than it has."""
    per_node = nodes.gpus_per_node or cluster.gpus_per_node
    if nodes.source == "option":
        return per_node
    return max(per_node, per_node * cluster.domain // cluster.gpus_per_node)


def _on_links(rank: Measured, cluster: Cluster, places: Ints) -> tuple[Floats, Floats]:
    """Expected and least ns of each call on the links of a cluster."""
    table = rank.source.collectives
    primitive, primitives = codes(table, "primitive")
    group, n = ints(table, "group"), ints(table, "group_size")
    message = np.isin(primitive, [i for i, name in enumerate(primitives) if name in MESSAGES])
    # The receiver of a message sends nothing, and takes as long as the sender.
    sent = np.where(message, ints(table, "size_bytes"), ints(table, "sent_bytes"))
    k = places[group]
    columns = np.stack((primitive, n, k, sent), axis=1)
    first, kind = distinct(*columns.T)
    times = np.full((len(first), 2), np.nan)
    for i, (p, ranks, together, b) in enumerate(columns[first].tolist()):
        if p < 0 or ranks < 2 or b == NULL:
            continue
        name = primitives[p]
        if together == NULL and name not in MESSAGES:
            continue
        far, near = (min(max(together, 1), ranks), min(together, ranks)) if together != NULL else (1, 2)
        times[i] = (
            expected_us(cluster, name, ranks, far, b) * 1000,
            least_us(cluster, name, ranks, near, b) * 1000,
        )
    expected, least = times[kind].T
    return expected, least

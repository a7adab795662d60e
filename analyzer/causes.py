"""Why communication was exposed: every exposed nanosecond of every dimension is charged to exactly one cause.

A call that was exposed is first cut in two, waiting and transfer, where its arrivals are known. Waiting is the doing of
whoever came last; in a pipeline of the bubble, and in the first collective of a capture of the profilers, which do not
start at the same moment (`analyzer.capture_edge`). What remains is charged to the first cause that applies, from the
one that needs no opinion to the one that does; where arrivals are not known, a call that would be charged to latency or
design is first cut at what the shortest of its kind took (`analyzer.least_waits`), for the rest was waiting:

1. on the compute stream: nothing could run beside it, though it could on a stream of its own;
2. behind another collective: it stood in its stream until one of another group was done;
3. latency: its payload is too small for bandwidth to matter (of a CPU operator, which is waiting as well: undivided);
4. launched late: the GPU had run dry before the CPU asked for it, and it could have run beside compute;
5. slow link: the part of it beyond what the same payload takes on the other groups' links;
6. not prefetched: a parameter gather without compute beside it;
7. last bucket: gradients that were ready when nothing was left to compute;
8. by design: nothing in the step could have run beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer import intervals
from analyzer.intervals import Bools, Ints, apportion
from analyzer.least_waits import least_waits
from analyzer.measured import Measured
from analyzer.model import Exposure
from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.columns import distinct
from parsers.columns import distinct_values

WAIT, EDGE, BUBBLE, STREAM, SERIAL, LATENCY, LATE, LINK, PREFETCH, BUCKET, DESIGN, OTHER, UNDIVIDED = CAUSES = (
    "waiting for another rank",
    "waiting for a rank to begin recording",
    "pipeline bubble",
    "on the compute stream",
    "behind another collective",
    "latency of a small message",
    "launched late by the CPU",
    "slow link",
    "not prefetched",
    "last bucket",
    "on the critical path by design",
    "not beside any call",
    "waiting or moving data",
)

SLUGS = {
    WAIT: "waiting",
    EDGE: "capture_start",
    BUBBLE: "bubble",
    STREAM: "stream",
    SERIAL: "serialised",
    LATENCY: "latency",
    LATE: "late_launch",
    LINK: "slow_link",
    PREFETCH: "no_prefetch",
    BUCKET: "last_bucket",
    DESIGN: "by_design",
    OTHER: "unknown",
    UNDIVIDED: "undivided",
}
"""The causes as the document and the findings name them."""

BOUNDED = tuple(CAUSES.index(cause) for cause in (LATENCY, DESIGN))
"""Causes that say a call had to take as long as it did: not what it took longer than the shortest of its kind."""

SMALL_BYTES = 65_536
"""Payload up to which a collective's time does not depend on its size: the first plateau of nccl-tests on NVLink and
InfiniBand alike, where NCCL uses its LL protocol (nccl-tests, doc/PERFORMANCE.md; NCCL src/graph/tuning.cc)."""

QUEUED_NS = 5_000
"""Two kernels of one stream that are no farther apart than this ran back to back; a launch takes 2 to 5 us."""

HIDDEN = 0.5
"""A family of calls can be hidden when this share of its busy time is: then what is exposed of it is an exception."""

SERIAL_DIMS = ("tp", "cp", "ep", "pp")
"""Dimensions whose results the very next kernel needs, unless the trace shows otherwise."""

GATHERS = ("all_gather", "broadcast")
"""How parameters come to a rank; where it is known which, they can be asked for ahead of time."""

REDUCES = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True)
class Charge:
    """Exposed time of one dimension with one cause, µs per step, mean over ranks; they sum to the exposed time."""

    dim: str
    cause: str
    exposed_us: float


@dataclass(frozen=True, eq=False)
class _Pieces:
    """Stretches of communication with one dimension and one cause each; overlapping ones share time as calls do."""

    start: Ints
    end: Ints
    dim: Ints
    cause: Ints


def charges(
    ranks: Sequence[Measured], exposure: Exposure | None, each: Sequence[Mapping[tuple[str, str], float]]
) -> list[Charge]:
    """Charge the exposed time of each dimension to causes; rounded so that they sum to it to the nanosecond.

    Args:
        ranks: measured ranks.
        exposure: what is to be charged.
        each: of every rank, as `charged` has it.
    """
    timed = [rank for rank in ranks if rank.window.total > 0]
    if exposure is None or not timed:
        return []
    sums: dict[tuple[str, str], float] = {}
    for rank, of_rank in zip(ranks, each, strict=True):
        for key, ns in of_rank.items():
            sums[key] = sums.get(key, 0.0) + ns / rank.window.count / len(timed)
    out = []
    for dim, time in exposure.by_dimension.items():
        mine = {cause: ns for (d, cause), ns in sums.items() if d == dim and ns > 0}
        total = round(time.exposed_us * 1000)
        if not mine or not total:
            out += [Charge(dim, OTHER, time.exposed_us)] if total else []
            continue
        whole = apportion(np.array(list(mine.values())), total)
        out += [Charge(dim, cause, int(ns) / 1000) for cause, ns in zip(mine, whole, strict=True) if ns]
    return sorted(out, key=lambda c: -c.exposed_us)


def charged(rank: Measured, slower: Ints | None) -> dict[tuple[str, str], float]:
    """Exposed ns of one rank per (dimension, cause) over its whole window.

    Args:
        rank: measured rank.
        slower: per call, how much of its transfer is owed to a slow link; None for nothing.
    """
    if not rank.window.total:
        return {}
    dims = sorted({*rank.dims, "unknown"})
    pieces = _pieces(rank, dims, slower)
    parts, owner, keys = [], [], []
    for code in distinct_values(pieces.dim * len(CAUSES) + pieces.cause).tolist():
        dim, cause = divmod(code, len(CAUSES))
        mine = (pieces.dim == dim) & (pieces.cause == cause)
        parts.append(intervals.union(pieces.start[mine], pieces.end[mine]))
        owner.append(dim)
        keys.append((dims[dim], CAUSES[cause]))
    shares = intervals.share_in_two(parts, owner, rank.source.line.compute, rank.window.edges)
    return dict(zip(keys, shares.tolist(), strict=True))


def _pieces(rank: Measured, dims: Sequence[str], slower: Ints | None) -> _Pieces:
    """Every piece of communication, cut where waiting ends and where a slow link's extra time begins."""
    line = rank.source.line
    cause = cause_of_calls(rank)
    call = line.comm_call
    dim = np.array([dims.index(d) for d in rank.dims] + [dims.index("unknown")], dtype=np.int64)[call]
    at_edge = np.arange(len(cause)) == rank.edge_call
    bounded = np.where(np.isin(cause, BOUNDED) | at_edge, least_waits(rank), 0)
    waited = np.append(np.maximum(rank.wait_ns, 0) + bounded, 0)[call]
    until = np.append(line.call_start, 0)[call] + waited
    cut = np.where(call >= 0, np.clip(until, line.comm_start, line.comm_end), line.comm_start)
    extra = np.zeros(len(call), dtype=np.int64) if slower is None else np.append(slower, 0)[call]
    owed = np.clip(line.comm_end - extra, cut, line.comm_end)
    message = np.append(_is(*codes(rank.source.collectives, "primitive"), ("send_recv",)), False)[call]
    piped = (dim == (dims.index("pp") if "pp" in dims else NULL)) | ((dim == dims.index("unknown")) & message)
    of_wait = np.where(piped, CAUSES.index(BUBBLE), CAUSES.index(WAIT))
    of_wait[(call == rank.edge_call) & (call >= 0)] = CAUSES.index(EDGE)
    own = np.append(cause, CAUSES.index(OTHER))[call]
    # A receive whose send is not there waits for an unknown part of its time, most of it the bubble.
    own = np.where(piped & (np.append(rank.wait_ns, 0)[call] == NULL), of_wait, own)
    link = np.full(len(call), CAUSES.index(LINK))
    return _Pieces(
        start=np.concatenate((line.comm_start, cut, owed)),
        end=np.concatenate((cut, owed, line.comm_end)),
        dim=np.concatenate((dim, dim, dim)),
        cause=np.concatenate((of_wait, own, link)),
    )


def cause_of_calls(rank: Measured) -> Ints:
    """Which cause the transfer of each call is charged to if it is exposed: positions in `CAUSES`."""
    table = rank.source.collectives
    dims = np.array([*rank.dims, ""], dtype=object)[:-1]
    family, hideable = _families(rank)
    serial = np.isin(dims, SERIAL_DIMS) & ~hideable
    primitive, primitives = codes(table, "primitive")
    size = ints(table, "size_bytes")
    rules = (
        (~serial & _on_compute_stream(rank), STREAM),
        (_behind_another(rank, family), SERIAL),
        ((size != NULL) & (size <= SMALL_BYTES), LATENCY if rank.source.on_gpu else UNDIVIDED),
        (~serial & (_dry(rank) > QUEUED_NS) & _after_compute(rank), LATE),
        (~serial & _is(primitive, primitives, GATHERS), PREFETCH),
        (~serial & _is(primitive, primitives, REDUCES) & _tail(rank, family), BUCKET),
    )
    out = np.full(len(size), CAUSES.index(DESIGN), dtype=np.int64)
    for applies, cause in reversed(rules):
        out[applies] = CAUSES.index(cause)
    return out


def _is(code: Ints, values: Sequence[str], wanted: Sequence[str]) -> Bools:
    found: Bools = np.array([*(v in wanted for v in values), False], dtype=np.bool_)[code]
    return found


def _families(rank: Measured) -> tuple[Ints, Bools]:
    """A number per call of one primitive on one group, and whether compute mostly runs beside such calls."""
    table, line = rank.source.collectives, rank.source.line
    primitive, _ = codes(table, "primitive")
    if not len(primitive):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_)
    _, family = distinct(primitive, ints(table, "group"))
    beside = intervals.covered(line.compute, line.call_start, line.call_end).astype(np.float64)
    busy = np.bincount(family, weights=line.call_end - line.call_start)
    hidden = np.bincount(family, weights=beside)
    return family, (hidden >= HIDDEN * np.maximum(busy, 1))[family]


def _after_compute(rank: Measured) -> Bools:
    """Calls before which their step has computed: earlier there was something to run beside."""
    line, edges = rank.source.line, rank.window.edges
    row = np.searchsorted(edges[:, 0], line.call_start, side="right") - 1
    begun = np.where(row >= 0, edges[np.maximum(row, 0), 0], line.call_start)
    found: Bools = intervals.covered(line.compute, begun, line.call_start) > 0
    return found


def _tail(rank: Measured, family: Ints) -> Bools:
    """Calls of a family after the last of its step that compute followed: the buckets behind the backward pass."""
    line = rank.source.line
    edges = rank.window.edges[:, 0]
    step = np.searchsorted(edges, line.call_start, side="right")
    _, code = distinct(family, step)
    last = np.full(int(code.max()) + 1 if len(code) else 0, np.iinfo(np.int64).min)
    np.maximum.at(last, code, line.call_start)
    # Compute beside a call or after it means that more was to come; the optimizer's own work comes after them all.
    beside = intervals.covered(line.compute, line.call_start, line.call_end) > 0
    more = np.full(len(last), np.iinfo(np.int64).min)
    np.maximum.at(more, code[beside], line.call_start[beside])
    found: Bools = (line.call_start >= more[code]) | (line.call_start == last[code])
    return found


def _on_compute_stream(rank: Measured) -> Bools:
    """NCCL calls on a stream that also computes."""
    table = rank.source.collectives
    library, names = codes(table, "library")
    found: Bools = np.isin(ints(table, "stream"), rank.source.host.streams) & (library == code_of(names, "nccl"))
    return found


def _behind_another(rank: Measured, family: Ints) -> Bools:
    """Calls that began right after a call of another family on their stream, and had been launched before its end."""
    table, line = rank.source.collectives, rank.source.line
    stream, launch, group = ints(table, "stream"), ints(table, "launch_ts_ns"), ints(table, "group")
    rows = np.flatnonzero((line.call_end > line.call_start) & (stream != NULL))
    rows = rows[np.lexsort((line.call_start[rows], stream[rows]))]
    out = np.zeros(len(stream), dtype=np.bool_)
    if len(rows) < 2:
        return out
    now, before = rows[1:], rows[:-1]
    out[now] = (
        (stream[now] == stream[before])
        & (group[now] != group[before])
        & (family[now] != family[before])
        & (line.call_start[now] - line.call_end[before] <= QUEUED_NS)
        & (launch[now] != NULL)
        & (launch[now] < line.call_end[before])
    )
    return out


def _dry(rank: Measured) -> Ints:
    dry: Ints = rank.source.host.dry_ns
    return dry if len(dry) else np.full(rank.source.collectives.num_rows, NULL, dtype=np.int64)

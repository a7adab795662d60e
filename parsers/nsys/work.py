"""The GPU's side of NCCL: which rows are its work, when each was asked for, and which calls it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from parsers.columns import NULL, Ints
from parsers.nsys.functions import ANY_KERNEL, CALL, word_of_kernel
from parsers.nsys.gpu import CAPTURE_BEGINS, PEER, GpuRows, Launches, wide
from parsers.nsys.linking import Work, link
from parsers.nsys.nvtx import NcclRanges
from parsers.nsys.owners import PROCESS_SHIFT, THREAD_MASK, Owners
from parsers.nsys.schema import GRAPH_NODES
from parsers.nsys.store import Store, column

_LONGEST_CHAIN = 8


@dataclass(frozen=True)
class Replays:
    """Rows of the GPU table, taken out of it: `row` is their number there."""

    row: Ints
    start: Ints
    dur: Ints
    device: Ints
    stream: Ints
    correlation: Ints

    @classmethod
    def of(cls, gpu: GpuRows, row: Ints) -> Self:
        """The given rows."""
        columns = (gpu.start, gpu.dur, gpu.device, gpu.stream, gpu.correlation)
        return cls(row, *(wide(column, row) for column in columns))


@dataclass(frozen=True)
class NcclLinks:
    """What belongs together.

    Attributes:
        gpu_row: rows of the GPU table that are NCCL's work.
        gpu_link: number of the link of each, or `NULL`.
        of_range: per range of NCCL, the number of its link, or `NULL`.
        captured: calls that were recorded into a CUDA graph, and so ran nothing by themselves.
        replays: rows of the GPU table that were replayed from a graph, and whose calls are known, with the columns that
            `Replays` lists.
        replay_call: per such row, the range of the call (of several, the first).
        replay_calls: how many calls it stands for.
        by_order: links that rest on the order alone.
    """

    gpu_row: Ints
    gpu_link: Ints
    of_range: Ints
    captured: npt.NDArray[np.bool_]
    replays: Replays
    replay_call: Ints
    replay_calls: Ints
    by_order: int


def link_work(store: Store, owners: Owners, gpu: GpuRows, launches: Launches, ranges: NcclRanges) -> NcclLinks:
    """Find NCCL's kernels and copies and match them with its calls."""
    word_of_name = [ANY_KERNEL if name == PEER else word_of_kernel(name) for name in gpu.names]
    words = np.array([*(-1 if word is None else word for word in word_of_name), -1], np.int64)
    rows = np.flatnonzero((words >= 0)[gpu.name])
    word = words[gpu.name[rows]]
    replayed = np.zeros(len(rows), np.bool_) if gpu.graph is None else gpu.graph[rows] != NULL
    launch = launch_of(launches, gpu, rows)
    calls = np.flatnonzero((ranges.kind == CALL) & (ranges.end != NULL))
    nodes = _Nodes(store, owners, gpu, rows[replayed], word[replayed])
    made = link(ranges, calls, nodes.work, regions_only=True)
    captured = _in_capture(ranges, launches) | (made.of_call != NULL)
    known = launch >= 0
    direct = ~replayed
    found = link(
        ranges,
        calls[~captured[calls]],
        Work(
            owner=wide(gpu.owner, rows[direct]),
            tid=_or_null(launches.tid, launch, known)[direct],
            moment=_or_null(launches.start, launch, known)[direct],
            began=gpu.start[rows[direct]],
            word=word[direct],
        ),
    )
    gpu_link = np.full(len(rows), NULL, np.int64)
    gpu_link[direct] = found.of_work
    replay_row, replay_call, replay_calls = nodes.replays(made.of_call, made.of_work)
    replays = Replays.of(gpu, replay_row)
    return NcclLinks(rows, gpu_link, found.of_call, captured, replays, replay_call, replay_calls, found.by_order)


def launch_of(launches: Launches, gpu: GpuRows, rows: Ints) -> Ints:
    """The call that launched each row of the GPU table: the first one with its correlation, -1 for none."""
    out = np.full(len(rows), -1, np.int64)
    for owner in np.unique(gpu.owner[rows]).tolist():
        mine = np.flatnonzero(gpu.owner[rows] == owner)
        wanted = wide(gpu.correlation, rows[mine])
        own = np.flatnonzero(launches.owner == owner)
        own = own[_among(wide(launches.correlation, own), np.unique(wanted))]
        if not len(own):
            continue
        own = own[np.lexsort((launches.start[own], launches.correlation[own]))]
        known = wide(launches.correlation, own)
        place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        out[mine] = np.where(known[place] == wanted, own[place], -1)
    return out


def _among(values: Ints, ascending: Ints) -> npt.NDArray[np.bool_]:
    place = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.asarray(ascending[place] == values, dtype=np.bool_)


def _or_null(values: npt.NDArray[Any], rows: Ints, known: npt.NDArray[np.bool_]) -> Ints:
    return np.where(known, values[np.maximum(rows, 0)], NULL) if len(values) else np.full(len(rows), NULL, np.int64)


def _in_capture(ranges: NcclRanges, launches: Launches) -> npt.NDArray[np.bool_]:
    """Calls between the beginning and the end of a stream capture of their thread."""
    found = np.zeros(len(ranges.start), np.bool_)
    captures = launches.captures
    for owner, tid in {(owner, tid) for owner, tid, _, _ in captures.tolist()}:
        own = captures[(captures[:, 0] == owner) & (captures[:, 1] == tid)]
        own = own[np.argsort(own[:, 2], kind="stable")]
        mine = np.flatnonzero((ranges.owner == owner) & (ranges.tid == tid) & (ranges.kind == CALL))
        place = np.searchsorted(own[:, 2], ranges.start[mine], side="right") - 1
        found[mine] = (place >= 0) & (own[np.maximum(place, 0), 3] == CAPTURE_BEGINS)
    return found


class _Nodes:
    """The nodes of CUDA graphs from which NCCL's kernels were replayed, and where each was made."""

    def __init__(self, store: Store, owners: Owners, gpu: GpuRows, rows: Ints, word: Ints) -> None:
        self._rows = rows
        graph = wide(gpu.graph, rows) if gpu.graph is not None else rows
        keys = np.stack([wide(gpu.owner, rows), graph], axis=1)
        nodes, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        self._node_of_row = which.ravel()
        tid, moment = _creation(store, owners, nodes) if len(nodes) else (graph, graph)
        self.work = Work(
            owner=nodes[:, 0], tid=tid, moment=moment, began=np.where(moment == NULL, 0, moment), word=word[first]
        )

    def replays(self, of_call: Ints, of_node: Ints) -> tuple[Ints, Ints, Ints]:
        """Rows of the GPU table whose node has a call; that call (the first of several); and how many there are."""
        calls = np.flatnonzero(of_call != NULL)
        size = int(of_node.max(initial=-1)) + 1
        count = np.bincount(of_call[calls], minlength=size)
        first = np.full(max(size, len(count)), NULL, np.int64)
        first[of_call[calls][::-1]] = calls[::-1]
        link_of_row = of_node[self._node_of_row] if len(self._rows) else self._rows
        known = np.flatnonzero(link_of_row != NULL)
        links = link_of_row[known]
        return self._rows[known], first[links], count[links]


def _creation(store: Store, owners: Owners, nodes: Ints) -> tuple[Ints, Ints]:
    """Thread and time at which each node was made; graphs that are instantiated get copies of their nodes."""
    columns = column(store, GRAPH_NODES, "start", "globalTid", "graphNodeId", "originalGraphNodeId")
    made: dict[tuple[int, int], tuple[int, int, int]] = {}
    for start, thread, node, original in zip(*(values.tolist() for values in columns.values()), strict=True):
        owner = owners.number(thread >> PROCESS_SHIFT)
        made.setdefault((owner, node), (start, thread & THREAD_MASK, original))
    tid, moment = np.full(len(nodes), NULL, np.int64), np.full(len(nodes), NULL, np.int64)
    for index, (owner, node) in enumerate(nodes.tolist()):
        for _ in range(_LONGEST_CHAIN):
            found = made.get((owner, node))
            if found is None:
                break
            moment[index], tid[index], original = found
            if original in (NULL, 0, node):
                break
            node = original
    return tid, moment

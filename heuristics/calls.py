"""Which records on the CPU side are one collective call.

The layers of one call lie inside each other on one thread: functional operator > c10d operator > `record_param_comms`
> annotation. The layer that says most stands for the call: `record_param_comms` with a collective name, else the c10d
operator, else the functional or symmetric-memory operator, else the annotation, else the NVTX range; the outermost one
where a layer contains itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from heuristics import nesting, nvtx_calls
from heuristics.arrays import NULL, code_of, codes, ints, valid
from heuristics.columns import Bools, Ints, at, first, none
from heuristics.kernel_table import KernelTable, Operator

if TYPE_CHECKING:
    import pyarrow as pa

_DEPTH = ("functional", "symm_mem", "c10d", "record_param_comms", "annotation", "nvtx")
"""CPU layers, outermost first: breaks ties between events with equal bounds."""

LISTS = ("flight_recorder", "nccl_log", "nccl_profiler", "execution_trace", "comms_logger")
"""Layers of formats that list calls, one record a call, and nest nothing."""

SPANS = ("gloo:", "mpi:", "ucc:")
"""Annotations that last until the call is finished, on a thread of the library or across other calls of the caller
(c10d/ProcessGroupGloo.cpp): they are when a call ran, not where it was asked for."""


class Records:
    """`parsers.tables.COMM_RECORDS` as columns, with each record looked up in the table of names."""

    def __init__(self, table: pa.Table, names: KernelTable) -> None:
        self.table = table
        self.count = table.num_rows
        self.ts, self.dur = ints(table, "ts_ns"), ints(table, "dur_ns", 0)
        self.end = self.ts + self.dur
        self.tid = ints(table, "tid")
        self.timed = valid(table.column("dur_ns"))
        self.name, self.names = codes(table, "name")
        self.collective, self.collectives = codes(table, "collective")
        self._layer, self._layers = codes(table, "layer")
        self.operators: list[Operator | None] = [names.operator(name) for name in self.names]
        self.collective_operators: list[Operator | None] = [names.operator(name) for name in self.collectives]

    def layer(self, *names: str) -> Bools:
        """Which records are of one of the layers."""
        return np.asarray(np.isin(self._layer, [code_of(self._layers, name) for name in names]), dtype=np.bool_)

    @cached_property
    def depth(self) -> Ints:
        """Position of each record's layer in `_DEPTH`; past the end for GPU layers."""
        order = [_DEPTH.index(name) if name in _DEPTH else len(_DEPTH) for name in self._layers]
        return np.array([*order, len(_DEPTH)], dtype=np.int64)[self._layer]

    @cached_property
    def spans(self) -> Bools:
        """Annotations of when a call ran (`SPANS`)."""
        return self.layer("annotation") & self._named([name.startswith(SPANS) for name in self.names])

    @cached_property
    def on_cpu(self) -> Bools:
        """Records that nest on a CPU thread."""
        return (self.depth < len(_DEPTH)) & ~self.spans

    def role(self, *roles: str) -> Bools:
        """Which records' own names have one of the roles in the table of operators."""
        return self._named([op is not None and op.role in roles for op in self.operators])

    @cached_property
    def metadata(self) -> Bools:
        """Records that say which collective it is, without `init`, `wait` and the ends of coalescing blocks."""
        skip = [op is not None and op.role != "payload" for op in self.collective_operators]
        said = np.array([*(not s for s in skip), False], dtype=np.bool_)[self.collective]
        return self.layer("record_param_comms", *LISTS) & said

    @cached_property
    def plain(self) -> Bools:
        """`record_param_comms` of before Kineto wrote the collective name."""
        return np.asarray(self.layer("record_param_comms") & (self.collective == NULL), dtype=np.bool_)

    def _named(self, flags: list[bool]) -> Bools:
        return np.asarray(np.array([*flags, False])[self.name], dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls asked for on the CPU, in order of time: one row number of `COMM_RECORDS` per call and kind of evidence.

    Attributes:
        anchor: the record that stands for the call.
        metadata: `record_param_comms` with a collective name, else an NVTX range with a payload.
        operator: the c10d operator, else the functional or symmetric-memory one.
        functional: the functional operator.
        annotation: the `nccl:` annotation (or of another library).
        nvtx: NCCL's NVTX range.
        communicator: the record that names the call's group: ``metadata``, else an NVTX range around or inside it.
        plain: `record_param_comms` without a collective name.
    """

    anchor: Ints
    metadata: Ints
    operator: Ints
    functional: Ints
    annotation: Ints
    nvtx: Ints
    communicator: Ints
    plain: Ints


@dataclass(frozen=True, eq=False)
class Forest:
    """How the CPU records nest.

    Attributes:
        parent: per record, the record that encloses it, or `NULL`.
        chosen: which records stand for a call.
        call: per record that stands for a call, the number of the call; else `NULL`.
    """

    parent: Ints
    chosen: Bools
    call: Ints

    def call_at(self, records: Records, thread: Ints, moment: Ints) -> tuple[Ints, Ints]:
        """The call that encloses each moment of a thread, and the innermost record that does; `NULL` for none."""
        rows = np.flatnonzero(records.on_cpu)
        start = np.concatenate([records.ts[rows], moment])
        end = np.concatenate([records.end[rows], moment])
        who = np.concatenate([records.tid[rows], thread])
        rank = np.concatenate([records.depth[rows], np.full(len(moment), len(_DEPTH))])
        above = nesting.parents(who, start, end, rank)
        # Moments at the same time lie under each other: climb to a record.
        inside = nesting.nearest(above, above[len(rows) :], np.arange(len(start)) < len(rows))
        record = at(rows, inside)
        return at(self.call, nesting.nearest(self.parent, record, self.chosen)), record


def find(records: Records) -> tuple[Calls, Forest]:
    """Choose the records that stand for calls and gather what else is known of each."""
    rows = np.flatnonzero(records.on_cpu)
    inner = nesting.parents(records.tid[rows], records.ts[rows], records.end[rows], records.depth[rows])
    parent = none(records.count)
    parent[rows] = at(rows, inner)
    payload = records.role("payload")
    c10d, functional = records.layer("c10d") & payload, records.layer("functional", "symm_mem") & payload
    annotation = records.layer("annotation") & payload & ~records.spans
    nvtx, listed = records.layer("nvtx") & payload, records.layer(*LISTS) & payload
    chosen = nesting.outermost(parent, records.metadata)
    for layer in (listed, c10d, functional, annotation, nvtx):
        free = layer & (nesting.nearest(parent, parent, chosen) < 0) & ~nesting.above_any(parent, chosen)
        chosen |= nesting.outermost(parent, free)
    if not chosen.any():
        # Nothing but the library's own annotations of what it executed.
        chosen = records.spans & payload
        annotation = annotation | chosen
    anchor = np.flatnonzero(chosen)
    anchor = anchor[np.lexsort((records.depth[anchor], records.ts[anchor]))]
    call = none(records.count)
    call[anchor] = np.arange(len(anchor))

    def around(wanted: Bools) -> Ints:
        return nesting.nearest(parent, anchor, wanted)

    def inside(wanted: Bools) -> Ints:
        return nesting.first_inside(parent, wanted, chosen, records.ts)[anchor]

    wider = around(functional)
    range_, named = nvtx_calls.ranges_of(records, anchor, around(nvtx), inside(nvtx))
    metadata = first(np.where(records.metadata[anchor], anchor, NULL), nvtx_calls.says_something(records, range_))
    calls = Calls(
        anchor=anchor,
        metadata=metadata,
        operator=first(around(c10d), wider, around(listed)),
        functional=wider,
        annotation=first(around(annotation), inside(annotation)),
        nvtx=range_,
        communicator=first(metadata, nvtx_calls.says_something(records, named)),
        plain=first(around(records.plain), inside(records.plain)),
    )
    return calls, Forest(parent, chosen, call)

"""From the facts of one rank to its collective calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from heuristics import arguments, batches, kernels, shapes, spans
from heuristics import groups as process_groups
from heuristics.arguments import Arguments
from heuristics.arrays import NULL, codes, ints
from heuristics.calls import Records
from heuristics.columns import Bools, Ints, at, first, none, nullable, take, texts
from heuristics.dtypes import ITEMSIZE, NAMES
from heuristics.evidence import Evidence, gather
from heuristics.kernel_table import PRIMITIVES, KernelTable
from heuristics.kernels import ROLES, SYNC
from heuristics.label_stats import stats_of
from heuristics.labelled import LabelledRank
from heuristics.phases import PHASES, phase_of
from heuristics.primitives import (
    BARRIER,
    BROADCAST,
    DIRECTIONS,
    GATHER,
    REDUCE,
    SCATTER,
    SEND_RECV,
    SOURCES,
    Decision,
    Payload,
    codes_of,
    decide,
    implied_size,
    payload,
)
from heuristics.steps import step_of
from parsers import tables

if TYPE_CHECKING:
    from parsers.tables import RankTrace


def label(trace: RankTrace, *, kernel_table: KernelTable | None = None, use_names: bool = True) -> LabelledRank:
    """Find the collective calls of one rank: what each is, how much it moves, with whom, in which step and phase.

    A call appears once, however many layers of the stack mention it. Where it ran on a GPU, its interval is that of its
    kernels and copies; the calls of one coalesced launch (batched sends and receives) divide the launch's interval among
    them, one after the other in proportion to their bytes, so that no time is counted twice, and the GPU event refers to
    the first of them. A call of a GPU trace that left nothing on the GPU (a group of one, or a launch after the window)
    has no interval. On a CPU the interval is that of the backend's own annotation (``gloo:...``: execution, waiting for
    the others included; for a send or receive, from the call to its ``wait``), with the executing thread as ``stream``,
    else that of the record of the call.

    Args:
        trace: the facts.
        kernel_table: names of kernels and operators; the package's own by default.
        use_names: whether what a group is called may be used for more than telling groups apart.

    Returns:
        The labelled rank; ``collectives`` is in order of ``launch_ts_ns`` (else ``ts_ns``).
    """
    return _Labeller(trace, kernel_table or KernelTable.default(), use_names).label()


class _Labeller:
    """The columns of one rank on their way to a table."""

    def __init__(self, trace: RankTrace, names: KernelTable, use_names: bool) -> None:
        self.trace = trace
        self.use_names = use_names
        self.records = Records(trace.comm_records, names)
        self.seen: Evidence = gather(trace, self.records, names)
        self.n = len(self.seen.anchor)

    def label(self) -> LabelledRank:
        seen, records = self.seen, self.records
        decision = decide(self._said())
        direction = self._direction()
        read = arguments.read_sizes(records)
        given = arguments.gather(records, seen, read, direction)
        span = self._spans(read, decision, direction, given)
        given = given.with_spans(read, span)
        size = first(given.ranks, implied_size(decision.primitive, given.in_nelems, given.out_nelems))
        groups, group = process_groups.resolve(
            self.trace.groups,
            records.table,
            self.trace.identity,
            metadata=seen.metadata,
            plain=seen.plain,
            size=size,
            at_least_two=decision.primitive == SEND_RECV,
        )
        pay = self._payload(decision, direction, given, size, groups, group)
        table = self._table(decision, direction, given, pay, span, groups, group)
        launch = first(ints(table, "launch_ts_ns"), ints(table, "ts_ns"))
        order = np.argsort(launch, kind="stable")
        place = none(self.n)
        place[order] = np.arange(self.n)
        return LabelledRank(
            trace=self.trace,
            collectives=table.take(pa.array(order)),
            groups=groups if self.use_names else process_groups.without_names(groups),
            gpu_role=kernels.roles(self.trace, seen.work),
            gpu_call=at(place, seen.event_call).astype(np.int32),
            stats=stats_of(self.trace, records, seen, decision, pay, span),
        )

    def _said(self) -> list[Ints]:
        """The primitive that each kind of evidence names."""
        by_collective, _ = codes_of(self.records.collective_operators)
        by_name, _ = codes_of(self.records.operators)
        by_kernel = np.array(
            [*(NULL if c.primitive is None else PRIMITIVES.index(c.primitive) for c in self.seen.work.classes), NULL]
        )
        return [
            by_collective[at(self.records.collective, self.seen.metadata)],
            *(
                by_name[at(self.records.name, rows)]
                for rows in (self.seen.operator, self.seen.annotation, self.seen.nvtx)
            ),
            by_kernel[self.seen.kind],
        ]

    def _direction(self) -> Ints:
        _, by_collective = codes_of(self.records.collective_operators)
        _, by_name = codes_of(self.records.operators)
        return first(
            by_collective[at(self.records.collective, self.seen.metadata)],
            *(
                by_name[at(self.records.name, rows)]
                for rows in (self.seen.operator, self.seen.annotation, self.seen.nvtx)
            ),
        )

    def _spans(self, read: shapes.Sizes, decision: Decision, direction: Ints, given: Arguments) -> Ints:
        """The annotation of a CPU backend that shows when each call ran."""
        records = self.records
        rows = np.flatnonzero(records.spans)
        rows = rows[np.argsort(records.ts[rows], kind="stable")]
        word = np.where(direction >= 0, spans.SEND + direction, decision.primitive)
        word = np.where(self.seen.event < 0, word, NULL)
        return spans.match(records, rows, read.in_nelems[rows], word, self.seen.asked, given.in_nelems)

    def _payload(
        self, decision: Decision, direction: Ints, given: Arguments, size: Ints, groups: pa.Table, group: Ints
    ) -> Payload:
        members = np.array([*(s or NULL for s in groups.column("size").to_pylist()), NULL], dtype=np.int64)
        written = at(ints(self.records.table, "group_size"), self.seen.metadata)
        n = first(members[group], np.where(written > 0, written, NULL), size)
        itemsize = np.array([*(ITEMSIZE[name] for name in NAMES), NULL], dtype=np.int64)[given.dtype]
        kept = arguments.kept(given, first(given.own, process_groups.position(groups, group, self.trace.identity.rank)))
        return payload(decision.primitive, direction, given.in_nelems, given.out_nelems, n, itemsize, kept)

    def _table(
        self,
        decision: Decision,
        direction: Ints,
        given: Arguments,
        pay: Payload,
        span: Ints,
        groups: pa.Table,
        group: Ints,
    ) -> pa.Table:
        records, seen, facts = self.records, self.seen, self.records.table
        start, end = self._interval(pay, span)
        gpu = self.trace.gpu_events
        columns = {
            "ts_ns": nullable(start, pa.int64()),
            "dur_ns": nullable(np.where(start == NULL, NULL, end - start), pa.int64()),
            "launch_ts_ns": nullable(seen.asked, pa.int64()),
            "tid": nullable(seen.thread, pa.int64()),
            "device": nullable(at(ints(gpu, "device"), seen.event), pa.int32()),
            "stream": nullable(first(at(ints(gpu, "stream"), seen.event), at(records.tid, span)), pa.int64()),
            "primitive": texts(PRIMITIVES, decision.primitive),
            "role": texts(ROLES, np.where(decision.primitive == BARRIER, SYNC, seen.role)),
            "library": self._library(span),
            "classified_by": texts(SOURCES, decision.source),
            "conflict": pa.array(decision.conflict),
            "op": self._op(),
            "name": self._name(),
            "group": nullable(group, pa.int32()),
            "group_size": nullable(pay.group_size, pa.int32()),
            "dtype": texts(NAMES, given.dtype),
            "in_nelems": nullable(pay.in_nelems, pa.int64()),
            "out_nelems": nullable(pay.out_nelems, pa.int64()),
            "size_bytes": nullable(pay.size_bytes, pa.int64()),
            "sent_bytes": nullable(pay.sent_bytes, pa.int64()),
            "shape": shapes.shapes(facts, given.tensor),
            "direction": texts(DIRECTIONS, direction),
            "peer": nullable(self._peer(given, groups, group, direction), pa.int32()),
            "root": nullable(np.where(_rooted(decision), given.root, NULL), pa.int32()),
            "in_split": given.in_split,
            "out_split": given.out_split,
            **{name: take(facts.column(name), seen.metadata) for name in _COPIED},
            "step": nullable(step_of(self.trace, seen.asked, start), pa.int32()),
            "phase": texts(PHASES, phase_of(self.trace, seen.thread, seen.asked, decision.primitive)),
        }
        return pa.table({field.name: columns[field.name] for field in tables.COLLECTIVES}).cast(tables.COLLECTIVES)

    def _interval(self, pay: Payload, span: Ints) -> tuple[Ints, Ints]:
        records, seen = self.records, self.seen
        start, end = seen.start.copy(), seen.end.copy()
        rows = np.flatnonzero(seen.batch >= 0)
        if len(rows):
            start[rows], end[rows] = batches.slices(seen.batch[rows], start[rows], end[rows], pay.size_bytes[rows])
        off_gpu = (start == NULL) & (not self.trace.on_gpu)
        where = np.where(start == NULL, np.where(span >= 0, span, np.where(off_gpu, seen.anchor, NULL)), NULL)
        return first(start, at(records.ts, where)), first(end, at(records.end, where))

    def _library(self, span: Ints) -> pa.Array:
        """Of the kernel; else what the annotation's prefix says (``nccl:all_reduce``)."""
        records = self.records
        by_kernel = [c.library for c in self.seen.work.classes]
        prefixes = [name.split(":", 1)[0] if ":" in name and "::" not in name else "" for name in records.names]
        prefixes = [prefix if prefix.isalpha() else "" for prefix in prefixes]
        named = np.array([*(i + len(by_kernel) if p else NULL for i, p in enumerate(prefixes)), NULL], dtype=np.int64)
        said = first(at(records.name, span), at(records.name, self.seen.annotation))
        return texts(by_kernel + prefixes, first(self.seen.kind, named[said]))

    def _op(self) -> pa.Array:
        """`Collective name`, else the operator's or annotation's word for it."""
        records, seen = self.records, self.seen
        words = [_word(name) for name in records.names]
        said = first(at(records.name, seen.operator), at(records.name, seen.annotation), at(records.name, seen.nvtx))
        collective = at(records.collective, seen.metadata)
        other = np.where(said == NULL, NULL, said + len(records.collectives))
        return texts(records.collectives + words, first(collective, other))

    def _name(self) -> pa.Array:
        code, names = codes(self.trace.gpu_events, "name")
        records = self.records
        anchor = at(records.name, self.seen.anchor)
        other = np.where(anchor == NULL, NULL, anchor + len(names))
        return texts(names + records.names, first(at(code, self.seen.event), other))

    def _peer(self, given: Arguments, groups: pa.Table, group: Ints, direction: Ints) -> Ints:
        """Global rank of the other side: as written, else the group rank looked up in the group."""
        looked_up = process_groups.member(groups, group, given.peer)
        return np.where(direction >= 0, first(given.peer_global, looked_up), NULL)


def _rooted(decision: Decision) -> Bools:
    return np.isin(decision.primitive, (BROADCAST, REDUCE, GATHER, SCATTER))


_COPIED = ("seq", "comms_id", "is_async")


def _word(name: str) -> str:
    """``allreduce`` for ``c10d::allreduce_``, ``all_reduce`` for ``nccl:all_reduce``, ``send`` for ``nccl:send 0->1``."""
    return name.rsplit("::", 1)[-1].rsplit(":", 1)[-1].split(" ", 1)[0].removesuffix("_")

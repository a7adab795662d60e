"""From the facts of one rank to its collective calls."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from heuristics import arguments, batches, exchanges, kernels, nvtx_calls, shapes, spans
from heuristics import groups as process_groups
from heuristics.arguments import Arguments
from heuristics.arrays import NULL, codes, ints
from heuristics.calls import Records
from heuristics.columns import Bools, Ints, array, at, distinct, first, none, nullable, take, take_rows, texts
from heuristics.dtypes import ITEMSIZE, NAMES
from heuristics.evidence import gather
from heuristics.kernel_table import PRIMITIVES, KernelTable
from heuristics.kernels import ROLES, SYNC
from heuristics.label_stats import stats_of
from heuristics.labelled import LabelledRank, Steps
from heuristics.phases import PHASES, phase_of
from heuristics.primitives import (
    BARRIER,
    DIRECTIONS,
    ROOTED,
    SEND_RECV,
    SOURCES,
    Decision,
    Payload,
    codes_of,
    decide,
    implied_size,
    payload,
    with_message_bytes,
)
from heuristics.repetition import believed, by_period
from heuristics.steps import find_steps
from parsers import tables

if TYPE_CHECKING:
    from parsers.tables import RankTrace


def label(trace: RankTrace, *, kernel_table: KernelTable | None = None, use_names: bool = True) -> LabelledRank:
    """Find the collective calls of one rank: what each is, how much it moves, with whom, in which step and phase.

    A call appears once, however many layers of the stack mention it. Where it ran on a GPU, its interval is that of
    its kernels and copies. The calls of one coalesced launch (batched sends and receives) divide the launch's interval
    among them, one after the other in proportion to their bytes, so that no time is counted twice, and the GPU event
    refers to the first of them. A call of a GPU trace that left nothing on the GPU (a group of one, or a launch that
    ran after the window) has no interval. On a CPU the interval is that of the backend's own annotation (``gloo:...``:
    the execution, waiting for the others included; for a send or receive, from the call to its ``wait``), with the
    executing thread as ``stream``, else that of the record of the call.

    Args:
        trace: the facts.
        kernel_table: names of kernels and operators; the package's own by default.
        use_names: whether group descriptions are passed on; the names themselves always are, as what joins calls with
            groups.

    Returns:
        The labelled rank; ``collectives`` is in order of ``launch_ts_ns`` (else ``ts_ns``).
    """
    return _Labeller(trace, kernel_table or KernelTable.default(), use_names).label()


_BACKENDS = ("nccl", "rccl", "msccl", "hccl", "oneccl")
"""Libraries behind the process groups of torch.distributed."""


class _Labeller:
    """The columns of one rank, each worked out once from those before it."""

    def __init__(self, trace: RankTrace, names: KernelTable, use_names: bool) -> None:
        self.trace = trace
        self.use_names = use_names
        self.records = Records(exchanges.added(trace, names), names)
        self.seen = gather(trace, self.records, names)
        self.n = len(self.seen.anchor)

    def label(self) -> LabelledRank:
        """Put the columns together."""
        table = self._table()
        order = np.argsort(first(self.seen.asked, self.interval[0]), kind="stable")
        place = none(self.n)
        place[order] = np.arange(self.n)
        groups = self.groups[0]
        barrier = at(self.decision.primitive, self.seen.event_call) == BARRIER
        return LabelledRank(
            trace=self.trace,
            collectives=take_rows(table, order),
            groups=groups if self.use_names else process_groups.without_descriptions(groups),
            gpu_role=kernels.roles(self.trace, self.seen.work, barrier),
            gpu_call=at(place, self.seen.event_call).astype(np.int32),
            stats=stats_of(self.trace, self.records, self.seen, self.decision, self.span, self.silent, self.steps[0]),
            steps=self.steps[0],
        )

    @cached_property
    def decision(self) -> Decision:
        """Which primitive each call is."""
        by_collective, _ = codes_of(self.records.collective_operators)
        by_name, _ = codes_of(self.records.operators)
        said = [
            by_collective[at(self.records.collective, self.seen.metadata)],
            *(by_name[at(self.records.name, rows)] for rows in self._named),
        ]
        return decide([*said, *self._said_by_kernels(first(*said))])

    @property
    def _named(self) -> tuple[Ints, Ints, Ints]:
        return self.seen.operator, self.seen.annotation, self.seen.nvtx

    def _said_by_kernels(self, known: Ints) -> tuple[Ints, Ints]:
        """What the kernel's name says, given what better evidence knows; and what the stream's repetitions say."""
        seen, gpu = self.seen, self.trace.gpu_events
        classes = [NULL if c.primitive is None else PRIMITIVES.index(c.primitive) for c in seen.work.classes]
        name = at(codes(gpu, "name")[0], seen.event)
        corrected = believed(name, np.array([*classes, NULL], dtype=np.int64)[seen.kind], known)
        _, lane = distinct(*(at(ints(gpu, column), seen.event) for column in ("device", "stream")))
        lane = np.where((seen.event >= 0) & (seen.batch < 0), lane, NULL)
        return corrected, by_period(lane, seen.start, name, first(known, corrected))

    @cached_property
    def direction(self) -> Ints:
        """Send or receive, as a position in `DIRECTIONS`."""
        _, by_collective = codes_of(self.records.collective_operators)
        _, by_name = codes_of(self.records.operators)
        return first(
            by_collective[at(self.records.collective, self.seen.metadata)],
            *(by_name[at(self.records.name, rows)] for rows in self._named),
        )

    @cached_property
    def read(self) -> shapes.Sizes:
        """What each record's `Input Dims` say."""
        return arguments.read_sizes(self.records)

    @cached_property
    def called_with(self) -> Arguments:
        """What each call was given, as its own records say."""
        return arguments.gather(self.records, self.seen, self.read, self.direction)

    @cached_property
    def span(self) -> Ints:
        """The annotation of a CPU backend that shows when each call ran."""
        rows = np.flatnonzero(self.records.spans)
        rows = rows[np.argsort(self.records.ts[rows], kind="stable")]
        word = np.where(self.direction >= 0, spans.SEND + self.direction, self.decision.primitive)
        # A call that a GPU library annotated is none of the CPU backend's.
        elsewhere = (self.seen.annotation >= 0) & ~at(self.records.spans, self.seen.annotation, False)
        word = np.where((self.seen.event < 0) & ~elsewhere, word, NULL)
        nelems = self.called_with.in_nelems
        return spans.match(self.records, rows, self.read.in_nelems[rows], word, self.seen.asked, nelems)

    @cached_property
    def given(self) -> Arguments:
        """What each call was given, as anything says."""
        return self.called_with.with_spans(self.read, self.span)

    @cached_property
    def ranks(self) -> Ints:
        """Group size by anything but the group itself."""
        implied = implied_size(self.decision.primitive, self.given.in_nelems, self.given.out_nelems)
        return first(self.given.ranks, implied)

    @cached_property
    def groups(self) -> tuple[pa.Table, Ints]:
        """The rank's groups, and the group of each call."""
        return process_groups.resolve(
            self.trace.groups,
            self.records.table,
            self.trace.identity,
            metadata=self.seen.communicator,
            plain=self.seen.plain,
            size=self.ranks,
            at_least_two=self.decision.primitive == SEND_RECV,
            by_torch=self._by_torch(),
        )

    def _by_torch(self) -> Bools:
        """Calls that torch.distributed knows of: recorded by it, or run by a library that it calls by default."""
        default = np.array([*(c.library in _BACKENDS for c in self.seen.work.classes), False], dtype=np.bool_)
        return (self.seen.anchor >= 0) | (self.seen.annotation >= 0) | default[self.seen.kind]

    @cached_property
    def pay(self) -> Payload:
        """How much each call moves."""
        groups, group = self.groups
        members = np.array([*(size or NULL for size in groups.column("size").to_pylist()), NULL], dtype=np.int64)
        written = at(ints(self.records.table, "group_size"), self.seen.communicator)
        n = first(members[group], np.where(written > 0, written, NULL), self.ranks)
        itemsize = np.array([*(ITEMSIZE[name] for name in NAMES), NULL], dtype=np.int64)[self.given.dtype]
        own = first(self.given.own, process_groups.position(groups, group, self.trace.identity.rank))
        known = payload(
            self.decision.primitive,
            self.direction,
            self.given.in_nelems,
            self.given.out_nelems,
            n,
            itemsize,
            arguments.kept(self.given, own),
        )
        message = at(ints(self.records.table, "message_bytes"), first(self.seen.metadata, self.seen.nvtx))
        known = with_message_bytes(known, self.decision.primitive, self.direction, message, itemsize)
        return nvtx_calls.with_parts(known, self.records, self.seen, self.decision.primitive, own)

    @cached_property
    def interval(self) -> tuple[Ints, Ints]:
        """When each call ran."""
        seen, records = self.seen, self.records
        start, end = seen.start.copy(), seen.end.copy()
        rows = np.flatnonzero(seen.batch >= 0)
        if len(rows):
            size = self.pay.size_bytes[rows]
            start[rows], end[rows] = batches.slices(seen.batch[rows], start[rows], end[rows], size)
        shown = self.span if self.trace.on_gpu else first(self.span, seen.anchor)
        shown = np.where((start == NULL) & at(records.timed, shown, False), shown, NULL)
        return first(start, at(records.ts, shown)), first(end, at(records.end, shown))

    @cached_property
    def silent(self) -> Bools:
        """Calls that should have left work on the GPU and did not; groups of one and empty messages leave none."""
        empty = np.maximum(self.pay.in_nelems, self.pay.out_nelems) == 0
        return np.asarray((self.interval[0] == NULL) & (self.pay.group_size != 1) & ~empty, dtype=np.bool_)

    @cached_property
    def steps(self) -> tuple[Steps, Ints]:
        """The rank's steps, and the step of each call."""
        op, _ = self._op()
        _, signature = distinct(self.decision.primitive, self.direction, self.given.dtype, self.groups[1], op)
        return find_steps(self.trace, self.seen, signature, self.silent)

    def _table(self) -> pa.Table:
        """`parsers.tables.COLLECTIVES`, not yet in order."""
        seen, pay, given, gpu = self.seen, self.pay, self.given, self.trace.gpu_events
        start, end = self.interval
        primitive = self.decision.primitive
        steps, step = self.steps
        phase = phase_of(self.trace, steps, seen.thread, seen.asked, primitive)
        op, ops = self._op()
        columns = {
            "ts_ns": nullable(start, pa.int64()),
            "dur_ns": nullable(np.where(start == NULL, NULL, end - start), pa.int64()),
            "launch_ts_ns": nullable(seen.asked, pa.int64()),
            "tid": nullable(seen.thread, pa.int64()),
            "device": nullable(at(ints(gpu, "device"), seen.event), pa.int32()),
            "stream": nullable(first(at(ints(gpu, "stream"), seen.event), at(self.records.tid, self.span)), pa.int64()),
            "primitive": texts(PRIMITIVES, primitive),
            "role": texts(ROLES, np.where(primitive == BARRIER, SYNC, seen.role)),
            "library": self._library(),
            "classified_by": texts(SOURCES, self.decision.source),
            "conflict": array(self.decision.conflict),
            "op": texts(ops, op),
            "name": self._name(),
            "group": nullable(self.groups[1], pa.int32()),
            "group_size": nullable(pay.group_size, pa.int32()),
            "dtype": texts(NAMES, given.dtype),
            "in_nelems": nullable(pay.in_nelems, pa.int64()),
            "out_nelems": nullable(pay.out_nelems, pa.int64()),
            "size_bytes": nullable(pay.size_bytes, pa.int64()),
            "sent_bytes": nullable(pay.sent_bytes, pa.int64()),
            "shape": shapes.shapes(self.records.table, given.tensor),
            "direction": texts(DIRECTIONS, self.direction),
            "peer": nullable(self._peer(), pa.int32()),
            "root": nullable(self._root(primitive), pa.int32()),
            "in_split": given.in_split,
            "out_split": given.out_split,
            **{name: take(self.records.table.column(name), seen.metadata) for name in ("seq", "comms_id", "is_async")},
            "step": nullable(step, pa.int32()),
            "phase": texts(PHASES, phase),
        }
        return pa.Table.from_arrays([columns[name] for name in tables.COLLECTIVES.names], schema=tables.COLLECTIVES)

    def _library(self) -> pa.Array:
        """Of the kernel; else what the annotation's prefix says (``nccl:all_reduce``)."""
        names = self.records.names
        by_kernel = [c.library for c in self.seen.work.classes]
        prefixes = [name.split(":", 1)[0] if ":" in name and "::" not in name else "" for name in names]
        place = [i + len(by_kernel) if prefix.isalpha() else NULL for i, prefix in enumerate(prefixes)]
        said = first(at(self.records.name, self.span), at(self.records.name, self.seen.annotation))
        by_prefix = np.array([*place, NULL], dtype=np.int64)[said]
        return texts(by_kernel + prefixes, first(self.seen.kind, by_prefix))

    def _op(self) -> tuple[Ints, list[str]]:
        """`Collective name`, else the operator's or annotation's word for it, as a number into the words."""
        records = self.records
        said = first(*(at(records.name, rows) for rows in self._named))
        collective = at(records.collective, self.seen.metadata)
        other = np.where(said == NULL, NULL, said + len(records.collectives))
        return first(collective, other), records.collectives + [_word(name) for name in records.names]

    def _name(self) -> pa.Array:
        """Of the kernel; else of the operator; else of the record that stands for the call."""
        code, names = codes(self.trace.gpu_events, "name")
        said = at(self.records.name, first(self.seen.operator, self.seen.anchor))
        other = np.where(said == NULL, NULL, said + len(names))
        return texts(names + self.records.names, first(at(code, self.seen.event), other))

    def _peer(self) -> Ints:
        """Global rank of the other side: as written, else the group rank looked up in the group."""
        groups, group = self.groups
        looked_up = process_groups.member(groups, group, self.given.peer)
        return np.where(self.direction >= 0, first(self.given.peer_global, looked_up), NULL)

    def _root(self, primitive: Ints) -> Ints:
        """Group rank of the root; of a message whose peer's global rank is not known, the peer's."""
        open_ = (self.direction >= 0) & (self._peer() == NULL)
        return np.where(np.isin(primitive, ROOTED), self.given.root, np.where(open_, self.given.peer, NULL))


def _word(name: str) -> str:
    """``allreduce`` of ``c10d::allreduce_``, ``all_reduce`` of ``nccl:all_reduce``, ``send`` of ``nccl:send 0->1``."""
    return name.rsplit("::", 1)[-1].rsplit(":", 1)[-1].split(" ", 1)[0].removesuffix("_")

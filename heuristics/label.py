"""From the facts of one rank to its collective calls."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from heuristics import calls as cpu_calls
from heuristics import groups as process_groups
from heuristics import shapes, spans
from heuristics.arrays import NULL, codes, ints, lists
from heuristics.calls import Calls, Records
from heuristics.columns import Ints, at, first, none, nullable, take, texts
from heuristics.dtypes import ITEMSIZE, NAMES, normalise
from heuristics.kernel_table import LAYOUTS, PRIMITIVES, KernelTable
from heuristics.labelled import LabelledRank, LabelStats
from heuristics.phases import PHASES, phase_of
from heuristics.primitives import DIRECTIONS, SOURCES, codes_of, decide, kept_rows, payload
from heuristics.steps import step_of
from parsers import tables
from parsers.tables import RankTrace


def label(trace: RankTrace, *, kernel_table: KernelTable | None = None, use_names: bool = True) -> LabelledRank:
    """Find the collective calls of one rank."""
    return _Labeller(trace, kernel_table or KernelTable.default()).label()


class _Labeller:
    def __init__(self, trace: RankTrace, names: KernelTable) -> None:
        self.trace, self.names = trace, names
        self.records = Records(trace.comm_records, names)

    def label(self) -> LabelledRank:
        trace, records = self.trace, self.records
        calls, forest = cpu_calls.find(records)
        del forest
        n = len(calls.anchor)
        meta = calls.metadata
        table, group = process_groups.resolve(trace.groups, records.table, meta, trace.identity)
        col_prim, col_dir = codes_of(records.collective_operators)
        name_prim, name_dir = codes_of(records.operators)
        collective = at(records.collective, meta)
        said = [
            col_prim[collective],
            name_prim[at(records.name, calls.operator)],
            name_prim[at(records.name, calls.annotation)],
            name_prim[at(records.name, calls.nvtx)],
            none(n),
        ]
        decision = decide(said)
        direction = first(
            col_dir[collective],
            name_dir[at(records.name, calls.operator)],
            name_dir[at(records.name, calls.annotation)],
        )
        # sizes
        layout_of = np.array(
            [*(LAYOUTS.index(op.tensors) if op is not None and op.tensors else NULL for op in records.operators), NULL]
        )
        read = shapes.sizes(records.table, layout_of[records.name])
        dtype_code, dtype_names = codes(records.table, "dtype")
        dtype_of = np.array([*(NAMES.index(d) if (d := normalise(x)) else NULL for x in dtype_names), NULL])
        ann = calls.annotation
        op = calls.operator
        in_n = first(at(ints(records.table, "in_nelems"), meta), at(read.in_nelems, op), at(read.in_nelems, ann))
        out_n = first(at(ints(records.table, "out_nelems"), meta), at(read.out_nelems, op), at(read.out_nelems, ann))
        dtype = first(dtype_of[at(dtype_code, meta)], at(read.dtype, op), at(read.dtype, ann))
        tensor = first(at(read.tensor, op), at(read.tensor, ann))
        # gloo
        asked = records.ts[calls.anchor]
        key = np.where(direction >= 0, spans.SEND + direction, decision.primitive)
        span_rows = np.flatnonzero(records.spans)
        span_rows = span_rows[np.argsort(records.ts[span_rows], kind="stable")]
        span = spans.match(records, span_rows, read.in_nelems[span_rows], key, asked, in_n)
        in_n, dtype = first(in_n, at(read.in_nelems, span)), first(dtype, at(read.dtype, span))
        tensor = first(tensor, at(read.tensor, span))
        # group size
        size_of_group = np.array([*(s or NULL for s in table.column("size").to_pylist()), NULL], dtype=np.int64)
        gsize = first(size_of_group[group], at(ints(records.table, "group_size"), meta))
        # splits
        offsets, flat = lists(records.table, "in_split")
        own_rank = np.where(direction < 0, at(ints(records.table, "rank_arg"), meta), NULL)
        start, stop = at(offsets[:-1], meta, 0), at(offsets[1:], meta, 0)
        total = np.concatenate([[0], np.cumsum(flat)])
        own_ok = (own_rank >= 0) & (own_rank < stop - start)
        own = np.where(own_ok, at(flat, np.where(own_ok, start + own_rank, NULL)), NULL)
        kept = kept_rows(in_n, np.where(stop > start, total[stop] - total[start], NULL), own)
        item = np.array([*(ITEMSIZE[x] for x in NAMES), NULL])[dtype]
        pay = payload(decision.primitive, direction, in_n, out_n, gsize, item, kept)
        ts = np.where(span >= 0, at(records.ts, span), asked)
        dur = np.where(span >= 0, at(records.dur, span), records.dur[calls.anchor])
        tid = records.tid[calls.anchor]
        peer = first(at(ints(records.table, "dst_rank"), meta), at(ints(records.table, "src_rank"), meta))
        rooted = np.isin(
            decision.primitive, [PRIMITIVES.index(x) for x in ("broadcast", "reduce", "gather", "scatter")]
        )
        op_text, op_code = _ops(records, calls, collective)
        columns = {
            "ts_ns": pa.array(ts),
            "dur_ns": pa.array(dur),
            "launch_ts_ns": pa.array(asked),
            "tid": pa.array(tid),
            "device": pa.nulls(n, pa.int32()),
            "stream": nullable(at(records.tid, span), pa.int64()),
            "primitive": texts(list(PRIMITIVES), decision.primitive),
            "role": texts(["payload"], np.zeros(n, np.int64)),
            "library": texts(["gloo"], np.where(span >= 0, 0, NULL)),
            "classified_by": texts(list(SOURCES), decision.source),
            "conflict": pa.array(decision.conflict),
            "op": texts(op_text, op_code),
            "name": texts(records.names, records.name[calls.anchor]),
            "group": nullable(group, pa.int32()),
            "group_size": nullable(pay.group_size, pa.int32()),
            "dtype": texts(list(NAMES), dtype),
            "in_nelems": nullable(pay.in_nelems, pa.int64()),
            "out_nelems": nullable(pay.out_nelems, pa.int64()),
            "size_bytes": nullable(pay.size_bytes, pa.int64()),
            "sent_bytes": nullable(pay.sent_bytes, pa.int64()),
            "shape": shapes.shapes(records.table, tensor),
            "direction": texts(list(DIRECTIONS), direction),
            "peer": nullable(peer, pa.int32()),
            "root": nullable(np.where(rooted, at(ints(records.table, "rank_arg"), meta), NULL), pa.int32()),
            "in_split": take(records.table.column("in_split"), meta),
            "out_split": take(records.table.column("out_split"), meta),
            "seq": take(records.table.column("seq"), meta),
            "comms_id": take(records.table.column("comms_id"), meta),
            "is_async": take(records.table.column("is_async"), meta),
            "step": nullable(step_of(trace, asked, ts), pa.int32()),
            "phase": texts(list(PHASES), phase_of(trace, tid, asked, decision.primitive)),
        }
        result = pa.table({f.name: columns[f.name] for f in tables.COLLECTIVES}).cast(tables.COLLECTIVES)
        return LabelledRank(
            trace,
            result,
            table,
            np.zeros(trace.gpu_events.num_rows, np.int8),
            np.full(trace.gpu_events.num_rows, -1, np.int32),
            LabelStats(),
        )


def _ops(records: Records, calls: Calls, collective: Ints) -> tuple[list[str], Ints]:
    names = [n.rsplit("::", 1)[-1].rsplit(":", 1)[-1].split(" ")[0].removesuffix("_") for n in records.names]
    text = [*records.collectives, *names]
    other = at(records.name, calls.anchor)
    return text, np.where(collective >= 0, collective, np.where(other >= 0, other + len(records.collectives), NULL))

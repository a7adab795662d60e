"""Events of formats that are no Chrome trace, from the tables that their reader filled: streams, launches, marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.export.chrome import microseconds
from analyzer.export.cut import Window
from analyzer.export.events import Placed
from analyzer.export.identifiers import PROCESSES, Identifiers
from analyzer.intervals import Ints
from heuristics.arrays import NULL, codes, ints


def from_tables(
    item: Placed, shift: Callable[[Ints], Ints], ids: Identifiers, window: Window | None, hide: Any
) -> Iterator[dict[str, Any]]:
    """GPU events by stream, launches and marks by thread, as events of a Chrome trace.

    Args:
        item: the rank, with its events.
        shift: from its own clock (absolute ns) to ns since the origin.
        ids: gives new identifiers.
        window: what to keep; None for all.
        hide: an `analyzer.export.anonymize.Hider`, or None.
    """
    if item.labelled is None:
        return
    trace = item.labelled.trace
    rank = item.rank.source.rank
    who = "rank unknown" if rank is None else f"rank {rank}"
    base = PROCESSES * (ids.place + 1) + 10 * item.index
    for place, (label, table) in enumerate(
        (("GPU", trace.gpu_events), ("CPU launches", trace.launches), ("CPU", trace.cpu_marks))
    ):
        if not table.num_rows:
            continue
        pid = base + place
        yield {
            "ph": "M",
            "name": "process_name",
            "pid": pid,
            "tid": 0,
            "ts": 0,
            "args": {"name": f"{who}: {label}"},
        }
        call = item.labelled.gpu_call if label == "GPU" else None
        for event in _rows(table, shift, window, pid, ids, item, call):
            yield event if hide is None else hide.made(event)


def _rows(
    table: pa.Table,
    shift: Callable[[Ints], Ints],
    window: Window | None,
    pid: int,
    ids: Identifiers,
    item: Placed,
    call: Any,
) -> Iterator[dict[str, Any]]:
    start = shift(ints(table, "ts_ns", 0))
    length = np.maximum(ints(table, "dur_ns", 0), 0)
    lane = ints(table, "stream" if "stream" in table.column_names else "tid", 0)
    if "device" in table.column_names:
        lane = lane + ints(table, "device", 0) * 1_000_000
    names = _texts(table, "name", "launch")
    kinds = _texts(table, "kind", "cuda_runtime")
    links = {key: ints(table, key).tolist() for key in ("correlation", "external_id") if key in table.column_names}
    keep = np.ones(len(start), dtype=np.bool_)
    if window is not None:
        keep = (start < window.end_ns) & (start + length >= window.start_ns)
    for row in np.flatnonzero(keep).tolist():
        args: dict[str, Any] = {}
        for key, values in links.items():
            if values[row] != NULL and values[row] >= 0:
                args[key] = ids.link(str(values[row]).encode()) if not ids.alone else values[row]
        if call is not None and call[row] >= 0:
            args |= item.calls.args(int(call[row]))
        yield {
            "ph": "X",
            "cat": kinds[row],
            "name": names[row],
            "pid": pid,
            "tid": int(lane[row]) & 0x7FFFFFFF,
            "ts": microseconds(int(start[row])),
            "dur": microseconds(int(length[row])),
            "args": args,
        }


def _texts(table: pa.Table, column: str, otherwise: str) -> list[str]:
    if column not in table.column_names:
        return [otherwise] * table.num_rows
    code, words = codes(table, column)
    known = [*words, otherwise]
    return [known[i] or otherwise for i in code.tolist()]

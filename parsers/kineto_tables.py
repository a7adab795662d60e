"""From the rows of a file to the tables of one rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parsers import tables
from parsers.columns import NULL, int_array
from parsers.kineto_rows import Rows
from parsers.kineto_select import MARK_KINDS, PROFILER_STEP
from parsers.kineto_split import Part

_DAY_NS = 86_400 * 10**9

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RankTables:
    """The tables of one rank."""

    gpu_events: pa.Table
    comm_records: pa.Table
    launches: pa.Table
    cpu_marks: pa.Table
    steps: pa.Table


@dataclass(frozen=True)
class Owned:
    """Which rows of a file are one rank's."""

    gpu: Mask
    comm: Mask
    launches: Mask
    marks: Mask


def finish(rows: Rows, base_ns: int) -> None:
    """Put the rows in their final state: absolute times, order of the file, only real launches."""
    rows.flush()
    _drop_unset_clocks(rows)
    if rows.launches.rows:
        unknown = rows.launches.column("unknown") == 1
        if unknown.any():  # a call without a name was a launch if something on the GPU follows from it
            rows.launches.keep(~unknown | np.isin(rows.launches.column("correlation"), rows.gpu.column("correlation")))
    places = rows.comm.column("place")
    if (places[1:] < places[:-1]).any():
        rows.comm.reorder(np.argsort(places, kind="stable"))
    for columns in (rows.gpu, rows.comm, rows.launches, rows.marks):
        if base_ns and columns.rows:
            columns.replace("ts_ns", columns.column("ts_ns") + base_ns)
    rows.last_ts = None if rows.last_ts is None else rows.last_ts + base_ns
    rows.window = {edge: ts + base_ns for edge, ts in rows.window.items()}


def _drop_unset_clocks(rows: Rows) -> None:
    """Set aside GPU events at time 0 where all else is days later: Kineto writes times before its base as 0."""
    ts = rows.gpu.column("ts_ns")
    unset = ts <= 0
    others = np.concatenate([ts[~unset], rows.marks.column("ts_ns"), rows.launches.column("ts_ns")])
    if not unset.any() or not len(others) or np.min(others) < _DAY_NS:
        return
    rows.quarantined["time 0 on the GPU, days before the rest"] += int(unset.sum())
    of_gpu = rows.comm.column("gpu_event")
    rows.comm.keep((of_gpu == NULL) | ~unset[np.where(of_gpu == NULL, 0, of_gpu)])
    rows.comm.replace("gpu_event", _renumbered(rows.comm.column("gpu_event"), ~unset))
    rows.gpu.keep(~unset)


def _renumbered(of_gpu: npt.NDArray[np.int64], kept: Mask) -> npt.NDArray[np.int64]:
    """Row numbers of GPU events after only ``kept`` ones remain."""
    if not len(kept):
        return of_gpu
    number = np.cumsum(kept) - 1
    return np.where(of_gpu == NULL, NULL, number[np.where(of_gpu == NULL, 0, of_gpu)])


def owned(rows: Rows, part: Part) -> Owned:
    """The rows of one rank of a file (see `finish`)."""
    gpu = part.owns(rows.gpu, on_gpu=True)
    comm = part.owns(rows.comm, on_gpu=False)
    of_gpu = rows.comm.column("gpu_event")
    if len(gpu) and len(comm):
        comm = np.where(of_gpu == NULL, comm, gpu[np.where(of_gpu == NULL, 0, of_gpu)])
    return Owned(gpu, comm, part.owns(rows.launches, on_gpu=False), part.owns(rows.marks, on_gpu=False))


def rank_tables(rows: Rows, mine: Owned, *, last: bool) -> RankTables:
    """The tables of one rank of a file; after those of the ``last`` one the rows are gone."""
    steps = _steps(rows, mine)
    original = rows.comm.column("gpu_event")
    rows.comm.replace("gpu_event", _renumbered(original, mine.gpu))
    comm_records = rows.comm.table(_chosen(mine.comm), last=last)
    if not last:
        rows.comm.replace("gpu_event", original)
    return RankTables(
        gpu_events=rows.gpu.table(_chosen(mine.gpu), last=last),
        comm_records=comm_records,
        launches=rows.launches.table(_chosen(mine.launches), last=last),
        cpu_marks=rows.marks.table(_chosen(mine.marks), last=last),
        steps=steps,
    )


def _chosen(mask: Mask) -> npt.NDArray[np.int64] | None:
    """The rows of a mask; None for all of them, which saves a copy."""
    return None if mask.all() else np.flatnonzero(mask)


def outside_window(rows: Rows, gpu: Mask) -> int:
    """How many of these GPU events begin before or after the capture."""
    ts = rows.gpu.column("ts_ns")[gpu]
    start, end = rows.window.get("start"), rows.window.get("end")
    early = int((ts < start).sum()) if start is not None else 0
    late = int((ts > end).sum()) if end is not None else 0
    return early + late


def _steps(rows: Rows, mine: Owned) -> pa.Table:
    """Profiler steps in time order: as the CPU marked them, else as they appear on the GPU."""
    gpu, marks = mine.gpu, mine.marks
    of_cpu = marks & (rows.marks.column("kind") == MARK_KINDS.index("step")) if rows.marks.rows else marks
    columns, names, mask = rows.marks, list(rows.mark_name), of_cpu
    if not of_cpu.any():
        numbered = [index for index, name in enumerate(rows.gpu_name) if PROFILER_STEP.match(str(name))]
        columns, names, mask = rows.gpu, list(rows.gpu_name), gpu & np.isin(rows.gpu.column("name"), numbered)
    at = np.flatnonzero(mask)
    at = at[np.argsort(columns.column("ts_ns")[at], kind="stable")]
    numbers = [_step_number(names[code]) for code in columns.column("name")[at].tolist()]
    arrays = [
        int_array(np.array(numbers, np.int64), pa.int64()),
        int_array(columns.column("ts_ns")[at], pa.int64()),
        int_array(columns.column("dur_ns")[at], pa.int64()),
    ]
    return pa.Table.from_arrays(arrays, schema=tables.STEPS)


def _step_number(name: str) -> int:
    match = PROFILER_STEP.match(name)
    return int(match[1]) if match else NULL

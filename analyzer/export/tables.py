"""The result as tables, one schema each: for spreadsheets, notebooks and databases.

Every table is there in every export, empty where there is nothing to say. Null means *not determined from this input*.
Times are microseconds (``_us``) or integer nanoseconds since the epoch of the trace (``_ns``), sizes bytes, bandwidths
decimal GB/s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from analyzer.export.calls import calls_of
from analyzer.measured import Measured
from analyzer.model import Analysis
from analyzer.rows import DIM_ORDER
from heuristics.arrays import NULL, ints
from heuristics.columns import array, nullable

I64, F64, TEXT, BOOL, RANKS = pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.list_(pa.int64())

SCHEMAS: dict[str, dict[str, pa.DataType]] = {
    "inputs": {
        "path": TEXT, "format": TEXT, "rank": I64, "host": TEXT, "bytes": I64, "events": I64, "complete": BOOL,
    },
    "layout": {
        "dim": TEXT, "degree": I64, "confidence": F64, "groups": pa.list_(RANKS), "evidence": pa.list_(TEXT),
        "against": pa.list_(TEXT),
    },
    "groups": {
        "rank": I64, "name": TEXT, "desc": TEXT, "backend": TEXT, "size": I64, "ranks": RANKS, "ranks_source": TEXT,
        "link": TEXT, "dims": pa.list_(TEXT), "calls": I64,
    },
    "collectives": {
        "dim": TEXT, "primitive": TEXT, "op": TEXT, "group_size": I64, "link": TEXT, "link_type": TEXT, "dtype": TEXT,
        "phase": TEXT, "calls_per_step": F64, "size_bytes_min": I64, "size_bytes_p50": I64, "size_bytes_max": I64,
        "sent_bytes_per_step": I64, "time_us_per_step": F64, "wait_us_per_step": F64, "transfer_us_per_step": F64,
        "exposed_us_per_step": F64, "overlapped_us_per_step": F64, "algbw_gbps": F64, "busbw_gbps": F64,
    },
    "exposure": {
        "rank": I64, "dim": TEXT, "busy_us": F64, "exposed_us": F64, "overlapped_us": F64, "wait_us": F64,
        "transfer_us": F64,
    },
    "ranks": {
        "rank": I64, "host": TEXT, "step_us": F64, "compute_us": F64, "exposed_us": F64, "overlapped_us": F64,
        "memcpy_us": F64, "idle_us": F64, "stage": I64, "clock_offset_us": F64,
    },
    "steps": {
        "rank": I64, "step": I64, "start_ns": I64, "end_ns": I64, "step_us": F64, "compute_us": F64, "exposed_us": F64,
        "overlapped_us": F64, "memcpy_us": F64, "idle_us": F64,
    },
    "ledger": {
        "dim": TEXT, "primitive": TEXT, "link": TEXT, "predicted_bytes": I64, "observed_bytes": I64, "ratio": F64,
        "verdict": TEXT, "explanation": TEXT,
    },
    "stragglers": {"rank": I64, "late_us_per_step": F64, "share_of_waits": F64, "cause": TEXT},
    "findings": {
        "id": TEXT, "severity": TEXT, "title": TEXT, "detail": TEXT, "dim": TEXT, "ranks": RANKS, "cost_us": F64,
        "action": TEXT,
    },
    "calls": {
        "rank": I64, "call": I64, "step": I64, "measured": BOOL, "dim": TEXT, "primitive": TEXT, "op": TEXT,
        "role": TEXT, "phase": TEXT, "name": TEXT, "group": TEXT, "group_size": I64, "link": TEXT, "dtype": TEXT,
        "direction": TEXT, "peer": I64, "size_bytes": I64, "sent_bytes": I64, "start_ns": I64, "time_us": F64,
        "wait_us": F64, "transfer_us": F64, "exposed_us": F64, "algbw_gbps": F64, "busbw_gbps": F64, "stream": I64,
        "seq": I64, "classified_by": TEXT,
    },
}  # fmt: skip
"""Columns of each table and their types."""

_PARTS = ("compute", "exposed", "overlapped", "memcpy", "idle")

NAMES = tuple(SCHEMAS)
"""The tables, in the order in which they are written."""


@dataclass(frozen=True, eq=False)
class _Job:
    """What tables are made of."""

    analysis: Analysis
    ranks: Sequence[Measured]


def schema(name: str) -> pa.Schema:
    """The Arrow schema of a table."""
    return pa.schema(list(SCHEMAS[name].items()))


def table(name: str, analysis: Analysis, ranks: Sequence[Measured]) -> pa.Table:
    """One table.

    Args:
        name: one of `NAMES`.
        analysis: the document.
        ranks: the ranks behind it; without them `calls`, `groups` and `steps` are empty.

    Raises:
        KeyError: there is no such table.
    """
    if name == "calls":
        return _calls(ranks)
    return pa.Table.from_pylist(list(_ROWS[name](_Job(analysis, ranks))), schema(name))


def _plain(items: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for item in items:
        yield msgspec.structs.asdict(item)


def _layout(job: _Job) -> Iterator[dict[str, Any]]:
    for dim, found in job.analysis.layout.dimensions.items():
        yield {"dim": dim, **msgspec.structs.asdict(found)}


def _groups(job: _Job) -> Iterator[dict[str, Any]]:
    for rank in job.ranks:
        group = ints(rank.source.collectives, "group").tolist()
        used: dict[int, list[str]] = {}
        for row, number in enumerate(group):
            used.setdefault(number, []).append(rank.dims[row])
        for number, row in enumerate(rank.source.groups.to_pylist()):
            dims = used.get(number, [])
            yield {
                "rank": rank.source.rank,
                **{key: row[key] for key in ("name", "desc", "backend", "size", "ranks", "ranks_source")},
                "link": rank.links[number],
                "dims": sorted(set(dims), key=DIM_ORDER.index),
                "calls": len(dims),
            }


def _collectives(job: _Job) -> Iterator[dict[str, Any]]:
    for row in job.analysis.collectives:
        said = msgspec.structs.asdict(row)
        sizes = said.pop("size_bytes")
        yield said | {
            f"size_bytes_{key}": None if sizes is None else getattr(sizes, key) for key in ("min", "p50", "max")
        }


def _exposure(job: _Job) -> Iterator[dict[str, Any]]:
    for one in job.analysis.exposure.by_rank if job.analysis.exposure else ():
        for dim, time in one.by_dimension.items():
            yield {"rank": one.rank, "dim": dim, **msgspec.structs.asdict(time)}


def _ranks(job: _Job) -> Iterator[dict[str, Any]]:
    hosts = {item.rank: item.host for item in reversed(job.analysis.inputs)}
    stages = job.analysis.pipeline.stage_of_rank if job.analysis.pipeline else {}
    for one in job.analysis.exposure.by_rank if job.analysis.exposure else ():
        yield msgspec.structs.asdict(one) | {
            "host": hosts.get(one.rank),
            "stage": stages.get(str(one.rank)),
            "clock_offset_us": job.analysis.trust.clock.offset_us.get(str(one.rank)),
        }


def _steps(job: _Job) -> Iterator[dict[str, Any]]:
    for rank in job.ranks:
        time, window = rank.time, rank.window
        for i in range(len(window.edges)):
            parts = {
                key: getattr(time, key)[i] / 1000 for key in ("compute", "exposed", "overlapped", "memcpy", "idle")
            }
            yield {
                "rank": rank.source.rank,
                "step": int(rank.source.steps.number[window.steps[i]]) if window.steps else None,
                "start_ns": int(window.edges[i, 0]),
                "end_ns": int(window.edges[i, 1]),
                "step_us": time.window[i] / 1000,
                **{f"{key}_us": float(us) for key, us in parts.items()},
            }


_ROWS: dict[str, Callable[[_Job], Iterator[dict[str, Any]]]] = {
    "inputs": lambda job: _plain(job.analysis.inputs),
    "layout": _layout,
    "groups": _groups,
    "collectives": _collectives,
    "exposure": _exposure,
    "ranks": _ranks,
    "steps": _steps,
    "ledger": lambda job: _plain(job.analysis.ledger.rows if job.analysis.ledger else ()),
    "stragglers": lambda job: _plain(job.analysis.stragglers),
    "findings": lambda job: _plain(job.analysis.findings),
}


def _calls(ranks: Sequence[Measured]) -> pa.Table:
    """Every call of every rank, in columns: a job makes millions."""
    parts = [_calls_of(rank) for rank in ranks]
    return pa.concat_tables(parts) if parts else schema("calls").empty_table()


def _calls_of(rank: Measured) -> pa.Table:
    source = rank.source.collectives
    calls = calls_of(rank, rank.source.line)
    length = calls.end - calls.start
    waits = calls.wait != NULL
    columns: dict[str, Any] = {
        "rank": pa.array([rank.source.rank] * len(calls), I64),
        "call": pa.array(range(len(calls)), I64),
        "step": nullable(calls.step, I64),
        "measured": pa.array(rank.counted.tolist(), BOOL),
        "group_size": nullable(ints(source, "group_size"), I64),
        "size_bytes": nullable(calls.size, I64),
        "sent_bytes": nullable(calls.sent, I64),
        "start_ns": pa.array(calls.start, I64),
        "time_us": pa.array(length / 1000, F64),
        "wait_us": array(calls.wait / 1000, waits),
        "transfer_us": array((length - calls.wait) / 1000, waits),
        "exposed_us": pa.array(calls.exposed / 1000, F64),
        "algbw_gbps": array(calls.algbw, calls.algbw == calls.algbw),
        "busbw_gbps": array(calls.busbw, calls.busbw == calls.busbw),
        **{name: nullable(ints(source, name), I64) for name in ("peer", "stream", "seq")},
    }
    for name, kind in SCHEMAS["calls"].items():
        if name not in columns:
            columns[name] = pa.array(calls.texts[name], kind)
    return pa.Table.from_arrays([columns[name] for name in SCHEMAS["calls"]], schema=schema("calls"))

"""The large tables of every rank: one column after the other is put in order of the ranks and cut, so that little more
is in memory than the tables themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parsers import tables
from parsers.columns import NULL, Ints, int_array, text_array
from parsers.nsys.gpu import GPU_KINDS, wide
from parsers.nsys.seats import Part

if TYPE_CHECKING:
    from parsers.nsys.build import Report

Cut = Callable[[npt.NDArray[Any]], list[npt.NDArray[Any]]]


@dataclass(frozen=True)
class Shares:
    """One rank's share of the large tables.

    Attributes:
        gpu_events: `parsers.tables.GPU_EVENTS`.
        launches: `parsers.tables.LAUNCHES`.
        rows: its rows of the report's GPU table, ascending.
    """

    gpu_events: pa.Table
    launches: pa.Table
    rows: Ints

    def place_of(self, rows: Ints) -> Ints:
        """Rows of ``gpu_events`` from rows of the report's GPU table; -1 for those of other ranks."""
        if not len(self.rows):
            return np.full(len(rows), -1, np.int64)
        place = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        return np.where(self.rows[place] == rows, place, -1)


def divide(report: Report, parts: Sequence[Part]) -> list[Shares]:
    """The shares of the ranks, in their order."""
    of_row = np.full(len(report.gpu.start), -1, np.int16)
    for number, part in enumerate(parts):
        of_row[part.gpu_rows(report)] = number
    rows, cut = _cutter(of_row, len(parts))
    events = _gpu_events(report, cut)
    launches = _launches(report, _parts_of_launches(report, parts, of_row), len(parts))
    return [Shares(event, launch, own) for event, launch, own in zip(events, launches, rows, strict=True)]


def _cutter(of_row: npt.NDArray[np.int16], count: int) -> tuple[list[Ints], Cut]:
    """The rows of each part, and what cuts a column into the parts' own."""
    order = np.argsort(of_row, kind="stable")
    edges = np.searchsorted(of_row[order], np.arange(count + 1)).tolist()
    in_order = len(order) == edges[-1] - edges[0] and bool((np.diff(order) == 1).all())

    def cut(column: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        whole = column if in_order else column[order]
        return [whole[begin:end] for begin, end in pairwise(edges)]

    return cut(np.arange(len(of_row))), cut


def _gpu_events(report: Report, cut: Cut) -> list[pa.Table]:
    gpu, base = report.gpu, report.facts.base_ns
    link = np.full(len(gpu.start), NULL, np.int64)
    link[report.links.gpu_row] = report.links.gpu_link
    kinds, names = text_array(GPU_KINDS), text_array(gpu.names)

    def columns() -> Iterator[tuple[str, list[pa.Array]]]:
        yield "ts_ns", [int_array(values + base, pa.int64()) for values in cut(gpu.start)]
        yield "dur_ns", [int_array(wide(values), pa.int64()) for values in cut(gpu.dur)]
        devices = [wide(values) for values in cut(gpu.device)]
        yield "device", [int_array(np.where(values < 0, NULL, values), pa.int32()) for values in devices]
        yield "stream", [int_array(wide(values), pa.int64()) for values in cut(gpu.stream)]
        yield "kind", [_texts(values, kinds) for values in cut(gpu.kind)]
        yield "name", [_texts(values, names) for values in cut(gpu.name)]
        yield "correlation", [int_array(wide(values), pa.int64()) for values in cut(gpu.correlation)]
        yield "external_id", [int_array(values, pa.int64()) for values in cut(link)]
        for name, optional in (("bytes", gpu.bytes), ("graph", gpu.graph)):
            if optional is not None:
                yield name, [int_array(wide(values), pa.int64()) for values in cut(optional)]

    return _tables(tables.GPU_EVENTS, dict(columns()))


def _parts_of_launches(report: Report, parts: Sequence[Part], of_row: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """The rank behind each launch: its process's, where that is one; else that of the work it launched."""
    gpu, launches = report.gpu, report.launches
    out = np.full(len(launches.start), -1, np.int16)
    for owner in {part.owner for part in parts}:
        own = [number for number, part in enumerate(parts) if part.owner == owner]
        mine = np.flatnonzero(launches.owner == owner)
        if len(own) == 1 and parts[own[0]].whole:
            out[mine] = own[0]
            continue
        for number in own:
            wanted = np.unique(wide(gpu.correlation, of_row == number))
            out[mine[np.isin(launches.correlation[mine], wanted)]] = number
    return out


def _launches(report: Report, of_row: npt.NDArray[np.int16], count: int) -> list[pa.Table]:
    launches, base = report.launches, report.facts.base_ns
    _, cut = _cutter(of_row, count)
    columns = {
        "ts_ns": [int_array(values + base, pa.int64()) for values in cut(launches.start)],
        "dur_ns": [int_array(wide(values), pa.int64()) for values in cut(launches.dur)],
        "tid": [int_array(wide(values), pa.int64()) for values in cut(launches.tid)],
        "correlation": [int_array(wide(values), pa.int64()) for values in cut(launches.correlation)],
    }
    return _tables(tables.LAUNCHES, columns)


def _texts(numbers: npt.NDArray[Any], names: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(int_array(wide(numbers), pa.int32()), names, safe=False)


def _tables(schema: pa.Schema, columns: Mapping[str, Sequence[pa.Array]]) -> list[pa.Table]:
    """One table per part; columns that are not given are null, and share one buffer of zeros."""
    sizes = [len(column) for column in next(iter(columns.values()))]
    zeros = pa.py_buffer(np.zeros(max(sizes, default=0), np.int64))

    def null(kind: pa.DataType, count: int) -> pa.Array:
        return pa.Array.from_buffers(kind, count, [zeros, zeros])

    return [
        pa.Table.from_arrays(
            [columns[f.name][part] if f.name in columns else null(f.type, sizes[part]) for f in schema], schema=schema
        )
        for part in range(len(sizes))
    ]

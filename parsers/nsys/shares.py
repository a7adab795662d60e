"""The large tables of every rank: one column after the other is put in order of the ranks and cut, so that little more
is in memory than the tables themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parsers import tables
from parsers.columns import NULL, Ints, int_array, text_array
from parsers.nsys.gpu import GPU_KINDS, OTHER, Launches, wide
from parsers.nsys.seats import Part

if TYPE_CHECKING:
    from parsers.nsys.build import Report


@dataclass(frozen=True)
class Shares:
    """One rank's share of the large tables.

    Attributes:
        gpu_events: `parsers.tables.GPU_EVENTS`.
        launches: `parsers.tables.LAUNCHES`.
        rows: its rows of the report's GPU table, ascending.
        graphs: launches of whole CUDA graphs among them.
    """

    gpu_events: pa.Table
    launches: pa.Table
    rows: npt.NDArray[np.int32]
    graphs: int

    def place_of(self, rows: Ints) -> Ints:
        """Rows of ``gpu_events`` from rows of the report's GPU table; -1 for those of other ranks."""
        return _places(self.rows, rows)


def _places(own: npt.NDArray[np.int32], rows: Ints) -> Ints:
    if not len(own):
        return np.full(len(rows), -1, np.int64)
    place = np.minimum(np.searchsorted(own, rows), len(own) - 1)
    return np.where(own[place] == rows, place, -1)


def divide(report: Report, parts: Sequence[Part]) -> list[Shares]:
    """The shares of the ranks, in their order. The report's own columns of these tables are given up on the way."""
    gpu, launches = report.gpu, report.launches
    of_row = np.full(len(gpu.start), -1, np.int16)
    for number, part in enumerate(parts):
        of_row[part.gpu_rows(report)] = number
    of_launch = _parts_of_launches(report, parts, of_row)
    order = _Order(of_row, len(parts))
    graphs = [int((kinds == OTHER).sum()) for kinds in order.cut(gpu.kind)]
    events = _gpu_events(report, order)
    called = _launches(launches, report.facts.base_ns, _Order(of_launch, len(parts)))
    return [Shares(*share) for share in zip(events, called, order.rows, graphs, strict=True)]


class _Order:
    """Puts columns in order of the parts and cuts them into the parts' own."""

    def __init__(self, of_row: npt.NDArray[np.int16], count: int) -> None:
        order = np.argsort(of_row, kind="stable").astype(np.int32)
        edges = np.searchsorted(of_row, np.arange(count + 1), sorter=order).tolist()
        self._edges = list(pairwise(edges))
        self._order = None if edges[0] == 0 and edges[-1] == len(order) and (np.diff(order) == 1).all() else order
        self.rows = [order[begin:end] for begin, end in self._edges]

    def cut(self, column: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """The parts' own values."""
        whole = column if self._order is None else column[self._order]
        return [whole[begin:end] for begin, end in self._edges]


def _gpu_events(report: Report, order: _Order) -> list[pa.Table]:
    gpu, base = report.gpu, report.facts.base_ns
    kinds, names = text_array(GPU_KINDS), text_array(gpu.names)
    columns: dict[str, list[pa.Array]] = {}
    columns["ts_ns"] = [_integers(values + base) for values in order.cut(gpu.start)]
    gpu.start = gpu.start[:0]
    columns["dur_ns"] = [_integers(values) for values in order.cut(gpu.dur)]
    gpu.dur = gpu.dur[:0]
    devices = [wide(values) for values in order.cut(gpu.device)]
    columns["device"] = [int_array(np.where(values < 0, NULL, values), pa.int32()) for values in devices]
    columns["stream"] = [_integers(values) for values in order.cut(gpu.stream)]
    gpu.stream = gpu.stream[:0]
    columns["kind"] = [_texts(values, kinds) for values in order.cut(gpu.kind)]
    columns["name"] = [_texts(values, names) for values in order.cut(gpu.name)]
    gpu.name = gpu.name[:0]
    columns["correlation"] = [_integers(values) for values in order.cut(gpu.correlation)]
    gpu.correlation = gpu.correlation[:0]
    columns["external_id"] = [_integers(_links(report, own)) for own in order.rows]
    for name, optional in (("bytes", gpu.bytes), ("graph", gpu.graph)):
        if optional is not None:
            columns[name] = [_integers(values) for values in order.cut(optional)]
    return _tables(tables.GPU_EVENTS, columns)


def _links(report: Report, own: npt.NDArray[np.int32]) -> Ints:
    """The numbers of the links to NCCL's calls, of one part's rows."""
    out = np.full(len(own), NULL, np.int64)
    place = _places(own, report.links.gpu_row)
    out[place[place >= 0]] = report.links.gpu_link[place >= 0]
    return out


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


def _launches(launches: Launches, base: int, order: _Order) -> list[pa.Table]:
    columns = {"ts_ns": [_integers(values + base) for values in order.cut(launches.start)]}
    launches.start = launches.start[:0]
    columns["dur_ns"] = [_integers(values) for values in order.cut(launches.dur)]
    columns["tid"] = [_integers(values) for values in order.cut(launches.tid)]
    columns["correlation"] = [_integers(values) for values in order.cut(launches.correlation)]
    return _tables(tables.LAUNCHES, columns)


def _integers(values: npt.NDArray[Any]) -> pa.Array:
    return int_array(wide(values), pa.int64())


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

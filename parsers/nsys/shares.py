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
from parsers.nsys.gpu import GPU_KINDS, OTHER, GpuRows, Launches, wide
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
    order, order_of_launches = _Order(of_row, len(parts)), _Order(of_launch, len(parts))
    del of_row, of_launch
    graphs = [int((kinds == OTHER).sum()) for kinds in order.cut(gpu.kind, np.int8)]
    events = _gpu_events(report, order)
    called = _launches(launches, report.facts.base_ns, order_of_launches)
    return [Shares(*share) for share in zip(events, called, order.rows, graphs, strict=True)]


class _Order:
    """Puts columns in order of the parts and cuts them into the parts' own."""

    def __init__(self, of_row: npt.NDArray[np.int16], count: int) -> None:
        order = np.argsort(of_row, kind="stable").astype(np.int32)
        edges = np.searchsorted(of_row, np.arange(count + 1), sorter=order).tolist()
        self._edges = list(pairwise(edges))
        self._order = None if edges[0] == 0 and edges[-1] == len(order) and (np.diff(order) == 1).all() else order
        self.rows = [order[begin:end] for begin, end in self._edges]

    def cut(self, column: npt.NDArray[Any], kind: type[np.signedinteger[Any]] = np.int64, add: int = 0) -> list[Any]:
        """The parts' own values, as slices of one array."""
        whole = (column if self._order is None else column[self._order]).astype(kind, copy=False)
        if add:
            whole = whole + add
        return [whole[begin:end] for begin, end in self._edges]

    def integers(self, column: npt.NDArray[Any], add: int = 0) -> list[pa.Array]:
        """The parts' own values as Arrow integers."""
        return [int_array(values, pa.int64()) for values in self.cut(column, add=add)]

    def texts(self, column: npt.NDArray[Any], names: pa.Array) -> list[pa.Array]:
        """The parts' own numbers as the names that they stand for."""
        numbers = [
            pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])
            for values in self.cut(column, np.int32)
        ]
        return [pa.DictionaryArray.from_arrays(codes, names, safe=False) for codes in numbers]


def _gpu_events(report: Report, order: _Order) -> list[pa.Table]:
    gpu, base = report.gpu, report.facts.base_ns
    kinds, names = text_array(GPU_KINDS), text_array(gpu.names)
    columns: dict[str, list[pa.Array]] = {}
    columns["ts_ns"] = order.integers(_given_up(gpu, "start"), base)
    columns["dur_ns"] = order.integers(_given_up(gpu, "dur"))
    devices = order.cut(_given_up(gpu, "device"), np.int16)
    columns["device"] = [int_array(np.where(values < 0, NULL, wide(values)), pa.int32()) for values in devices]
    columns["stream"] = order.integers(_given_up(gpu, "stream"))
    columns["kind"] = order.texts(_given_up(gpu, "kind"), kinds)
    columns["name"] = order.texts(_given_up(gpu, "name"), names)
    columns["correlation"] = order.integers(_given_up(gpu, "correlation"))
    columns["external_id"] = [int_array(_links(report, own), pa.int64()) for own in order.rows]
    for name in ("bytes", "graph"):
        if getattr(gpu, name) is not None:
            columns[name] = order.integers(_given_up(gpu, name))
    return _tables(tables.GPU_EVENTS, columns)


def _given_up(rows: GpuRows | Launches, name: str) -> npt.NDArray[Any]:
    """A column of the report, of which nothing is kept there."""
    column: npt.NDArray[Any] = getattr(rows, name)
    setattr(rows, name, column[:0].copy())
    return column


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
    columns = {"ts_ns": order.integers(_given_up(launches, "start"), base)}
    for name, column in (("dur_ns", "dur"), ("tid", "tid"), ("correlation", "correlation")):
        columns[name] = order.integers(_given_up(launches, column))
    launches.owner = launches.owner[:0].copy()
    return _tables(tables.LAUNCHES, columns)


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

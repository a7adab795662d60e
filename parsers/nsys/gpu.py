"""What ran on the GPUs of a report, and the calls that put it there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parsers.columns import NULL, Ints
from parsers.nsys.conditions import Begins, Contains, Not, OneOf
from parsers.nsys.owners import THREAD_MASK, Owners
from parsers.nsys.schema import COPIES, FILLS, GRAPHS, KERNELS, RUNTIME
from parsers.nsys.store import Block, Store

GPU_KINDS = ("kernel", "memcpy", "memset", "other")
KERNEL, COPY, FILL, OTHER = range(len(GPU_KINDS))

LONGEST_NS = 31 * 86_400 * 10**9
"""A duration beyond a month is no duration."""

LAST_NS = 2**62
"""146 years: no clock says more, and the sum and the difference of two such times are still 64-bit numbers."""

PEER = "Memcpy PtoP (Device -> Device)"
"""A copy from one GPU to another, in the words of CUPTI."""

_COPY_KINDS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
_DTOD, _PTOP = 8, 10
_MEMORIES = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}

# Calls that are frequent and put nothing on a GPU (CUDA Runtime and Driver API references).
_NO_LAUNCH = (
    "cudaEvent", "cuEvent", "cudaStreamIs", "cuStreamIs", "cudaStreamGet", "cuStreamGet", "cudaStreamQuery",
    "cuStreamQuery", "cudaStreamSynchronize", "cuStreamSynchronize", "cudaStreamWait", "cuStreamWaitEvent",
    "cudaStreamCreate", "cuStreamCreate", "cudaFunc", "cuFunc", "cuKernelGet", "cuKernelSet", "cudaOccupancy",
    "cuOccupancy", "cudaDevice", "cuDevice", "cudaGetDevice", "cudaSetDevice", "cudaGetLast", "cudaPeekAtLast",
    "cudaPointer", "cuPointer", "cudaMalloc", "cuMemAlloc", "cudaFree", "cuMemFree", "cudaHost", "cuMemHost",
    "cuModule", "cuLibrary", "cuCtx", "cudaThread", "cuThread", "cudaGetFuncBySymbol", "cuGetProc", "cudaGetDriver",
    "cudaProfiler", "cuInit", "cuMemAddress", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
    "cuMemRelease", "cudaGetExportTable", "cuGetExportTable", "cudaMemGetInfo", "cuMemGetInfo", "cuTensorMap",
)  # fmt: skip
_CAPTURE = re.compile(r"cu(?:da)?Stream(?P<what>Begin|End)Capture")
CAPTURE_BEGINS, CAPTURE_ENDS = 1, 2
_FIRST_ROOM = 1 << 16
_DENSE = 16
"""Numbers are dense where the highest is less than so many times as large as there are numbers."""


Narrow = npt.NDArray[np.signedinteger[Any]]
"""Integers in as few bytes as they need; `wide` makes them int64 again."""


@dataclass
class GpuRows:
    """Rows of all GPUs of a report, in the order of the file.

    Attributes:
        start: ns, on the clock of the file; so for all times here.
        dur: ns.
        owner: number of the process (`Owners`).
        device: CUDA device within the process, -1 where it is not recorded.
        stream: number of the stream.
        correlation: number of the call that launched it, unique within its process.
        kind: place in `GPU_KINDS`.
        name: number into ``names``.
        names: distinct names.
        bytes: of copies and fills; None where there are none.
        graph: node of the CUDA graph that it was replayed from; None where there are none.
        quarantined: rows set aside, by reason.
        read: rows read.
    """

    start: Ints
    dur: Narrow
    owner: npt.NDArray[np.int16]
    device: npt.NDArray[np.int16]
    stream: Narrow
    correlation: Narrow
    kind: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    names: list[str]
    bytes: Narrow | None
    graph: Narrow | None
    quarantined: Mapping[str, int]
    read: int


def are_times(values: Ints) -> npt.NDArray[np.bool_]:
    """Which values can be times (`NULL` cannot)."""
    return (values > -LAST_NS) & (values < LAST_NS)


def wide(values: npt.NDArray[Any], rows: npt.NDArray[Any] | None = None) -> Ints:
    """Some (or all) of a column as int64."""
    return (values if rows is None else values[rows]).astype(np.int64, copy=False)


class _Growing:
    """Columns that grow in place, each in as few bytes as its values need.

    Few large arrays instead of many small ones: those would lie between what comes and goes with every block, and keep
    its memory from being given back.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.empty(_FIRST_ROOM, np.int8) for name in names}
        self._rows = 0

    def add(self, columns: Mapping[str, npt.NDArray[Any]], keep: npt.NDArray[np.bool_]) -> None:
        whole, count = bool(keep.all()), int(keep.sum())
        if not count:
            return
        for name, column in self._columns.items():
            values = columns[name] if whole else columns[name][keep]
            room = self._with_room(column, count, _width(values))
            room[self._rows : self._rows + count] = values
            self._columns[name] = room
        self._rows += count

    def _with_room(self, column: npt.NDArray[Any], count: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        needed = self._rows + count
        if needed <= len(column) and kind.itemsize <= column.itemsize:
            return column
        grown = np.empty(max(len(column), 2 * needed if needed > len(column) else 0), max(kind, column.dtype))
        grown[: self._rows] = column[: self._rows]
        return grown

    def take(self, name: str, kind: type[np.signedinteger[Any]] | None = None) -> npt.NDArray[Any]:
        """One column as a whole, which is then forgotten here."""
        whole = self._columns.pop(name)[: self._rows]
        return whole if kind is None else whole.astype(kind, copy=False)


def _width(values: npt.NDArray[Any]) -> np.dtype[Any]:
    """The narrowest type that holds all values."""
    low, high = int(values.min()), int(values.max())
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return np.dtype(kind)
    return np.dtype(np.int64)


def read_gpu(store: Store, owners: Owners) -> GpuRows:
    """All kernels, copies, fills and graph launches of a report."""
    names = ("start", "dur", "owner", "device", "stream", "correlation", "kind", "name", "bytes", "graph")
    rows, counts, read = _Growing(names), Counter[str](), 0
    spelling = _Spelling()
    for block, kind in _blocks(store):
        read += block.rows
        start, end = block.ints["start"], block.ints["end"]
        absent = (start == NULL) | (end == NULL)
        negative = ~absent & (end < start)
        beyond = ~(absent | negative | are_times(start))
        endless = ~(absent | negative | beyond) & (end - LONGEST_NS > start)
        for reason, bad in (
            ("no start or end", absent),
            ("end before start", negative),
            ("a start beyond any clock", beyond),
            ("a duration of more than a month", endless),
        ):
            if bad.any():
                counts[reason] += int(bad.sum())
        columns = {
            "start": start,
            "dur": end - start,
            "owner": owners.numbers(block.ints["globalPid"]),
            "device": _devices(block.ints["deviceId"]),
            "stream": block.ints["streamId"],
            "correlation": block.ints["correlationId"],
            "kind": _all(block, kind),
            "name": spelling.codes(block, kind),
            "bytes": block.ints.get("bytes", _all(block, NULL)),
            "graph": _graph(block, kind),
        }
        rows.add(columns, ~(absent | negative | beyond | endless))
    return GpuRows(
        start=rows.take("start", np.int64),
        dur=rows.take("dur"),
        owner=rows.take("owner", np.int16),
        device=rows.take("device", np.int16),
        stream=rows.take("stream"),
        correlation=rows.take("correlation"),
        kind=rows.take("kind", np.int8),
        name=rows.take("name", np.int32),
        names=spelling.names(store),
        bytes=_unless_null(rows.take("bytes")),
        graph=_unless_null(rows.take("graph")),
        quarantined=dict(counts),
        read=read,
    )


def _blocks(store: Store) -> Iterator[tuple[Block, int]]:
    common = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid"]
    named = "demangledName" if "demangledName" in store.columns(KERNELS) else "shortName"
    for block in store.scan(KERNELS, [*common, "graphNodeId", named]):
        yield Block(block.rows, {**block.ints, "nameId": block.ints[named]}, {}), KERNEL
    kinds = ["copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId"]
    for block in store.scan(COPIES, [*common, "graphNodeId", "bytes", *kinds]):
        yield block, COPY
    for block in store.scan(FILLS, [*common, "graphNodeId", "bytes"]):
        yield block, FILL
    for block in store.scan(GRAPHS, [*common, "graphId"]):
        yield block, OTHER


def _devices(ids: Ints) -> Ints:
    """Numbers of devices, -1 where there is none or it is no such number."""
    return np.where((ids >= 0) & (ids <= np.iinfo(np.int16).max), ids, -1)


def _all(block: Block, value: int) -> Ints:
    return np.full(block.rows, value, np.int64)


def _graph(block: Block, kind: int) -> Ints:
    node = _all(block, NULL) if kind == OTHER else block.ints["graphNodeId"]
    return np.where(node == 0, NULL, node)


class _Spelling:
    """Names as numbers in order of first use: of ``StringIds`` those of kernels, and our own of all else."""

    def __init__(self) -> None:
        self._keys: dict[int | str, int] = {}

    def codes(self, block: Block, kind: int) -> Ints:
        """The number of each row's name."""
        if kind == KERNEL:
            values, which = np.unique(block.ints["nameId"], return_inverse=True)
            return self._numbered(values.tolist(), which)
        if kind == FILL:
            return _all(block, self._number("Memset"))
        if kind == OTHER:
            graphs, which = np.unique(block.ints["graphId"], return_inverse=True)
            return self._numbered([f"CUDA graph {number}" for number in graphs.tolist()], which)
        ints = block.ints
        source, target = ints["srcDeviceId"], ints["dstDeviceId"]
        apart = (source != NULL) & (target != NULL) & (source != target)
        copy = np.where((ints["copyKind"] == _DTOD) & apart, _PTOP, ints["copyKind"])
        keys, which = np.unique(np.stack([copy, ints["srcKind"], ints["dstKind"]]), axis=1, return_inverse=True)
        return self._numbered([_copy_name(*key) for key in keys.T.tolist()], which.ravel())

    def _number(self, key: int | str) -> int:
        return self._keys.setdefault(key, len(self._keys))

    def _numbered(self, keys: Sequence[int | str], which: Ints) -> Ints:
        return np.array([self._number(key) for key in keys], np.int64)[which]

    def names(self, store: Store) -> list[str]:
        """All names by number; one that the file lacks is called unknown."""
        ids = [key for key in self._keys if isinstance(key, int) and key != NULL]
        known = store.strings(np.array(ids, np.int64))
        return [key if isinstance(key, str) else known.get(key, "unknown") for key in self._keys]


def _copy_name(kind: int, source: int, target: int) -> str:
    if kind == _PTOP:
        return PEER
    between = f" ({_MEMORIES.get(source, 'Unknown')} -> {_MEMORIES.get(target, 'Unknown')})"
    return f"Memcpy {_COPY_KINDS.get(kind, 'Unknown')}{between}"


def _unless_null(values: Narrow) -> Narrow | None:
    return values if (values != NULL).any() else None


@dataclass
class Launches:
    """Runtime and driver calls that put work on a GPU.

    Attributes:
        start: ns.
        dur: ns.
        owner: number of the process (`Owners`).
        tid: the thread's own number.
        correlation: as in `GpuRows`.
        captures: per beginning or end of a stream capture, row by row ``(owner, tid, ns, 1 for begin, 2 for end)``.
        read: rows read.
    """

    start: Ints
    dur: Narrow
    owner: npt.NDArray[np.int16]
    tid: npt.NDArray[np.int32]
    correlation: Narrow
    captures: Ints
    read: int


def read_launches(store: Store, gpu: GpuRows, owners: Owners) -> Launches:
    """The calls behind the rows of the GPUs, and the beginnings and ends of stream captures."""
    capture = {
        number: CAPTURE_BEGINS if match["what"] == "Begin" else CAPTURE_ENDS
        for number, text in store.find_strings(Contains("value", ("StreamBeginCapture", "StreamEndCapture"))).items()
        if (match := _CAPTURE.match(text))
    }
    skipped = [number for number in store.find_strings(Begins("value", _NO_LAUNCH)) if number not in capture]
    wanted = _Wanted(gpu)
    rows = _Growing(("start", "dur", "owner", "tid", "correlation"))
    captures: list[Ints] = [np.empty((0, 4), np.int64)]
    read = 0
    names = ["start", "end", "globalTid", "correlationId", *(["nameId"] if capture else [])]
    for block in store.scan(RUNTIME, names, where=Not(OneOf("nameId", skipped)) if skipped else None):
        read += block.rows
        ints = block.ints
        owner, tid = owners.numbers(ints["globalTid"]), ints["globalTid"] & THREAD_MASK
        if capture:
            at = np.flatnonzero(np.isin(ints["nameId"], list(capture)))
            what = np.array([capture[number] for number in ints["nameId"][at].tolist()], np.int64)
            captures.append(np.stack([owner[at].astype(np.int64), tid[at], ints["start"][at], what], axis=1))
        timed = are_times(ints["start"]) & are_times(ints["end"]) & (ints["end"] >= ints["start"])
        good = timed & wanted.holds(owner, ints["correlationId"])
        columns = {
            "start": ints["start"],
            "dur": ints["end"] - ints["start"],
            "owner": owner,
            "tid": tid,
            "correlation": ints["correlationId"],
        }
        rows.add(columns, good)
    return Launches(
        start=rows.take("start", np.int64),
        dur=rows.take("dur"),
        owner=rows.take("owner", np.int16),
        tid=rows.take("tid", np.int32),
        correlation=rows.take("correlation"),
        captures=np.concatenate(captures),
        read=read,
    )


class _Wanted:
    """The correlation numbers of each process: as a table where they are dense, as they mostly are."""

    def __init__(self, gpu: GpuRows) -> None:
        self._dense: dict[int, npt.NDArray[np.bool_]] = {}
        self._sparse: dict[int, Ints] = {}
        for owner in np.unique(gpu.owner).tolist():
            numbers = wide(gpu.correlation, gpu.owner == owner)
            numbers = numbers[numbers >= 0]
            top = int(numbers.max(initial=-1)) + 1
            if top <= _DENSE * max(len(numbers), 1 << 20):
                self._dense[owner] = np.zeros(top, np.bool_)
                self._dense[owner][numbers] = True
            else:
                self._sparse[owner] = np.unique(numbers)

    def holds(self, owner: npt.NDArray[np.int16], correlation: Ints) -> npt.NDArray[np.bool_]:
        """Which calls have a row."""
        found = np.zeros(len(owner), np.bool_)
        for number in np.unique(owner).tolist():
            mine = np.flatnonzero((owner == number) & (correlation >= 0))
            there = self._dense.get(number)
            if there is not None:
                mine = mine[correlation[mine] < len(there)]
                found[mine] = there[correlation[mine]]
            elif number in self._sparse:
                found[mine] = np.isin(correlation[mine], self._sparse[number])
        return found

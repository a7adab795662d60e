"""What ran on the GPUs of a report, and the calls that put it there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from parsers.columns import NULL, Ints
from parsers.nsys.conditions import Begins, Contains, Not, OneOf
from parsers.nsys.schema import COPIES, FILLS, GRAPHS, KERNELS, RUNTIME
from parsers.nsys.store import Block, Store

GPU_KINDS = ("kernel", "memcpy", "memset", "other")
KERNEL, COPY, FILL, OTHER = range(len(GPU_KINDS))

PROCESS_SHIFT = 24
"""A global id holds the thread in its lowest 24 bits, then the process, then the virtual machine and the hardware."""

THREAD_MASK = (1 << PROCESS_SHIFT) - 1

LONGEST_NS = 31 * 86_400 * 10**9
"""A duration beyond a month is no duration."""

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


@dataclass
class GpuRows:
    """Rows of all GPUs of a report, in the order of the file.

    Attributes:
        start: ns, on the clock of the file; so for all times here.
        dur: ns.
        process: ``globalPid`` without its thread bits.
        device: CUDA device within the process.
        stream: number of the stream.
        correlation: number of the call that launched it, unique within its process.
        kind: place in `GPU_KINDS`.
        name: number into ``names``.
        bytes: of copies and fills; None where there are none.
        graph: node of the CUDA graph that it was replayed from; None where there are none.
        quarantined: rows set aside, by reason.
        read: rows read.
    """

    start: Ints
    dur: Ints
    process: Ints
    device: npt.NDArray[np.int32]
    stream: Ints
    correlation: Ints
    kind: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    names: list[str]
    bytes: Ints | None
    graph: Ints | None
    quarantined: Mapping[str, int]
    read: int


class _Growing:
    """Columns that are collected block by block, each in its own width."""

    _KINDS: ClassVar[dict[str, type]] = {"device": np.int32, "kind": np.int8}

    def __init__(self, names: Sequence[str]) -> None:
        self._chunks: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}

    def add(self, columns: Mapping[str, npt.NDArray[Any]], keep: npt.NDArray[np.bool_]) -> None:
        whole = bool(keep.all())
        for name, chunks in self._chunks.items():
            values: npt.NDArray[Any] = columns[name].astype(self._KINDS.get(name, np.int64), copy=True)
            chunks.append(values if whole else values[keep])

    def take(self, name: str) -> npt.NDArray[Any]:
        """One column as a whole, which is then forgotten here."""
        chunks = self._chunks.pop(name)
        if not chunks:
            return np.empty(0, self._KINDS.get(name, np.int64))
        return np.concatenate(chunks) if len(chunks) > 1 else chunks[0]


def read_gpu(store: Store) -> GpuRows:
    """All kernels, copies, fills and graph launches of a report."""
    names = ("start", "dur", "process", "device", "stream", "correlation", "kind", "name", "bytes", "graph")
    rows, counts, read = _Growing(names), Counter[str](), 0
    texts: dict[str, int] = {}
    for block, kind in _blocks(store):
        read += block.rows
        start, end = block.ints["start"], block.ints["end"]
        absent = (start == NULL) | (end == NULL)
        negative = ~absent & (end < start)
        endless = ~absent & ~negative & (end - start > LONGEST_NS)
        for reason, bad in (
            ("no start or end", absent),
            ("end before start", negative),
            ("a duration of more than a month", endless),
        ):
            if bad.any():
                counts[reason] += int(bad.sum())
        columns = {
            **{name: block.ints.get(name, _all(block, NULL)) for name in ("bytes",)},
            "start": start,
            "dur": end - start,
            "process": block.ints["globalPid"] >> PROCESS_SHIFT,
            "device": np.where(block.ints["deviceId"] == NULL, -1, block.ints["deviceId"]),
            "stream": block.ints["streamId"],
            "correlation": block.ints["correlationId"],
            "kind": _all(block, kind),
            "name": _name_numbers(block, kind, texts),
            "graph": _graph(block, kind),
        }
        rows.add(columns, ~(absent | negative | endless))
    name, spelled = _spell(store, rows.take("name"), texts)
    return GpuRows(
        start=rows.take("start"),
        dur=rows.take("dur"),
        process=rows.take("process"),
        device=rows.take("device"),
        stream=rows.take("stream"),
        correlation=rows.take("correlation"),
        kind=rows.take("kind"),
        name=name,
        names=spelled,
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


def _all(block: Block, value: int) -> Ints:
    return np.full(block.rows, value, np.int64)


def _graph(block: Block, kind: int) -> Ints:
    node = _all(block, NULL) if kind == OTHER else block.ints["graphNodeId"]
    return np.where(node == 0, NULL, node)


def _name_numbers(block: Block, kind: int, texts: dict[str, int]) -> Ints:
    """Names as numbers: of ``StringIds`` from 0, of texts of our own below 0."""
    if kind == KERNEL:
        return block.ints["nameId"]
    if kind == FILL:
        return _all(block, _text("Memset", texts))
    if kind == OTHER:
        graphs, which = np.unique(block.ints["graphId"], return_inverse=True)
        return np.array([_text(f"CUDA graph {number}", texts) for number in graphs.tolist()], np.int64)[which]
    ints = block.ints
    apart = (ints["srcDeviceId"] != NULL) & (ints["dstDeviceId"] != NULL) & (ints["srcDeviceId"] != ints["dstDeviceId"])
    copy = np.where((ints["copyKind"] == _DTOD) & apart, _PTOP, ints["copyKind"])
    keys, which = np.unique(np.stack([copy, ints["srcKind"], ints["dstKind"]]), axis=1, return_inverse=True)
    return np.array([_text(_copy_name(*key), texts) for key in keys.T.tolist()], np.int64)[which.ravel()]


def _copy_name(kind: int, source: int, target: int) -> str:
    if kind == _PTOP:
        return PEER
    between = f" ({_MEMORIES.get(source, 'Unknown')} -> {_MEMORIES.get(target, 'Unknown')})"
    return f"Memcpy {_COPY_KINDS.get(kind, 'Unknown')}{between}"


def _text(text: str, texts: dict[str, int]) -> int:
    return -2 - texts.setdefault(text, len(texts))


def _spell(store: Store, numbers: Ints, texts: Mapping[str, int]) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Numbers into a list of the distinct names, and the list; a name that the file lacks is called unknown."""
    distinct, place = np.unique(numbers, return_inverse=True)
    known = store.strings(distinct[distinct >= 0])
    own = {-2 - number: text for text, number in texts.items()}
    spelled = [own.get(number) or known.get(number, "unknown") for number in distinct.tolist()]
    return place.astype(np.int32), spelled


def _unless_null(values: Ints) -> Ints | None:
    return values if (values != NULL).any() else None


@dataclass(frozen=True)
class Launches:
    """Runtime and driver calls that may have put work on a GPU.

    Attributes:
        start: ns.
        dur: ns.
        process: ``globalTid`` without its thread bits.
        tid: the thread's own number.
        correlation: as in `GpuRows`.
        captures: per beginning or end of a stream capture, row by row ``(process, tid, ns, 1 for begin, 2 for end)``.
        read: rows read.
    """

    start: Ints
    dur: Ints
    process: Ints
    tid: Ints
    correlation: Ints
    captures: Ints
    read: int


def read_launches(store: Store, gpu: GpuRows) -> Launches:
    """The calls behind the rows of the GPUs, and the beginnings and ends of stream captures."""
    quiet = store.find_strings(Begins("value", _NO_LAUNCH))
    capture = {
        number: CAPTURE_BEGINS if match["what"] == "Begin" else CAPTURE_ENDS
        for number, text in store.find_strings(Contains("value", ("StreamBeginCapture", "StreamEndCapture"))).items()
        if (match := _CAPTURE.match(text))
    }
    skipped = [number for number in quiet if number not in capture]
    wanted = _correlations(gpu)
    rows = _Growing(("start", "dur", "process", "tid", "correlation"))
    captures: list[Ints] = [np.empty((0, 4), np.int64)]
    read = 0
    names = ["start", "end", "globalTid", "correlationId", "nameId"]
    for block in store.scan(RUNTIME, names, where=Not(OneOf("nameId", skipped)) if skipped else None):
        read += block.rows
        ints = block.ints
        process, tid = ints["globalTid"] >> PROCESS_SHIFT, ints["globalTid"] & THREAD_MASK
        if capture:
            at = np.flatnonzero(np.isin(ints["nameId"], list(capture)))
            what = np.array([capture[number] for number in ints["nameId"][at].tolist()], np.int64)
            captures.append(np.stack([process[at], tid[at], ints["start"][at], what], axis=1))
        good = (ints["start"] != NULL) & (ints["end"] >= ints["start"]) & (ints["correlationId"] != NULL)
        good &= _is_in(process, ints["correlationId"], wanted)
        columns = {
            "start": ints["start"],
            "dur": ints["end"] - ints["start"],
            "process": process,
            "tid": tid,
            "correlation": ints["correlationId"],
        }
        rows.add(columns, good)
    return Launches(
        start=rows.take("start"),
        dur=rows.take("dur"),
        process=rows.take("process"),
        tid=rows.take("tid"),
        correlation=rows.take("correlation"),
        captures=np.concatenate(captures),
        read=read,
    )


def _correlations(gpu: GpuRows) -> dict[int, Ints]:
    """The sorted correlation numbers of each process."""
    return {process: np.unique(gpu.correlation[gpu.process == process]) for process in np.unique(gpu.process).tolist()}


def _is_in(process: Ints, correlation: Ints, wanted: Mapping[int, Ints]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(process), np.bool_)
    for number in np.unique(process).tolist():
        known = wanted.get(number)
        if known is None or not len(known):
            continue
        mine = np.flatnonzero(process == number)
        place = np.minimum(np.searchsorted(known, correlation[mine]), len(known) - 1)
        found[mine] = known[place] == correlation[mine]
    return found

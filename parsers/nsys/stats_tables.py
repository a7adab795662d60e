"""From the tables that ``nsys stats`` and its recipes print to the tables of an export."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parsers.columns import NULL, Ints, int_array, text_array
from parsers.nsys.nvtx import PUSH_POP
from parsers.nsys.owners import PROCESS_SHIFT
from parsers.nsys.schema import COPIES, FILLS, KERNELS, NVTX, RUNTIME, STRINGS

Frame = Mapping[str, npt.NDArray[Any] | list[Any]]
"""A printed table: columns by name without unit, times in ns, numbers as int64 with `NULL`, all else as lists."""

_DOMAIN_PREFIX = "NCCL:"
_DEVICE = re.compile(r"\((\d{1,4})\)\Z")
_COPY = re.compile(r"\[CUDA (?P<what>memcpy|memset)(?: (?P<way>[\w-]+))?\]")
_WAYS = {"Host-to-Device": 1, "Device-to-Host": 2, "Device-to-Device": 8, "Host-to-Host": 9, "Peer-to-Peer": 10}
_FILL, _KERNEL = -1, -2


def tables_of(frames: Sequence[Frame]) -> dict[str, pa.Table]:
    """The tables of an export that printed tables of one report stand for; none where they have no time line."""
    ranges = [frame for frame in frames if "Name" in frame and ("RangeId" in frame or "NameTree" in frame)]
    pushed = [frame for frame in ranges if "Start" in frame and "Projected Start" not in frame]
    projected = [frame for frame in ranges if "Projected Start" in frame]
    traced = [frame for frame in frames if _is_traced(frame)]
    launched = [frame for frame in frames if _is_launched(frame)]
    texts: dict[str, int] = {}
    tables: dict[str, pa.Table] = {}
    if pushed or projected:
        tables[NVTX] = _ranges(pushed[0] if pushed else projected[0], projected=not pushed)
    if traced or launched:
        tables |= _kernels(traced[0] if traced else None, launched[0] if launched else None, texts)
    elif projected:
        tables |= _projections(projected[0], texts)
    if tables:
        tables[STRINGS] = as_table({"id": np.arange(len(texts)), "value": list(texts)})
    return tables


def unnamed(frames: Sequence[Frame]) -> list[str]:
    """Sentences on tables of kernels without the column that names them."""
    wanted = [("Name", frame) for frame in frames if _is_traced(frame)]
    wanted += [("Kernel Name", frame) for frame in frames if _is_launched(frame)]
    return [f"a table has no column {name!r}: its kernels have no names" for name, frame in wanted if name not in frame]


def _is_traced(frame: Frame) -> bool:
    return "CorrId" in frame and "Device" in frame


def _is_launched(frame: Frame) -> bool:
    return "API Start" in frame and "Kernel Start" in frame


def as_table(columns: Mapping[str, npt.NDArray[Any] | list[Any]]) -> pa.Table:
    """A table of integers and texts."""
    arrays = [
        text_array(values) if isinstance(values, list) else int_array(values.astype(np.int64), pa.int64())
        for values in columns.values()
    ]
    return pa.Table.from_arrays(arrays, names=list(columns))


def _ints(frame: Frame, name: str, count: int) -> Ints:
    values = frame.get(name)
    if isinstance(values, np.ndarray):
        return values.astype(np.int64)
    return np.full(count, NULL, np.int64)


def _names(frame: Frame, name: str) -> list[str]:
    """A column as text; rows of a table without it are there all the same (see `unnamed`)."""
    values = frame.get(name)
    if values is None:
        return [""] * len(next(iter(frame.values()), ()))
    return ["" if value is None else str(value) for value in values]


def _ids(frame: Frame, count: int) -> tuple[Ints, Ints]:
    pid, tid = _ints(frame, "PID", count), _ints(frame, "TID", count)
    process = np.where(pid == NULL, 0, pid) << PROCESS_SHIFT
    return process, process | np.where(tid == NULL, 0, tid)


def _ranges(frame: Frame, *, projected: bool) -> pa.Table:
    names = _names(frame, "Name")
    count = len(names)
    start = _ints(frame, "Orig Start" if projected else "Start", count)
    dur = _ints(frame, "Orig Duration" if projected else "Duration", count)
    end = _ints(frame, "End", count)
    end = np.where((end == NULL) | projected, np.where(dur == NULL, NULL, start + dur), end)
    _, tid = _ids(frame, count)
    return as_table(
        {
            "start": start,
            "end": end,
            "eventType": np.full(count, PUSH_POP),
            "text": [name.removeprefix(_DOMAIN_PREFIX) for name in names],
            "globalTid": tid,
        }
    )


def _number(texts: dict[str, int], names: list[str]) -> Ints:
    return np.array([texts.setdefault(name, len(texts)) for name in names], np.int64)


def _kernels(traced: Frame | None, launched: Frame | None, texts: dict[str, int]) -> dict[str, pa.Table]:
    """Kernels (and copies, under their names) of ``cuda_gpu_trace``, launches of ``cuda_kern_exec_trace``.

    The one has streams and no processes, the other processes and no streams: rows that start at the same time on the
    same GPU are the same kernel. Correlation numbers restart in every process, so that rows get numbers of their own.
    """
    frame = traced if traced is not None else launched or {}
    names = _names(frame, "Name" if traced is not None else "Kernel Name")
    count = len(names)
    start = _ints(frame, "Start" if traced is not None else "Kernel Start", count)
    dur = _ints(frame, "Duration" if traced is not None else "Kernel Dur", count)
    device = _devices_of(frame, count) if traced is not None else _ints(frame, "DevId", count)
    process = np.full(count, 0, np.int64) if traced is not None else _ids(frame, count)[0]
    tables: dict[str, pa.Table] = {}
    if launched is not None:
        calls = len(_names(launched, "Kernel Name"))
        owner, tid = _ids(launched, calls)
        row = _same(_ints(launched, "Kernel Start", calls), _ints(launched, "DevId", calls), start, device)
        known = np.flatnonzero(row >= 0)
        process = process.copy()
        for gpu in np.unique(device).tolist():  # copies are not in the other table: they belong to the GPU's process
            mine = owner[known][device[row[known]] == gpu]
            if len(mine):
                values, often = np.unique(mine, return_counts=True)
                process[device == gpu] = values[int(np.argmax(often))]
        process[row[known]] = owner[known]
        api = _ints(launched, "API Start", calls)
        tables[RUNTIME] = as_table(
            {
                "start": api[known],
                "end": (api + _ints(launched, "API Dur", calls))[known],
                "globalTid": tid[known],
                "correlationId": row[known],
                "nameId": _number(texts, _names(launched, "API Function"))[known],
            }
        )
    way = np.array([_way(name) for name in names], np.int64)
    columns = {
        "start": start,
        "end": np.where(dur == NULL, NULL, start + dur),
        "deviceId": device,
        "streamId": _ints(frame, "Strm", count),
        "correlationId": np.arange(count),
        "globalPid": process,
        "copyKind": way,
        "demangledName": _number(texts, names),
    }
    for table, rows in ((KERNELS, way == _KERNEL), (COPIES, way >= 0), (FILLS, way == _FILL)):
        if rows.any():
            tables[table] = as_table({name: values[rows] for name, values in columns.items()})
    return tables


def _way(name: str) -> int:
    """The kind of a copy, `_FILL` for fills, `_KERNEL` for kernels."""
    match = _COPY.match(name)
    if match is None:
        return _KERNEL
    return _FILL if match["what"] == "memset" else _WAYS.get(match["way"] or "", 0)


def _devices_of(frame: Frame, count: int) -> Ints:
    """``NVIDIA H100 80GB HBM3 (1)``: the number in parentheses."""
    numbers = [_DEVICE.search(name) for name in _names(frame, "Device")]
    return (
        np.array([int(match[1]) if match else NULL for match in numbers], np.int64) if numbers else np.full(count, NULL)
    )


def _same(start: Ints, device: Ints, other_start: Ints, other_device: Ints) -> Ints:
    """The row of the other table with the same start on the same GPU; -1 for none."""
    order = np.lexsort((other_device, other_start))
    key = {
        (s, d): row
        for row, s, d in zip(order.tolist(), other_start[order].tolist(), other_device[order].tolist(), strict=True)
    }
    return np.array([key.get(pair, -1) for pair in zip(start.tolist(), device.tolist(), strict=True)], np.int64)


def _projections(frame: Frame, texts: dict[str, int]) -> dict[str, pa.Table]:
    """GPU work as recipes project it: the innermost range that holds an operation stands for it, under its name."""
    names = _names(frame, "Name")
    count = len(names)
    start, dur = _ints(frame, "Projected Start", count), _ints(frame, "Projected Duration", count)
    asked = _ints(frame, "Orig Start", count)
    rows = np.flatnonzero((_ints(frame, "NumChild", count) == 0) & (asked != NULL) & (start != NULL) & (dur != NULL))
    process, tid = _ids(frame, count)
    return {
        KERNELS: as_table(
            {
                "start": start[rows],
                "end": (start + dur)[rows],
                "deviceId": np.full(len(rows), NULL, np.int64),
                "correlationId": rows,
                "globalPid": process[rows],
                "demangledName": _number(texts, [names[row] for row in rows.tolist()]),
            }
        ),
        RUNTIME: as_table(
            {
                "start": asked[rows],
                "end": asked[rows],
                "globalTid": tid[rows],
                "correlationId": rows,
                "nameId": np.full(len(rows), NULL, np.int64),
            }
        ),
    }

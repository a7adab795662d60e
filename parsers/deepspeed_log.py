"""DeepSpeed's communication logger: a line per call (``verbose``), the summary table, and its JSON form.

What it cannot tell: groups and other ranks (rank 0 alone writes), the element type, when a call began, and how long it
would have taken unobserved: the logger waits for every call, so nothing overlaps any more. Sizes in text are rounded to
two decimals of a unit of 1024; only the JSON form has exact bytes. Bandwidths are printed in Gbit/s, average latencies
are means without the highest and lowest tenth, ``busbw`` takes the world for the group, and ``algbw`` of an all-reduce
counts its bytes twice (deepspeed/utils/comms_logging.py `calc_bw_log`, `CommsLogger`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from parsers import tables
from parsers.assemble import table
from parsers.bytes_of import lines, whole
from parsers.columns import whole_number
from parsers.errors import InputError
from parsers.source import Source
from parsers.tables import Health, RankIdentity, RankTrace

FORMAT = "deepspeed_log"
LAYER = "comms_logger"
MAX_JSON_BYTES = 1 << 26

SUMMARY = pa.schema(
    [
        ("op", tables.TEXT),
        ("caller", tables.TEXT),  # the function that called it, with the logger's debug option
        ("size_bytes", pa.int64()),
        ("size_error_bytes", pa.int64()),  # how far rounding may have moved it; 0 where it is exact
        ("count", pa.int64()),
        ("total_ms", pa.float64()),
        ("average_ms", pa.float64()),  # trimmed: not total / count
        ("algbw_gbps", pa.float64()),  # decimal GB/s, an eighth of what is printed
        ("busbw_gbps", pa.float64()),
        ("straggler_total_ms", pa.float64()),  # waiting for the last rank, where the table has it
        ("transfer_total_ms", pa.float64()),
    ]
)
"""One row per operation and message size of the last summary in the file."""

CALLS = pa.schema(
    [
        ("op", tables.TEXT),
        ("rank", pa.int32()),
        ("size_bytes", pa.int64()),
        ("size_error_bytes", pa.int64()),
        ("dur_ns", pa.int64()),
        ("algbw_gbps", pa.float64()),
        ("busbw_gbps", pa.float64()),
    ]
)
"""One row per logged call; row i belongs to row i of the trace's ``comm_records``."""

_UNITS = {unit: 1024**power for power, unit in enumerate(("B", "KB", "MB", "GB", "TB", "PB"))}
_SIZE = rb"(\d{1,6}(?:\.\d{1,4})?) ?([KMGTP]?B)"
_NUMBER = rb"(-?\d{1,12}(?:\.\d{1,6})?|nan|inf)"
_CALL = re.compile(
    rb"rank=(\d{1,7}) \| comm op: (\w{1,60})(?: \| \[Caller Func: \S{1,80}\])?\s{0,4}\| time \(ms\): "
    + _NUMBER
    + rb"\s{0,4}\| msg size: "
    + _SIZE
    + rb"\s{0,4}\| algbw \(Gbps\): "
    + _NUMBER
    + rb"\s{0,4}\| busbw \(Gbps\): "
    + _NUMBER
)
_HEADER = re.compile(rb"Comm\. Op\s{1,40}Message Size\s{1,40}Count\s{1,40}Total (Latency|comm lat)")
_OP = re.compile(rb"(?:^|\s)([a-z]\w{2,59})(?: \| \[Caller Func: (\S{1,80})\])?\s*$")
_ROW = re.compile(rb"\s{2,80}" + _SIZE + rb"\s{1,40}(\d{1,12})" + 4 * (rb"\s{1,40}" + _NUMBER) + rb"\s*$")
_JSON = re.compile(rb'"msg_size_bytes"\s*:')


@dataclass(frozen=True, eq=False)
class CommsLogger:
    """What the logger says.

    Attributes:
        calls: `CALLS`.
        summary: `SUMMARY`; empty without one.
        world_size: of the JSON form.
    """

    calls: pa.Table
    summary: pa.Table
    world_size: int | None = None


def counted(logger: CommsLogger) -> pa.Table:
    """`SUMMARY`: the logger's own, else its calls counted by operation and size, with plain means."""
    if logger.summary.num_rows or not logger.calls.num_rows:
        return logger.summary
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for call in logger.calls.to_pylist():
        rows.setdefault((call["op"], call["size_bytes"]), []).append(call)
    found = []
    for (op, size), calls in rows.items():
        times = [call["dur_ns"] / 1e6 for call in calls if call["dur_ns"] is not None]
        found.append(
            {
                "op": op,
                "size_bytes": size,
                "size_error_bytes": calls[0]["size_error_bytes"],
                "count": len(calls),
                "total_ms": sum(times) if times else None,
                "average_ms": sum(times) / len(times) if times else None,
                **{name: _mean([call[name] for call in calls]) for name in ("algbw_gbps", "busbw_gbps")},
            }
        )
    return table(SUMMARY, {name: [row.get(name) for row in found] for name in SUMMARY.names})


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def sniff(head: bytes) -> bool:
    """Whether the beginning holds a line, a table or a document of the logger."""
    if head.lstrip()[:1] == b"{":
        return bool(_JSON.search(head) and b'"summary"' in head)
    return bool(_HEADER.search(head) or _CALL.search(head))


def read(source: Source) -> list[RankTrace]:
    """Read a log, or the JSON that ``log_all(return_dict=True)`` gives.

    Returns:
        One `RankTrace`: ``comm_records`` has a row of layer ``comms_logger`` per logged call, without sizes, which the
        text does not give exactly; ``witness`` is a `CommsLogger`.

    Raises:
        InputError: it holds neither calls nor a summary.
    """
    notes = ["the logger waits for every call: times are longer than in an ordinary run, and nothing overlaps"]
    if source.head.lstrip()[:1] == b"{":
        logger, rank = _document(source)
    else:
        logger, rank = _text(source)
        notes.append("sizes are rounded to two decimals")
    if not logger.calls.num_rows and not logger.summary.num_rows:
        raise InputError("holds no call and no summary of DeepSpeed's logger", path=source.name, hint="is it complete?")
    notes += [fault.message for fault in source.faults]
    count = logger.calls.num_rows
    return [
        RankTrace(
            path=source.name,
            format=FORMAT,
            identity=RankIdentity(rank, None if rank is None else "metadata", logger.world_size),
            gpu_events=tables.empty(tables.GPU_EVENTS),
            comm_records=table(
                tables.COMM_RECORDS,
                {
                    "layer": [LAYER] * count,
                    "name": logger.calls.column("op").to_pylist(),
                    "dur_ns": logger.calls.column("dur_ns").to_pylist(),
                    "collective": logger.calls.column("op").to_pylist(),
                },
            ),
            launches=tables.empty(tables.LAUNCHES),
            cpu_marks=tables.empty(tables.CPU_MARKS),
            steps=tables.empty(tables.STEPS),
            groups=tables.empty(tables.GROUPS),
            health=Health(
                complete=not source.faults,
                file_bytes=source.file_bytes,
                events=count + logger.summary.num_rows,
                notes=tuple(notes),
            ),
            witness=logger,
        )
    ]


@dataclass
class _Table:
    """The summary that is being read; a new header begins a new one."""

    rows: dict[tuple[str, str | None, int], dict[str, Any]] = field(default_factory=dict)
    straggler: bool = False
    op: str | None = None
    caller: str | None = None

    def take(self, line: bytes) -> None:
        """One line after a header."""
        row = _ROW.search(line)
        if row is not None and self.op is not None:
            size, error = _bytes(row[1], row[2])
            values = [_float(value) for value in row.groups()[3:]]
            known = self.rows.setdefault(
                (self.op, self.caller, size),
                {"op": self.op, "caller": self.caller, "size_bytes": size, "size_error_bytes": error},
            )
            known["count"] = int(row[3])
            if self.straggler:
                known |= {"transfer_total_ms": values[0], "straggler_total_ms": values[1]}
            else:
                known |= {"total_ms": values[0], "average_ms": values[1]}
                known |= {"algbw_gbps": _eighth(values[2]), "busbw_gbps": _eighth(values[3])}
            return
        op = _OP.search(line)
        if op is not None:
            self.op, self.caller = op[1].decode("utf-8", "replace"), op[2].decode("utf-8", "replace") if op[2] else None


def _text(source: Source) -> tuple[CommsLogger, int | None]:
    calls: dict[str, list[Any]] = {name: [] for name in CALLS.names}
    current: _Table | None = None
    for line in lines(source):
        header = _HEADER.search(line)
        if header is not None:
            if header[1] == b"Latency" or current is None:
                current = _Table()
            current.straggler, current.op = header[1] != b"Latency", None
            continue
        call = _CALL.search(line)
        if call is not None:
            _add(calls, call)
        elif current is not None:
            current.take(line)
    rows = list(current.rows.values()) if current is not None else []
    ranks = set(calls["rank"])
    summary = table(SUMMARY, {name: [row.get(name) for row in rows] for name in SUMMARY.names})
    return CommsLogger(table(CALLS, calls), summary), ranks.pop() if len(ranks) == 1 else None


def _add(calls: dict[str, list[Any]], found: re.Match[bytes]) -> None:
    size, error = _bytes(found[4], found[5])
    duration = _float(found[3])
    values = (
        found[2].decode("utf-8", "replace"),
        int(found[1]),
        size,
        error,
        None if duration is None else round(duration * 1e6),
        _eighth(_float(found[6])),
        _eighth(_float(found[7])),
    )
    for name, value in zip(CALLS.names, values, strict=True):
        calls[name].append(value)


def _bytes(number: bytes, unit: bytes) -> tuple[int, int]:
    """Bytes behind a rounded size (comms_logging.py `convert_size`), and how far off they may be."""
    scale = _UNITS[unit.decode("utf-8", "replace")]
    return round(float(number) * scale), 0 if scale == 1 else -(-scale // 200)


def _float(text: bytes) -> float | None:
    value = float(text)
    return value if value == value and abs(value) != float("inf") else None


def _eighth(gigabits: float | None) -> float | None:
    return None if gigabits is None else gigabits / 8


def _document(source: Source) -> tuple[CommsLogger, int | None]:
    data = whole(source, MAX_JSON_BYTES, "a summary of DeepSpeed's logger")
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"is damaged JSON ({error})", path=source.name, hint="write it again") from error
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    said = metadata if isinstance(metadata, Mapping) else {}
    rows = list(_rows(document))
    summary = table(SUMMARY, {name: [row.get(name) for row in rows] for name in SUMMARY.names})
    world, rank = (said[key] if isinstance(said.get(key), int) else None for key in ("world_size", "rank"))
    return CommsLogger(tables.empty(CALLS), summary, world), rank


def _rows(document: Any) -> Iterator[dict[str, Any]]:
    summary = document.get("summary") if isinstance(document, Mapping) else None
    waits = document.get("straggler_analysis") if isinstance(document, Mapping) else None
    for op, sizes in summary.items() if isinstance(summary, Mapping) else ():
        for size, said in sizes.items() if isinstance(sizes, Mapping) else ():
            if not isinstance(said, Mapping):
                continue
            by_size = waits.get(op) if isinstance(waits, Mapping) else None
            late = by_size.get(size) if isinstance(by_size, Mapping) else None
            late = late if isinstance(late, Mapping) else {}
            yield {
                "op": str(op),
                "size_bytes": whole_number(said.get("msg_size_bytes", size)),
                "size_error_bytes": 0,
                "count": whole_number(said.get("count")),
                "total_ms": _real(said.get("total_latency_ms")),
                "average_ms": _real(said.get("avg_latency_ms")),
                "algbw_gbps": _eighth(_real(said.get("tput_avg_gbps"))),
                "busbw_gbps": _eighth(_real(said.get("busbw_avg_gbps"))),
                "transfer_total_ms": _real(late.get("total_comm_lat_ms")),
                "straggler_total_ms": _real(late.get("total_straggler_ms")),
            }


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

"""NCCL Inspector's JSON lines (NCCL 2.28 and later, plugins/profiler/inspector), output formats v4.0 to v4.3.

What they cannot tell: when a call began (only the verbose form has times; otherwise the time of the dump bounds it, and
the start given here is the latest possible one), the element type, the global rank, and who else is in a communicator.
Format v4.0 of NCCL 2.28 keeps the latest call of each communicator and interval only: a sample, not a log.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from parsers.bytes_of import lines
from parsers.errors import InputError
from parsers.profiled import Profiled, traces
from parsers.source import Source
from parsers.tables import Health, RankTrace

FORMAT = "nccl_inspector"

_LINE = re.compile(rb'\s*\{\s*"(?:header|coll_perf|p2p_perf|proxy_trace)"\s*:\s*\{')
_SIGN = re.compile(rb'"(?:coll_perf|p2p_perf|dump_stats|inspector_output_format_version)"')
_METRICS = re.compile(rb"(?:\A|\n)nccl_(?:bus_bandwidth_gbs|collective_exec_time_microseconds|p2p_\w{1,40})\{")


def sniff(head: bytes) -> bool:
    """Whether the first line is one of Inspector's, or its metrics for Prometheus (which `read` refuses)."""
    return bool((_LINE.match(head) and _SIGN.search(head)) or _METRICS.search(head[:4096]))


def read(source: Source) -> list[RankTrace]:
    """Read one process's file, or several of them joined.

    Returns:
        One `RankTrace` per process: ``comm_records`` has a row of layer ``nccl_profiler`` per call, ``witness`` is a
        `parsers.profiled.ProfilerWitness`. Ranks are null.

    Raises:
        InputError: it holds Prometheus metrics, which name no calls, or no call at all.
    """
    if _METRICS.search(source.head[:4096]):
        hint = "run Inspector without NCCL_INSPECTOR_PROM_DUMP for its JSON lines"
        raise InputError("holds Inspector's metrics for Prometheus: averages, no calls", path=source.name, hint=hint)
    reader = _Reader()
    for line in lines(source):
        reader.take(line)
    if not reader.calls:
        hint = "messages below NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES are left out"
        raise InputError("holds no call", path=source.name, hint=hint)
    notes = [fault.message for fault in source.faults]
    if reader.bad:
        notes.append(f"lines that cannot be read: {reader.bad}")
    if reader.bounded:
        notes.append(f"calls without a start, for which the latest possible one is given: {reader.bounded}")
    if reader.dropped:
        notes.append(f"calls that the plugin dropped: {reader.dropped}")
    health = Health(
        complete=not source.faults,
        file_bytes=source.file_bytes,
        events=len(reader.calls),
        quarantined=reader.bad,
        dropped=reader.dropped,
        notes=tuple(notes),
    )
    return traces(
        source,
        FORMAT,
        reader.calls,
        health,
        plugin="inspector",
        version=reader.version,
        dropped=reader.dropped,
        sampled=reader.version == "v4.0",
    )


class _Reader:
    """Takes lines in order; from v4.3 on a line without a header belongs to the header before it."""

    def __init__(self) -> None:
        self.calls: list[Profiled] = []
        self.version: str | None = None
        self.bad = 0
        self.bounded = 0
        self.dropped = 0
        self._context: dict[str, Any] = {}
        self._seen: set[tuple[object, ...]] = set()

    def take(self, line: bytes) -> None:
        """Read one line."""
        if not line.strip():
            return
        try:
            record = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            record = None
        if not isinstance(record, dict):
            self.bad += 1
            return
        if isinstance(record.get("header"), dict):
            self._context = _context(record)
            version = _of(record.get("metadata"), "inspector_output_format_version", str)
            self.version = version or self.version
        stats = record.get("dump_stats")
        if isinstance(stats, dict):
            for key in ("coll_dropped_since_last_dump", "p2p_dropped_since_last_dump"):
                self.dropped += _of(stats, key, int) or 0
        for kind, prefix in (("coll_perf", "coll"), ("p2p_perf", "p2p")):
            if isinstance(record.get(kind), dict):
                self._call(record[kind], prefix)

    def _call(self, said: Mapping[str, Any], prefix: str) -> None:
        op = _of(said, prefix, str)
        if op is None or "dumped_us" not in self._context:
            self.bad += 1
            return
        context = dict(self._context)
        dumped_us = context.pop("dumped_us")
        seq = _of(said, f"{prefix}_sn", int)
        key = (context["host"], context["pid"], context["group"], prefix, seq, _of(said, "p2p_peer", int))
        if seq is not None and key in self._seen:
            return  # written again by a later dump in which nothing was new
        self._seen.add(key)
        microseconds = _number(said.get(f"{prefix}_exec_time_us"))
        dur_ns = None if microseconds is None else round(microseconds * 1000)
        start = _start(said)
        if start is None and dumped_us is not None and dur_ns is not None:
            start = dumped_us * 1000 - dur_ns
            self.bounded += 1
        self.calls.append(
            Profiled(
                op=op,
                message_bytes=_of(said, f"{prefix}_msg_size_bytes", int),
                peer=_of(said, "p2p_peer", int),
                seq=seq,
                ts_ns=start,
                dur_ns=dur_ns,
                timing=_of(said, f"{prefix}_timing_source", str),
                algbw_gbps=_number(said.get(f"{prefix}_algobw_gbs")),
                busbw_gbps=_number(said.get(f"{prefix}_busbw_gbs")),
                algorithm=_of(said, "coll_algo", str),
                protocol=_of(said, "coll_proto", str),
                **context,
            )
        )


def _context(record: Mapping[str, Any]) -> dict[str, Any]:
    header, metadata = record["header"], record.get("metadata")
    name = _of(header, "comm_name", str)
    return {
        "group": _of(header, "id", str),
        "comm_name": None if name == "unknown" else name,
        "rank": _of(header, "rank", int),
        "size": _of(header, "n_ranks", int),
        "nodes": _of(header, "nnodes", int),
        "host": _of(metadata, "hostname", str),
        "pid": _of(metadata, "pid", int),
        "dumped_us": _of(metadata, "dump_timestamp_us", int),
    }


def _of(said: Any, key: str, kind: type) -> Any:
    value = said.get(key) if isinstance(said, Mapping) else None
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    return None


def _start(said: Mapping[str, Any]) -> int | None:
    """When the first channel of the kernel began, else when the call was made (verbose form), in ns."""
    times = said.get("event_trace_ts")
    if not isinstance(times, Mapping):
        return None
    events = times.get("kernel_events")
    starts = [
        start
        for event in (events if isinstance(events, list) else [])
        if (start := _of(event, "kernel_start_ts", int)) is not None and start > 0
    ]
    first = min(starts, default=None) or _of(times, "coll_start_ts", int)
    return None if first is None else int(first) * 1000

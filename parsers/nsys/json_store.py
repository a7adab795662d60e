"""Exports as JSON lines: those of today (``--type jsonlines``: one row of a table per line) and those of up to 2025
(``--type json``: one event per line, and a list of all texts).

The older form is the only one of its time that keeps the payloads of NVTX ranges.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from parsers.bytes_of import lines
from parsers.columns import NULL, Ints
from parsers.nsys.arrow_store import ArrowStore, tables_store
from parsers.nsys.schema import COLUMNS, COPIES, FILLS, KERNELS, NVTX, RUNTIME, STRINGS
from parsers.nsys.stats_tables import as_table
from parsers.nsys.store import BLOCK_ROWS, as_int
from parsers.source import Source

_TEXTS = frozenset({"text", "jsonText", "binaryData", "value", "name", "busLocation", "uuid", "chipName"})


def json_store(source: Source) -> ArrowStore:
    """Read all lines.

    Raises:
        InputError: there is no table of Nsight Systems among them.
    """
    rows = _Rows()
    damaged = 0
    for line in lines(source):
        if not line.strip():
            continue
        try:
            said = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            damaged += 1
            continue
        if isinstance(said, dict):
            rows.take(said)
    store = tables_store(rows.tables(), source.name)
    if damaged:
        store.cut = True
        store.faults.append(f"{damaged} lines are no JSON")
    return store


class _Table:
    """One table as it grows: values wait as objects until there are enough of them for an Arrow table."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self._waiting: list[Mapping[str, Any]] = []
        self._done: list[pa.Table] = []

    def add(self, row: Mapping[str, Any]) -> None:
        self._waiting.append({name: row.get(name) for name in self._columns})
        if len(self._waiting) >= BLOCK_ROWS:
            self._flush()

    def _flush(self) -> None:
        columns: dict[str, Ints | list[Any]] = {}
        for name in self._columns:
            values = [row[name] for row in self._waiting]
            if name in _TEXTS:
                columns[name] = [None if value is None else str(value) for value in values]
            else:
                numbers = (NULL if value is None else as_int(value) for value in values)
                columns[name] = np.fromiter(numbers, np.int64, len(values))
        self._done.append(as_table(columns))
        self._waiting.clear()

    def finish(self) -> pa.Table:
        if self._waiting or not self._done:
            self._flush()
        return pa.concat_tables(self._done)


class _Rows:
    """Sorts lines into tables."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}
        self._events: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "NvtxEvent": self._nvtx,
            "CudaEvent": self._cuda,
            "TraceProcessEvent": self._call,
        }

    def take(self, said: Mapping[str, Any]) -> None:
        """One line."""
        table = said.get("table")
        if isinstance(table, str):
            if table in COLUMNS:
                self._add(table, said)
            return
        data = said.get("data")
        if isinstance(data, list):
            for number, text in enumerate(data):
                self._add(STRINGS, {"id": number, "value": text})
            return
        for key, take in self._events.items():
            event = said.get(key)
            if isinstance(event, dict):
                take(event)

    def tables(self) -> dict[str, pa.Table]:
        """All tables, that of texts included even if there was none."""
        self._tables.setdefault(STRINGS, _Table(COLUMNS[STRINGS]))
        return {name: table.finish() for name, table in self._tables.items()}

    def _add(self, table: str, row: Mapping[str, Any]) -> None:
        self._tables.setdefault(table, _Table(COLUMNS[table])).add(row)

    def _nvtx(self, event: Mapping[str, Any]) -> None:
        self._add(
            NVTX,
            {
                "start": event.get("Timestamp"),
                "end": event.get("EndTimestamp"),
                "eventType": event.get("Type"),
                "text": event.get("Text"),
                "textId": event.get("TextId"),
                "globalTid": event.get("GlobalTid"),
                "domainId": event.get("DomainId"),
                "binaryData": _payload(event),
            },
        )

    def _call(self, event: Mapping[str, Any]) -> None:
        self._add(
            RUNTIME,
            {
                "start": event.get("startNs"),
                "end": event.get("endNs"),
                "globalTid": event.get("globalTid"),
                "correlationId": event.get("correlationId"),
                "nameId": event.get("name"),
            },
        )

    def _cuda(self, event: Mapping[str, Any]) -> None:
        row: dict[str, Any] = {
            "start": event.get("startNs"),
            "end": event.get("endNs"),
            **{name: event.get(name) for name in ("deviceId", "contextId", "streamId", "correlationId", "globalPid")},
        }
        for key, table in (("kernel", KERNELS), ("memcpy", COPIES), ("memset", FILLS)):
            more = event.get(key)
            if isinstance(more, dict):
                self._add(table, {**row, **more, "bytes": more.get("sizebytes", more.get("bytes"))})


def _payload(event: Mapping[str, Any]) -> str | None:
    """The payloads of a range as ``binaryData`` would hold them: each behind its header, in hexadecimal digits."""
    pieces: list[bytes] = []
    payload = event.get("Payload")
    for item in payload.get("BinaryData", ()) if isinstance(payload, dict) else ():
        schema = as_int(item.get("SchemaId")) if isinstance(item, dict) else NULL
        try:
            data = base64.b64decode(item.get("Data", ""), validate=True) if schema != NULL else b""
        except (binascii.Error, ValueError, TypeError):
            continue
        if data and schema >= 0:
            domain = max(as_int(event.get("DomainId")), 0)
            pieces.append(struct.pack("<QQQQ", domain, schema, len(data), 32) + data)
    return b"".join(pieces).hex() if pieces else None

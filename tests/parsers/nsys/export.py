"""Writes exports of Nsight Systems: the tables and columns that matter, in every form and of several years."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

VM = 1 << 48
OPERATIONS = ("Sum", "Product", "Max", "Min", "Avg")
LABELS = {
    "comm": "NCCL communicator ID",
    "parent": "Parent NCCL communicator ID",
    "bytes": "Message size [bytes]",
    "redop": "Reduction operation",
    "root": "Root",
    "peer": "Peer rank",
    "nranks": "No. of ranks",
    "rank": "Rank",
    "device": "CUDA device",
    "color": "Color",
    "key": "Key",
}
# Function, then per field its offset and struct code: of NCCL 2.25 and later, and of 2.16 to 2.24.
SIZED = {"comm": (0, "Q"), "bytes": (8, "Q")}
OLD_SIZED = {"bytes": (0, "Q")}
INIT = ({"comm": (0, "Q"), "nranks": (8, "i"), "rank": (12, "i"), "device": (16, "i")}, 24)
OLD_INIT = ({"rank": (0, "i"), "nranks": (4, "i"), "device": (8, "i")}, 12)
NEW = {
    "ncclCommInitRankConfig": (11, *INIT),
    "ncclCommInitRank": (0, *INIT),
    "ncclCommSplit": (
        13,
        {
            "comm": (0, "Q"),
            "parent": (8, "Q"),
            "nranks": (16, "i"),
            "rank": (20, "i"),
            "device": (24, "i"),
            "color": (28, "i"),
            "key": (32, "i"),
        },
        40,
    ),
    "ncclAllGather": (4, SIZED, 16),
    "ncclAllReduce": (5, SIZED | {"redop": (16, "i")}, 24),
    "ncclBroadcast": (6, SIZED | {"root": (16, "i")}, 24),
    "ncclReduceScatter": (7, SIZED | {"redop": (16, "i")}, 24),
    "ncclReduce": (8, SIZED | {"root": (16, "i"), "redop": (20, "i")}, 24),
    "ncclSend": (9, SIZED | {"peer": (16, "i")}, 24),
    "ncclRecv": (10, SIZED | {"peer": (16, "i")}, 24),
    "ncclAlltoAll": (16, SIZED, 16),
}
OLD = {
    "ncclCommInitRankConfig": (11, *OLD_INIT),
    "ncclCommInitRank": (0, *OLD_INIT),
    "ncclCommSplit": (
        13,
        {"rank": (0, "i"), "nranks": (4, "i"), "device": (8, "i"), "color": (12, "i"), "key": (16, "i")},
        20,
    ),
    "ncclAllGather": (4, OLD_SIZED, 8),
    "ncclAllReduce": (5, OLD_SIZED | {"redop": (8, "i")}, 16),
    "ncclBroadcast": (6, OLD_SIZED | {"root": (8, "i")}, 16),
    "ncclReduceScatter": (7, OLD_SIZED | {"redop": (8, "i")}, 16),
    "ncclReduce": (8, OLD_SIZED | {"root": (8, "i"), "redop": (12, "i")}, 16),
    "ncclSend": (9, OLD_SIZED | {"peer": (8, "i")}, 16),
    "ncclRecv": (10, OLD_SIZED | {"peer": (8, "i")}, 16),
}
ENUMS = {(2, 16): 11, (2, 23): 14, (2, 26): 15, (2, 27): 16, (2, 28): 19, (2, 28, 7): 20, (2, 29): 24}
TEXT_COLUMNS = frozenset({"text", "jsonText", "value", "name", "binaryData", "busLocation", "uuid"})
SINCE_2024 = frozenset({"greenContextId", "binaryData"})


@dataclass
class Export:
    """One report.

    Attributes:
        nccl: version, which decides the layout of payloads.
        payload: ``blob``, ``hex``, ``json``, ``dynamic``, or None where they were not exported.
        year: of nsys.
        number_style: how jsonText writes 64-bit numbers: 0 as they are, 1 as text, 2 with commas, 3 in hexadecimal.
    """

    nccl: tuple[int, ...] = (2, 28, 9)
    payload: str | None = "blob"
    year: int = 2026
    number_style: int = 0
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _strings: dict[str, int] = field(default_factory=dict)
    _domains: dict[int, dict[str, int]] = field(default_factory=dict)
    _correlation: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        version = {2022: ("2022.4.1.21", "3.0.0"), 2023: ("2023.4.4.54", "3.7.2"), 2026: ("2026.2.1.210", "3.25.0")}
        product, schema = version[self.year]
        name = "EXPORT_META_DATA" if self.year == 2022 else "META_DATA_EXPORT"
        self.add(name, name="EXPORT_PRODUCT_VERSION", value=product)
        self.add(name, name="EXPORT_SCHEMA_VERSION", value=schema)
        self.string("[unused]")

    # -- rows

    def add(self, table: str, **row: Any) -> None:
        """One row of any table."""
        self.tables.setdefault(table, []).append(row)

    def string(self, text: str) -> int:
        """Its number in StringIds."""
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.add("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def environment(self, text: str, host: str = "node-a", epoch: int | None = None) -> None:
        """What the launched process had in its environment, the host, and when the session began."""
        self.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", nameEnum=619, value=host)
        self.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", nameEnum=610, value=text)
        if epoch is not None:
            self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=epoch)

    def process(self, pid: int, *, domain: int | None = 1) -> int:
        """A process; its global id. ``domain`` is the number of its NCCL domain, None for no row that makes it."""
        owner = VM | pid << 24
        self._domains[owner] = {"NCCL": domain or 1, "": 0}
        self.add("PROCESSES", globalPid=owner, pid=pid, name="python")
        if domain is not None:
            self.add("NVTX_EVENTS", start=0, eventType=75, text="NCCL", globalTid=owner | pid, domainId=domain)
        if self.year >= 2024:
            self._schemas(domain or 1)
        return owner

    def _schemas(self, domain: int) -> None:
        enum = max(version for version in ENUMS if version <= self.nccl)
        for number, fields, size in self.layouts.values():
            self.add("NVTX_PAYLOAD_SCHEMAS", domainId=domain, schemaId=(1 << 24) + number, payloadSize=size)
            for index, (name, (offset, code)) in enumerate(fields.items()):
                kind = {"Q": 22 if name == "bytes" else 18, "i": 5}[code]
                self.add(
                    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                    domainId=domain,
                    schemaId=(1 << 24) + number,
                    idx=index,
                    type=(1 << 24) + ENUMS[enum] if name == "redop" else kind,
                    name=LABELS[name],
                    offset=offset or None,
                )

    @property
    def layouts(self) -> Mapping[str, tuple[int, dict[str, tuple[int, str]], int]]:
        """Those of the version of NCCL."""
        return NEW if self.nccl >= (2, 25) else OLD

    def nccl_range(self, owner: int, tid: int, name: str, start: int, end: int | None, **said: int) -> None:
        """A range of NCCL, with what its payload says."""
        domain = self._domains[owner]["NCCL"]
        row: dict[str, Any] = {
            "start": start,
            "end": end,
            "eventType": 59,
            "textId": self.string(name),
            "globalTid": owner | tid,
            "domainId": domain,
        }
        if said and self.payload and name in self.layouts:
            row |= self._payload(owner, domain, name, said, row)
        self.add("NVTX_EVENTS", **row)

    def _payload(
        self, owner: int, domain: int, name: str, said: Mapping[str, int], row: Mapping[str, Any]
    ) -> dict[str, Any]:
        number, fields, size = self.layouts[name]
        known = {key: value for key, value in said.items() if key in fields}
        if self.payload == "json":
            return {"jsonText": json.dumps({LABELS[key]: self._written(key, value) for key, value in known.items()})}
        if self.payload == "dynamic":
            event = len(self.tables.get("NVTX_EVENTS", ())) + 1
            table = f"DYNAMIC_NVTXPAYLOAD_DATATYPE_{owner}_{domain}_{(1 << 24) + number}"
            signed = {LABELS[key]: value - (1 << 64) if value >= 1 << 63 else value for key, value in known.items()}
            self.add(table, eventId=event, **signed)
            return {"eventId": event}
        buffer = bytearray(size)
        for key, value in known.items():
            struct.pack_into("<" + fields[key][1], buffer, fields[key][0], value)
        blob = struct.pack("<QQQQ", domain, (1 << 24) + number, size, 32) + bytes(buffer)
        return {"binaryData": blob if self.payload == "blob" else blob.hex()}

    def _written(self, key: str, value: int) -> Any:
        if key == "redop":
            return OPERATIONS[value]
        if key not in ("comm", "parent", "bytes"):
            return value
        return (value, str(value), f"{value:,}", hex(value))[self.number_style]

    def range(self, owner: int, tid: int, name: str, start: int, end: int) -> None:
        """A range of anybody else."""
        self.add("NVTX_EVENTS", start=start, end=end, eventType=59, text=name, globalTid=owner | tid, domainId=0)

    def kernel(
        self,
        owner: int,
        name: str,
        start: int,
        end: int,
        *,
        device: int = 0,
        stream: int = 7,
        tid: int | None = None,
        at: int | None = None,
        node: int | None = None,
        correlation: int | None = None,
    ) -> int:
        """A kernel, and the call that launched it, if its time and thread are given; its correlation."""
        number = correlation if correlation is not None else self.next_correlation(owner)
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=start,
            end=end,
            deviceId=device,
            contextId=1,
            streamId=stream,
            correlationId=number,
            globalPid=owner,
            demangledName=self.string(name),
            shortName=self.string(name.split("(")[0]),
            graphNodeId=node,
        )
        if at is not None and tid is not None:
            self.call(owner, tid, "cuLaunchKernelEx", at, at + 1000, number)
        return number

    def copy(self, owner: int, kind: int, start: int, end: int, size: int, **more: Any) -> int:
        """A copy; its correlation."""
        number = self.next_correlation(owner)
        row = {"deviceId": 0, "contextId": 1, "streamId": 7, "srcKind": 2, "dstKind": 2} | more
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            start=start,
            end=end,
            correlationId=number,
            globalPid=owner,
            bytes=size,
            copyKind=kind,
            **row,
        )
        return number

    def call(self, owner: int, tid: int, name: str, start: int, end: int, correlation: int) -> None:
        """A call of the CUDA runtime or driver."""
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            eventClass=1,
            globalTid=owner | tid,
            correlationId=correlation,
            nameId=self.string(name),
            returnValue=0,
        )

    def next_correlation(self, owner: int) -> int:
        """Correlation numbers restart in every process."""
        self._correlation[owner] = self._correlation.get(owner, 0) + 1
        return self._correlation[owner]

    # -- files

    def columns(self, table: str) -> list[str]:
        """All columns that any row of a table has, those of a later year left out."""
        names = dict.fromkeys(name for row in self.tables[table] for name in row)
        return [name for name in names if self.year >= 2024 or name not in SINCE_2024]

    def sqlite(self, path: Path) -> Path:
        """Write a database."""
        path.unlink(missing_ok=True)
        connection = sqlite3.connect(path)
        for table, rows in self.tables.items():
            names = self.columns(table)
            kinds = ["TEXT" if name in TEXT_COLUMNS else "INTEGER" for name in names]
            body = ", ".join(f'"{name}" {kind} /* a column */' for name, kind in zip(names, kinds, strict=True))
            connection.execute(f'CREATE TABLE "{table}" ({body})')
            marks = ", ".join("?" * len(names))
            values = [tuple(_signed(row.get(name)) for name in names) for row in rows]
            connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', values)
        connection.commit()
        connection.close()
        return path

    def arrow(self, table: str) -> pa.Table:
        """One table; numbers of threads and domains are unsigned, as in nsys's own."""
        columns = {}
        for name in self.columns(table):
            values = [row.get(name) for row in self.tables[table]]
            if name == "binaryData":
                raw = [value.encode() if isinstance(value, str) else value for value in values]
                columns[name] = pa.array(raw, pa.binary())
            elif name in TEXT_COLUMNS:
                columns[name] = pa.array(values, pa.string())
            else:
                unsigned = name in ("globalTid", "globalPid", "domainId")
                columns[name] = pa.array(values, pa.uint64() if unsigned else pa.int64())
        return pa.table(columns)

    def parquet(self, folder: Path) -> Path:
        """Write a directory of Parquet files."""
        folder.mkdir()
        for table in self.tables:
            pq.write_table(self.arrow(table), folder / f"{table}.parquet")
        return folder

    def arrow_directory(self, folder: Path) -> Path:
        """Write a directory of Arrow files."""
        folder.mkdir()
        for table in self.tables:
            content = self.arrow(table)
            with (
                pa.OSFile(str(folder / f"{table}.arrow"), "wb") as file,
                pa.ipc.new_file(file, content.schema) as writer,
            ):
                writer.write_table(content)
        return folder

    def arrow_stream(self, path: Path) -> Path:
        """Write one file of streams."""
        with pa.OSFile(str(path), "wb") as file:
            for table in self.tables:
                content = self.arrow(table).replace_schema_metadata({"table_name": table})
                with pa.ipc.new_stream(file, content.schema) as writer:
                    writer.write_table(content)
        return path

    def json_lines(self, path: Path) -> Path:
        """Write one line per row; payloads are not in it."""
        with path.open("w") as file:
            for table, rows in self.tables.items():
                for row in rows:
                    kept = {key: value for key, value in row.items() if value is not None and key != "binaryData"}
                    file.write(json.dumps({"table": table, **kept}) + "\n")
        return path


def _signed(value: Any) -> Any:
    return value - (1 << 64) if isinstance(value, int) and value >= 1 << 63 else value


def grouped(
    export: Export,
    owner: int,
    tid: int,
    at: int,
    calls: Sequence[tuple[str, Mapping[str, int]]],
    kernels: Sequence[Mapping[str, Any]],
) -> int:
    """A group of calls, with the kernels launched when it closes; when it is over."""
    export.nccl_range(owner, tid, "ncclGroupStart", at, at + 100)
    for number, (name, said) in enumerate(calls):
        begin = at + 200 + 1000 * number
        export.nccl_range(owner, tid, name, begin, begin + 800, **said)
    close = at + 300 + 1000 * len(calls)
    for number, kernel in enumerate(kernels):
        export.kernel(owner, tid=tid, at=close + 200 + 2000 * number, **kernel)
    end = close + 400 + 2000 * max(len(kernels), 1)
    export.nccl_range(owner, tid, "ncclGroupEnd", close, end)
    return end

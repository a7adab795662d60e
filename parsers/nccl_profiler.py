"""What NCCL's example profiler (plugins/profiler/example, NCCL 2.23 and later) and Google's CoMMA write.

The example profiler's file is no valid JSON (bare words, a trailing comma, an empty last element, at times a curly
quote), so it is read line by line; a line that cannot be mended is counted. Each file is one rank of one communicator.

What they cannot tell: who else is in the communicator, the global rank, and (before NCCL 2.26, and in traces without
``GPU`` rows) how long a collective ran: its own rows begin and end when the CPU enqueues it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from parsers.bytes_of import lines
from parsers.columns import NULL, nanosecond
from parsers.errors import InputError
from parsers.nccl_words import group_name
from parsers.profiled import Profiled, traces
from parsers.source import Source
from parsers.tables import Health, RankTrace

FORMAT = "nccl_profiler"

_EXAMPLE = re.compile(
    rb'\s*\[?\s*\{(?:"|\xe2\x80\x9c)name": ?"[\w ]{1,40}", ?"cat": ?"(?:GROUP|COLL|P2P|KERNEL_LAUNCH|PROXY|NET|GPU)\w*"'
)
_COMMA = re.compile(rb'"comm_hash"\s*:\s*"0x')
_COMMA_CATEGORY = re.compile(rb'"cat"\s*:\s*"(?:COLL|PROXY)"')
_WANTED = re.compile(rb'"cat": ?"(COLL|P2P|GPU|PROXY)"')
_BARE = re.compile(rb":\s*(nccl\w{1,24}|0x[0-9a-fA-F]{1,16})(?=\s*[,}])")
_CURLY = (b"\xe2\x80\x9c", b"\xe2\x80\x9d")


def sniff(head: bytes) -> bool:
    """Whether the file begins with a row of the example profiler, or with an object of CoMMA."""
    if _EXAMPLE.match(head):
        return True
    beginning = head[:16384]
    return head.lstrip()[:1] == b"{" and bool(_COMMA.search(beginning) and _COMMA_CATEGORY.search(beginning))


def read(source: Source) -> list[RankTrace]:
    """Read one file.

    Returns:
        One `RankTrace` per process: ``comm_records`` has a row of layer ``nccl_profiler`` per collective and message,
        ``witness`` is a `parsers.profiled.ProfilerWitness`. Ranks are null.

    Raises:
        InputError: no collective and no message is in it.
    """
    reader: _Example | _Comma = _Example() if _EXAMPLE.match(source.head) else _Comma()
    for line in lines(source):
        reader.take(line)
    if not reader.calls:
        hint = "NCCL_PROFILE_EVENT_MASK must include collectives and messages"
        raise InputError("holds no collective and no message", path=source.name, hint=hint)
    notes = [fault.message for fault in source.faults]
    if reader.bad:
        notes.append(f"{reader.bad} rows cannot be read")
    health = Health(
        complete=not source.faults,
        file_bytes=source.file_bytes,
        events=reader.rows,
        quarantined=reader.bad,
        notes=tuple(notes),
    )
    return traces(source, FORMAT, reader.calls, health, plugin=reader.plugin, version=None)


@dataclass
class _Open:
    """A call whose rows are still coming."""

    call: Profiled
    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    peers: set[int] = field(default_factory=set)


class _Example:
    """Rows in the order of the file: those of a call lie between its beginning and its end."""

    plugin = "example"

    def __init__(self) -> None:
        self.calls: list[Profiled] = []
        self.rows = 0
        self.bad = 0
        self._open: _Open | None = None

    def take(self, line: bytes) -> None:
        """Read one line."""
        wanted = _WANTED.search(line)
        if wanted is None:
            return
        self.rows += 1
        row = _row(line)
        if row is None:
            self.bad += 1
            return
        kind, begins = wanted[1], row.get("ph") == "b"
        said = row.get("args")
        args = said if isinstance(said, Mapping) else {}
        if kind in (b"COLL", b"P2P"):
            self._call(row, args, begins=begins)
        elif self._open is not None and begins:
            if kind == b"GPU":
                self._open.starts += [v for v in (args.get("StartGpuClk"),) if isinstance(v, int) and v > 0]
                self._open.stops += [v for v in (args.get("StopGpuClk"),) if isinstance(v, int) and v > 0]
            elif isinstance(args.get("Peer"), int):
                self._open.peers.add(args["Peer"])

    def _call(self, row: Mapping[str, Any], args: Mapping[str, Any], *, begins: bool) -> None:
        if not begins:
            self._close()
            return
        self._close()
        if not isinstance(row.get("name"), str) or not isinstance(args.get("CommHash"), int):
            self.bad += 1
            return
        numbers = {key: args[key] for key in ("SeqNum", "Rank", "Count", "Peer") if isinstance(args.get(key), int)}
        channels = args.get("nChannels", args.get("nMaxChannels"))
        call = Profiled(
            op=row["name"],
            group=group_name(args["CommHash"]),
            pid=row["pid"] if isinstance(row.get("pid"), int) else None,
            rank=numbers.get("Rank"),
            count=numbers.get("Count"),
            dtype=args["Datatype"] if isinstance(args.get("Datatype"), str) else None,
            peer=numbers.get("Peer"),
            seq=numbers.get("SeqNum"),
            ts_ns=_ns(row.get("ts")),
            algorithm=args["Algorithm"] if isinstance(args.get("Algorithm"), str) else None,
            protocol=args["Protocol"] if isinstance(args.get("Protocol"), str) else None,
            channels=channels if isinstance(channels, int) else None,
        )
        self._open = _Open(call)
        self.calls.append(call)

    def _close(self) -> None:
        """Put what came with the open call to it: the GPU's clock says how long it ran, the proxy's peers who with."""
        opened, self._open = self._open, None
        if opened is None:
            return
        call = replace(opened.call, network_peers=tuple(sorted(opened.peers)))
        if opened.starts and opened.stops and max(opened.stops) >= min(opened.starts):
            call = replace(call, dur_ns=max(opened.stops) - min(opened.starts), timing="kernel_gpu")
        self.calls[-1] = call


class _Comma:
    """Objects of CoMMA, one a line."""

    plugin = "comma"

    def __init__(self) -> None:
        self.calls: list[Profiled] = []
        self.rows = 0
        self.bad = 0

    def take(self, line: bytes) -> None:
        """Read one line."""
        text = line.strip().rstrip(b",").strip(b"[]")
        if not text:
            return
        self.rows += 1
        try:
            row = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            self.bad += 1
            return
        if row.get("cat") != "COLL":
            return
        args = row.get("args")
        size = args.get("size") if isinstance(args, Mapping) else None
        proxies = row.get("proxyops")
        peers = {
            proxy["peer"]
            for proxy in (proxies if isinstance(proxies, list) else [])
            if isinstance(proxy, Mapping) and isinstance(proxy.get("peer"), int)
        }
        duration = _ns(row.get("child_dur"))
        numbers = {key: row[key] for key in ("pid", "rank", "seq_num") if isinstance(row.get(key), int)}
        self.calls.append(
            Profiled(
                op=row["name"],
                group=group_name(row["comm_hash"]) if isinstance(row.get("comm_hash"), str) else None,
                pid=numbers.get("pid"),
                rank=numbers.get("rank"),
                message_bytes=size if isinstance(size, int) else None,
                seq=numbers.get("seq_num"),
                ts_ns=_ns(row.get("ts")),
                dur_ns=duration,
                timing="collective_cpu" if duration is not None else None,
                network_peers=tuple(sorted(peers)),
            )
        )


def _row(line: bytes) -> dict[str, Any] | None:
    """One row of the example profiler, mended where it needs it."""
    text = line.strip().rstrip(b",")
    for curly in _CURLY:
        text = text.replace(curly, b'"')
    try:
        row = msgspec.json.decode(_BARE.sub(rb': "\1"', text))
    except (msgspec.DecodeError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _ns(microseconds: Any) -> int | None:
    """Microseconds of a clock of the plugin's own as nanoseconds; 0 stands for "not known"."""
    if isinstance(microseconds, bool) or not isinstance(microseconds, int | float):
        return None
    number = nanosecond(repr(microseconds).encode())
    return None if number in (NULL, 0) else number

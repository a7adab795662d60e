"""PyTorch Flight Recorder dumps: the last calls that a rank asked for, their state, and where in the code they are.

Written by torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (``dump`` as a pickle, ``dump_json``), one file a rank;
read are the layouts of torch 2.2 (a bare list) to 2.13 (version 2.10), and later ones as far as they keep these names.

What a dump cannot tell: when a call ran on the GPU (states are noticed by a watchdog that looks every 100 ms, durations
exist only with ``TORCH_NCCL_ENABLE_TIMING=1``), over which wire, the splits of an uneven all-to-all, and what came
before the oldest entry of its ring buffer; a dump of active work only (``onlyActive``) lacks what had completed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from parsers import tables
from parsers.assemble import table
from parsers.bytes_of import whole
from parsers.columns import whole_number
from parsers.errors import InputError
from parsers.flight_recorder_entry import Entry, Group, entry_of, group_of
from parsers.plain_pickle import load
from parsers.rank_identity import rank_from_groups, rank_from_path
from parsers.source import Source
from parsers.tables import Health, RankIdentity, RankTrace

FORMAT = "flight_recorder"
MAX_BYTES = 1 << 28
"""A dump of 20,000 entries with Python stacks is some 30 MB."""

KNOWN_VERSIONS = ("1.4", "1.5", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10")

_PICKLE = re.compile(rb"\x80[\x00-\x05]")
_WORDS = (b"profiling_name", b"pg_config", b"pg_status")
_JSON_WORDS = re.compile(rb'"(?:profiling_name|pg_status|collective_seq_id)"\s*:')
_TRACE_WORDS = re.compile(rb'"traceEvents"\s*:')

ENTRIES = pa.schema(
    [
        ("record_id", pa.int64()),  # counts the calls of the process
        ("group_name", tables.TEXT),  # joins with GROUPS.name
        ("pg_id", pa.int32()),  # counts the groups of the process; not the group's name
        ("op", tables.TEXT),  # all_reduce, _all_gather_base, send, ..., without the library's prefix
        ("is_p2p", pa.bool_()),
        ("collective_seq", pa.int64()),  # equal on all ranks of the group for the same collective
        ("p2p_seq", pa.int64()),  # counts this rank's messages on the group; shared with the peer in a group of two
        ("op_id", pa.int64()),
        ("peer", pa.int32()),  # global rank, of a send or receive
        ("state", tables.TEXT),  # scheduled | started | completed
        ("retired", pa.bool_()),  # the watchdog has let go of it; not completed means that it timed out
        ("created_ns", pa.int64()),  # when it was asked for, Unix time
        ("started_ns", pa.int64()),  # when the watchdog noticed that it had started
        ("completed_ns", pa.int64()),
        ("dur_ns", pa.int64()),  # on the GPU, where timing was on
        ("timeout_ms", pa.int64()),
        ("thread_name", tables.TEXT),
        ("stack", tables.TEXT),  # innermost first, one frame a line: `function (file:line)`
        ("input_sizes", pa.list_(pa.list_(pa.int64()))),
        ("output_sizes", pa.list_(pa.list_(pa.int64()))),
        ("input_dtypes", pa.list_(pa.string())),  # as c10 names them
        ("output_dtypes", pa.list_(pa.string())),
    ]
)
"""Every entry of a dump, oldest first."""


@dataclass(frozen=True)
class GroupStatus:
    """How far a process had come on one group; -1 for "not noticed".

    Attributes:
        pg_id: counts the groups of the process; the entries say which name it has.
        enqueued, started, completed: sequence numbers, of collectives or of messages, whichever came last.
    """

    pg_id: int
    enqueued: int
    started: int
    completed: int


@dataclass(frozen=True, eq=False)
class Dump:
    """What a dump says beyond the common tables.

    Attributes:
        version: of the layout; null for torch 2.2, which writes none.
        library_version: of NCCL (or another communication library).
        entries: `ENTRIES`.
        statuses: per group that was used, in the order in which the process made them.
        from_pickle: JSON dumps have no stacks.
    """

    version: str | None
    library_version: str | None
    entries: pa.Table
    statuses: tuple[GroupStatus, ...]
    from_pickle: bool


def sniff(head: bytes) -> bool:
    """Whether the beginning of a file looks like a dump, as a pickle or as JSON."""
    if _PICKLE.match(head):
        return any(word in head for word in _WORDS)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text[:1] in {b"{", b"["} and bool(_JSON_WORDS.search(text)) and not _TRACE_WORDS.search(text)


def read(source: Source) -> list[RankTrace]:
    """Read one rank's dump.

    Args:
        source: its bytes; a pickle is read by `parsers.plain_pickle`, which executes nothing.

    Returns:
        One `RankTrace`: ``comm_records`` has a row of layer ``flight_recorder`` per call (markers that close a
        coalesced batch are no calls), ``groups`` what the dump declares, ``witness`` a `Dump`.

    Raises:
        InputError: it is no dump, damaged, or a pickle that holds more than plain data.
    """
    data = whole(source, MAX_BYTES, "a Flight Recorder dump")
    from_pickle = bool(_PICKLE.match(data))
    document = load(data, source.name) if from_pickle else _json(data, source.name)
    top = {"entries": document} if isinstance(document, list) else document
    if not isinstance(top, dict):
        raise InputError("holds neither a dict nor a list of entries", path=source.name, hint="is it another pickle?")
    groups = _groups(top.get("pg_config"))
    by_name = {group.name: group for group in groups}
    notes: list[str] = []
    entries = _entries(top.get("entries"), by_name, len(data), source.name, notes)
    version = _text(top.get("version"))
    if version is not None and version not in KNOWN_VERSIONS:
        notes.append(f"dump version {version} is newer than the known ones: read by the names it keeps")
    return [_trace(source, top, groups, entries, notes, from_pickle=from_pickle)]


def _json(data: bytes, path: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        hint = "the process died while it wrote; take another rank's dump"
        raise InputError(f"is damaged JSON ({error})", path=path, hint=hint) from error


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _groups(config: Any) -> list[Group]:
    if not isinstance(config, Mapping):
        return []
    return [group_of(str(name), said) for name, said in config.items()]


def _entries(raw: Any, groups: Mapping[str, Group], budget: int, path: str, notes: list[str]) -> list[Entry]:
    """The entries; ones that are none are counted.

    ``budget`` bounds the sizes and frames in all entries together: each takes a byte to write, so more of them than
    bytes means that lists were made to refer to each other.
    """
    items = raw if isinstance(raw, list) else []
    found = []
    for item in items:
        entry = entry_of(item, groups)
        if entry is None:
            continue
        budget -= sum(len(sizes) + 1 for sizes in (*entry.input_sizes, *entry.output_sizes)) + entry.frames
        if budget < 0:
            raise InputError("holds more sizes and frames than bytes: its lists repeat themselves", path=path)
        found.append(entry)
    if len(found) < len(items):
        notes.append(f"{len(items) - len(found)} of {len(items)} entries cannot be read")
    return found


def _trace(
    source: Source,
    top: Mapping[str, Any],
    groups: Sequence[Group],
    entries: Sequence[Entry],
    notes: list[str],
    *,
    from_pickle: bool,
) -> RankTrace:
    calls = [entry for entry in entries if not entry.is_marker]
    statuses = _statuses(top.get("pg_status"))
    missing = len(top["entries"]) - len(entries) if isinstance(top.get("entries"), list) else 0
    dump = Dump(
        version=_text(top.get("version")),
        library_version=_text(top.get("comm_lib_version")) or _text(top.get("nccl_version")),
        entries=_entry_table(entries),
        statuses=statuses,
        from_pickle=from_pickle,
    )
    return RankTrace(
        path=source.name,
        format=FORMAT,
        identity=_identity(source, top, groups, calls, notes),
        gpu_events=tables.empty(tables.GPU_EVENTS),
        comm_records=_records(calls),
        launches=tables.empty(tables.LAUNCHES),
        cpu_marks=tables.empty(tables.CPU_MARKS),
        steps=tables.empty(tables.STEPS),
        groups=_group_table(groups),
        health=Health(
            complete=not source.faults,
            file_bytes=source.file_bytes,
            events=len(entries),
            quarantined=missing,
            notes=(*notes, *(fault.message for fault in source.faults)),
        ),
        metadata={"threads": {e.thread_id: e.thread_name for e in entries if e.thread_id is not None}},
        witness=dump,
    )


def _statuses(raw: Any) -> tuple[GroupStatus, ...]:
    """``pg_status``: numbers in a pickle, text in JSON."""
    if not isinstance(raw, Mapping):
        return ()
    found = []
    for key, said in raw.items():
        number = whole_number(key)
        if not isinstance(said, Mapping) or number is None:
            continue
        try:
            numbers = [int(said.get(f"last_{word}_collective", -1)) for word in ("enqueued", "started", "completed")]
        except (TypeError, ValueError, OverflowError):
            continue
        if 0 <= number < 2**31 and all(-(2**63) <= last < 2**63 for last in numbers):
            found.append(GroupStatus(number, *numbers))
    return tuple(sorted(found, key=lambda status: status.pg_id))


def _identity(
    source: Source, top: Mapping[str, Any], groups: Sequence[Group], calls: Sequence[Entry], notes: list[str]
) -> RankIdentity:
    """The dump has no field for its rank: it is the one that all of its groups share; else the file's name says it."""
    shared = rank_from_groups([np.array(group.ranks, np.int32) for group in groups if group.ranks])
    named = rank_from_path(Path(source.name))
    if shared is not None and named is not None and shared != named:
        notes.append(f"the file's name says rank {named}, the groups in it rank {shared}; the groups are believed")
    rank, said = (named, "file_name") if shared is None else (shared, "group_intersection")
    default = next((group for group in groups if group.is_default and group.ranks), None)
    library = next((call.library for call in calls if call.library), None)
    return RankIdentity(
        rank=rank,
        rank_source=None if rank is None else said,
        world_size=len(default.ranks) if default is not None and default.ranks else None,
        host=_text(top.get("host_name")),
        backend=library,
    )


def _group_table(groups: Sequence[Group]) -> pa.Table:
    return table(
        tables.GROUPS,
        {
            "name": [group.name for group in groups],
            "desc": [group.desc for group in groups],
            "size": [len(group.ranks) if group.ranks else None for group in groups],
            "ranks": [group.ranks for group in groups],
            "ranks_source": ["pg_config" if group.ranks else "none" for group in groups],
            "declared": [True] * len(groups),
        },
    )


def _records(calls: Sequence[Entry]) -> pa.Table:
    return table(
        tables.COMM_RECORDS,
        {
            "layer": [FORMAT] * len(calls),
            "name": [call.name for call in calls],
            "ts_ns": [call.created_ns for call in calls],
            "tid": [call.thread_id for call in calls],
            "collective": [call.op for call in calls],
            "dtype": [call.dtype for call in calls],
            "in_nelems": [call.in_nelems for call in calls],
            "out_nelems": [call.out_nelems for call in calls],
            "group_name": [call.group_name for call in calls],
            "group_desc": [call.group_desc for call in calls],
            "rank_arg": [call.peer_in_group for call in calls],
            "src_rank": [call.peer if call.op == "recv" else None for call in calls],
            "dst_rank": [call.peer if call.op == "send" else None for call in calls],
            "seq": [call.p2p_seq if call.is_p2p else call.collective_seq for call in calls],
            "input_dims": [call.input_sizes for call in calls],
            "input_types": [call.input_dtypes for call in calls],
        },
    )


def _entry_table(entries: Sequence[Entry]) -> pa.Table:
    return table(ENTRIES, {name: [getattr(entry, name) for entry in entries] for name in ENTRIES.names})

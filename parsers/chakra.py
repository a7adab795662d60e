"""Execution traces: PyTorch's own JSON, and MLCommons Chakra in its two forms (``.et`` and JSON).

What they cannot tell: who else is in a group unless PyTorch's trace declares it, over which wire, and times beyond what
the Chakra converter copied from a profiler. Chakra's ``comm_size`` counts where both sides of a call are alike; which
side of a gather or scatter it means the format does not say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from parsers import chakra_nodes, execution_trace, tables
from parsers.assemble import table
from parsers.bytes_of import whole
from parsers.errors import InputError
from parsers.execution_trace import CommNode, TraceGroup
from parsers.protobuf_wire import varint
from parsers.rank_identity import rank_from_path
from parsers.source import Source
from parsers.tables import Health, RankIdentity, RankTrace

FORMAT = "execution_trace"
MAX_BYTES = 1 << 31

_SCHEMA = re.compile(rb'\{\s*"schema"\s*:\s*"\d+\.\d+\.\d+[^"]{0,40}"')
_GRAPH = re.compile(rb'"workload_graph"\s*:')


@dataclass(frozen=True)
class TraceWitness:
    """What an execution trace says beyond the common tables.

    Attributes:
        kind: ``pytorch``, ``chakra_protobuf`` or ``chakra_json``.
        schema: version, where written.
        nodes: number of the node per row of ``comm_records``.
        record_ids: ``rf_id`` per row: Kineto's ``Record function id`` of the same call.
    """

    kind: str
    schema: str | None
    nodes: tuple[int, ...]
    record_ids: tuple[int | None, ...]


def sniff(head: bytes) -> bool:
    """Whether the beginning is one of the three forms."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"{":
        return bool(_SCHEMA.match(text)) or bool(_GRAPH.search(text[:4096]))
    return _is_protobuf(head)


def _is_protobuf(head: bytes) -> bool:
    try:
        size, at = varint(head, 0)
    except ValueError:
        return False
    if not 4 <= size <= 1 << 20 or at + size > len(head) or head[at : at + 1] not in {b"\x0a", b"\x12"}:
        return False
    return chakra_nodes.is_metadata(head[at : at + size])


def read(source: Source) -> list[RankTrace]:
    """Read one rank's trace.

    Returns:
        One `RankTrace`: ``comm_records`` has a row of layer ``execution_trace`` per call, in order of the nodes,
        ``groups`` what the trace declares, ``witness`` a `TraceWitness`.

    Raises:
        InputError: it is damaged, or holds no communication.
    """
    data = whole(source, MAX_BYTES, "an execution trace")
    groups: list[TraceGroup] = []
    schema, metadata = None, {}
    if data.lstrip()[:1] in {b"{", b"\xef"}:
        document = _json(data, source.name)
        schema = document["schema"] if isinstance(document.get("schema"), str) else None
        if "workload_graph" in document:
            kind, calls = "chakra_json", chakra_nodes.from_json(document)
        else:
            nodes = document.get("nodes")
            nodes = nodes if isinstance(nodes, list) else []
            groups = execution_trace.groups(nodes)
            kind, calls = "pytorch", execution_trace.calls(nodes, groups)
            metadata = {"pid": document.get("pid"), "time": document.get("time")}
    else:
        kind, calls = "chakra_protobuf", _protobuf(data, source.name)
    if not calls:
        hint = "it may be the trace of one process alone, or of the time before communication began"
        raise InputError("holds no communication", path=source.name, hint=hint)
    return [_trace(source, kind, schema, calls, groups, metadata)]


def _json(data: bytes, path: str) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        hint = "the observer was not stopped; take another rank"
        raise InputError(f"is damaged JSON ({error})", path=path, hint=hint) from error
    if not isinstance(document, dict):
        raise InputError("is no JSON object", path=path, hint="is it another kind of file?")
    return document


def _protobuf(data: bytes, path: str) -> list[CommNode]:
    try:
        return chakra_nodes.from_protobuf(data)
    except ValueError as error:
        raise InputError("is a damaged Chakra trace", path=path, hint="convert it again") from error


def _trace(
    source: Source,
    kind: str,
    schema: str | None,
    calls: Sequence[CommNode],
    groups: Sequence[TraceGroup],
    metadata: dict[str, object],
) -> RankTrace:
    default = next((g for g in groups if g.ranks is not None and g.ranks == tuple(range(len(g.ranks)))), None)
    # What a collective calls its rank is the place in the group; in the group of all ranks that is the rank.
    own = {
        call.rank
        for call in calls
        if default is not None and call.group_name == default.name and call.collective not in ("send", "recv")
    } - {None}
    named = rank_from_path(Path(source.name))
    rank, said = (own.pop(), "group_rank") if len(own) == 1 else (named, "file_name")
    pid = metadata.get("pid")
    return RankTrace(
        path=source.name,
        format=FORMAT,
        identity=RankIdentity(
            rank=rank,
            rank_source=None if rank is None else said,
            world_size=len(default.ranks) if default is not None and default.ranks else None,
            pid=pid if isinstance(pid, int) else None,
        ),
        gpu_events=tables.empty(tables.GPU_EVENTS),
        comm_records=_records(calls),
        launches=tables.empty(tables.LAUNCHES),
        cpu_marks=tables.empty(tables.CPU_MARKS),
        steps=tables.empty(tables.STEPS),
        groups=_groups(groups),
        health=Health(
            complete=not source.faults,
            file_bytes=source.file_bytes,
            events=len(calls),
            notes=tuple(fault.message for fault in source.faults),
        ),
        metadata=metadata,
        witness=TraceWitness(kind, schema, tuple(call.node for call in calls), tuple(call.record_id for call in calls)),
    )


def _records(calls: Sequence[CommNode]) -> pa.Table:
    same = ("name", "ts_ns", "dur_ns", "tid", "collective", "dtype", "in_nelems", "out_nelems", "message_bytes")
    more = ("group_name", "group_desc", "group_size", "rank_start", "rank_stride", "seq", "in_split", "out_split")
    columns: dict[str, list[Any]] = {name: [getattr(call, name) for call in calls] for name in (*same, *more)}
    columns["layer"] = [execution_trace.LAYER] * len(calls)
    columns["rank_arg"] = [call.rank for call in calls]
    return table(tables.COMM_RECORDS, columns)


def _groups(groups: Sequence[TraceGroup]) -> pa.Table:
    return table(
        tables.GROUPS,
        {
            "name": [group.name for group in groups],
            "desc": [group.desc for group in groups],
            "size": [group.size for group in groups],
            "ranks": [group.ranks for group in groups],
            "ranks_source": ["none" if group.ranks is None else "pg_config" for group in groups],
            "declared": [True] * len(groups),
        },
    )

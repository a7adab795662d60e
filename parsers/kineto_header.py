"""The keys of a Kineto file around its events: the job, its process groups, the devices, the clock."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Raw, Struct

from parsers import tables
from parsers.columns import NULL, comma_separated, int_array, integer, text_array
from parsers.repair import repair

_LITERAL_BYTES = 1 << 20
_KEPT_BYTES = 1 << 16
_NOT_KEPT = frozenset({"deviceProperties", "distributedInfo", "traceEvents", "stackFrames"})
# What libkineto copies from the environment of the job, and the older names of the same.
_JOB_KEYS = (
    ("PT_PROFILER_JOB_NAME", "PT_PROFILER_JOB_VERSION", "PT_PROFILER_JOB_ATTEMPT_INDEX"),
    ("mast_job_name", "mast_job_version", "mast_job_attempt"),
)


class _Group(Struct):
    """One entry of `pg_config` (torch.distributed `_get_all_pg_configs`, or libkineto's own for on-demand traces)."""

    pg_name: str | int | None = None
    pg_desc: str | None = None
    backend_config: str | None = None
    backend_id: str | int | None = None
    pg_size: int | str | None = None
    ranks: Raw = Raw(b"")


@dataclass(frozen=True)
class Header:
    """What a file says about itself.

    Attributes:
        base_ns: added to every time (`baseTimeNanoseconds`; 0 where times are absolute or have an origin of their own).
        rank, world_size: of `distributedInfo`.
        group_ranks: the full rank lists of the declared groups.
        flaws: one sentence for each key that could not be read as written.
    """

    base_ns: int = 0
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    host: str | None = None
    run_id: str | None = None
    groups: pa.Table = field(default_factory=lambda: tables.empty(tables.GROUPS))
    group_ranks: tuple[npt.NDArray[np.int32], ...] = ()
    devices: tuple[Mapping[str, object], ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict)
    flaws: tuple[str, ...] = ()


def has_devices(raw: Mapping[str, bytes]) -> bool:
    """Whether the header lists a GPU: decided before the events are read, where the header comes first."""
    return b"{" in raw.get("deviceProperties", b"")


def parse_header(raw: Mapping[str, bytes]) -> Header:
    """Read the keys of a document.

    Args:
        raw: key -> its value as text (see `parsers.elements.Elements.header`).
    """
    flaws: list[str] = []
    values = {
        key: _value(key, text, flaws) for key, text in raw.items() if len(text) <= _KEPT_BYTES or key in _NOT_KEPT
    }
    info = _mapping(values.get("distributedInfo"))
    table, group_ranks = _groups(info, flaws)
    devices = values.get("deviceProperties")
    base = integer(values.get("baseTimeNanoseconds"))
    return Header(
        base_ns=0 if base == NULL else base,
        rank=_known(info.get("rank")),
        world_size=_known(info.get("world_size")),
        backend=_text(info.get("backend")),
        host=_text(values.get("host_name")),
        run_id=_run_id(values),
        groups=table,
        group_ranks=group_ranks,
        devices=tuple(item for item in devices if isinstance(item, dict)) if isinstance(devices, list) else (),
        metadata=_metadata(values, info),
        flaws=tuple(flaws),
    )


def _value(key: str, text: bytes, flaws: list[str]) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        pass
    mended = repair(text).text
    try:
        value = msgspec.json.decode(mended) if mended else None
    except (msgspec.DecodeError, RecursionError):
        value = None
    if value is None:
        flaws.append(f"header key {key!r} cannot be read")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    """`distributedInfo`: an object, or one that some writers put into a string (as JSON or as Python prints it)."""
    if isinstance(value, str) and len(value) <= _LITERAL_BYTES:
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                value = None
    return value if isinstance(value, dict) else {}


def _known(value: Any) -> int | None:
    number = integer(value)
    return None if number == NULL or number < 0 else number


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _run_id(values: Mapping[str, Any]) -> str | None:
    for keys in _JOB_KEYS:
        parts = [str(values[key]) for key in keys if values.get(key) is not None]
        if parts:
            return "/".join(parts)
    return None


def _metadata(values: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, object]:
    kept: dict[str, object] = {
        key: value
        for key, value in values.items()
        if key not in _NOT_KEPT and isinstance(value, str | int | float | bool)
    }
    for key in ("pg_count", "nccl_version"):
        if isinstance(info.get(key), str | int):
            kept[key] = info[key]
    return kept


def _groups(info: Mapping[str, Any], flaws: list[str]) -> tuple[pa.Table, tuple[npt.NDArray[np.int32], ...]]:
    """Declared process groups, and their full rank lists."""
    config = info.get("pg_config")
    if isinstance(config, str):
        config = _mapping('{"pg_config": ' + config + "}").get("pg_config")
    if isinstance(config, dict):
        config = [{"pg_name": name, **item} for name, item in config.items() if isinstance(item, dict)]
    if not isinstance(config, list):
        return tables.empty(tables.GROUPS), ()
    groups = [item for item in (_group(entry) for entry in config) if item is not None]
    if len(groups) != len(config):
        flaws.append(f"{len(config) - len(groups)} entries of pg_config cannot be read")
    lists = [_rank_list(group) for group in groups]
    sizes = np.array([_size(group, ranks) for group, ranks in zip(groups, lists, strict=True)], np.int64)
    columns = {
        "name": text_array([None if group.pg_name is None else str(group.pg_name) for group in groups]),
        "desc": text_array([group.pg_desc for group in groups]),
        "backend": text_array([group.backend_config for group in groups]),
        "size": int_array(sizes, pa.int32()),
        "ranks": _rank_array(lists),
        "ranks_source": text_array(["none" if ranks is None else "pg_config" for ranks in lists]),
        "declared": pa.Array.from_buffers(
            pa.bool_(),
            len(groups),
            [None, pa.py_buffer(np.packbits(np.ones(len(groups), np.bool_), bitorder="little"))],
        ),
    }
    table = pa.Table.from_arrays([columns[name] for name in tables.GROUPS.names], schema=tables.GROUPS)
    return table, tuple(ranks for ranks in lists if ranks is not None)


def _group(entry: Any) -> _Group | None:
    if not isinstance(entry, dict):
        return None
    ranks = entry.get("ranks")
    try:
        return msgspec.convert({**entry, "ranks": Raw(msgspec.json.encode(ranks))}, _Group)
    except msgspec.ValidationError:
        return None


def _rank_list(group: _Group) -> npt.NDArray[np.int32] | None:
    """The ranks, in group order; None where the list is missing, empty or cut short."""
    text = bytes(group.ranks).strip(b'"[] ')
    if not text or b"..." in text or not re.fullmatch(rb"[\d\s,]+", text):
        return None
    ranks = comma_separated(text)
    stated = integer(group.pg_size)
    if ranks is None or stated not in {NULL, len(ranks)} or ranks.max(initial=0) >= 2**31:
        return None
    return ranks.astype(np.int32)


def _size(group: _Group, ranks: npt.NDArray[np.int32] | None) -> int:
    stated = integer(group.pg_size)
    return len(ranks) if stated == NULL and ranks is not None else stated


def _rank_array(lists: list[npt.NDArray[np.int32] | None]) -> pa.Array:
    lengths = np.array([0 if ranks is None else len(ranks) for ranks in lists], np.int64)
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    known = [ranks for ranks in lists if ranks is not None]
    flat = np.concatenate(known) if known else np.empty(0, np.int32)
    values = pa.Array.from_buffers(pa.int32(), len(flat), [None, pa.py_buffer(flat)])
    valid = np.packbits(np.array([ranks is not None for ranks in lists], np.bool_), bitorder="little")
    kind = tables.GROUPS.field("ranks").type
    return pa.Array.from_buffers(kind, len(lists), [pa.py_buffer(valid), pa.py_buffer(offsets)], children=[values])

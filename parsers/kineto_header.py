"""The keys of a Kineto file around its events: the job, its process groups, the devices, the clock."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from parsers.columns import NULL, integer
from parsers.kineto_groups import DeclaredGroups, Group, declared, entries
from parsers.repair import repair

_LITERAL_BYTES = 1 << 20
_KEPT_BYTES = 1 << 16
_NOT_KEPT = frozenset({"deviceProperties", "distributedInfo", "traceEvents", "stackFrames"})
# What libkineto copies from the environment of the job, and the older names of the same.
_JOB_KEYS = (
    ("PT_PROFILER_JOB_NAME", "PT_PROFILER_JOB_VERSION", "PT_PROFILER_JOB_ATTEMPT_INDEX"),
    ("mast_job_name", "mast_job_version", "mast_job_attempt"),
)


@dataclass(frozen=True)
class Header:
    """What a file says about itself.

    Attributes:
        base_ns: added to every time (`baseTimeNanoseconds`; 0 where times are absolute or have an origin of their own).
        rank, world_size: of `distributedInfo`.
        groups: the process groups that it declares.
        flaws: one sentence for each key that could not be read as written.
    """

    base_ns: int = 0
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    host: str | None = None
    run_id: str | None = None
    groups: DeclaredGroups = field(default_factory=DeclaredGroups)
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
        key: _value(key, text, flaws)
        for key, text in raw.items()
        if key != "distributedInfo" and (len(text) <= _KEPT_BYTES or key in _NOT_KEPT)
    }
    info, groups = _distributed(raw.get("distributedInfo", b"{}"), flaws)
    devices = values.get("deviceProperties")
    base = integer(values.get("baseTimeNanoseconds"))
    return Header(
        base_ns=0 if base == NULL else base,
        rank=_known(info.get("rank")),
        world_size=_known(info.get("world_size")),
        backend=_text(info.get("backend")),
        host=_text(values.get("host_name")),
        run_id=_run_id(values),
        groups=declared(groups),
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


def _distributed(text: bytes, flaws: list[str]) -> tuple[dict[str, Any], list[Group]]:
    """The keys of `distributedInfo`, and the groups that it declares.

    What is written as it should be is never made into dicts: a million groups would take a gigabyte.
    """
    try:
        parts = msgspec.json.decode(text, type=dict[str, Raw])
        groups = msgspec.json.decode(parts.pop("pg_config", b"[]"), type=list[Group])
        return {key: msgspec.json.decode(part) for key, part in parts.items()}, groups
    except (msgspec.DecodeError, RecursionError):
        pass
    info = _mapping(_value("distributedInfo", text, flaws))
    config = info.pop("pg_config", None)
    if isinstance(config, str):
        config = _mapping('{"pg_config": ' + config + "}").get("pg_config")
    return info, entries(config, flaws)


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

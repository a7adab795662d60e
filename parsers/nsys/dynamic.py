"""Payloads outside of ``NVTX_EVENTS``: the file's own layouts, and the tables that nsys 2026 makes of payloads."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from parsers.columns import NULL, Ints, Names
from parsers.nsys.payload import FIELDS, Layout, Payloads, field_of
from parsers.nsys.schema import DYNAMIC_PREFIX, EVENT_PAYLOADS, SCHEMA_ENTRIES, SCHEMAS
from parsers.nsys.store import Store, records

# NVTX_PAYLOAD_ENTRY_TYPE_* of nvtx3/nvToolsExtPayload.h; types from 2^24 on are schemas, for NCCL its enumeration.
_TYPES = {5: "<i4", 6: "<u4", 17: "<i8", 18: "<u8", 22: "<u8"}
_STATIC_SCHEMA = 1 << 24

# The number of the reduction operation's enumeration dates NCCL (src/include/nvtx.h, nvtx_payload_schemas.h).
_NCCL_OF_ENUM = {
    11: "2.16 to 2.22",
    14: "2.23 to 2.25",
    15: "2.26",
    16: "2.27",
    19: "2.28.3",
    20: "2.28.7 to 2.28.9",
    24: "2.29 or 2.30",
}
_ALL_REDUCE, _REDUCE_SCATTER = _STATIC_SCHEMA + 5, _STATIC_SCHEMA + 7


def own_layouts(store: Store) -> dict[tuple[int, int], Layout]:
    """The layouts that the file describes, by schema and size; schemas that two processes describe differently are left
    out, as the table does not say whose is whose."""
    sizes: dict[int, set[int]] = {}
    for row in records(store, SCHEMAS, ("schemaId", "payloadSize")):
        if isinstance(row["schemaId"], int) and isinstance(row["payloadSize"], int):
            sizes.setdefault(row["schemaId"], set()).add(row["payloadSize"])
    fields: dict[int, dict[int, set[tuple[str, int, str]]]] = {}
    for row in records(store, SCHEMA_ENTRIES, ("schemaId", "idx", "type", "name", "offset")):
        field = field_of(str(row["name"]))
        if not isinstance(row["schemaId"], int) or not isinstance(row["idx"], int) or field not in FIELDS:
            continue
        kind = "<i4" if isinstance(row["type"], int) and row["type"] >= _STATIC_SCHEMA else _TYPES.get(row["type"])
        offset = row["offset"] or 0
        if kind is not None and isinstance(offset, int) and offset >= 0:
            place = fields.setdefault(row["schemaId"], {}).setdefault(row["idx"], set())
            place.add((field, offset, kind))
    layouts: dict[tuple[int, int], Layout] = {}
    for schema, entries in fields.items():
        if len(sizes.get(schema, ())) == 1 and all(len(said) == 1 for said in entries.values()):
            size = next(iter(sizes[schema]))
            layout = tuple(next(iter(entries[index])) for index in sorted(entries))
            if all(offset + np.dtype(kind).itemsize <= size for _, offset, kind in layout):
                layouts[schema, size] = layout
    return layouts


def nccl_version(store: Store) -> str | None:
    """The release of NCCL that registered the payloads, as far as the file's schemas tell; null without any."""
    kinds = {
        row["type"] - _STATIC_SCHEMA
        for row in records(store, SCHEMA_ENTRIES, ("schemaId", "type", "name"))
        if row["schemaId"] in (_ALL_REDUCE, _REDUCE_SCATTER)
        and isinstance(row["type"], int)
        and row["type"] >= _STATIC_SCHEMA
    }
    return _NCCL_OF_ENUM.get(kinds.pop()) if len(kinds) == 1 else None


def add_dynamic(store: Store, ranges: Mapping[str, Ints], dtypes: Names) -> None:
    """Add what ``DYNAMIC_NVTXPAYLOAD_DATATYPE_*`` say (nsys 2026.4, ``--dynamic-tables``): one table per schema.

    Args:
        store: the export.
        ranges: columns of ranges with ``eventId`` and `FIELDS`; filled in place.
        dtypes: the texts that the column ``dtype`` numbers.
    """
    tables = [name for name in store.tables() if name.startswith(DYNAMIC_PREFIX)]
    events = ranges["eventId"]
    if not tables or not (events != NULL).any():
        return
    order = np.argsort(events, kind="stable")
    for table in tables:
        names = sorted(store.columns(table))
        key = next((name for name in names if re.sub(r"\W|_", "", name).lower() == "eventid"), None)
        labels = [name for name in names if field_of(name) is not None]
        if key is None or not labels:
            continue
        for block in store.scan(table, [key], labels):
            place = np.minimum(np.searchsorted(events[order], block.ints[key]), len(events) - 1)
            row = order[place]
            hit = np.flatnonzero(events[row] == block.ints[key])
            said = Payloads(block.rows)
            for index in hit.tolist():
                said.say(index, {label: block.values[label][index] for label in labels})
            for name in FIELDS:
                known = hit[said.columns[name][hit] != NULL]
                ranges[name][row[known]] = said.columns[name][known]
            codes = dtypes.codes([said.dtype[index] for index in hit.tolist()])
            ranges["dtype"][row[hit[codes >= 0]]] = codes[codes >= 0]


__all__ = ["EVENT_PAYLOADS", "add_dynamic", "nccl_version", "own_layouts"]

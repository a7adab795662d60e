"""The process groups that a Kineto file declares, `pg_config` of `distributedInfo`: a file may declare millions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Raw, Struct

from parsers import tables
from parsers.columns import NULL, Ints, bits, comma_separated, int_array, integer, list_of, text_array

_RANKS = re.compile(rb"\d+(?:\s*,\s*\d+)*")


class Group(Struct, gc=False):
    """One entry of `pg_config` (torch.distributed `_get_all_pg_configs`, or libkineto's own for on-demand traces)."""

    pg_name: str | int | None = None
    pg_desc: str | None = None
    backend_config: str | None = None
    backend_id: str | int | None = None
    pg_size: int | str | None = None
    ranks: Raw = Raw(b"")


@dataclass(frozen=True)
class DeclaredGroups:
    """All of them.

    Attributes:
        table: `parsers.tables.GROUPS`.
        ranks: int32, the ranks of the groups that list them all, one group after the other.
        sizes: int64, how many of ``ranks`` belong to each of those groups.
    """

    table: pa.Table = field(default_factory=lambda: tables.empty(tables.GROUPS))
    ranks: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    sizes: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def lists(self) -> list[npt.NDArray[np.int32]]:
        """``ranks``, group by group."""
        return np.split(self.ranks, np.cumsum(self.sizes)[:-1]) if len(self.sizes) else []


def entries(config: Any, flaws: list[str]) -> list[Group]:
    """The entries of a `pg_config` that was decoded, whatever the types of its values.

    Args:
        config: a list of objects, or an object of them by name.
        flaws: gets a sentence where some cannot be read.
    """
    if isinstance(config, dict):
        config = [{"pg_name": name, **item} for name, item in config.items() if isinstance(item, dict)]
    if not isinstance(config, list):
        return []
    found = [item for item in map(_entry, config) if item is not None]
    if len(found) != len(config):
        flaws.append(f"{len(config) - len(found)} entries of pg_config cannot be read")
    return found


def _entry(said: Any) -> Group | None:
    if not isinstance(said, Mapping):
        return None
    try:
        return msgspec.convert({**said, "ranks": Raw(msgspec.json.encode(said.get("ranks")))}, Group)
    except msgspec.ValidationError:
        return None


def declared(groups: Sequence[Group]) -> DeclaredGroups:
    """The groups of a file as columns."""
    if not groups:
        return DeclaredGroups()
    ranks, length = _rank_lists(groups)
    listed = length > 0
    stated = np.fromiter((integer(group.pg_size) for group in groups), np.int64, len(groups))
    size = np.where((stated == NULL) & listed, length, stated)
    sources = ("none", "pg_config")
    flat = pa.Array.from_buffers(pa.int32(), len(ranks), [None, pa.py_buffer(ranks)])
    columns = {
        "name": text_array([None if group.pg_name is None else str(group.pg_name) for group in groups]),
        "desc": text_array([group.pg_desc for group in groups]),
        "backend": text_array([group.backend_config for group in groups]),
        "size": int_array(size, pa.int32()),
        "ranks": list_of(flat, length, listed, tables.GROUPS.field("ranks").type),
        "ranks_source": text_array([sources[known] for known in listed.tolist()]),
        "declared": pa.Array.from_buffers(pa.bool_(), len(groups), [None, bits(np.ones(len(groups), np.bool_))]),
    }
    table = pa.Table.from_arrays([columns[name] for name in tables.GROUPS.names], schema=tables.GROUPS)
    return DeclaredGroups(table, ranks, length[listed])


def _rank_lists(groups: Sequence[Group]) -> tuple[npt.NDArray[np.int32], Ints]:
    """The ranks in group order, one group after the other, and how many each has.

    None where a group's list is missing, empty, cut short or not as long as it is said to be.
    """
    texts = [_listed(group) for group in groups]
    length = np.fromiter((0 if text is None else text.count(b",") + 1 for text in texts), np.int64, len(texts))
    flat = comma_separated(b",".join([text for text in texts if text is not None])) if length.any() else None
    if flat is None:
        return np.empty(0, np.int32), np.zeros_like(length)
    group = np.repeat(np.arange(len(length)), length)
    length[group[flat >= 2**31]] = 0  # no rank of any job
    return flat[length[group] > 0].astype(np.int32), length


def _listed(group: Group) -> bytes | None:
    text = bytes(group.ranks).strip(b'"[] \t\r\n')
    if b"..." in text or not _RANKS.fullmatch(text):
        return None
    return text if integer(group.pg_size) in {NULL, text.count(b",") + 1} else None

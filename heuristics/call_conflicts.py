"""What two sources of one rank say of the same calls, where both list them.

Two ways of telling that calls are the same. A trace and a Flight Recorder dump number the collectives of a process
group alike (`collective_seq_id`; torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp hands ``seqCollective_ + 1`` to the
profiler "to match collective"), so calls are held against each other one by one. A log of NCCL (``COLL`` lines) has all
calls of a process since it began, a trace a part of them: it cannot show more calls of one kind and size on the same
ranks than the log has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL, codes, ints
from heuristics.groups import group_keys

if TYPE_CHECKING:
    from collections.abc import Hashable

    import pyarrow as pa

    from heuristics.account import Account

_NUMBERED = frozenset({"kineto", "flight_recorder"})
_WHOLE = "nccl_log"
_COMPARED = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
"""NCCL has a function for these; other calls of torch.distributed become messages, or several calls."""

_LISTS = frozenset({"all_gather", "reduce_scatter", "allgather"})
"""Calls on lists of tensors: where their sizes differ, torch makes a broadcast or reduction of each."""


@dataclass(frozen=True)
class Said:
    """What differs: of which calls, and what each source says."""

    what: str
    one: str
    other: str


def differing_calls(one: Account, other: Account) -> Iterator[Said]:
    """What two labelled sources of one rank contradict each other in."""
    if one.format != other.format and {one.format, other.format} <= _NUMBERED:
        yield from _by_number(one, other)
    if (one.format == _WHOLE) != (other.format == _WHOLE):
        yield from _by_count(one, other)


def _by_number(one: Account, other: Account) -> Iterator[Said]:
    """Per group, the first collective of one number that is another operation or size."""
    first, second = _numbered(one), _numbered(other)
    for group in first.keys() & second.keys():
        shared = sorted(first[group].keys() & second[group].keys())
        differ = [n for n in shared if _contradict(first[group][n], second[group][n])]
        if differ:
            number = differ[0]
            share = f"{len(differ):,} of {len(shared):,} that both list differ"
            what = f"collective {number:,} of group {group} ({share}) is"
            yield Said(what, _call(*first[group][number]), _call(*second[group][number]))


def _numbered(source: Account) -> dict[str, dict[int, tuple[str, int]]]:
    """Primitive and elements by group and number; numbers that several calls share are left out."""
    table = _table(source)
    group, seq = ints(table, "group"), ints(table, "seq")
    code, names = codes(table, "primitive")
    size = np.maximum(ints(table, "in_nelems"), ints(table, "out_nelems"))
    labels = source.groups.column("name").to_pylist()
    kept = (group != NULL) & (seq > 0) & np.isin(code, [i for i, name in enumerate(names) if name in _COMPARED])
    found: dict[str, dict[int, tuple[str, int]]] = {}
    twice: set[tuple[str, int]] = set()
    for row in np.flatnonzero(kept).tolist():
        name, number = labels[group[row]], int(seq[row])
        if not name:
            continue
        calls = found.setdefault(name, {})
        if number in calls:
            twice.add((name, number))
        calls[number] = (names[code[row]], int(size[row]))
    for name, number in twice:
        del found[name][number]
    return found


def _contradict(one: tuple[str, int], other: tuple[str, int]) -> bool:
    sizes = one[1] != other[1] and NULL not in (one[1], other[1])
    return one[0] != other[0] or sizes


def _call(primitive: str, elements: int) -> str:
    return primitive if elements == NULL else f"{primitive} of {elements:,} elements"


def _by_count(one: Account, other: Account) -> Iterator[Said]:
    """Kinds and sizes of calls on the same ranks of which a trace shows more than the log has."""
    log, trace = (one, other) if one.format == _WHOLE else (other, one)
    known = _counted(log)
    if not known:
        return
    ranks_logged = {ranks for ranks, _, _ in known}
    for (ranks, primitive, size), count in _counted(trace).items():
        have = known.get((ranks, primitive, size), 0)
        if ranks in ranks_logged and count > have:
            what = f"{primitive} of {size:,} bytes on {_few(ranks)} is called"
            said = f"{count:,} times", f"{have:,} times"
            yield Said(what, *(said if trace is one else said[::-1]))


def _counted(source: Account) -> dict[tuple[Hashable, str, int], int]:
    """Calls per ranks, primitive and bytes, where all three are known and one call is one call of NCCL."""
    table = _table(source)
    group, size = ints(table, "group"), ints(table, "size_bytes")
    code, names = codes(table, "primitive")
    op, ops = codes(table, "op")
    keys = group_keys(source.groups)
    comparable = [i for i, name in enumerate(names) if name in _COMPARED]
    several = [i for i, name in enumerate(ops) if "coalesced" in name or (name in _LISTS and source.format == "kineto")]
    kept = (group != NULL) & (size > 0) & np.isin(code, comparable) & ~np.isin(op, several)
    cells, counts = np.unique(np.stack([group, code, size], axis=1)[kept], axis=0, return_counts=True)
    found: dict[tuple[Hashable, str, int], int] = {}
    for (place, kind, length), count in zip(cells.tolist(), counts.tolist(), strict=True):
        if isinstance(keys[place], frozenset):
            key = (keys[place], names[kind], length)
            found[key] = found.get(key, 0) + count
    return found


def _few(ranks: Hashable) -> str:
    listed = sorted(ranks) if isinstance(ranks, frozenset) else []
    return f"ranks {', '.join(map(str, listed[:8]))}{f', ... ({len(listed)})' if len(listed) > 8 else ''}"


def _table(source: Account) -> pa.Table:
    assert source.collectives is not None
    return source.collectives

"""The groups of a rank as columns of a summary, and back.

Every rank of a job lists its groups in full, the world among them: written out, the groups of 16,384 ranks alone take
gigabytes. Ranks that are evenly spaced are stored as first rank, number and distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from analyzer.summary.columns import SPACED, Rows, one, packed, unpacked
from heuristics.arrays import list_parts, lists, numpy, valid
from heuristics.columns import array
from heuristics.view import compact
from parsers import tables
from parsers.columns import list_array, list_of

RANKS = tables.GROUPS.get_field_index("ranks")


def packed_groups(groups: pa.Table) -> dict[str, pa.Array]:
    """A rank's `parsers.tables.GROUPS` as columns of one row."""
    offsets, flat = lists(groups, "ranks")
    here = valid(groups.column("ranks"))
    members = [
        compact(flat[begin:end].tolist()) if known else None
        for (begin, end), known in zip(pairwise(offsets), here, strict=True)
    ]
    listed = [None if isinstance(ranks, range) else ranks for ranks in members]
    spaced = [[ranks.start, len(ranks), ranks.step] if isinstance(ranks, range) else None for ranks in members]
    rest = groups.set_column(RANKS, tables.GROUPS.field(RANKS), _lists(listed))
    return {SPACED: one(_lists(spaced)), **packed("groups.", rest)}


def unpacked_groups(rows: Rows, row: int) -> pa.Table:
    """The inverse of `packed_groups`.

    Raises:
        ValueError: a group has another number of ranks than it says.
    """
    groups = unpacked("groups.", tables.GROUPS, rows, row)
    spaced = rows.values(SPACED, row)
    here = np.flatnonzero(valid(spaced))
    if not len(here):
        return groups
    offsets, flat = lists(groups, "ranks")
    known = valid(groups.column("ranks"))
    members = [flat[begin:end] for begin, end in pairwise(offsets)]
    first, count, step = numpy(list_parts(spaced)[1]).reshape(len(here), 3).T
    if (count != numpy(groups.column("size"))[here]).any():
        raise ValueError("a group has another number of ranks than it says")
    for place, begin, ranks, apart in zip(here.tolist(), first, count, step, strict=True):
        members[place] = begin + apart * np.arange(ranks)
        known[place] = True
    sizes = np.array([len(ranks) for ranks in members])
    values = array(np.concatenate(members).astype(np.int32))
    column = list_of(values, sizes, known, tables.GROUPS.field(RANKS).type)
    return groups.set_column(RANKS, tables.GROUPS.field(RANKS), column)


def _lists(ranks: Sequence[Sequence[int] | None]) -> pa.Array:
    places = [-1 if own is None else place for place, own in enumerate(ranks)]
    return list_array(ranks, np.array(places, dtype=np.int64), pa.list_(pa.int32()))

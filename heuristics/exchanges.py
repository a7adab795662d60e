"""All-to-alls that NCCL was asked for as sends and receives.

NCCL before 2.28 has no call for an all-to-all: its users open a group and send to, and receive from, every rank,
themselves included (PyTorch csrc/cuda/nccl.cpp ``all2all_single_equal_split``, which leaves out empty messages; XLA
does the same). Nothing else sends to itself. Where only NCCL's NVTX ranges are recorded, such a group is one call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from heuristics.arrays import NULL, codes, ints
from heuristics.calls import Records
from heuristics.columns import Bools, Ints, array, distinct, none, nullable, take, texts
from heuristics.primitives import DIRECTIONS, SEND_RECV, codes_of

if TYPE_CHECKING:
    from heuristics.kernel_table import KernelTable
    from parsers.nsys.places import NsysWitness
    from parsers.tables import RankTrace

_NAME = "ncclAlltoAll"
_SEND, _RECV = (DIRECTIONS.index(word) for word in ("send", "recv"))


def added(trace: RankTrace, names: KernelTable) -> pa.Table:
    """The records of a rank, with a range around the messages of each all-to-all.

    Args:
        trace: the facts.
        names: what the names of calls mean.

    Returns:
        `parsers.tables.COMM_RECORDS`; the same table where nothing was found.
    """
    table = trace.comm_records
    if "nvtx" not in codes(table, "layer")[1]:
        return table
    records = Records(table, names)
    rows = np.flatnonzero(records.layer("nvtx") & records.role("payload"))
    if not len(rows):
        return table
    rows = rows[np.lexsort((records.ts[rows], records.tid[rows]))]
    number = ints(table, "external_id")[rows]
    group, group_names = codes(table, "group_name")
    primitive, direction = codes_of(records.operators)
    peer = ints(table, "rank_arg")[rows]
    size, own = _places(trace, group_names)
    written = ints(table, "group_size")[rows]
    size = np.where(size[group[rows]] > 0, size[group[rows]], written)
    is_message = (primitive[records.name[rows]] == SEND_RECV) & (peer >= 0) & (group[rows] >= 0)
    way = direction[records.name[rows]]
    first, past = _exchanges(number, records.tid[rows], group[rows], way, peer, size, is_message, own)
    if not len(first):
        return table
    bounds = np.stack([first, past], axis=1).ravel()
    end = np.maximum.reduceat(np.r_[records.end[rows], 0], bounds)[::2]
    return _with_ranges(table, rows[first], records.ts[rows[first]], end, size[first])


def _exchanges(
    number: Ints, thread: Ints, group: Ints, direction: Ints, peer: Ints, size: Ints, is_message: Bools, own: Ints
) -> tuple[Ints, Ints]:
    """First row and past the last of every launch that is an all-to-all; rows are in order of thread and time.

    Args:
        number: per row, the launch that it came to; `NULL` for none.
        thread: who asked.
        group: number of the communicator.
        direction: position in `DIRECTIONS`.
        peer: rank in the communicator.
        size: ranks in it; 0 or less where not known.
        is_message: whether it is a send or receive whose peer and communicator are known.
        own: per communicator and one more, this rank's place in it.
    """
    starts = np.flatnonzero(np.r_[True, (number[1:] != number[:-1]) | (thread[1:] != thread[:-1])])
    count = np.diff(np.r_[starts, len(number)])
    # A launch whose calls do not follow each other is none of these.
    values, times = np.unique(number[starts], return_counts=True)
    good = (number[starts] >= 0) & (times[np.searchsorted(values, number[starts])] == 1)
    launch = np.repeat(np.arange(len(starts)), count)

    def each(flags: Bools) -> Ints:
        return np.bincount(launch, weights=flags, minlength=len(starts)).astype(np.int64)

    alike = is_message & (group == group[starts][launch])
    good &= each(alike) == count
    example, _ = distinct(launch, direction, peer)
    good &= np.bincount(launch[example], minlength=len(starts)) == count  # one message per peer and direction
    members = size[starts]
    inside = peer < size
    sends, receives = each((direction == _SEND) & inside), each((direction == _RECV) & inside)
    whole = (sends == members) & (receives == members)
    self_ = is_message & (peer == own[group]) & (own[group] >= 0)
    itself = (each(self_ & (direction == _SEND)) == 1) & (each(self_ & (direction == _RECV)) == 1)
    found = good & (members > 1) & (whole | itself)
    return starts[found], starts[found] + count[found]


def _places(trace: RankTrace, names: list[str]) -> tuple[Ints, Ints]:
    """Size of every named communicator and this rank's place in it, and `NULL` for none."""
    size, own = none(len(names) + 1), none(len(names) + 1)
    listed = {row["name"]: row for row in trace.groups.select(["name", "size", "ranks"]).to_pylist()}
    witness = cast("NsysWitness | None", trace.witness if trace.format == "nsys" else None)
    told = {} if witness is None else {member.name: member.rank for member in witness.members}
    for place, name in enumerate(names):
        row, mine = listed.get(name), told.get(name)
        ranks = (row and row["ranks"]) or ()
        size[place] = (row and row["size"]) or NULL
        known = ranks.index(trace.identity.rank) if trace.identity.rank in ranks else mine
        own[place] = NULL if known is None else known
    return size, own


def _with_ranges(table: pa.Table, first: Ints, begin: Ints, end: Ints, size: Ints) -> pa.Table:
    """The records, and a range per all-to-all with what its first message says of the group."""
    kept = {name: take(table.column(name), first) for name in ("tid", "external_id", "group_name", "group_desc")}
    made = kept | {
        "layer": texts(["nvtx"], np.zeros(len(first), dtype=np.int64)),
        "name": texts([_NAME], np.zeros(len(first), dtype=np.int64)),
        "ts_ns": array(begin),
        "dur_ns": array(end - begin),
        "group_size": nullable(np.where(size > 0, size, NULL), pa.int32()),
    }
    columns = [
        pa.chunked_array([pa.nulls(len(first), field.type)]) if field.name not in made else made[field.name]
        for field in table.schema
    ]
    more = pa.table(columns, names=table.schema.names).cast(table.schema)
    return pa.concat_tables([table, more])

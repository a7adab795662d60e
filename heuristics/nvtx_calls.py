"""NCCL's own NVTX ranges as evidence: which GPU work a call led to, and on which communicator it ran.

The reader of Nsight Systems says which kernels came of which ranges (`COMM_RECORDS.external_id`): NCCL launches the
work of a group when the group closes, so a range does not enclose its launch. Ranges of operators lie around those of
NCCL and stand for the call; an all-to-all of PyTorch holds one ``ncclSend`` and ``ncclRecv`` per peer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from heuristics import nesting
from heuristics.arrays import NULL, ints, valid
from heuristics.columns import Bools, Ints, at, first, none
from heuristics.primitives import ALL_TO_ALL, DIRECTIONS, SEND_RECV, Payload, codes_of

if TYPE_CHECKING:
    from heuristics.calls import Forest, Records
    from heuristics.evidence import Evidence
    from parsers.tables import RankTrace

_SEND = DIRECTIONS.index("send")


@dataclass(frozen=True, eq=False)
class Linked:
    """What the reader matched; `NULL` where it matched nothing.

    Attributes:
        call_of_event: per GPU event, the one call that it came of.
        batch_of_event: per GPU event that came of several calls, a number that it shares with them.
        batch_of_call: per call, that number.
    """

    call_of_event: Ints
    batch_of_event: Ints
    batch_of_call: Ints

    @property
    def events(self) -> Bools:
        """Which GPU events came of a call."""
        return np.asarray((self.call_of_event >= 0) | (self.batch_of_event >= 0), dtype=np.bool_)


def matched(records: Records) -> Bools:
    """NVTX ranges that the reader matched with GPU work."""
    return np.asarray(records.layer("nvtx") & _given(records, "external_id"), dtype=np.bool_)


def link(trace: RankTrace, records: Records, forest: Forest, calls: int) -> Linked:
    """Bring the reader's matches to the calls.

    Args:
        trace: the facts.
        records: its records.
        forest: how they nest.
        calls: how many calls there are.
    """
    events = trace.gpu_events.num_rows
    rows = np.flatnonzero(matched(records))
    owner = at(forest.call, nesting.nearest(forest.parent, rows, forest.chosen))
    rows, owner = rows[owner >= 0], owner[owner >= 0]
    out = Linked(none(events), none(events), none(calls))
    if not len(rows):
        return out
    number = ints(records.table, "external_id")[rows]
    pairs = np.unique(np.stack([number, owner], axis=1), axis=0)
    distinct, begin, count = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    of_event = ints(trace.gpu_events, "external_id")
    place = np.minimum(np.searchsorted(distinct, of_event), len(distinct) - 1)
    hit = (distinct[place] == of_event) & (of_event >= 0)
    single = count == 1
    out.call_of_event[:] = np.where(hit & single[place], pairs[begin[place], 1], NULL)
    out.batch_of_event[:] = np.where(hit & ~single[place], place, NULL)
    several = np.repeat(~single, count)
    out.batch_of_call[pairs[several, 1]] = np.repeat(np.arange(len(distinct)), count)[several]
    return out


def ranges_of(records: Records, anchor: Ints, around: Ints, inside: Ints) -> tuple[Ints, Ints]:
    """The NVTX range that is a call, and the range that names its communicator.

    Args:
        records: all records.
        anchor: per call, the record that stands for it.
        around: per call, the NVTX range around it (or the anchor itself).
        inside: per call, the first NVTX range inside of it.

    Returns:
        Two row numbers per call. A range inside counts as the call only where both name the same primitive.
    """
    primitive, direction = codes_of(records.operators)
    name = records.name
    same = (primitive[at(name, inside)] == primitive[at(name, anchor)]) & (inside >= 0)
    same &= (direction[at(name, anchor)] == NULL) | (direction[at(name, inside)] == direction[at(name, anchor)])
    return first(around, np.where(same, inside, NULL)), first(around, inside)


def says_something(records: Records, rows: Ints) -> Ints:
    """The rows whose payload was recorded, `NULL` for the others."""
    said = _given(records, "message_bytes") | _given(records, "group_name")
    return np.where(at(said, rows, False), rows, NULL)


def with_parts(pay: Payload, records: Records, seen: Evidence, primitive: Ints, own: Ints) -> Payload:
    """Sizes of all-to-alls that were made of sends.

    What goes to the peers and to the rank itself (ProcessGroupNCCL sends to itself as well, and leaves out empty
    messages) adds up to what the rank handed in. Where the sends differ and the rank's place is not known, it is not
    known which of them stayed.

    Args:
        pay: what is known of the calls.
        records: all records.
        seen: the evidence of each call.
        primitive: per call, position in `PRIMITIVES`.
        own: per call, the rank's place in its group.
    """
    open_ = (primitive == ALL_TO_ALL) & (pay.size_bytes == NULL) & (pay.group_size > 1)
    said, direction = codes_of(records.operators)
    sends = records.layer("nvtx") & (said[records.name] == SEND_RECV) & (direction[records.name] == _SEND)
    rows = np.flatnonzero(sends & _given(records, "message_bytes") & (seen.call_of_record >= 0))
    owner = seen.call_of_record[rows]
    if not len(rows) or not open_.any():
        return pay
    size, calls, n = ints(records.table, "message_bytes")[rows], len(primitive), pay.group_size
    count = np.bincount(owner, minlength=calls)
    total = _sums(owner, size, calls)
    low, high = np.full(calls, np.iinfo(np.int64).max), np.zeros(calls, dtype=np.int64)
    np.minimum.at(low, owner, size)
    np.maximum.at(high, owner, size)
    even = low == high
    stays = (ints(records.table, "rank_arg")[rows] == own[owner]) & (own[owner] >= 0)
    kept, itself = _sums(owner[stays], size[stays], calls), np.bincount(owner[stays], minlength=calls) > 0
    to_others = ~itself & even & (count == n - 1)
    whole = np.where((count == n) | itself, total, np.where(to_others, high * n, NULL))
    sent = np.where(to_others, total, np.where(itself, total - kept, np.where(even & (count == n), total - high, NULL)))
    whole, sent = np.where(open_, whole, NULL), np.where(open_, sent, NULL)
    return replace(
        pay,
        size_bytes=np.where(whole >= 0, whole, pay.size_bytes),
        sent_bytes=np.where(sent >= 0, sent, pay.sent_bytes),
    )


def _sums(owner: Ints, size: Ints, calls: int) -> Ints:
    """Bytes per call, added up as integers."""
    total = np.zeros(calls, dtype=np.int64)
    np.add.at(total, owner, size)
    return total


def _given(records: Records, column: str) -> Bools:
    """Which records have a value."""
    return valid(records.table.column(column))

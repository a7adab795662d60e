"""The same collective on several ranks: when the last one arrived, and hence what was waiting and what was transfer.

A collective is matched only where all its participants are among the traces. Its ranks leave it together, so the ends
of matched collectives also show how far the clocks are apart; arrivals are compared after that has been taken out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.intervals import Floats, Ints
from analyzer.model import Clock
from analyzer.summary.model import RankSummary
from heuristics.arrays import NULL, codes, ints

SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Every rank gives to and takes from every other: nobody can leave before the last has arrived."""

ENOUGH = 3
"""Matched collectives a rank must have: with fewer, nothing is left to check its clock offset against."""

_ROUNDS = 50


@dataclass(frozen=True, eq=False)
class Matching:
    """What the ranks say about each other.

    Attributes:
        wait_ns: per rank, int64 per call: time from its own arrival to the last one's, -1 where not known.
        clock: how far apart the clocks are.
        matched: collectives that were matched on all their ranks.
    """

    wait_ns: tuple[Ints, ...]
    clock: Clock
    matched: int


@dataclass(frozen=True, eq=False)
class _Calls:
    """Calls of all ranks that can be compared, in order of ``key``; one entry per rank and collective."""

    key: Ints  # 0, 1, 2, ... : the same collective
    rank: Ints  # position in the ranks given
    row: Ints  # row of that rank's COLLECTIVES
    start: Ints  # ns since the first
    end: Ints


def match(ranks: Sequence[RankSummary]) -> Matching:
    """Match collectives across ranks and tell waiting from transfer.

    Only GPU traces are compared: the duration of a CPU operator says when its caller was let go, not when it arrived.
    """
    waits = tuple(np.full(r.collectives.num_rows, NULL, dtype=np.int64) for r in ranks)
    nothing = Clock(aligned=False, residual_us=None, offset_us={})
    if len(ranks) < 2 or not all(r.line.on_gpu for r in ranks):
        return Matching(waits, nothing, 0)
    calls = _matched(ranks)
    matched = int(calls.key[-1]) + 1 if len(calls.key) else 0
    counts = np.bincount(calls.rank, minlength=len(ranks))
    if not matched or counts[counts > 0].min() < ENOUGH:
        return Matching(waits, nothing, matched)
    offset, residual = _offsets(calls, len(ranks))
    start = calls.start - offset[calls.rank]
    first = np.flatnonzero(np.diff(calls.key, prepend=-1))
    last = np.maximum.reduceat(start, first)[calls.key]
    wait = np.clip(last - start, 0, calls.end - calls.start).astype(np.int64)
    for place, values in enumerate(waits):
        mine = calls.rank == place
        values[calls.row[mine]] = wait[mine]
    return Matching(waits, _clock(ranks, offset, residual, counts), matched)


def _matched(ranks: Sequence[RankSummary]) -> _Calls:
    """Calls whose every participant was found exactly once."""
    names: dict[tuple[object, ...], int] = {}
    tables = [_comparable(place, rank, names) for place, rank in enumerate(ranks)]
    table = np.concatenate(tables) if tables else np.empty((0, 10), dtype=np.int64)
    if not len(table):
        none = np.empty(0, dtype=np.int64)
        return _Calls(none, none, none, none, none)
    identity, rest = table[:, :5], table[:, 5:]
    _, key = np.unique(identity, axis=0, return_inverse=True)
    key = key.ravel().astype(np.int64)
    count = np.bincount(key)
    pairs = np.unique(key * len(ranks) + rest[:, 1])
    distinct = np.bincount(pairs // len(ranks), minlength=len(count))
    whole = (count[key] == rest[:, 0]) & (distinct[key] == rest[:, 0])
    _, key = np.unique(key[whole], return_inverse=True)
    order = np.argsort(key, kind="stable")
    _, rank, row, start, end = rest[whole][order].T
    # Times since the epoch do not fit a double to the nanosecond: count from the first arrival.
    base = int(start.min()) if len(start) else 0
    return _Calls(key.ravel()[order].astype(np.int64), rank, row, start - base, end - base)


def _comparable(place: int, rank: RankSummary, names: dict[tuple[object, ...], int]) -> Ints:
    """One row per call that may be matched: five columns that identify it, then size, rank, row, start, end."""
    table, line = rank.collectives, rank.line
    primitive, primitives = codes(table, "primitive")
    group, seq, comms = ints(table, "group"), ints(table, "seq"), ints(table, "comms_id", 0)
    size, elements = ints(table, "group_size"), ints(table, "size_bytes")
    known = np.array([p in SYMMETRIC for p in primitives] + [False])[primitive]
    group_code = _group_codes(rank, names)[group]
    number = rank.steps.number
    step = np.append(number, NULL)[ints(table, "step")] if len(number) else np.full(len(group), NULL)
    primitive_code = np.array([SYMMETRIC.index(p) if p in SYMMETRIC else NULL for p in primitives] + [NULL])[primitive]
    by_id, by_seq = comms != 0, seq != NULL
    usable = known & (size > 1) & (line.call_end > line.call_start) & (by_id | (group_code != NULL))
    order = _order_within(np.stack((group_code, primitive_code, elements, step), axis=1), line.call_start)
    identity = np.stack(
        (
            np.where(by_id, 0, np.where(by_seq, 1, 2)),
            np.where(by_id, comms, group_code),
            np.where(by_id, 0, np.where(by_seq, seq, order)),
            np.where(by_id | by_seq, 0, elements),
            np.where(by_id, 0, np.where(by_seq, primitive_code, primitive_code * (1 << 40) + step)),
        ),
        axis=1,
    )
    rows = np.arange(len(group))
    facts = np.stack((size, np.full(len(group), place), rows, line.call_start, line.call_end), axis=1)
    table_of_calls: Ints = np.concatenate((identity, facts), axis=1)[usable].astype(np.int64)
    return table_of_calls


def _group_codes(rank: RankSummary, names: dict[tuple[object, ...], int]) -> Ints:
    """A number per row of GROUPS that is the same on every rank of the group, -1 where the ranks are not known."""
    out = []
    for name, members in zip(*rank.groups.select(["name", "ranks"]).to_pydict().values(), strict=True):
        key = (name, tuple(members or ()))
        out.append(names.setdefault(key, len(names)) if members and len(members) > 1 else NULL)
    return np.array([*out, NULL], dtype=np.int64)


def _order_within(kind: Ints, start: Ints) -> Ints:
    """Position of each call among the calls of its kind, in time order."""
    if not len(start):
        return np.empty(0, dtype=np.int64)
    _, code = np.unique(kind, axis=0, return_inverse=True)
    code = code.ravel()
    order = np.lexsort((start, code))
    first = np.flatnonzero(np.diff(code[order], prepend=-1))
    lengths = np.diff(np.append(first, len(order)))
    place = np.arange(len(order)) - np.repeat(first, lengths)
    out = np.empty(len(order), dtype=np.int64)
    out[order] = place
    return out


def _offsets(calls: _Calls, ranks: int) -> tuple[Floats, float]:
    """Clock offset of each rank in ns, and what it leaves unexplained (90th percentile, ns).

    Alternating medians: a collective ended when the middle one of its corrected ranks says so; a rank is off by the
    middle one of its differences to that.
    """
    offset = np.zeros(ranks)
    by_rank = np.argsort(calls.rank, kind="stable")
    for _ in range(_ROUNDS):
        ended = _medians(calls.end - offset[calls.rank], calls.key)[calls.key]
        late = calls.end - ended
        present, positions = np.unique(calls.rank[by_rank], return_inverse=True)
        update = offset.copy()
        update[present] = _medians(late[by_rank], positions)
        moved = float(np.abs(update - offset).max())
        offset = update
        if moved < 1:
            break
    residual = np.abs(calls.end - offset[calls.rank] - _medians(calls.end - offset[calls.rank], calls.key)[calls.key])
    return np.round(offset - offset[int(calls.rank.min())]), float(np.percentile(residual, 90))


def _medians(values: Floats, key: Ints) -> Floats:
    """Median of the values of each key; keys are 0, 1, 2, ... in order."""
    order = np.lexsort((values, key))
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    count = np.diff(np.append(first, len(key)))
    ordered = values[order]
    middle: Floats = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    return middle


def _clock(ranks: Sequence[RankSummary], offset: Floats, residual: float, counts: Ints) -> Clock:
    known = {
        str(r.rank): round(float(offset[i]) / 1000, 3) for i, r in enumerate(ranks) if counts[i] and r.rank is not None
    }
    return Clock(aligned=bool((counts > 0).all()), residual_us=round(residual / 1000, 3), offset_us=known)

"""Which collective a call is part of: its identifier, else group and sequence number, else its order in the group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.intervals import Ints
from analyzer.matching.calls import BY_ENDS, BY_ID, BY_ORDER, BY_SEQUENCE, COLUMNS, order_within
from analyzer.summary.model import RankSummary
from heuristics.arrays import NULL, codes, ints

SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Every rank gives to and takes from every other: nobody can leave before the last has arrived."""

FROM_ROOT = ("broadcast", "scatter")
"""Everybody waits for the root; the root waits for nobody."""

TO_ROOT = ("reduce", "gather")
"""The root waits for everybody; the others wait for nobody."""

KINDS = (*SYMMETRIC, *FROM_ROOT, *TO_ROOT)
"""The primitives that are compared, by number."""


def collectives(ranks: Sequence[RankSummary]) -> list[Ints]:
    """Per rank, the calls of collectives that may be compared: ``(calls, calls.COLUMNS)`` int64."""
    names: dict[tuple[object, ...], int] = {}
    types: dict[str, int] = {}
    tables = _countable([_of_rank(place, rank, names, types) for place, rank in enumerate(ranks)])
    return [np.concatenate(pair) for pair in zip(tables, _of_everybody(ranks), strict=True)]


def _of_everybody(ranks: Sequence[RankSummary]) -> list[Ints]:
    """Calls whose group no file names, taken for collectives of the whole job; whether they are, their ends must show.

    Only where all ranks of the job are there and made the same calls in the same order.
    """
    nothing = [np.empty((0, COLUMNS), dtype=np.int64) for _ in ranks]
    world = {rank.identity.world_size for rank in ranks} - {None}
    if world and world != {len(ranks)}:
        return nothing
    found = [_groupless(place, rank, len(ranks)) for place, rank in enumerate(ranks)]
    same = all(np.array_equal(part[:, 2:5], found[0][:, 2:5]) for part in found)
    return found if same and len(found[0]) else nothing


def _groupless(place: int, rank: RankSummary, size: int) -> Ints:
    table, line = rank.collectives, rank.line
    primitive, primitives = codes(table, "primitive")
    kind = np.array([KINDS.index(p) if p in KINDS else NULL for p in primitives] + [NULL], dtype=np.int64)[primitive]
    number = np.append(rank.steps.number, NULL)[ints(table, "step")]
    named = (ints(table, "group") != NULL) | (ints(table, "comms_id", 0) != 0)
    mine = (kind >= 0) & (kind < len(SYMMETRIC)) & ~named & (line.call_end > line.call_start)
    rows = np.flatnonzero(mine)
    rows = rows[np.argsort(line.call_start[rows], kind="stable")]
    columns = (
        np.full(len(rows), BY_ENDS),
        np.zeros(len(rows)),
        np.arange(len(rows)),
        kind[rows],
        number[rows],
        np.full(len(rows), size),
        np.full(len(rows), place),
        rows,
        line.call_start[rows],
        line.call_end[rows],
        kind[rows] * 2,
        ints(table, "size_bytes")[rows],
        np.full(len(rows), NULL),
    )
    made: Ints = np.stack(columns, axis=1).astype(np.int64)
    return made


def _of_rank(place: int, rank: RankSummary, names: dict[tuple[object, ...], int], types: dict[str, int]) -> Ints:
    table, line = rank.collectives, rank.line
    primitive, primitives = codes(table, "primitive")
    group, seq, comms = ints(table, "group"), ints(table, "seq"), ints(table, "comms_id", 0)
    size, payload = ints(table, "group_size"), ints(table, "size_bytes")
    kind = np.array([KINDS.index(p) if p in KINDS else NULL for p in primitives] + [NULL], dtype=np.int64)[primitive]
    group_code, own_place = _groups(rank, names)
    of_group, own = group_code[group], own_place[group]
    number = np.append(rank.steps.number, NULL)[ints(table, "step")]
    root = ints(table, "root")
    by_id, by_seq = comms != 0, seq != NULL
    rooted = kind >= len(SYMMETRIC)
    usable = (kind != NULL) & (size > 1) & (line.call_end > line.call_start) & (by_id | (of_group != NULL))
    usable &= ~rooted | ((root != NULL) & (own != NULL))
    # Calls of one coalesced batch share a sequence number.
    place_in_seq = order_within(np.stack((of_group, seq, kind), axis=1), line.call_start)
    order = order_within(np.stack((of_group, kind, payload, number), axis=1), line.call_start)
    identity = np.stack(
        (
            np.where(by_id, BY_ID, np.where(by_seq, BY_SEQUENCE, BY_ORDER)),
            np.where(by_id, comms, of_group),
            np.where(by_id, 0, np.where(by_seq, seq, order)),
            np.where(by_id, 0, np.where(by_seq, place_in_seq, payload)),
            np.where(by_id | by_seq, 0, kind * (1 << 40) + number),
        ),
        axis=1,
    )
    dtype, dtypes = codes(table, "dtype")
    of_type = np.array([types.setdefault(t, len(types)) for t in dtypes] + [NULL], dtype=np.int64)[dtype]
    facts = (
        size,
        np.full(len(group), place),
        np.arange(len(group)),
        line.call_start,
        line.call_end,
        kind * 2 + (rooted & (root == own)),
        payload,
        of_type,
    )
    found: Ints = np.concatenate((identity, np.stack(facts, axis=1)), axis=1)[usable].astype(np.int64)
    return found


def _groups(rank: RankSummary, names: dict[tuple[object, ...], int]) -> tuple[Ints, Ints]:
    """Per row of GROUPS a number that is the same on every rank of the group, and the rank's own place in it.

    -1 where they are not known; both end with a -1 for calls without a group.
    """
    number, own = [], []
    for name, members in zip(*rank.groups.select(["name", "ranks"]).to_pydict().values(), strict=True):
        key = (name, tuple(members or ()))
        number.append(names.setdefault(key, len(names)) if members and len(members) > 1 else NULL)
        own.append(members.index(rank.rank) if members and rank.rank in members else NULL)
    return np.array([*number, NULL], dtype=np.int64), np.array([*own, NULL], dtype=np.int64)


def _countable(tables: Sequence[Ints]) -> list[Ints]:
    """Without the calls that only their order identifies, where ranks saw different numbers of them.

    One call more or less shifts all that follow, and nothing would show it.
    """
    parts = [np.unique(t[t[:, 0] == BY_ORDER][:, [1, 3, 4]], axis=0, return_counts=True) for t in tables]
    known = np.concatenate([part for part, _ in parts]) if parts else np.empty((0, 3), dtype=np.int64)
    if not len(known):
        return list(tables)
    counts = np.concatenate([count for _, count in parts])
    kinds, code = np.unique(known, axis=0, return_inverse=True)
    code = code.ravel()
    most, fewest = np.zeros(len(kinds), dtype=np.int64), np.full(len(kinds), np.iinfo(np.int64).max)
    np.maximum.at(most, code, counts)
    np.minimum.at(fewest, code, counts)
    doubtful = {tuple(k) for k in kinds[most != fewest].tolist()}
    if not doubtful:
        return list(tables)
    return [t[[row[0] != BY_ORDER or (row[1], row[3], row[4]) not in doubtful for row in t.tolist()]] for t in tables]

"""Messages between two ranks: the n-th send of one is the n-th receive of the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.intervals import Ints
from analyzer.matching.calls import BY_ORDER, order_within
from analyzer.summary.model import RankSummary
from heuristics.arrays import NULL, code_of, codes, ints

SEND, RECEIVE = 0, 1
"""`Meetings.kind` of messages."""


def messages(ranks: Sequence[RankSummary]) -> list[Ints]:
    """Per rank, the sends and receives whose peer is known: ``(calls, calls.COLUMNS)`` int64.

    Messages between two ranks on one group are delivered in order (NCCL user guide, "Point-to-point communication"):
    they are counted within a step, by payload.
    """
    names: dict[object, int] = {}
    return _paired([_of_rank(place, rank, names) for place, rank in enumerate(ranks)])


def _of_rank(place: int, rank: RankSummary, names: dict[object, int]) -> Ints:
    table = rank.collectives
    direction, directions = codes(table, "direction")
    peer, payload = ints(table, "peer"), ints(table, "size_bytes")
    sends, receives = (direction == code_of(directions, word) for word in ("send", "recv"))
    start, end = spans(rank)
    own = NULL if rank.rank is None else rank.rank
    group_names = [*rank.groups.column("name").to_pylist(), None]
    group = np.array([names.setdefault(n, len(names)) for n in group_names], dtype=np.int64)[ints(table, "group")]
    number = np.append(rank.steps.number, NULL)[ints(table, "step")]
    usable = (sends | receives) & (peer != NULL) & (peer != own) & (end > start)
    if own == NULL:
        usable[:] = False
    source, target = np.where(sends, own, peer), np.where(sends, peer, own)
    line = np.stack((source, target, group, payload, number), axis=1)
    order = order_within(line, start)
    identity = np.stack((np.full(len(peer), BY_ORDER), source * (1 << 31) + target, group, order, payload), axis=1)
    # The step takes no column of its own: orders of different steps must not meet.
    identity[:, 3] += (number + 1) * (1 << 32)
    facts = (
        np.full(len(peer), 2),
        np.full(len(peer), place),
        np.arange(len(peer)),
        start,
        end,
        # One kind for both ends, since they must agree; the lowest bit tells them apart.
        np.where(receives, RECEIVE, SEND),
        payload,
        np.zeros(len(peer), dtype=np.int64),
    )
    found: Ints = np.concatenate((identity, np.stack(facts, axis=1)), axis=1)[usable].astype(np.int64)
    return found


def _paired(tables: Sequence[Ints]) -> list[Ints]:
    """Without the messages of a step of which the two ends counted different numbers."""
    every = np.concatenate([t for t in tables if len(t)]) if any(len(t) for t in tables) else None
    if every is None:
        return list(tables)
    line = np.stack((every[:, 1], every[:, 2], every[:, 3] >> 32, every[:, 4]), axis=1)
    _, code = np.unique(line, axis=0, return_inverse=True)
    code = code.ravel()
    received = every[:, 10] & 1
    balance = np.bincount(code, weights=2 * received - 1)
    good = balance[code] == 0
    cuts = np.cumsum([len(t) for t in tables])[:-1]
    return [t[keep] for t, keep in zip(tables, np.split(good, cuts), strict=True)]


def spans(rank: RankSummary) -> tuple[Ints, Ints]:
    """Begin and end of every call; of calls that share one launch all have the launch's."""
    table, line = rank.collectives, rank.line
    at, length = ints(table, "ts_ns", 0), np.maximum(ints(table, "dur_ns", 0), 0)
    alone = line.call_end > line.call_start
    return np.where(alone, line.call_start, at), np.where(alone, line.call_end, at + length)


def fused(rank: RankSummary, wait: Ints) -> Ints:
    """Waits where several messages share one launch: that launch waits for the last of them.

    The launch's time is booked on one of the calls; so is its wait, and the others have neither.
    """
    table, line = rank.collectives, rank.line
    direction, _ = codes(table, "direction")
    start, end = spans(rank)
    silent = (direction >= 0) & (line.call_end <= line.call_start) & (end > start)
    if not silent.any():
        return wait
    stream = ints(table, "stream")
    message = np.flatnonzero((direction >= 0) & (end > start))
    _, launch = np.unique(np.stack((stream[message], start[message]), axis=1), axis=0, return_inverse=True)
    launch = launch.ravel()
    longest = np.zeros(int(launch.max()) + 1, dtype=np.int64)
    np.maximum.at(longest, launch, wait[message])
    unknown = np.bincount(launch, weights=wait[message] == NULL) > 0
    together = np.where(unknown, NULL, longest)[launch]
    out = wait.copy()
    out[message] = np.where(silent[message] & (together != NULL), 0, together)
    return out

"""Who sends how much to whom."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from analyzer.details.model import Missing, RankTraffic
from analyzer.intervals import Floats, Ints
from analyzer.measured import Measured
from analyzer.pipeline import Examined
from heuristics.arrays import NULL, code_of, codes, ints, lists


def rank_traffic(job: Examined) -> RankTraffic | Missing:
    """Bytes per step between every two ranks.

    A message goes to its peer and an all-to-all with split sizes where the splits say. What a rank sends in any other
    collective is spread evenly over the rest of its group: the way it takes is the library's choice (ring, tree, or in
    the switch), the bytes that leave the rank are not.
    """
    found: dict[tuple[int, int], float] = {}
    for rank in job.ranks:
        if rank.source.rank is None:
            continue
        for peer, sent in _sent(rank):
            key = (rank.source.rank, peer)
            found[key] = found.get(key, 0.0) + sent / (rank.window.count or 1)
    if not found:
        return Missing("no call names its bytes and the ranks it goes to")
    ranks = sorted({r for pair in found for r in pair})
    place = {rank: i for i, rank in enumerate(ranks)}
    matrix = np.zeros((len(ranks), len(ranks)))
    for (source, target), sent in found.items():
        matrix[place[source], place[target]] = sent
    read = {rank.source.rank for rank in job.ranks}
    return RankTraffic(tuple(ranks), matrix, tuple(rank in read for rank in ranks), job.analysis.gpus_per_node)


def _sent(rank: Measured) -> Iterator[tuple[int, float]]:
    """Peers, and bytes sent to each over the whole window."""
    table, own = rank.source.collectives, rank.source.rank
    sent, peer, group = ints(table, "sent_bytes"), ints(table, "peer"), ints(table, "group")
    direction, directions = codes(table, "direction")
    members = rank.source.groups.column("ranks").to_pylist()
    pairs = [next(iter(set(m) - {own}), None) if m and len(m) == 2 and own in m else None for m in members]
    other = np.array([NULL if p is None else p for p in pairs] + [NULL], dtype=np.int64)[group]
    message = rank.counted & (direction == code_of(directions, "send")) & (sent > 0)
    to = np.where(peer != NULL, peer, other)
    known = message & (to != NULL)
    yield from _summed(to[known], sent[known].astype(np.float64))
    split = _splits(rank)
    for row, share in split.items():
        ranks = members[group[row]] if group[row] != NULL else None
        if ranks and len(ranks) == len(share) and sent[row] > 0 and own in ranks:
            away = np.where(np.array(ranks) == own, 0.0, share)
            if away.sum() > 0:
                yield from zip(ranks, (away * (float(sent[row]) / away.sum())).tolist(), strict=True)
    even = rank.counted & (direction < 0) & (sent > 0) & (group != NULL)
    even[list(split)] = False
    for g in np.unique(group[even]).tolist():
        rest = [r for r in members[g] or () if r != own]
        total = float(sent[even & (group == g)].sum())
        for r in rest:
            yield r, total / len(rest)


def _splits(rank: Measured) -> dict[int, Floats]:
    """Rows that each rank gets, for the calls whose split sizes are recorded."""
    offsets, flat = lists(rank.source.collectives, "in_split")
    rows = np.flatnonzero((np.diff(offsets) > 0) & rank.counted)
    return {int(row): flat[offsets[row] : offsets[row + 1]].astype(np.float64) for row in rows}


def _summed(to: Ints, sent: Floats) -> Iterator[tuple[int, float]]:
    ranks, at = np.unique(to, return_inverse=True)
    totals = np.bincount(at.ravel(), weights=sent, minlength=len(ranks))
    yield from zip(ranks.tolist(), totals.tolist(), strict=True)

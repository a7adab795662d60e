"""The collectives that cost most, seen by the rank that came first and the one that came last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.details.lanes import lane
from analyzer.details.model import Missing, WorstCall
from analyzer.intervals import Bools, Ints
from analyzer.matching import Meetings
from analyzer.measured import Measured
from analyzer.pipeline import Examined
from heuristics.arrays import NULL, codes, ints

AROUND = 0.5
"""What is shown before and after the call, as a share of its length."""


def worst_calls(job: Examined, count: int = 3) -> list[WorstCall] | Missing:
    """The worst of each kind (dimension and primitive), at most ``count`` of them, by waiting; without it by length."""
    found = _met(job.ranks, job.matching.meetings, count) or _alone(job.ranks, count)
    return found or Missing("no collective has a time of its own")


def _met(ranks: Sequence[Measured], met: Meetings, count: int) -> list[WorstCall]:
    """From matched collectives, all on one clock."""
    if not met.count:
        return []
    first = met.first
    last = np.maximum.reduceat(met.start, first)
    waited = np.add.reduceat(last[met.key] - met.start, first)
    counted = np.logical_and.reduceat(_counted(ranks, met), first)
    waited = np.where(counted, waited, 0)
    out: dict[tuple[str, str], WorstCall] = {}
    for key in np.argsort(-waited, kind="stable").tolist():
        if len(out) == count or not waited[key]:
            break
        rows = np.flatnonzero(met.key == key)
        place, row = int(met.rank[rows[0]]), int(met.row[rows[0]])
        kind = (ranks[place].dims[row], _word(ranks[place], "primitive", row))
        if kind in out:
            continue
        ends = rows[[int(np.argmin(met.start[rows])), int(np.argmax(met.start[rows]))]]
        out[kind] = _two(ranks, met, ends, float(waited[key]) / 1000, kind)
    return list(out.values())


def _counted(ranks: Sequence[Measured], met: Meetings) -> Bools:
    base = np.concatenate(([0], np.cumsum([len(rank.counted) for rank in ranks])))
    inside = np.concatenate([rank.counted for rank in ranks])
    found: Bools = inside[base[met.rank] + met.row]
    return found


def _two(ranks: Sequence[Measured], met: Meetings, ends: Ints, cost: float, kind: tuple[str, str]) -> WorstCall:
    early, late = ends.tolist()
    low = int(met.start[early])
    length = int(met.end[ends].max()) - low
    span = round((1 + 2 * AROUND) * length)
    lanes = []
    for entry, what in ((early, "first"), (late, "last")):
        rank, row = ranks[int(met.rank[entry])], int(met.row[entry])
        # The rank's own clock: where its call begins there is where the meeting begins on the common one.
        shift = int(rank.source.line.call_start[row]) - int(met.start[entry])
        begin = low - round(AROUND * length) + shift
        lanes.append(lane(rank, f"{_name(rank)}, {what}", begin, begin + span))
    rank, row = ranks[int(met.rank[early])], int(met.row[early])
    return WorstCall(_title(rank, row, kind), tuple(lanes), span / 1000, cost, True)


def _alone(ranks: Sequence[Measured], count: int) -> list[WorstCall]:
    """The longest call of each kind, one rank each."""
    longest: dict[tuple[str, str], tuple[int, Measured, int]] = {}
    for rank in ranks:
        line = rank.source.line
        length = np.where(rank.counted, line.call_end - line.call_start, 0)
        for row in np.argsort(-length, kind="stable")[: 50 * count].tolist():
            kind = (rank.dims[row], _word(rank, "primitive", row))
            if length[row] > longest.get(kind, (0, rank, 0))[0]:
                longest[kind] = (int(length[row]), rank, row)
    out = []
    for kind, (ns, rank, row) in sorted(longest.items(), key=lambda item: -item[1][0])[:count]:
        begin = int(rank.source.line.call_start[row]) - round(AROUND * ns)
        span = round((1 + 2 * AROUND) * ns)
        shown = lane(rank, _name(rank), begin, begin + span)
        out.append(WorstCall(_title(rank, row, kind), (shown,), span / 1000, ns / 1000, False))
    return out


def _name(rank: Measured) -> str:
    return "rank unknown" if rank.source.rank is None else f"rank {rank.source.rank}"


def _word(rank: Measured, column: str, row: int) -> str:
    code, words = codes(rank.source.collectives, column)
    return words[code[row]] if code[row] >= 0 else "unknown"


def _title(rank: Measured, row: int, kind: tuple[str, str]) -> str:
    table = rank.source.collectives
    n, size, step = (int(ints(table, c)[row]) for c in ("group_size", "size_bytes", "step"))
    parts = [f"{kind[0]} {kind[1]}"]
    if n > 0:
        parts.append(f"over {n} ranks")
    if size != NULL:
        parts.append(f"of {size:,} B")
    if step != NULL and step < len(rank.source.steps.number):
        parts.append(f"in step {int(rank.source.steps.number[step])}")
    return " ".join(parts)

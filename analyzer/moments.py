"""When a finding shows: the calls, or the step, in which it costs most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer import intervals
from analyzer.causes import SMALL_BYTES
from analyzer.intervals import Bools, Ints
from analyzer.measured import Measured
from analyzer.model import Finding
from heuristics.arrays import NULL, codes, ints

OF_A_STEP = ("step.idle", "pipeline.bubble", "overlap.tax", "comm.on_compute_stream")
"""Findings that no single call shows."""

OF_WAITING = ("cause.waiting", "cause.bubble", "wait.bound")
"""Findings whose cost is waiting, not transfer."""


@dataclass(frozen=True)
class Moment:
    """Where to look.

    Attributes:
        rank: position of the rank among those measured.
        rows: rows of its ``COLLECTIVES``, the costliest first; empty where a whole step is meant.
        start_ns: begin, on that rank's own clock.
        end_ns: end.
        what: in words.
    """

    rank: int
    rows: tuple[int, ...]
    start_ns: int
    end_ns: int
    what: str


def moment(finding: Finding, ranks: Sequence[Measured], most: int = 5) -> Moment | None:
    """The moment at which a finding costs most; None where it is not about time.

    Args:
        finding: one of the analysis of these ranks.
        ranks: measured ranks.
        most: how many calls to name.
    """
    if finding.id in OF_A_STEP:
        return _step(finding, ranks)
    if finding.id == "rank.late":
        return _late(finding, ranks, most)
    if finding.dim is None and finding.id not in OF_WAITING and finding.id != "link.slow":
        return None
    found: list[tuple[int, int, int]] = []
    for place, rank in enumerate(ranks):
        if finding.ranks and rank.source.rank not in finding.ranks:
            continue
        cost = _cost(finding, rank)
        rows = np.argsort(-cost, kind="stable")[:most]
        found += [(int(cost[row]), place, int(row)) for row in rows if cost[row] > 0]
    return _of_calls(sorted(found, key=lambda item: -item[0]), ranks, most)


def _of_calls(found: Sequence[tuple[int, int, int]], ranks: Sequence[Measured], most: int) -> Moment | None:
    """The costliest call, and the next ones of the same rank."""
    if not found:
        return None
    ns, place, row = found[0]
    line = ranks[place].source.line
    rows = tuple(r for _, p, r in found if p == place)[:most]
    who = "" if ranks[place].source.rank is None else f" on rank {ranks[place].source.rank}"
    what = f"the call that costs most, {ns / 1000:,.1f} µs{who}"
    return Moment(place, rows, int(line.call_start[row]), int(line.call_end[row]), what)


def _cost(finding: Finding, rank: Measured) -> Ints:
    """What each call of a rank contributes, ns."""
    table, line = rank.source.collectives, rank.source.line
    length = line.call_end - line.call_start
    mine: Bools = rank.counted & (length > 0)
    if finding.dim is not None:
        mine &= np.array([dim == finding.dim for dim in rank.dims], dtype=np.bool_)
    if finding.id == "cause.latency":
        size = ints(table, "size_bytes")
        mine &= (size != NULL) & (size <= SMALL_BYTES)
    exposed = length - intervals.covered(line.compute, line.call_start, line.call_end)
    cost = np.maximum(rank.wait_ns, 0) if finding.id in OF_WAITING and (rank.wait_ns > 0).any() else exposed
    return np.where(mine, cost, 0)


def _late(finding: Finding, ranks: Sequence[Measured], most: int) -> Moment | None:
    """The calls in which the others waited longest while the late rank did not: its own calls end the waiting."""
    places = [p for p, rank in enumerate(ranks) if rank.source.rank in finding.ranks]
    found: list[tuple[int, int, int]] = []
    for place, rank in enumerate(ranks):
        if place in places:
            continue
        wait = np.where(rank.counted, rank.wait_ns, 0)
        longest = np.argsort(-wait, kind="stable")[:most].tolist()
        found += [(int(wait[row]), place, row) for row in longest if wait[row] > 0 and _meets(rank, row, finding.ranks)]
    return _of_calls(sorted(found, key=lambda item: -item[0]), ranks, most)


def _meets(rank: Measured, row: int, late: Sequence[int]) -> bool:
    """Whether a late rank takes part in a call."""
    group = int(ints(rank.source.collectives, "group")[row])
    members = rank.source.groups.column("ranks")[group].as_py() if group >= 0 else None
    return members is None or any(rank in members for rank in late)


def _step(finding: Finding, ranks: Sequence[Measured]) -> Moment | None:
    """The step in which it shows most: that with most idle time, else the longest."""
    best: tuple[int, int, int] | None = None
    for place, rank in enumerate(ranks):
        if not rank.window.count or (finding.ranks and rank.source.rank not in finding.ranks):
            continue
        cost = rank.time.idle if finding.id == "step.idle" else rank.time.window
        step = int(np.argmax(cost))
        if best is None or int(cost[step]) > best[0]:
            best = int(cost[step]), place, step
    if best is None:
        return None
    _, place, step = best
    window = ranks[place].window
    number = ranks[place].source.steps.number[window.steps[step]] if window.steps else None
    what = "the whole trace" if number is None else f"step {number}"
    return Moment(place, (), int(window.edges[step, 0]), int(window.edges[step, 1]), what)


def describe(rank: Measured, row: int) -> str:
    """One call in words, for a list of examples."""
    table, line = rank.source.collectives, rank.source.line
    code, words = codes(table, "primitive")
    primitive = words[code[row]] if code[row] >= 0 else "unknown"
    size, step = int(ints(table, "size_bytes")[row]), int(ints(table, "step")[row])
    begin, end = int(line.call_start[row]), int(line.call_end[row])
    exposed = (
        end
        - begin
        - int(intervals.covered(line.compute, line.call_start[row : row + 1], line.call_end[row : row + 1])[0])
    )
    parts = [f"{rank.dims[row]} {primitive}"]
    if size >= 0:
        parts.append(f"{size:,} B")
    if step >= 0:
        parts.append(f"step {rank.source.steps.number[step]}")
    parts.append(f"{(end - begin) / 1000:,.1f} µs, {exposed / 1000:,.1f} exposed")
    if rank.wait_ns[row] >= 0:
        parts.append(f"{int(rank.wait_ns[row]) / 1000:,.1f} waiting")
    return ", ".join(parts)

"""The same collective on several ranks: when the last one arrived, and hence what was waiting and what was transfer.

A collective is matched only where all its participants are among the traces. Its ranks leave it together, so the ends
of matched collectives also show how far the clocks are apart; arrivals are compared after that has been taken out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.intervals import Ints
from analyzer.matching.calls import Meetings, whole
from analyzer.matching.clocks import ENOUGH, Clocks, borne_out, synchronise
from analyzer.matching.collectives import collectives
from analyzer.matching.differences import Difference, differences
from analyzer.matching.messages import fused, messages
from analyzer.matching.waits import waits
from analyzer.model import Clock
from analyzer.summary.model import RankSummary
from heuristics.arrays import NULL

__all__ = ["Difference", "Matching", "Meetings", "match"]


@dataclass(frozen=True, eq=False)
class Matching:
    """What the ranks say about each other.

    Attributes:
        wait_ns: per rank, int64 per call: time from its own arrival to that of the last it depends on, -1 where not
            known.
        clock: how far apart the clocks are.
        matched: collectives that were matched on all their ranks, messages not counted.
        meetings: matched collectives with all their arrivals on one time axis; empty where clocks could not be aligned.
        by: how many of them were found by ``comms_id``, ``sequence`` number, ``order`` within group and step, and by
            the coincidence of their ``ends`` alone.
        differences: collectives on which the ranks do not agree.
        refused: why nothing was separated, None where something was.
    """

    wait_ns: tuple[Ints, ...]
    clock: Clock
    matched: int
    meetings: Meetings
    by: dict[str, int]
    differences: tuple[Difference, ...] = ()
    refused: str | None = None


def match(ranks: Sequence[RankSummary]) -> Matching:
    """Match collectives across ranks and tell waiting from transfer.

    Only GPU traces are compared: the duration of a CPU operator says when its caller was let go, not when it arrived.
    """
    unknown = tuple(np.full(r.collectives.num_rows, NULL, dtype=np.int64) for r in ranks)
    reason = _refusal(ranks)
    if reason is not None:
        return Matching(unknown, _no_clock(), 0, whole([], len(ranks)), {}, refused=reason)
    tables = collectives(ranks)
    meetings = whole(tables, len(ranks))
    exchanged = whole(messages(ranks), len(ranks))
    meetings = borne_out(meetings, len(ranks))
    by = meetings.found_by()
    said = differences(tables, ranks)
    clocks = synchronise(meetings, exchanged, len(ranks))
    if clocks is None:
        reason = f"a rank has fewer than {ENOUGH} matched collectives: its clock cannot be checked"
        return Matching(unknown, _no_clock(), meetings.count, whole([], len(ranks)), by, said, reason)
    meetings, exchanged = meetings.on(clocks.correct), exchanged.on(clocks.correct)
    separated = waits(meetings, exchanged, [len(w) for w in unknown])
    separated = tuple(fused(rank, wait) for rank, wait in zip(ranks, separated, strict=True))
    return Matching(separated, _clock(ranks, clocks), meetings.count, meetings, by, said)


def _refusal(ranks: Sequence[RankSummary]) -> str | None:
    if len(ranks) < 2:
        return "one rank cannot tell waiting from transfer"
    if not all(r.line.on_gpu for r in ranks):
        return "a rank's trace has no GPU: the duration of a CPU operator does not say when its rank arrived"
    return None


def _no_clock() -> Clock:
    return Clock(aligned=False, residual_us=None, offset_us={})


def _clock(ranks: Sequence[RankSummary], clocks: Clocks) -> Clock:
    known = {
        str(r.rank): round(clocks.at_origin(i) / 1000, 3)
        for i, r in enumerate(ranks)
        if clocks.known[i] and r.rank is not None
    }
    return Clock(aligned=bool(clocks.known.all()), residual_us=round(clocks.residual_ns / 1000, 3), offset_us=known)

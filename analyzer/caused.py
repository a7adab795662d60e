"""Whose doing the waiting is: of each wait, the part that the last rank to arrive is to blame for.

A wait ends when the last rank arrives. Had that rank not been late by its own doing, it would have ended so much
earlier: the end of the wait is that rank's, what is left of it at the begin is not. Waits on several streams at the
same moment are one, so that all waiting of a rank never exceeds its steps, nor the shares of several ranks one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer import intervals
from analyzer.intervals import Floats, Ints
from analyzer.matching import Meetings
from analyzer.measured import Measured
from heuristics.arrays import NULL


def own_lateness(met: Meetings, lateness: Floats, waited_more: Floats, before: Ints) -> Floats:
    """Per entry, the part of its lateness that is the rank's own doing, ns.

    What it waited more than the others since is somebody else's. A lateness that goes on is its own as far as it was
    before.

    Args:
        met: meetings.
        lateness: per entry, by how much it was later than the middle of the others.
        waited_more: per entry, by how much more than the middle of the others it waited since.
        before: per entry, the one before it whose lateness goes on; `NULL` for none.
    """
    late = np.maximum(lateness, 0.0).tolist()
    others = np.clip(waited_more, 0.0, late).tolist()
    goes_on = np.flatnonzero(before != NULL)
    goes_on = goes_on[np.argsort(met.start[goes_on], kind="stable")]
    for entry, one in zip(goes_on.tolist(), before[goes_on].tolist(), strict=True):
        others[entry] = min(others[entry] + others[one], late[entry])
    found: Floats = np.array(late) - np.array(others)
    return found


def shares_of_waits(
    ranks: Sequence[Measured], met: Meetings, last: Ints, own: Floats, least: float
) -> dict[int, float]:
    """The share of all waiting that each rank causes, by place of the rank; those that cause ``least`` or more.

    Args:
        ranks: measured ranks.
        met: meetings of these ranks.
        last: per meeting, the place of the rank that came last.
        own: per meeting, how late that was by its own doing, ns.
        least: share of all waiting.
    """
    by_rank = np.split(np.argsort(met.rank, kind="stable"), np.searchsorted(np.sort(met.rank), range(1, len(ranks))))
    begin, wait = np.zeros(len(met.key), dtype=np.int64), np.zeros(len(met.key), dtype=np.int64)
    for rank, entries in zip(ranks, by_rank, strict=True):
        begin[entries] = rank.source.line.call_start[met.row[entries]]
        wait[entries] = np.maximum(rank.wait_ns[met.row[entries]], 0)
    whole = sum(intervals.union(begin[mine], (begin + wait)[mine]).total for mine in by_rank)
    blamed = np.minimum(wait, np.round(own)[met.key].astype(np.int64))
    # Summed over streams it is the most that can be left of it when moments are counted once.
    most = np.bincount(last[met.key], weights=blamed, minlength=len(ranks))
    found = {}
    for place in np.flatnonzero((most > 0) & (most >= least * whole)).tolist():
        theirs = wait - np.where(last[met.key] == place, blamed, 0)
        left = sum(intervals.union(begin[mine], (begin + theirs)[mine]).total for mine in by_rank)
        if whole - left >= least * whole:
            found[place] = (whole - left) / whole
    return found

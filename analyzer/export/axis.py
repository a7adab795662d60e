"""One time axis for all ranks, and which calls meet on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.intervals import Ints
from analyzer.matching.calls import BY_ENDS, Meetings, whole
from analyzer.matching.clocks import Clocks, borne_out, synchronise
from analyzer.matching.collectives import collectives
from analyzer.matching.messages import messages
from analyzer.summary.model import RankSummary


@dataclass(frozen=True, eq=False)
class Axis:
    """The common axis.

    Attributes:
        clocks: what has to be taken off the times of each rank; None where nothing is known of their clocks.
        collectives: matched ones; their own times are those of the ranks.
        messages: matched ones, two entries each.
    """

    clocks: Clocks | None
    collectives: Meetings
    messages: Meetings

    def on(self, times: Ints, rank: int) -> Ints:
        """Times of the rank at a position, ns, on the common axis."""
        if self.clocks is None or not self.clocks.known[rank]:
            return times
        return self.clocks.correct(times, np.full(len(times), rank), 0)

    @property
    def aligned(self) -> bool:
        """Whether the clocks of all ranks could be set by what they do together."""
        return self.clocks is not None and bool(self.clocks.known.all())


def common_axis(ranks: Sequence[RankSummary]) -> Axis:
    """Set the clocks of the ranks by the ends of their collectives.

    Without a GPU the end of an operator does not say when its rank left the collective: clocks stay as they are.
    """
    meetings = whole(collectives(ranks), len(ranks))
    exchanged = whole(messages(ranks), len(ranks))
    if not ranks or not all(rank.on_gpu for rank in ranks):
        sure = meetings.source[meetings.first] != BY_ENDS if meetings.count else np.empty(0, dtype=np.bool_)
        return Axis(None, meetings.where(sure) if meetings.count else meetings, exchanged)
    meetings = borne_out(meetings, len(ranks))
    clocks = synchronise(meetings, exchanged, len(ranks)) if len(ranks) > 1 else None
    return Axis(clocks, meetings, exchanged)

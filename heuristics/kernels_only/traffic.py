"""Per rank and group: how often what is called, in which part of a step, beside which work, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from heuristics.kernels_only.ends import matching
from heuristics.timing import ATTENTION, ATTENTION_BACKWARD, EXPERTS, OPTIMIZER
from heuristics.view import BACKWARD, FORWARD, UNKNOWN
from heuristics.view import OPTIMIZER as AFTER

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.kernels_only.calls import Calls
    from heuristics.kernels_only.clocks import Clocks
    from heuristics.kernels_only.partners import Meetings
    from heuristics.kernels_only.together import Group

LATENCY = 2.0
"""A call that takes less than this many times the shortest of its primitive carries no tensor worth the name."""


SHORTEST = 0.005
"""Share of all calls that are certainly the shortest."""

LONGEST_LATENCY_US = 30.0
"""An empty call takes no longer than this, within a node or across a few."""


SAME, OTHER = 0.97, 0.1
"""Share of messages at which both sides stand within one attention of each other, always; or further, often."""


@dataclass(frozen=True)
class Apart:
    """Members who stand at the same layer whenever messages pass, and members who often stand at others."""

    level: Group
    far: Group


@dataclass(frozen=True)
class Moving:
    """The calls of one rank on one group.

    Attributes:
        group: its members, as places among the ranks given.
        calls: all calls of the rank.
        rows: those on this group.
        transfer_ns: per call of the rank, from the start on the last member to the end; -1 where not known.
        tensor: per call of the rank, whether it takes long enough to carry a tensor.
        phase: per call of the rank.
        apart: which members stand where at messages; None without any.
    """

    group: Group
    calls: Calls
    rows: npt.NDArray[np.int64]
    transfer_ns: npt.NDArray[np.int64]
    tensor: npt.NDArray[np.bool_]
    phase: npt.NDArray[np.int64]
    apart: Apart | None

    def of(self, *primitives: str, tensors: bool = True) -> npt.NDArray[np.int64]:
        """The calls with one of the primitives (of those that carry tensors)."""
        rows = self.rows[self.tensor[self.rows]] if tensors else self.rows
        return rows[np.isin(self.calls.primitives[rows], primitives)]

    def count(self, phase: int, *primitives: str) -> int:
        """Calls in a phase."""
        return int((self.phase[self.of(*primitives)] == phase).sum())


@dataclass(frozen=True)
class Seen:
    """One rank: its calls, its groups, and how many attention kernels ran."""

    calls: Calls
    moving: tuple[Moving, ...]
    phase: npt.NDArray[np.int64]
    tensor: npt.NDArray[np.bool_]
    loose: npt.NDArray[np.int64]  # calls that are on no group

    @cached_property
    def landmarks(self) -> frozenset[int]:
        """The kinds of landmarks that ran."""
        return frozenset(np.unique(self.calls.timing.landmark).tolist())

    @cached_property
    def attention(self) -> int:
        """Attention kernels, forward."""
        return int((self.calls.timing.landmark == ATTENTION).sum())

    @cached_property
    def attention_backward(self) -> int:
        """Attention kernels, backward."""
        return int((self.calls.timing.landmark == ATTENTION_BACKWARD).sum())


def observed(ranks: Sequence[Calls], clocks: Clocks, met: Sequence[Meetings]) -> list[Seen]:
    """The traffic of every rank."""
    latest = [calls.start_ns - clocks.offset_ns[place] for place, calls in enumerate(ranks)]
    progress = [calls.progress for calls in ranks]
    matches = [_matches(ranks, clocks, own, place) for place, own in enumerate(met)]
    transfers = []
    for place, (calls, own) in enumerate(zip(ranks, met, strict=True)):
        last = latest[place].copy()
        for other, match in matches[place].items():
            on = np.flatnonzero(_includes(own, other) & (match >= 0))
            last[on] = np.maximum(last[on], latest[other][match[on]])
        transfers.append(np.where(own.of_call >= 0, calls.end_ns - clocks.offset_ns[place] - last, -1))
    floor = _floor_ns(transfers)
    found = []
    for place, (calls, own) in enumerate(zip(ranks, met, strict=True)):
        phase, tensor = phases(calls), _tensors(calls, transfers[place], floor)
        moving = []
        for number, group in enumerate(own.groups):
            rows = np.flatnonzero(own.of_call == number)
            messages = rows[calls.primitives[rows] == "send_recv"]
            apart = _apart(messages, group, place, progress, matches[place]) if len(messages) else None
            if len(rows):
                moving.append(Moving(group, calls, rows, transfers[place], tensor, phase, apart))
        found.append(Seen(calls, tuple(moving), phase, tensor, np.flatnonzero(own.of_call < 0)))
    return found


def _matches(ranks: Sequence[Calls], clocks: Clocks, own: Meetings, place: int) -> dict[int, npt.NDArray[np.int64]]:
    """Per rank that shares a group with this one, its call for each call of this one."""
    others = {member for group in own.groups for member in group} - {place}
    shift = {other: int(clocks.offset_ns[other] - clocks.offset_ns[place]) for other in others}
    return {other: matching(ranks[place], ranks[other], shift[other]) for other in others}


def _includes(own: Meetings, other: int) -> npt.NDArray[np.bool_]:
    has = np.array([*(other in group for group in own.groups), False])
    return np.asarray(has[own.of_call], dtype=bool)


def _floor_ns(transfers: Sequence[npt.NDArray[np.int64]]) -> float:
    """How long the shortest calls of the job take: those that carry next to nothing."""
    known = np.concatenate([np.empty(0, dtype=np.int64), *(t[t >= 0] for t in transfers)])
    shortest = float(np.quantile(known, SHORTEST)) if len(known) else 0.0
    return min(max(shortest, 1000.0), 1000.0 * LONGEST_LATENCY_US)


def _tensors(calls: Calls, transfer: npt.NDArray[np.int64], floor_ns: float) -> npt.NDArray[np.bool_]:
    """Which calls take so long that they carry more than a flag, a norm or a loss."""
    small = np.isin(calls.primitives, ("all_reduce", "broadcast", "reduce", "barrier", "all_gather"))
    unknown = (transfer < 0) & (calls.primitives == "all_gather")
    return np.asarray(~small | unknown | (transfer >= LATENCY * floor_ns))


def _apart(
    rows: npt.NDArray[np.int64],
    group: Group,
    place: int,
    progress: Sequence[npt.NDArray[np.int64]],
    match: dict[int, npt.NDArray[np.int64]],
) -> Apart | None:
    """How far apart in the model members stand at their messages."""
    if not progress[place][rows].any():
        return None
    between = {
        other: np.abs(progress[place][rows] - progress[other][match[other][rows]]).sum(axis=1)
        for other in group
        if other != place
    }
    level = tuple(other for other, apart in between.items() if (apart <= 1).mean() >= SAME and (apart == 0).any())
    far = tuple(other for other, apart in between.items() if (apart > 1).mean() >= OTHER)
    return Apart(level, far)


def phases(calls: Calls) -> npt.NDArray[np.int64]:
    """Forward, backward or after, as the CPU's marks say; where there are none, from the landmarks on either side."""
    marked = calls.timing.phase[calls.row]
    timing = calls.timing
    if not len(timing.landmark) or (marked == BACKWARD).any():
        return marked
    kinds = np.append(timing.landmark, -1)
    place = np.searchsorted(timing.landmark_ns, calls.start_ns, side="right")
    before, after = kinds[place - 1], kinds[place]
    before = np.where(place == 0, -1, before)
    forward = np.isin(before, (ATTENTION, EXPERTS, OPTIMIZER, -1)) & (after == ATTENTION)
    backward = (before == ATTENTION_BACKWARD) & np.isin(after, (ATTENTION_BACKWARD, EXPERTS))
    ended = (before == ATTENTION_BACKWARD) & (after == OPTIMIZER) | (before == OPTIMIZER) & (after == OPTIMIZER)
    found = np.where(forward, FORWARD, np.where(backward | ended, BACKWARD, UNKNOWN))
    return np.where(marked != UNKNOWN, marked, found)


__all__ = ["AFTER", "Moving", "Seen", "observed"]

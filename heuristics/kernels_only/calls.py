"""What is left of a rank's communication without arguments: which kernel, when, on which stream, beside which work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from heuristics.timing import ATTENTION, ATTENTION_BACKWARD

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.timing import Timing
    from heuristics.view import RankView


SHORT_SHARE, LARGER = 0.1, 3
"""This share of the calls in one place of a step does not wait for others; the largest there take so many times as
long."""


@dataclass(frozen=True)
class Calls:
    """The calls of one rank in the order in which they started on the GPU.

    Attributes:
        rank: global rank, else the place of the trace among those given.
        row: per call, its row in the rank's collectives.
        kind: per call, a code of primitive and dtype that is the same on every rank.
        end_ns: when each was over.
        context: per call, a code: calls of one context stand between the same neighbours, on every rank.
        lane: per call, a code of its stream that is the same on every rank.
        channel: per call, a code of its kind and lane.
        transfer_ns: per call, how long it took at most once all were there.
    """

    rank: int
    view: RankView
    timing: Timing
    row: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    context: npt.NDArray[np.int64]
    lane: npt.NDArray[np.int64]
    channel: npt.NDArray[np.int64]
    transfer_ns: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """How many calls there are."""
        return len(self.row)

    @cached_property
    def by_kind(self) -> dict[int, npt.NDArray[np.int64]]:
        """Per kind, its calls in the order in which they ended."""
        order = np.lexsort((self.end_ns, self.kind))
        names, first = np.unique(self.kind[order], return_index=True)
        return dict(zip(names.tolist(), np.split(order, first[1:]), strict=True))

    @cached_property
    def primitives(self) -> npt.NDArray[np.str_]:
        """Per call, its primitive."""
        return self._said("primitive")

    @cached_property
    def dtypes(self) -> npt.NDArray[np.str_]:
        """Per call, the dtype that the kernel's name says; empty where it says none."""
        return self._said("dtype")

    @cached_property
    def libraries(self) -> npt.NDArray[np.str_]:
        """Per call, the library that its kernel belongs to."""
        return self._said("library")

    def _said(self, field: str) -> npt.NDArray[np.str_]:
        """Per call, a word of its family."""
        words = np.array([*(getattr(family, field) for family in self.view.families), ""])
        return words[self.view.family_of_call[self.row]]

    @cached_property
    def streams(self) -> npt.NDArray[np.int64]:
        """Per call, its stream."""
        return self.timing.stream[self.row]

    @cached_property
    def progress(self) -> npt.NDArray[np.int64]:
        """Attention kernels, forward and backward, that had started when each call ended: shape (calls, 2)."""
        marks = self.timing
        kinds = (ATTENTION, ATTENTION_BACKWARD)
        counts = [np.searchsorted(marks.landmark_ns[marks.landmark == kind], self.end_ns) for kind in kinds]
        return np.stack(counts, axis=1).astype(np.int64)

    def primitive(self, call: int) -> str:
        """The primitive of a call."""
        return str(self.primitives[call])


def timed(views: Sequence[RankView]) -> list[Calls]:
    """The calls of every rank, with kinds and contexts numbered alike on all of them."""
    names: dict[tuple[str, str, str], int] = {}
    found, keys = [], []
    for place, view in enumerate(views):
        assert view.timing is not None
        own = [names.setdefault((f.primitive, f.dtype, f.library), len(names)) for f in view.families]
        calls, key = _calls(view, place, np.array([*own, -1], dtype=np.int64))
        found.append(calls)
        keys.append(key)
    cuts = np.cumsum([len(calls) for calls in found])[:-1]
    together = np.concatenate(keys)
    context, lane, channel = (_codes(part) for part in (together, together[:, 1:3], together[:, :3]))
    took = np.concatenate([calls.end_ns - calls.start_ns for calls in found])
    per_call = (context, lane, channel, np.minimum(took, _longest_transfers(took, context)))
    parts = zip(found, *(np.split(values, cuts) for values in per_call), strict=True)
    return [replace(calls, context=a, lane=b, channel=c, transfer_ns=d) for calls, a, b, c, d in parts]


def _codes(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Per row, a number that equal rows share."""
    return np.unique(keys, axis=0, return_inverse=True)[1].ravel().astype(np.int64)


def _longest_transfers(took: npt.NDArray[np.int64], context: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Per call, how long calls of its context take that hardly wait, with room for larger ones."""
    order = np.lexsort((took, context))
    first = np.searchsorted(context[order], np.arange(context.max(initial=-1) + 1))
    count = np.diff(np.append(first, len(context)))
    short = took[order[first + (SHORT_SHARE * (count - 1)).astype(np.int64)]] if len(first) else first
    return np.asarray(LARGER * short[context], dtype=np.int64)


def _calls(view: RankView, place: int, kind_of: npt.NDArray[np.int64]) -> tuple[Calls, npt.NDArray[np.int64]]:
    timing = view.timing
    assert timing is not None
    real = np.array([*(f.role == "payload" for f in view.families), False])[view.family_of_call]
    row = np.flatnonzero(real & (timing.dur_ns > 0))
    row = row[np.argsort(timing.start_ns[row], kind="stable")]
    kind, start = kind_of[view.family_of_call[row]], timing.start_ns[row]
    calls = Calls(
        rank=view.rank if view.rank >= 0 else place,
        view=view,
        timing=timing,
        row=row,
        kind=kind,
        start_ns=start,
        end_ns=start + timing.dur_ns[row],
        context=np.empty(0, dtype=np.int64),
        lane=np.empty(0, dtype=np.int64),
        channel=np.empty(0, dtype=np.int64),
        transfer_ns=np.empty(0, dtype=np.int64),
    )
    return calls, _contexts(timing, row, kind, start)


def _contexts(
    timing: Timing, row: npt.NDArray[np.int64], kind: npt.NDArray[np.int64], start: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Per call: kind, what its stream carries, which of such streams it is, what stands before and after it there, and
    the landmarks beside it.
    """
    stream, carries = timing.stream[row], np.zeros(len(row), dtype=np.int64)
    before, after = np.full(len(row), -1), np.full(len(row), -1)
    for one in np.unique(stream):
        own = np.flatnonzero(stream == one)
        before[own[1:]], after[own[:-1]] = kind[own[:-1]], kind[own[1:]]
        carries[own] = sum(1 << int(code) for code in np.unique(kind[own]) if code < 62)
    marks = np.append(timing.landmark, -1)
    place = np.searchsorted(timing.landmark_ns, start, side="right")
    return np.stack(
        [kind, carries, _busiest_first(stream, carries), before, after, marks[place - 1], marks[place]], axis=1
    ).astype(np.int64)


def _busiest_first(stream: npt.NDArray[np.int64], carries: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Per call, which of the streams that carry the same kinds it is on, the one with most calls first."""
    place = np.zeros(len(stream), dtype=np.int64)
    for kinds in np.unique(carries):
        own = np.flatnonzero(carries == kinds)
        names, calls = np.unique(stream[own], return_counts=True)
        for number, name in enumerate(names[np.argsort(-calls, kind="stable")]):
            place[own[stream[own] == name]] = number
    return place

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


@dataclass(frozen=True)
class Calls:
    """The calls of one rank in the order in which they started on the GPU.

    Attributes:
        rank: global rank, else the place of the trace among those given.
        row: per call, its row in the rank's collectives.
        kind: per call, a code of primitive and dtype that is the same on every rank.
        end_ns: when each was over.
        context: per call, a code: calls of one context stand between the same neighbours, on every rank.
    """

    rank: int
    view: RankView
    timing: Timing
    row: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    context: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """How many calls there are."""
        return len(self.row)

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
    codes = np.unique(np.concatenate(keys), axis=0, return_inverse=True)[1].ravel().astype(np.int64)
    parts = np.split(codes, np.cumsum([len(calls) for calls in found])[:-1])
    return [replace(calls, context=part) for calls, part in zip(found, parts, strict=True)]


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
    )
    return calls, _contexts(timing, row, kind, start)


def _contexts(
    timing: Timing, row: npt.NDArray[np.int64], kind: npt.NDArray[np.int64], start: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Per call: kind, what its stream carries, what stands before and after it there, and the landmarks beside it."""
    stream, carries = timing.stream[row], np.zeros(len(row), dtype=np.int64)
    before, after = np.full(len(row), -1), np.full(len(row), -1)
    for one in np.unique(stream):
        own = np.flatnonzero(stream == one)
        before[own[1:]], after[own[:-1]] = kind[own[:-1]], kind[own[1:]]
        carries[own] = sum(1 << int(code) for code in np.unique(kind[own]) if code < 62)
    marks = np.append(timing.landmark, -1)
    place = np.searchsorted(timing.landmark_ns, start, side="right")
    return np.stack([kind, carries, before, after, marks[place - 1], marks[place]], axis=1).astype(np.int64)

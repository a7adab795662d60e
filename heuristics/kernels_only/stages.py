"""Messages between stages: both sides end them at one moment, at different layers of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from heuristics.kernels_only.candidates import FEW, parts
from heuristics.kernels_only.together import Group, Together

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.kernels_only.calls import Calls

STAGE_SHARE, AHEAD = 0.3, 0.1
"""A neighbouring stage ends this share of the messages on a stream, and stands at another layer this often."""


def between_stages(ranks: Sequence[Calls], seen: Sequence[Together], kind: int, put: list[dict[int, Group]]) -> None:
    """Messages to ranks that stand at other layers: no collective runs between those.

    Where copies of a stage work in step, several ranks end a message at once. Stages are the same distance apart all
    over the job, so the distance that is the nearest in time most often is right, and others are for what it leaves.
    """
    ahead = [_ahead(calls, own, kind) for calls, own in zip(ranks, seen, strict=True)]
    votes: Counter[int] = Counter()
    for place, (rows, far) in enumerate(ahead):
        apart = np.where(far, seen[place].apart[rows], np.inf)
        nearest = np.argmin(apart, axis=1)[far.any(axis=1)] if len(rows) else np.empty(0, dtype=np.int64)
        votes.update(np.abs(nearest - place).tolist())
    for stride, times in votes.most_common():
        if times < FEW:
            break
        for place, (rows, far) in enumerate(ahead):
            sides = [side for side in (place - stride, place + stride) if 0 <= side < len(ranks)]
            for call, there in zip(rows.tolist(), far, strict=True):
                met = [side for side in sides if there[side]]
                if met and call not in put[place]:
                    other = min(met, key=lambda side: float(seen[place].apart[call, side]))
                    put[place][call] = (min(place, other), max(place, other))


def _ahead(calls: Calls, own: Together, kind: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The calls of a kind, and for each the ranks that end it too and stand at other layers now and then."""
    rows = np.flatnonzero(calls.kind == kind)
    far = np.zeros((len(rows), own.seen.shape[1]), dtype=bool)
    for part in parts(calls.streams, rows):
        seen, layers = own.seen[part], own.layers[part]
        often = seen.mean(axis=0) >= STAGE_SHARE
        other = ((layers >= 2) & seen).sum(axis=0) >= AHEAD * np.maximum(seen.sum(axis=0), 1)
        far[np.searchsorted(rows, part)] = seen & (often & other)
    return rows, far

"""Both tools on the same files, and what each difference comes of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from analyzer.crosscheck.figures import CAUSES, Figures, figures
from analyzer.crosscheck.theirs import figures_of
from heuristics.label import label
from parsers import read
from parsers.errors import InputError

METRICS = ("overlap_percent", "compute_us", "idle_us", "span_us")
"""What both tools say."""

NEAR = {"overlap_percent": 0.01, "compute_us": 0.5, "idle_us": 0.5, "span_us": 0.5}
"""Differences that are rounding: the other tool gives percent with two decimals and whole microseconds."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What one step of the other tool's definition changes of a figure."""

    cause: str
    change: float


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one rank."""

    metric: str
    ours: float | None
    theirs: float | None
    differences: list[Difference]
    unexplained: float | None


class RankCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One rank."""

    rank: int
    path: str
    error: str | None  # the other tool's, where it has no answer
    cpu_rows: int  # CPU operators with a stream number, which it takes for GPU work
    figures: list[Compared]


class Crosscheck(msgspec.Struct, frozen=True, kw_only=True):
    """The whole comparison."""

    schema_version: int
    other: str
    ranks: list[RankCheck]

    @property
    def explained(self) -> bool:
        """Whether nothing is left unexplained, and the other tool answered for every rank."""
        return all(
            rank.error is None and all(abs(f.unexplained or 0) <= NEAR[f.metric] for f in rank.figures)
            for rank in self.ranks
        )


def crosscheck(
    paths: Sequence[str], python: str, *, include_last_step: bool = False, timeout_s: float = 900
) -> Crosscheck:
    """Compare.

    Args:
        paths: Kineto files of GPU jobs, one rank each.
        python: an interpreter with HolisticTraceAnalysis.
        include_last_step: its option of that name.
        timeout_s: how long it may take.

    Raises:
        InputError: a file cannot be read or shows no GPU, or the other tool cannot be run.
    """
    ours: dict[int, tuple[str, list[tuple[str, Figures]]]] = {}
    for path in paths:
        for trace in read(path):
            if trace.format != "kineto" or not trace.on_gpu:
                continue
            rank = len(ours) if trace.identity.rank is None else trace.identity.rank
            ours.setdefault(rank, (path, list(figures(label(trace), include_last_step=include_last_step))))
    if not ours:
        raise InputError("no GPU trace of the PyTorch profiler: there is nothing to compare")
    asked = {rank: os.path.realpath(path) for rank, (path, _) in ours.items()}
    answer = figures_of(asked, python, include_last_step=include_last_step, timeout_s=timeout_s)
    theirs = {item["rank"]: item for item in answer["ranks"]}
    ranks = [_rank(rank, path, steps, theirs[rank]) for rank, (path, steps) in sorted(ours.items())]
    return Crosscheck(schema_version=1, other=answer["version"], ranks=ranks)


def _rank(rank: int, path: str, steps: list[tuple[str, Figures]], theirs: dict[str, Any]) -> RankCheck:
    compared = [_compared(metric, steps, theirs.get(metric)) for metric in METRICS]
    return RankCheck(
        rank=rank, path=path, error=theirs["error"], cpu_rows=int(theirs.get("cpu_rows") or 0), figures=compared
    )


def _compared(metric: str, steps: list[tuple[str, Figures]], theirs: float | None) -> Compared:
    values = [getattr(found, metric) for _, found in steps]
    changes = []
    for (before, after), (cause, _) in zip(pairwise(values), steps[1:], strict=True):
        change = None if before is None or after is None else after - before
        if change is not None and abs(change) > 1e-6:
            changes.append(Difference(cause=cause, change=round(change, 3)))
    left = None if theirs is None or values[-1] is None else round(theirs - values[-1], 3)
    return Compared(
        metric=metric,
        ours=None if values[0] is None else round(values[0], 3),
        theirs=theirs,
        differences=changes,
        unexplained=left,
    )


def causes_of(found: Crosscheck) -> dict[str, str]:
    """The causes that changed anything, with what they mean."""
    used = {d.cause for rank in found.ranks for f in rank.figures for d in f.differences}
    return {cause: said for cause, said in CAUSES.items() if cause in used}

"""Which ranks of which job were given: who is there, who is missing, and whether they belong together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from analyzer.words import short_names
from parsers.errors import InputError
from parsers.tables import RankIdentity


class Given(Protocol):
    """What has to be known of a trace to tell which rank of which job it is; as in `RankSummary`."""

    @property
    def path(self) -> str:
        """As the user named it."""

    @property
    def identity(self) -> RankIdentity:
        """Who wrote it."""

    @property
    def span(self) -> tuple[int, int] | None:
        """First start and last end on the clock of the day, in ns."""


@dataclass(frozen=True)
class Roster:
    """The ranks of one job.

    Attributes:
        world_size: as the files say, null where none does.
        keep: positions of the traces to analyse, by rank: one per rank, and those whose rank is not known.
        present: ranks with a trace.
        missing: ranks of the world without one.
        duplicated: ranks with more than one trace.
        warnings: a sentence each.
    """

    world_size: int | None
    keep: tuple[int, ...]
    present: tuple[int, ...]
    missing: tuple[int, ...]
    duplicated: tuple[int, ...]
    warnings: tuple[str, ...]


def roster(traces: Sequence[Given]) -> Roster:
    """Take stock of the traces given as one job.

    Raises:
        InputError: they cannot all come from one job.
    """
    _one_job(traces)
    world = next((t.identity.world_size for t in traces if t.identity.world_size), None)
    by_rank: dict[int, list[int]] = defaultdict(list)
    unknown = []
    for i, trace in enumerate(traces):
        if trace.identity.rank is None:
            unknown.append(i)
        else:
            by_rank[trace.identity.rank].append(i)
    duplicated = tuple(sorted(rank for rank, places in by_rank.items() if len(places) > 1))
    present = tuple(sorted(by_rank))
    short = short_names([trace.path for trace in traces])

    def files(places: Sequence[int]) -> str:
        return _names(list(dict.fromkeys(short[traces[i].path] for i in places)))

    warnings = [
        f"rank {rank} is there {len(by_rank[rank])} times ({files(by_rank[rank])}); only the first is used"
        for rank in duplicated
    ]
    if unknown:
        warnings.append(f"no rank is known for {files(unknown)}")
    if world is not None and present and present[-1] >= world:
        warnings.append(f"rank {present[-1]} does not fit a world of {world}")
    return Roster(
        world_size=world,
        keep=(*(by_rank[rank][0] for rank in present), *unknown),
        present=present,
        missing=tuple(rank for rank in range(world or 0) if rank not in by_rank),
        duplicated=duplicated,
        warnings=(*warnings, *_same_time(traces)),
    )


def _one_job(traces: Sequence[Given]) -> None:
    for what, of in (("world size", _world_of), ("run", _run_of)):
        files: dict[object, list[str]] = defaultdict(list)
        for trace in traces:
            value = of(trace)
            if value is not None:
                files[value].append(trace.path)
        if len(files) > 1:
            said = "; ".join(f"{what} {value}: {_names(paths)}" for value, paths in files.items())
            raise InputError(
                f"these files come from {len(files)} different jobs ({said})", hint="give the files of one job"
            )


def _world_of(trace: Given) -> int | None:
    return trace.identity.world_size


def _run_of(trace: Given) -> str | None:
    return trace.identity.run_id


def _same_time(traces: Sequence[Given]) -> list[str]:
    """A warning where two traces with clocks of their own day do not overlap in time."""
    spans = [(*trace.span, trace.path) for trace in traces if trace.span is not None]
    if len(spans) < 2:
        return []
    latest, earliest = max(spans), min(spans, key=lambda span: span[1])
    if latest[0] <= earliest[1]:
        return []
    apart = (latest[0] - earliest[1]) / 1e9
    short = short_names([span[2] for span in spans])
    return [
        f"{short[latest[2]]} starts {apart:.1f} s after {short[earliest[2]]} has ended: they do not show the same steps"
    ]


def _names(paths: Sequence[str], limit: int = 4) -> str:
    """File names for a sentence, the first few."""
    shown = ", ".join(paths[:limit])
    return shown if len(paths) <= limit else f"{shown} and {len(paths) - limit} more"

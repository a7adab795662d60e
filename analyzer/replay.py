"""What a step would take if nobody straggled: the operations of a pipeline job, run again with other durations.

Every rank does its operations one after the other. Messages of one launch start together and end when every partner has
come, plus the transfer; a collective ends when its last rank has come, plus the transfer. Replayed with the durations
that were measured, and again with every kind of operation taking what it takes on average (computing) or in the middle
(moving data), the two step times give the slowdown that stragglers cause (Lin et al., OSDI 2025, section 3.2).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.intervals import Floats, Ints
from analyzer.model import JobSlowdown
from analyzer.summary.model import RankSummary
from heuristics.pipelines import pipelines
from parsers.errors import InputError
from parsers.straggler_parquet import COLLECTIVES, FORMAT, MESSAGES, OF_ENDS, OF_STAGE, Operations, read_operations


@dataclass(frozen=True)
class Slowdown:
    """The result.

    Attributes:
        slowdown: replayed over ideal step time.
        replayed_s: mean step, measured durations.
        ideal_s: mean step without stragglers.
        pipelines: ranks in order of stage, one tuple per pipeline.
    """

    slowdown: float
    replayed_s: float
    ideal_s: float
    pipelines: tuple[tuple[int, ...], ...]


def of_job(ranks: Sequence[RankSummary]) -> JobSlowdown | None:
    """The slowdown of a job whose file lists every operation; None of others, or where the file is not there any more.

    Args:
        ranks: the job's ranks.
    """
    paths = {rank.path for rank in ranks if rank.format == FORMAT}
    if len(paths) != 1:
        return None
    try:
        found = slowdown(read_operations(paths.pop()))
    except InputError:
        return None
    return JobSlowdown(
        ratio=round(found.slowdown, 6),
        replayed_us=round(found.replayed_s * 1e6, 3),
        ideal_us=round(found.ideal_s * 1e6, 3),
        pipelines=[list(chain) for chain in found.pipelines],
    )


def slowdown(operations: Operations) -> Slowdown:
    """Infer the pipelines from who sends to whom, and replay the job twice."""
    place = pipelines(operations)
    moved, partners = _partners(operations, place)
    moving = [i for i, kind in enumerate(operations.kinds) if kind in MESSAGES or kind in COLLECTIVES]
    computing = ~np.isin(operations.kind, moving)
    ideal = operations.dur_ns.astype(np.float64)
    measured = np.where(computing, ideal, moved)
    for kind in np.unique(operations.kind).tolist():
        mine = operations.kind == kind
        ideal[mine] = measured[mine].mean() if computing[mine].all() else np.median(measured[mine])
    real, free = (float(np.mean(_replay(operations, d, partners))) / 1e9 for d in (measured, ideal))
    chains: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, (pipeline, stage) in place.items():
        chains[pipeline][stage] = rank
    return Slowdown(
        slowdown=real / free,
        replayed_s=real,
        ideal_s=free,
        pipelines=tuple(tuple(chain[s] for s in sorted(chain)) for _, chain in sorted(chains.items())),
    )


def _partners(operations: Operations, place: Mapping[int, tuple[int, int]]) -> tuple[Floats, Ints]:
    """Transfer of each operation in ns (its shortest duration among those who take part), and a number per meeting."""
    last = {pipeline: max(s for p, s in place.values() if p == pipeline) for pipeline, _ in place.values()}
    numbers: dict[tuple[object, ...], int] = {}
    meeting = np.full(len(operations.rank), -1, dtype=np.int64)
    columns = (operations.rank, operations.step, operations.kind, operations.seq)
    for i, (rank, step, kind, seq) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        name = operations.kinds[kind]
        pipeline, stage = place.get(rank, (-1, -1))
        key: tuple[object, ...] | None = None
        if name in MESSAGES:
            word, low = name.split("-")[0], min(stage, stage + MESSAGES[name])
            key = (word, step, seq, pipeline, low)
        elif name in COLLECTIVES:
            who = COLLECTIVES[name]
            ends = (pipeline, stage in (0, last.get(pipeline, 0)))
            key = (name, step, seq, stage if who == OF_STAGE else ends if who == OF_ENDS else 0)
        if key is not None:
            meeting[i] = numbers.setdefault(key, len(numbers))
    shortest = np.full(len(numbers) + 1, np.inf)
    np.minimum.at(shortest, meeting, operations.dur_ns.astype(np.float64))
    return np.where(meeting >= 0, shortest[meeting], operations.dur_ns), meeting


def _replay(operations: Operations, duration: Floats, meeting: Ints) -> list[float]:
    """Time of each step in ns."""
    edges = np.flatnonzero(np.diff(operations.step, prepend=operations.step[0] - 1))
    bounds = np.append(edges, len(operations.step)).tolist()
    return [_one_step(operations, duration, meeting, range(a, b)) for a, b in itertools.pairwise(bounds)]


def _one_step(operations: Operations, duration: Floats, meeting: Ints, rows: range) -> float:
    """Let every rank run until it must wait for another, in turns, until all are done."""
    launches = _launches(operations, rows)
    members: dict[int, int] = defaultdict(int)
    for row in rows:
        if meeting[row] >= 0:
            members[int(meeting[row])] += 1
    now = dict.fromkeys(launches, 0.0)
    at = dict.fromkeys(launches, 0)
    here: dict[int, int] = defaultdict(int)
    latest: dict[int, float] = defaultdict(float)
    arrived: dict[int, float] = {}
    moved = True
    while moved:
        moved = False
        for rank, own in launches.items():
            while at[rank] < len(own):
                launch = own[at[rank]]
                if rank not in arrived:
                    arrived[rank] = now[rank]
                    for row in launch:
                        if (m := int(meeting[row])) >= 0:
                            here[m] += 1
                            latest[m] = max(latest[m], now[rank])
                    moved = True
                if any((m := int(meeting[row])) >= 0 and here[m] < members[m] for row in launch):
                    break
                begun = arrived.pop(rank)
                now[rank] = max(
                    (latest[int(meeting[r])] if meeting[r] >= 0 else begun) + float(duration[r]) for r in launch
                )
                at[rank] += 1
                moved = True
    return max(now.values())


def _launches(operations: Operations, rows: range) -> dict[int, list[list[int]]]:
    """Per rank, its operations in order; messages that began together are one launch."""
    out: dict[int, list[list[int]]] = defaultdict(list)
    before: tuple[int, int] | None = None
    for row in rows:
        rank, start = int(operations.rank[row]), int(operations.start_ns[row])
        message = operations.kinds[operations.kind[row]] in MESSAGES
        if message and before == (rank, start):
            out[rank][-1].append(row)
        else:
            out[rank].append([row])
        before = (rank, start) if message else None
    return out

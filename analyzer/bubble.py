"""How much of a pipeline's time its stages have nothing to do: the bubble, waiting inside receives included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer import intervals
from analyzer.intervals import Bools, Ints, Spans
from analyzer.measured import Measured
from analyzer.model import Bubble, Pipeline
from heuristics.arrays import NULL, code_of, codes, ints
from parsers.columns import distinct_values

CARRIERS = ("pp", "unknown")
"""Dimensions whose messages may be a pipeline's; those of a ring (cp) are not."""


@dataclass(frozen=True)
class Stage:
    """One rank of a pipeline; µs per step.

    Attributes:
        rank: global rank.
        stage: its place in the pipeline.
        bubble_us: time in which it neither computed nor moved anything.
        waiting_us: the part of it spent inside receives and sends.
        span_us: from the pipeline's first work to its last.
        received_bytes: per step.
    """

    rank: int
    stage: int
    bubble_us: float
    waiting_us: float
    span_us: float
    received_bytes: int | None


@dataclass(frozen=True)
class Observed:
    """The measured bubble.

    Attributes:
        fraction: bubble over span, over all stages; None with a reason where it cannot be measured.
        stages: one per rank.
        reason: why there is no number.
    """

    fraction: float | None
    stages: tuple[Stage, ...]
    reason: str | None = None


def observed(ranks: Sequence[Measured], stage_of_rank: Mapping[int, int]) -> Observed | None:
    """Measure the bubble between the first and the last compute (or message) of a pipeline; None without messages.

    In every schedule the first stage begins first and, backward, ends last: the longest extent of a member's work is
    the span of the whole pipeline, whatever the clocks say. What the optimizer computes is no part of it.

    Args:
        ranks: measured ranks.
        stage_of_rank: as inferred; empty where it was not.
    """
    members = [r for r in ranks if messages(r).any() and r.source.rank is not None]
    if not members:
        return None
    chains = _chains(members)
    if chains is None:
        return Observed(None, (), "the ranks that exchange messages do not form a chain whose every stage is there")
    if not all(r.source.on_gpu and len(r.window.steps) for r in members):
        return Observed(None, (), "a bubble needs GPU times and steps")
    steps = min(len(r.window.steps) for r in members)
    by_rank = {r.source.rank: r for r in members}
    stages: list[Stage] = []
    for chain in chains:
        of_chain = [by_rank[rank] for rank in chain]
        extents = [extent(r, steps) for r in of_chain]
        span = np.max([high - low for low, high in extents], axis=0)
        order = _in_order(chain, extents, stage_of_rank)
        stages += [_stage(r, order[n], e, span) for n, r, e in zip(chain, of_chain, extents, strict=True)]
    total = sum(s.span_us for s in stages)
    fraction = sum(s.bubble_us for s in stages) / total if total else None
    return Observed(None if fraction is None else round(fraction, 6), tuple(sorted(stages, key=lambda s: s.rank)))


def with_bubble(pipeline: Pipeline | None, found: Observed | None) -> Pipeline | None:
    """The document's part, with what was observed."""
    if found is None or not found.stages:
        return pipeline
    predicted = None if pipeline is None else pipeline.bubble_fraction.predicted
    known = {} if pipeline is None else pipeline.stage_of_rank
    return Pipeline(
        bubble_fraction=Bubble(observed=found.fraction, predicted=predicted),
        stage_of_rank=known or {str(s.rank): s.stage for s in found.stages},
    )


def messages(rank: Measured) -> Bools:
    """Calls that may be a pipeline's: sends and receives in the measured steps, of no other dimension."""
    primitive, primitives = codes(rank.source.collectives, "primitive")
    dims = np.isin(np.array([*rank.dims, ""], dtype=object)[:-1], CARRIERS)
    line = rank.source.line
    found: Bools = dims & (primitive == code_of(primitives, "send_recv")) & (line.call_end > line.call_start)
    return found & rank.counted


def _chains(members: Sequence[Measured]) -> list[list[int]] | None:
    """Ranks in order along each pipeline; None where they are no open chains, or a link leads to nobody given.

    A chain may close (interleaved schedules send from the last rank to the first): then it starts at its lowest rank.
    """
    links: dict[int, set[int]] = {}
    for r in members:
        own = r.source.rank if r.source.rank is not None else NULL
        peers = ints(r.source.collectives, "peer")[messages(r)]
        groups = r.source.groups.column("ranks").to_pylist()
        of_group = ints(r.source.collectives, "group")[messages(r)]
        found = set(peers[peers != NULL].tolist())
        for group in distinct_values(of_group[peers == NULL]).tolist():
            ranks = groups[group] if group != NULL else None
            found |= set(ranks) - {own} if ranks and len(ranks) == 2 else {NULL}
        links[own] = found
    if any(peer not in links or len(peers) > 2 for peers in links.values() for peer in peers):
        return None
    left, chains = set(links), []
    while left:
        ends = sorted(rank for rank in left if len(links[rank] & left) <= 1)
        chain = [ends[0] if ends else min(left)]
        left.discard(chain[0])
        while following := sorted(links[chain[-1]] & left):
            chain.append(following[0])
            left.discard(following[0])
        chains.append(chain)
    return chains if all(len(chain) > 1 for chain in chains) else None


def extent(rank: Measured, steps: int) -> tuple[Ints, Ints]:
    """Begin of the first and end of the last work of a pipeline, on one rank, in each of the first steps; ns."""
    passes = rank.source.host.passes[list(rank.window.steps)[:steps]]
    edges, line = rank.window.edges[:steps], rank.source.line
    mine = messages(rank)
    low = np.where(passes[:, 0] == NULL, edges[:, 1], passes[:, 0])
    high = np.where(passes[:, 1] == NULL, edges[:, 0], passes[:, 1])
    at = np.searchsorted(edges[:, 0], line.call_start[mine], side="right") - 1
    keep = (at >= 0) & (line.call_start[mine] < edges[np.maximum(at, 0), 1])
    np.minimum.at(low, at[keep], line.call_start[mine][keep])
    np.maximum.at(high, at[keep], line.call_end[mine][keep])
    return low, high


def _in_order(chain: Sequence[int], extents: Sequence[tuple[Ints, Ints]], known: Mapping[int, int]) -> dict[int, int]:
    """Stage per rank: as inferred, else along the chain from the end that works longest, which is the first stage."""
    if all(rank in known for rank in chain):
        return {rank: known[rank] for rank in chain}
    length = [float((high - low).sum()) for low, high in extents]
    ordered = list(chain) if length[0] >= length[-1] else list(reversed(chain))
    return {rank: place for place, rank in enumerate(ordered)}


def _stage(rank: Measured, stage: int, extent: tuple[Ints, Ints], span: Ints) -> Stage:
    steps = len(span)
    low, high = extent
    line, mine = rank.source.line, messages(rank)
    moving = _moving(rank, mine)
    busy = intervals.union_of([line.compute, moving, _others(rank, mine)])
    waiting = intervals.without(intervals.union(line.call_start[mine], line.call_end[mine]), busy)
    bubble = span - intervals.covered(busy, low, high)
    direction, directions = codes(rank.source.collectives, "direction")
    sizes = ints(rank.source.collectives, "size_bytes")[mine & (direction == code_of(directions, "recv"))]
    return Stage(
        rank=rank.source.rank if rank.source.rank is not None else NULL,
        stage=stage,
        bubble_us=float(bubble.sum()) / steps / 1000,
        waiting_us=float(intervals.covered(waiting, low, high).sum()) / steps / 1000,
        span_us=float(span.sum()) / steps / 1000,
        received_bytes=None if (sizes == NULL).any() else round(int(sizes.sum()) / rank.window.count),
    )


def _moving(rank: Measured, mine: Bools) -> Spans:
    """When messages really moved: after the wait, where that is known."""
    line = rank.source.line
    known = mine & (rank.wait_ns != NULL)
    return intervals.union(line.call_start[known] + rank.wait_ns[known], line.call_end[known])


def _others(rank: Measured, mine: Bools) -> Spans:
    """Communication that is no pipeline's."""
    line = rank.source.line
    of_call = np.append(mine, False)[line.comm_call] & (line.comm_call >= 0)
    return intervals.union(line.comm_start[~of_call], line.comm_end[~of_call])

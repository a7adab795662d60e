"""A pipeline that shows in time only: its stages begin one pass after another.

Layout inference asks what messages carry and whom they go to. Where no file says that (kernels without arguments), or
says too little of it, all ranks of the job together still show a pipeline: stage ``r`` begins ``r`` forward passes
after the first, and with a backward pass ends ``r`` backward passes before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from analyzer import intervals
from analyzer.intervals import Floats, Ints
from analyzer.rows import counted_calls
from analyzer.summary.model import RankSummary
from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.verdict import DIMENSIONS, DimensionVerdict, Inference, Layout

EVEN = 0.1
"""Delays between neighbouring stages, and the work of the stages, may differ from their median by this share."""

CONFIDENCE = 0.75
"""Of what time alone shows: likely, not certain."""


@dataclass(frozen=True)
class Staggered:
    """A pipeline over all ranks of the job.

    Attributes:
        order: global ranks from the first stage to the last.
        microbatches: per step, None if the ranks do not agree on it.
        reasons: sentences.
    """

    order: tuple[int, ...]
    microbatches: int | None
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Stage:
    rank: int
    begin_ns: Floats  # of the first compute of each step
    end_ns: Floats
    busy_ns: Floats  # compute between the two
    messages: float  # per step
    links: frozenset[int]  # ranks that it exchanges messages with, as far as they are named


def with_stages(inference: Inference, ranks: Sequence[RankSummary]) -> Inference:
    """The inference, with the pipeline that only shows in time where it was left undecided.

    Args:
        inference: what the calls show.
        ranks: in the same order.
    """
    layout = inference.layout
    decided = [getattr(layout, dim) for dim in DIMENSIONS if dim != "pp"]
    if layout.pp is not None or any((degree or 1) > 1 for degree in decided):
        return inference
    found = staggered(ranks)
    if found is None:
        return inference
    dims = tuple(["pp" if dim == "unknown" else dim for dim in own] for own in inference.dims)
    return Inference(_with(layout, found), dims)


def staggered(ranks: Sequence[RankSummary]) -> Staggered | None:
    """The pipeline over all ranks, if they do nothing but exchange messages and begin one after another."""
    stages = [_stage(r) for r in ranks]
    known = [s for s in stages if s is not None]
    world = {r.identity.world_size for r in ranks} - {None}
    if len(known) < 2 or len(known) != len(ranks) or world not in ({len(ranks)}, set()):
        return None
    if len({s.rank for s in known}) != len(known) or len({len(s.begin_ns) for s in known}) != 1:
        return None
    return _training(known) or _inference(known)


def _stage(rank: RankSummary) -> _Stage | None:
    """One rank, if messages are all that it moves; None otherwise, or without whole steps on a GPU."""
    whole = np.flatnonzero(rank.steps.complete)
    table, line = rank.collectives, rank.line
    counted = counted_calls(table, whole.tolist()) & (line.call_end > line.call_start)
    primitive, primitives = codes(table, "primitive")
    if rank.rank is None or not rank.on_gpu or not len(whole) or not counted.any():
        return None
    if (primitive[counted] != code_of(primitives, "send_recv")).any():
        return None
    passes = rank.host.passes[whole]
    if (passes == NULL).any():
        return None
    return _Stage(
        rank=rank.rank,
        begin_ns=passes[:, 0].astype(np.float64),
        end_ns=passes[:, 1].astype(np.float64),
        busy_ns=intervals.covered(line.compute, passes[:, 0], passes[:, 1]).astype(np.float64),
        messages=float(counted.sum()) / len(whole),
        links=_links(rank, counted),
    )


def _links(rank: RankSummary, counted: intervals.Bools) -> frozenset[int]:
    peers = ints(rank.collectives, "peer")[counted]
    groups = rank.groups.column("ranks").to_pylist()
    of_group = ints(rank.collectives, "group")[counted][peers == NULL]
    pairs = [groups[g] for g in set(of_group.tolist()) if g != NULL and groups[g] and len(groups[g]) == 2]
    named = {int(peer) for pair in pairs for peer in pair} | set(peers[peers != NULL].tolist())
    return frozenset(named - {rank.rank})


def _training(stages: Sequence[_Stage]) -> Staggered | None:
    """Every stage is at work one forward and one backward pass longer than the next; the last one never pauses.

    With ``m`` microbatches a stage computes ``m`` times as long as it is at work longer than the next. That holds for
    GPipe and 1F1B alike (Narayanan et al. 2021, section 2.2) on one stage per rank; on several per rank the last sends
    to the first.
    """
    length = {s.rank: float(np.median(s.end_ns - s.begin_ns)) for s in stages}
    order = sorted(stages, key=lambda s: -length[s.rank])
    longer = -np.diff([length[s.rank] for s in order])
    busy = np.array([np.median(s.busy_ns) for s in order])
    if not (_even(longer) and _even(busy) and _in_line(order)):
        return None
    turn, work = float(np.median(longer)), float(np.median(busy))
    if length[order[-1].rank] > (1 + EVEN) * busy[-1] or turn <= 0:
        return None
    ratio = work / turn
    told = all(s.links for s in order)
    micro = round(ratio) if told and round(ratio) >= 1 and abs(ratio - round(ratio)) <= EVEN / 2 else None
    reasons = [
        f"each of {len(order)} ranks is at work {turn / 1000:,.0f} µs longer than the next, and the last never pauses: "
        "forward passes reach it one after another, and backward passes leave it"
    ]
    if micro is not None:
        reasons.append(f"each computes {ratio:.2f} times as long: {micro} microbatches")
    return Staggered(tuple(s.rank for s in order), micro, tuple(reasons))


def _inference(stages: Sequence[_Stage]) -> Staggered | None:
    """Every stage begins and ends one forward pass after the one before; ends of the chain have half the messages."""
    start = np.min([s.begin_ns for s in stages], axis=0)
    begin = {s.rank: float(np.median(s.begin_ns - start)) for s in stages}
    order = sorted(stages, key=lambda s: begin[s.rank])
    delays = np.diff([begin[s.rank] for s in order])
    late = np.diff([float(np.median(s.end_ns - start)) for s in order])
    messages = np.array([s.messages for s in order])
    passes = float(messages[0])
    if not (_even(delays) and _even(np.concatenate([delays, late])) and _in_line(order)):
        return None
    if messages[-1] != passes or (messages[1:-1] != 2 * passes).any() or passes < 2:
        return None
    turn = float(np.median(delays))
    length = float(np.median([np.median(s.end_ns - s.begin_ns) for s in order]))
    if turn <= 0 or not passes - 1 - EVEN < length / turn <= passes + EVEN:
        return None
    micro = int(passes)
    said = (
        f"each of {len(order)} ranks begins and ends {turn / 1000:,.0f} µs after the one before; the first and the "
        f"last exchange {micro} messages and are at work for as many delays, the others twice as many messages: "
        f"{micro} microbatches, forward only"
    )
    return Staggered(tuple(s.rank for s in order), micro, (said,))


def _even(values: Floats | Ints) -> bool:
    middle = float(np.median(values))
    return bool(middle > 0 and (np.abs(values - middle) <= EVEN * middle).all())


def _in_line(order: Sequence[_Stage]) -> bool:
    """Whether every stage exchanges messages with no other than its neighbours, as far as that is known."""
    return all(
        s.links <= {order[place].rank for place in (n - 1, n + 1) if 0 <= place < len(order)}
        for n, s in enumerate(order)
    )


def _with(layout: Layout, found: Staggered) -> Layout:
    degrees = dict.fromkeys(DIMENSIONS, 1) | {"pp": len(found.order)}
    verdicts: Mapping[str, DimensionVerdict] = {
        dim: replace(
            layout.dimensions[dim],
            degree=degree,
            confidence=CONFIDENCE,
            groups=(found.order,) if dim == "pp" else (),
            evidence=found.reasons if dim == "pp" else ("the pipeline takes all ranks of the job",),
            against=("nothing but time shows it",) if dim == "pp" else (),
        )
        for dim, degree in degrees.items()
    }
    return replace(
        layout,
        tp=1,
        cp=1,
        pp=len(found.order),
        dp=1,
        ep=1,
        microbatches=found.microbatches,
        data_parallel="none",
        zero_stage=0,
        dp_shard=1,
        dp_replicate=1,
        confidence=CONFIDENCE,
        stage_of_rank=MappingProxyType({rank: stage for stage, rank in enumerate(found.order)}),
        dimensions=MappingProxyType(dict(verdicts)),
    )

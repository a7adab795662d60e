"""One step of one pipeline: its stages side by side, their passes numbered by microbatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from analyzer.bubble import extent
from analyzer.details.lanes import lane
from analyzer.details.model import Lane, Missing, PipelineView, Turn
from analyzer.measured import Measured
from analyzer.model import LayoutDoc
from analyzer.pipeline import Examined
from heuristics.phases import BACKWARD, FORWARD, PHASES


def pipeline_view(job: Examined) -> PipelineView | Missing:
    """The pipeline of the lowest rank, in the middle one of the steps that all its stages have."""
    layout = job.analysis.layout
    if (layout.pp or 1) < 2 and job.analysis.pipeline is None:
        return Missing("the job has no pipeline" if layout.pp == 1 else "no pipeline was found")
    stage_of = {int(r): s for r, s in job.analysis.pipeline.stage_of_rank.items()} if job.analysis.pipeline else {}
    by_rank = {rank.source.rank: rank for rank in job.ranks if rank.source.rank is not None and rank.window.steps}
    chain = _chain(layout, stage_of, by_rank)
    if chain is None:
        return Missing("no pipeline has a trace of its every stage")
    members = [by_rank[rank] for rank in chain]
    steps = sorted(set.intersection(*(set(rank.step_numbers) for rank in members)))
    if not steps:
        return Missing("the stages have no complete step in common")
    step = steps[(len(steps) - 1) // 2]
    begins = [int(rank.window.edges[rank.step_numbers.index(step), 0]) for rank in members]
    ends = [int(rank.window.edges[rank.step_numbers.index(step), 1]) for rank in members]
    offsets = _offsets(job, members)
    zero = begins
    if offsets is not None:
        first = min(begin - offset for begin, offset in zip(begins, offsets, strict=True))
        zero = [first + offset for offset in offsets]
    span = max(end - z for end, z in zip(ends, zero, strict=True))
    lanes = [
        _lane(rank, stage, z, z + span, rank.step_numbers.index(step))
        for stage, (rank, z) in enumerate(zip(members, zero, strict=True))
    ]
    numbered = _numbered(lanes, layout)
    return PipelineView(
        step=step,
        lanes=tuple(numbered or lanes),
        span_us=span / 1000,
        microbatches=layout.microbatches if numbered else None,
        aligned=offsets is not None,
    )


def _chain(layout: LayoutDoc, stage_of: Mapping[int, int], by_rank: Mapping[int, Measured]) -> Sequence[int] | None:
    """Ranks of one pipeline in order of their stage, all of them read."""
    whole = [g for g in layout.dimensions["pp"].groups if len(g) > 1 and all(rank in by_rank for rank in g)]
    whole = [g for g in whole if not stage_of or {stage_of.get(r) for r in g} == set(range(len(g)))]
    if not whole:
        return None
    first = min(whole, key=min)
    return sorted(first, key=lambda rank: stage_of[rank]) if stage_of else first


def _offsets(job: Examined, members: Sequence[Measured]) -> list[int] | None:
    """How far each clock is ahead, ns; None where that is not known of all."""
    known = job.matching.clock.offset_us
    found = [known.get(str(rank.source.rank)) for rank in members]
    return None if any(us is None for us in found) else [round(us * 1000) for us in found if us is not None]


def _lane(rank: Measured, stage: int, low: int, high: int, place: int) -> Lane:
    turns = rank.source.turns
    begin, end = rank.window.edges[place]
    mine = np.flatnonzero((turns.start >= begin) & (turns.start < end))
    passes = [
        Turn((a - low) / 1000, (b - low) / 1000, PHASES[phase], None, None)
        for a, b, phase in zip(
            turns.start[mine].tolist(), turns.end[mine].tolist(), turns.phase[mine].tolist(), strict=True
        )
    ]
    first, last = (int(edge[place]) for edge in extent(rank, len(rank.window.steps)))
    of_work = ((first - low) / 1000, (last - low) / 1000) if last > first else None
    return lane(rank, f"stage {stage}", low, high, passes, of_work)


def _numbered(lanes: Sequence[Lane], layout: LayoutDoc) -> list[Lane] | None:
    """Turns with their microbatches; None where a stage does not have one pass of each kind per microbatch and chunk.

    Without virtual stages microbatches come in order. With them they come in rounds of as many as there are stages,
    each round once through every chunk, backward through the chunks in reverse (Narayanan et al. 2021, section 2.2).
    """
    batches, chunks, stages = layout.microbatches or 0, layout.virtual_stages or 1, len(lanes)
    counts = {sum(t.phase == PHASES[phase] for t in one.turns) for one in lanes for phase in (FORWARD, BACKWARD)}
    rounds = chunks == 1 or batches % stages == 0
    if counts != {batches * chunks} or not rounds or layout.pp_schedule in ("zbv", "dualpipe"):
        return None
    out = []
    for one in lanes:
        seen = {PHASES[FORWARD]: 0, PHASES[BACKWARD]: 0}
        turns = []
        for turn in one.turns:
            k = seen[turn.phase]
            seen[turn.phase] += 1
            if chunks == 1:
                turns.append(replace(turn, microbatch=k, chunk=0))
                continue
            chunk = k // stages % chunks
            chunk = chunks - 1 - chunk if turn.phase == PHASES[BACKWARD] else chunk
            turns.append(replace(turn, microbatch=k // (stages * chunks) * stages + k % stages, chunk=chunk))
        out.append(replace(one, turns=tuple(turns)))
    return out

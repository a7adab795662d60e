"""The inferred layout as part of the document."""

from __future__ import annotations

from analyzer.model import Alternative, Bubble, Dimension, LayoutDoc, Pipeline
from heuristics.verdict import DIMENSIONS, DimensionVerdict, Layout


def layout_document(layout: Layout) -> LayoutDoc:
    """Every field of the layout as the contract names it; all five dimensions are always there."""
    return LayoutDoc(
        tp=layout.tp,
        cp=layout.cp,
        pp=layout.pp,
        dp=layout.dp,
        ep=layout.ep,
        sequence_parallel=layout.sequence_parallel,
        data_parallel=layout.data_parallel,
        zero_stage=layout.zero_stage,
        dp_shard=layout.dp_shard,
        dp_replicate=layout.dp_replicate,
        cp_kind=layout.cp_kind,
        pp_schedule=layout.pp_schedule,
        virtual_stages=layout.virtual_stages,
        microbatches=layout.microbatches,
        rank_order=layout.rank_order,
        recompute=layout.recompute,
        grad_reduce_dtype=layout.grad_reduce_dtype,
        confidence=round(layout.confidence, 4),
        source=layout.source,
        dimensions={name: _dimension(name, layout) for name in DIMENSIONS},
        alternatives=[
            Alternative(
                tp=a.tp,
                cp=a.cp,
                pp=a.pp,
                dp=a.dp,
                ep=a.ep,
                zero_stage=a.zero_stage,
                confidence=round(a.confidence, 4),
                why_less=a.why_less,
            )
            for a in layout.alternatives
        ],
    )


def _dimension(name: str, layout: Layout) -> Dimension:
    verdict = layout.dimensions.get(name) or DimensionVerdict(degree=getattr(layout, name), confidence=0.0)
    return Dimension(
        degree=verdict.degree,
        confidence=round(verdict.confidence, 4),
        groups=[list(group) for group in verdict.groups],
        evidence=list(verdict.evidence),
        against=list(verdict.against),
    )


def pipeline_document(layout: Layout) -> Pipeline | None:
    """Stages and the bubble that the schedule has by construction; None where there is no pipeline."""
    if (layout.pp or 1) < 2:
        return None
    return Pipeline(
        bubble_fraction=Bubble(observed=None, predicted=_bubble(layout)),
        stage_of_rank={str(rank): stage for rank, stage in sorted(layout.stage_of_rank.items())},
    )


def _bubble(layout: Layout) -> float | None:
    """Idle share of the step, (p-1)/(v·m+p-1) for 1F1B and its kin (Narayanan et al. 2021, section 2.2)."""
    from ledger.errors import LedgerError
    from ledger.pipeline import bubble

    if layout.pp is None or layout.microbatches is None or layout.pp_schedule is None:
        return None
    try:
        return round(
            bubble(layout.pp_schedule, layout.pp, layout.microbatches, layout.virtual_stages or 1).share_of_total, 6
        )
    except LedgerError:
        return None

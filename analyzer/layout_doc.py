"""The inferred layout as part of the document."""

from __future__ import annotations

from analyzer.model import Alternative, Dimension, LayoutDoc
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

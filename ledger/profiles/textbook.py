"""The closed forms of the literature, as `docs/ledger.md` states them: every stage alike, no vocabulary, no noise."""

from __future__ import annotations

from types import MappingProxyType

from ledger.profiles.base import Profile
from ledger.rules import data, expert
from ledger.rules.context import ContextParallel
from ledger.rules.pipeline import every_rank_both_ways
from ledger.rules.tensor import LayerActivations

_ULYSSES = "Jacobs et al. 2023 (DeepSpeed-Ulysses)"

TEXTBOOK = Profile(
    name="textbook",
    title="closed forms of the literature",
    rules=(
        LayerActivations("textbook", forward_overlap="partial", reduce_backward_overlap="no", mixture="sublayer"),
        ContextParallel(
            "textbook",
            source=MappingProxyType(
                {
                    "ring": "Liu et al. 2023 (Ring Attention)",
                    "all_gather": "Dubey et al. 2024 (Llama 3), section 3.3.2",
                    "ulysses": _ULYSSES,
                    "hierarchical": f"{_ULYSSES} over cp_inner, ring over the rest",
                }
            ),
            whole_heads=True,
        ),
        every_rank_both_ways,
        data.closed_form,
        expert.closed_form,
    ),
    average=True,
)

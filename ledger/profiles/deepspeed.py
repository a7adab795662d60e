"""DeepSpeed: ZeRO, Ulysses, MoE, pipeline engine, AutoTP."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from ledger.config import CP_KINDS
from ledger.profiles.base import Profile
from ledger.rules import control, expert
from ledger.rules.context import ContextParallel
from ledger.rules.deepspeed_zero import DeepSpeedZero
from ledger.rules.pipeline import EmbeddingTie, StageBoundary
from ledger.rules.tensor import LayerActivations

_ULYSSES = "deepspeed/sequence/layer.py"


def deepspeed(*, persistence_threshold: int = 100_000, reuse_distance: int = 10**9) -> Profile:
    """The profile for the given stage-3 settings; the defaults are DeepSpeed's own."""
    return replace(
        DEEPSPEED,
        rules=tuple(
            DeepSpeedZero(persistence_threshold, reuse_distance) if isinstance(rule, DeepSpeedZero) else rule
            for rule in DEEPSPEED.rules
        ),
    )


DEEPSPEED = Profile(
    name="deepspeed",
    title="DeepSpeed: ZeRO 1 and 2 all-reduce gradients, ZeRO 3 keeps small tensors; Ulysses; padded experts",
    rules=(
        LayerActivations("deepspeed", reduce_backward_overlap="no", mixture="none"),
        ContextParallel(
            "deepspeed",
            source=MappingProxyType(dict.fromkeys(CP_KINDS, _ULYSSES)),
        ),
        StageBoundary(source="deepspeed/runtime/pipe/p2p.py", overlap="no", interleaved_overlap="no"),
        EmbeddingTie(source="deepspeed/runtime/pipe/module.py, TiedLayerSpec"),
        DeepSpeedZero(),
        expert.padded_capacity,
        *control.DEEPSPEED,
    ),
    expert_tp=1,
    sequence_parallel=False,
)

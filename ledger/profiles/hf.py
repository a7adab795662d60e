"""Hugging Face: transformers' tensor-parallel plans, accelerate's DDP and FSDP2."""

from __future__ import annotations

from ledger.profiles.base import Profile
from ledger.profiles.torch import CONTEXT
from ledger.rules import expert
from ledger.rules.fsdp import ShardedUnits, blocks_and_root
from ledger.rules.tensor import GatheredLogits, LayerActivations, Vocabulary

_TP = "transformers/integrations/tensor_parallel.py"

HF = Profile(
    name="hf",
    title="Hugging Face: one backward all-reduce per column-wise linear; FSDP2 scatters in the last microbatch",
    rules=(
        LayerActivations("hf", backward_overlap="no", reduce_backward_overlap="no", mixture="none"),
        Vocabulary("hf", source=_TP),
        GatheredLogits(source=_TP),
        CONTEXT,
        ShardedUnits(blocks_and_root, reduce_once=True),
        expert.partial_outputs,
    ),
    sequence_parallel=False,
)

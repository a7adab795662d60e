"""Inference servers (vLLM, SGLang): one forward pass over ``ParallelConfig.tokens`` tokens."""

from __future__ import annotations

from ledger.profiles.base import Profile
from ledger.rules import expert
from ledger.rules.pipeline import residual_and_hidden
from ledger.rules.tensor import GatheredLogits, LayerActivations, Vocabulary

INFERENCE = Profile(
    name="inference",
    title="vLLM and SGLang: forward only; embedding, two reductions per layer, gathered logits",
    rules=(
        LayerActivations("inference", mixture="sublayer"),
        Vocabulary("inference", source="vllm/model_executor/layers/vocab_parallel_embedding.py"),
        GatheredLogits(source="vllm/model_executor/layers/logits_processor.py"),
        residual_and_hidden,
        expert.gathered_tokens,
    ),
    sequence_parallel=False,
    training=False,
)

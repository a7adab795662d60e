"""Megatron-LM (megatron-core) with TransformerEngine."""

from __future__ import annotations

from types import MappingProxyType

from ledger.profiles.base import Profile
from ledger.rules import control
from ledger.rules.context import ContextParallel
from ledger.rules.data import FlatBuffers
from ledger.rules.expert import AllToAll
from ledger.rules.flow import Rule
from ledger.rules.pipeline import EmbeddingTie, StageBoundary
from ledger.rules.tensor import CrossEntropy, LayerActivations, Vocabulary, replicated_gradients_once

_TE_CP = "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py"


def _rules(activations: LayerActivations, buffers: FlatBuffers) -> tuple[Rule, ...]:
    return (
        activations,
        Vocabulary(
            "megatron", source="megatron/core/tensor_parallel/layers.py, VocabParallelEmbedding and output layer"
        ),
        CrossEntropy(source="megatron/core/tensor_parallel/cross_entropy.py"),
        replicated_gradients_once,
        ContextParallel(
            "megatron",
            source=MappingProxyType(
                {
                    "ring": f"{_TE_CP}, p2p",
                    "all_gather": f"{_TE_CP}, all_gather",
                    "ulysses": f"{_TE_CP}, a2a",
                    "hierarchical": f"{_TE_CP}, a2a+p2p",
                }
            ),
            repeated=("selective", "full"),  # selective recomputation repeats core attention, exchange included
        ),
        # Without interleaving a stage waits for its batched sends and receives.
        StageBoundary(source="megatron/core/pipeline_parallel/schedules.py", overlap="no", interleaved_overlap="yes"),
        EmbeddingTie(source="megatron/core/distributed/finalize_model_grads.py"),
        buffers,
        AllToAll(
            source="megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher",
            counts="tp_ep_gather",
            probabilities=True,
        ),
        *control.MEGATRON,
    )


MEGATRON = Profile(
    name="megatron",
    title="Megatron-LM: backward gathers column inputs again, float32 gradients, distributed optimizer",
    rules=_rules(LayerActivations("megatron", latent=True), FlatBuffers()),
    grad_dtype="float32",
)
MEGATRON_FP8 = Profile(
    name="megatron_fp8",
    title="Megatron-LM with TransformerEngine fp8: gathered activations and linear weights travel as one byte",
    rules=_rules(LayerActivations("megatron", latent=True, gather_dtype="uint8"), FlatBuffers(fp8_linears=True)),
    grad_dtype="float32",
)

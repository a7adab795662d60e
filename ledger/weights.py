"""The weights of a model one by one: their shapes, and how tensor and expert parallelism cut them.

Shapes are torch's: a linear layer is (outputs, inputs). Column-parallel layers are cut along outputs (dimension 0),
row-parallel ones along inputs, the embedding and output layer along the vocabulary.

Sources: megatron/core/tensor_parallel/layers.py; transformers modeling_llama.py, modeling_qwen3_moe.py,
modeling_deepseek_v3.py for the list of weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledger.model import ModelSpec


@dataclass(frozen=True)
class Weight:
    """One tensor, or ``copies`` of the same shape.

    Attributes:
        part: attention | mlp | router | router_bias | norm | bias | embedding | output | experts | shared_experts |
            mtp. A router bias is set by load, not by gradients: frameworks keep it as a buffer.
        split: column | row | vocab | none (whole on every tensor-parallel rank) | expert.
    """

    part: str
    rows: int
    cols: int = 1
    split: str = "none"
    copies: int = 1

    @property
    def elements(self) -> int:
        """Of all copies."""
        return self.rows * self.cols * self.copies

    def local(self, tp: int, *, etp: int = 1, ep: int = 1) -> Weight:
        """What one rank holds; a dimension that does not divide is rounded up, as padding does."""
        if self.split in ("column", "vocab"):
            return Weight(self.part, -(-self.rows // tp), self.cols, self.split, self.copies)
        if self.split == "row":
            return Weight(self.part, self.rows, -(-self.cols // tp), self.split, self.copies)
        if self.split == "expert":
            return Weight(self.part, -(-self.rows // etp), self.cols, self.split, -(-self.copies // ep))
        return self

    def padded(self, ranks: int) -> int:
        """Elements once dimension 0 is padded to a multiple of ``ranks``.

        Source: torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _init_sharded_param.
        """
        return -(-self.rows // ranks) * ranks * self.cols * self.copies


def elements(weights: Iterable[Weight]) -> int:
    """Elements of all of them."""
    return sum(weight.elements for weight in weights)


def _norm(model: ModelSpec, width: int, count: int = 1) -> tuple[Weight, ...]:
    vectors = 2 if model.norm == "layernorm" else 1
    return (Weight("norm", width, copies=vectors * count),)


def attention_weights(model: ModelSpec) -> tuple[Weight, ...]:
    """Attention of one layer, its projections one by one."""
    if model.mla is not None:
        return _latent_attention(model)
    linear = [
        Weight("attention", model.query_width, model.hidden, "column"),
        Weight("attention", model.key_width, model.hidden, "column"),
        Weight("attention", model.value_width, model.hidden, "column"),
        Weight("attention", model.hidden, model.output_width, "row"),
    ]
    if "qkv" in model.biases:
        widths = (model.query_width, model.key_width, model.value_width)
        linear += [Weight("bias", width, 1, "column") for width in widths]
    if "attention_output" in model.biases:
        linear.append(Weight("bias", model.hidden))
    if model.qk_norm:
        linear += _norm(model, model.query_width // model.heads, 2)
    return tuple(linear)


def _latent_attention(model: ModelSpec) -> tuple[Weight, ...]:
    mla = model.mla
    assert mla is not None
    hidden, heads = model.hidden, model.heads
    query: tuple[Weight, ...]
    if mla.q_rank is None:
        query = (Weight("attention", model.query_width, hidden, "column"),)
    else:
        query = (
            Weight("attention", mla.q_rank, hidden),
            *_norm(model, mla.q_rank),
            Weight("attention", model.query_width, mla.q_rank, "column"),
        )
    return (
        *query,
        Weight("attention", mla.kv_rank + mla.rope_dim, hidden),
        *_norm(model, mla.kv_rank),
        Weight("attention", heads * (mla.nope_dim + mla.value_dim), mla.kv_rank, "column"),
        Weight("attention", hidden, model.output_width, "row"),
    )


def _feed_forward(model: ModelSpec, width: int, part: str) -> tuple[Weight, ...]:
    column = 2 if model.gated else 1
    linear = [
        Weight(part, width, model.hidden, "column", column),
        Weight(part, model.hidden, width, "row"),
    ]
    if "mlp" in model.biases:
        linear += [Weight("bias", width, 1, "column", column), Weight("bias", model.hidden)]
    return tuple(linear)


def _mixture(model: ModelSpec) -> tuple[Weight, ...]:
    moe = model.moe
    assert moe is not None
    matrices = 3 if model.gated else 2
    weights = [
        Weight("router", moe.experts, model.hidden),
        Weight("experts", moe.expert_ffn, model.hidden, "expert", moe.experts * matrices),
    ]
    if moe.router_bias:
        weights.append(Weight("router_bias", moe.experts))
    if moe.shared_ffn:
        weights += _feed_forward(model, moe.shared_ffn, "shared_experts")
    if moe.shared_gate:
        weights.append(Weight("shared_experts", 1, model.hidden))
    return tuple(weights)


def layer_weights(model: ModelSpec, layer: int) -> tuple[Weight, ...]:
    """One transformer layer; layers from ``model.layers`` on are those of MTP modules."""
    block = _mixture(model) if model.is_moe_layer(layer) else _feed_forward(model, model.ffn, "mlp")
    return (*_norm(model, model.hidden, 2), *attention_weights(model), *block)


def embedding_weights(model: ModelSpec) -> tuple[Weight, ...]:
    """Token embedding, and the learned position embedding where there is one."""
    tokens = Weight("embedding", model.vocab, model.hidden, "vocab")
    return (tokens, Weight("embedding", model.positions, model.hidden)) if model.positions else (tokens,)


def output_weights(model: ModelSpec) -> tuple[Weight, ...]:
    """Final norm, and the output layer unless it is the embedding."""
    head = () if model.tied else (Weight("output", model.vocab, model.hidden, "vocab"),)
    return (*_norm(model, model.hidden), *head)


def mtp_weights(model: ModelSpec) -> tuple[Weight, ...]:
    """One multi-token-prediction module: two norms, the 2h to h projection, a transformer layer, a final norm.

    Source: DeepSeek-V3 technical report, section 2.2.
    """
    return (
        *_norm(model, model.hidden, 3),
        Weight("mtp", model.hidden, 2 * model.hidden, "column"),
        *layer_weights(model, model.layers),
    )

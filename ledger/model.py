"""`ModelSpec`: a transformer as its dimensions, and its parameter counts in closed form."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.errors import LedgerError
from ledger.weights import elements, embedding_weights, layer_weights, mtp_weights, output_weights

NORMS = ("rmsnorm", "layernorm")
BIASES = ("qkv", "attention_output", "mlp")


@dataclass(frozen=True, kw_only=True)
class MoESpec:
    """A mixture of experts in place of the feed-forward block.

    Attributes:
        experts: routed experts per layer.
        top_k: experts each token goes to.
        expert_ffn: inner width of one expert.
        shared_ffn: inner width of the experts every token passes (all of them together), 0 for none.
        first_dense_layers: layers at the start that keep a plain feed-forward block.
        layer_frequency: after those, every such layer is a mixture (1: all of them).
        shared_gate: the shared experts have a gate of one output per token.
        router_bias: the router carries one bias per expert.
        capacity_factor: experts accept this multiple of an even share; null drops nothing and pads nothing.

    Raises:
        LedgerError: a count is out of range.
    """

    experts: int
    top_k: int
    expert_ffn: int
    shared_ffn: int = 0
    first_dense_layers: int = 0
    layer_frequency: int = 1
    shared_gate: bool = False
    router_bias: bool = False
    capacity_factor: float | None = None

    def __post_init__(self) -> None:
        for key in ("experts", "top_k", "expert_ffn", "layer_frequency"):
            if getattr(self, key) < 1:
                raise LedgerError(f"moe.{key} must be at least 1, not {getattr(self, key)}", key=f"moe.{key}")
        for key in ("shared_ffn", "first_dense_layers"):
            if getattr(self, key) < 0:
                raise LedgerError(f"moe.{key} must not be negative", key=f"moe.{key}")
        if self.top_k > self.experts:
            raise LedgerError(f"moe.top_k {self.top_k} exceeds moe.experts {self.experts}", key="moe.top_k")
        if self.capacity_factor is not None and self.capacity_factor <= 0:
            raise LedgerError("moe.capacity_factor must be positive", key="moe.capacity_factor")


@dataclass(frozen=True, kw_only=True)
class MLASpec:
    """Multi-head latent attention (DeepSeek-V2/V3): low-rank queries, keys and values.

    ``q_rank`` null projects queries directly.
    """

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer.

    Attributes:
        ffn: inner width of the plain feed-forward block.
        vocab: rows of the embedding, as trained (padding included where the checkpoint has it).
        gated: the feed-forward block has a gate (three matrices, not two).
        tied: the output layer reuses the embedding.
        norm: ``rmsnorm`` (one weight per channel) or ``layernorm`` (weight and bias).
        biases: which linear layers have one: any of ``qkv``, ``attention_output``, ``mlp``.
        qk_norm: queries and keys are normalised per head.
        positions: rows of a learned position embedding, 0 for none.
        mtp_layers: multi-token-prediction modules, each with one more transformer layer.

    Raises:
        LedgerError: a dimension is out of range or does not divide another.
    """

    name: str | None = None
    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int
    kv_heads: int | None = None
    head_dim: int | None = None
    gated: bool = True
    tied: bool = False
    norm: str = "rmsnorm"
    biases: tuple[str, ...] = ()
    qk_norm: bool = False
    positions: int = 0
    moe: MoESpec | None = None
    mla: MLASpec | None = None
    mtp_layers: int = 0

    def __post_init__(self) -> None:
        for key in ("layers", "hidden", "ffn", "heads", "vocab"):
            if getattr(self, key) < 1:
                raise LedgerError(f"{key} must be at least 1, not {getattr(self, key)}", key=key)
        unknown = set(self.biases) - set(BIASES)
        if unknown:
            raise LedgerError(f"biases {sorted(unknown)} are not among {', '.join(BIASES)}", key="biases")
        if self.norm not in NORMS:
            raise LedgerError(f"norm {self.norm!r} is not one of {', '.join(NORMS)}", key="norm")
        if self.mtp_layers < 0 or self.positions < 0:
            raise LedgerError("mtp_layers and positions must not be negative", key="mtp_layers")
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise LedgerError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}", key="kv_heads")
        if self.head_dim is None and self.hidden % self.heads:
            raise LedgerError(f"hidden {self.hidden} is not a multiple of heads {self.heads}", key="heads")
        if self.moe is not None and self.moe.first_dense_layers > self.layers:
            raise LedgerError("moe.first_dense_layers exceeds layers", key="moe.first_dense_layers")

    @property
    def query_width(self) -> int:
        """All query heads side by side."""
        return self.heads * (self.mla.nope_dim + self.mla.rope_dim if self.mla else self._head_dim)

    @property
    def key_width(self) -> int:
        """All key heads side by side, as attention sees them."""
        if self.mla:
            return self.heads * (self.mla.nope_dim + self.mla.rope_dim)
        return self._kv_heads * self._head_dim

    @property
    def value_width(self) -> int:
        """All value heads side by side, as attention sees them."""
        return self.heads * self.mla.value_dim if self.mla else self._kv_heads * self._head_dim

    @property
    def output_width(self) -> int:
        """What the output projection reads."""
        return self.heads * (self.mla.value_dim if self.mla else self._head_dim)

    @property
    def key_value_heads(self) -> int:
        """Heads that keys and values have on the wire."""
        return self.heads if self.mla else self._kv_heads

    @property
    def _kv_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def _head_dim(self) -> int:
        return self.hidden // self.heads if self.head_dim is None else self.head_dim

    def is_moe_layer(self, layer: int) -> bool:
        """Whether layer ``layer`` (from 0; from ``layers`` on, MTP modules) is a mixture of experts."""
        if self.moe is None or layer < self.moe.first_dense_layers:
            return False
        return (layer - self.moe.first_dense_layers) % self.moe.layer_frequency == 0

    @property
    def moe_layers(self) -> int:
        """Layers that are mixtures of experts, MTP modules not counted."""
        return sum(self.is_moe_layer(layer) for layer in range(self.layers))

    @property
    def parameters(self) -> int:
        """All parameters of the main model; MTP modules are counted by `mtp_parameters`."""
        kinds = {self.is_moe_layer(layer): layer for layer in range(self.layers)}
        per_kind = {kind: elements(layer_weights(self, layer)) for kind, layer in kinds.items()}
        body = sum(per_kind[self.is_moe_layer(layer)] for layer in range(self.layers))
        return body + elements(embedding_weights(self)) + elements(output_weights(self))

    @property
    def expert_parameters(self) -> int:
        """Parameters of routed experts in the main model."""
        if self.moe is None:
            return 0
        first = next((layer for layer in range(self.layers) if self.is_moe_layer(layer)), None)
        if first is None:
            return 0
        experts = tuple(weight for weight in layer_weights(self, first) if weight.split == "expert")
        return self.moe_layers * elements(experts)

    @property
    def active_parameters(self) -> int:
        """Parameters one token passes, embedding and output layer included."""
        if self.moe is None:
            return self.parameters
        idle = self.expert_parameters * (self.moe.experts - self.moe.top_k) // self.moe.experts
        return self.parameters - idle

    @property
    def mtp_parameters(self) -> int:
        """Parameters of the multi-token-prediction modules, shared embedding and output layer not counted."""
        return self.mtp_layers * elements(mtp_weights(self))

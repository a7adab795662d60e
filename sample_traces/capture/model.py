"""A small transformer of today's kind: pre-norm, rotary positions, grouped-query attention, gated feed-forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

AttentionCore = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention proper: q [batch, heads, seq, head_dim], k and v with the key-value heads, to the shape of q."""


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions of the model and of one micro-batch."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    batch: int  # sequences per micro-batch and data-parallel rank

    def __post_init__(self) -> None:
        if self.hidden % self.heads or self.heads % self.kv_heads:
            raise ValueError("hidden must divide by heads and heads by kv_heads")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        """Width of the key (or value) projection."""
        return self.kv_heads * self.head_dim

    @property
    def block_params(self) -> int:
        """Parameters of one layer: two norms, q, k, v, o, and the three feed-forward matrices."""
        attention = 2 * self.hidden * (self.hidden + self.kv_width)
        return attention + 3 * self.hidden * self.ffn + 2 * self.hidden

    @property
    def params(self) -> int:
        """All parameters, with an untied output head."""
        return self.layers * self.block_params + 2 * self.vocab * self.hidden + self.hidden


def repeat_kv(x: Tensor, times: int) -> Tensor:
    """Give every query head its own copy of the key-value head it shares."""
    return x if times == 1 else x.repeat_interleave(times, dim=1)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention over a whole sequence held by this rank."""
    times = q.shape[1] // k.shape[1]
    return functional.scaled_dot_product_attention(q, repeat_kv(k, times), repeat_kv(v, times), is_causal=True)


def rotations(positions: range, head_dim: int) -> Tensor:
    """Complex rotary factors [positions, head_dim / 2] (Su et al. 2021, base 10000)."""
    frequency = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angle = torch.outer(torch.arange(positions.start, positions.stop), frequency)
    return torch.polar(torch.ones_like(angle), angle)


def rotate(x: Tensor, factors: Tensor) -> Tensor:
    """Rotary position embedding of x [batch, heads, seq, head_dim]: neighbouring elements turn as complex numbers."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * factors).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with separate projections.

    The number of heads is read off the projections' outputs, so that the same code runs on a tensor-parallel shard.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.wq = nn.Linear(config.hidden, config.hidden, bias=False)
        self.wk = nn.Linear(config.hidden, config.kv_width, bias=False)
        self.wv = nn.Linear(config.hidden, config.kv_width, bias=False)
        self.wo = nn.Linear(config.hidden, config.hidden, bias=False)
        self.core: AttentionCore = causal_attention
        self.factors = rotations(range(config.seq), config.head_dim)  # of this rank's positions

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], -1, self.head_dim).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, hidden] to [batch, seq, hidden]."""
        q = rotate(self._heads(self.wq(x)), self.factors)
        k = rotate(self._heads(self.wk(x)), self.factors)
        y = self.core(q, k, self._heads(self.wv(x)))
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Gated feed-forward: ``w2(silu(w1 x) * w3 x)``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.hidden, config.ffn, bias=False)
        self.w3 = nn.Linear(config.hidden, config.ffn, bias=False)
        self.w2 = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, hidden] to [batch, seq, hidden]."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """One pre-norm layer."""

    def __init__(self, config: ModelConfig, feed_forward: Callable[[ModelConfig], nn.Module]) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden, bias=False)
        self.attention = Attention(config)
        self.ffn_norm = nn.LayerNorm(config.hidden, bias=False)
        self.feed_forward = feed_forward(config)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, hidden] to [batch, seq, hidden]."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    """Tokens [batch, seq] to logits [batch, seq, vocab].

    Args:
        config: dimensions.
        feed_forward: makes the feed-forward part of a layer.
        layers: the range of layers to hold, for a pipeline stage; all by default. The embedding goes with the first
            layer, the final norm and the head with the last.
    """

    def __init__(
        self,
        config: ModelConfig,
        feed_forward: Callable[[ModelConfig], nn.Module] = FeedForward,
        layers: range | None = None,
    ) -> None:
        super().__init__()
        held = range(config.layers) if layers is None else layers
        first, last = held.start == 0, held.stop == config.layers
        self.embedding = nn.Embedding(config.vocab, config.hidden) if first else None
        self.blocks = nn.ModuleList(Block(config, feed_forward) for _ in held)
        self.norm = nn.LayerNorm(config.hidden, bias=False) if last else None
        self.head = nn.Linear(config.hidden, config.vocab, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or the previous stage's activations to activations or logits."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean next-token loss of [batch, seq, vocab] against [batch, seq]."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def tokens(config: ModelConfig, seed: int, micro_batches: int = 1) -> tuple[Tensor, Tensor]:
    """Random inputs and next-token targets [batch * micro_batches, seq]; equal seeds give equal data on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    shape = (config.batch * micro_batches, config.seq + 1)
    text = torch.randint(0, config.vocab, shape, generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()

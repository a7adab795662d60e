"""Tensor and sequence parallelism written by hand, as in Megatron-LM.

Shoeybi et al. 2019 for the matrices, Korthikanti et al. 2022 for the sequence.

Between the matrices every rank holds a part of the sequence. What enters a column-parallel matrix is gathered, what
leaves a row-parallel one is reduce-scattered; in the backward pass the two change places. Embedding and head are
divided along the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from sample_traces.capture.model import Block, Transformer


def _gather(x: Tensor, group: ProcessGroup) -> Tensor:
    """[batch, seq/T, ...] of each rank to [batch, seq, ...] on all."""
    part = x.transpose(0, 1).contiguous()
    whole = part.new_empty(part.shape[0] * dist.get_world_size(group), *part.shape[1:])
    dist.all_gather_single(whole, part, group=group)
    return whole.transpose(0, 1).contiguous()


def _reduce_scatter(x: Tensor, group: ProcessGroup) -> Tensor:
    """[batch, seq, ...] summed over the ranks, to each its [batch, seq/T, ...]."""
    whole = x.transpose(0, 1).contiguous()
    part = whole.new_empty(whole.shape[0] // dist.get_world_size(group), *whole.shape[1:])
    dist.reduce_scatter_single(part, whole, group=group)
    return part.transpose(0, 1).contiguous()


class _GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _gather(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter(grad, ctx.group), None


class _ReduceScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gather(grad, ctx.group), None


class _Inside(nn.Module):
    """Whole sequence in, partial sums out: the part of a layer between the gather and the reduce-scatter."""

    def __init__(self, inner: nn.Module, group: ProcessGroup) -> None:
        super().__init__()
        self.inner, self.group = inner, group

    def forward(self, x: Tensor) -> Tensor:
        return _ReduceScatterSequence.apply(self.inner(_GatherSequence.apply(x, self.group)), self.group)


class _VocabularyEmbedding(nn.Module):
    """The rows of the embedding whose tokens fall to this rank; the others contribute zeros to the sum."""

    def __init__(self, embedding: nn.Embedding, group: ProcessGroup) -> None:
        super().__init__()
        self.group = group
        part = embedding.num_embeddings // dist.get_world_size(group)
        self.first = dist.get_rank(group) * part
        self.weight = nn.Parameter(embedding.weight.data[self.first : self.first + part].clone())

    def forward(self, x: Tensor) -> Tensor:
        local = x - self.first
        mine = (local >= 0) & (local < len(self.weight))
        rows = nn.functional.embedding(local.clamp(0, len(self.weight) - 1), self.weight)
        return _ReduceScatterSequence.apply(rows * mine[..., None], self.group)


class _GatheredHead(nn.Module):
    """Logits of this rank's part of the vocabulary for the whole sequence."""

    def __init__(self, head: nn.Linear, group: ProcessGroup) -> None:
        super().__init__()
        self.columns, self.group = _part(head, 0, group), group

    def forward(self, x: Tensor) -> Tensor:
        return self.columns(_GatherSequence.apply(x, self.group))


class _VocabularyLoss(torch.autograd.Function):
    """Cross-entropy over a divided vocabulary: all-reduces of the maximum, the sum and the target's logit."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: ProcessGroup) -> Tensor:
        first = dist.get_rank(group) * logits.shape[-1]
        highest = logits.amax(-1)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        local = targets - first
        mine = (local >= 0) & (local < logits.shape[-1])
        index = local.clamp(0, logits.shape[-1] - 1)[..., None]
        shifted = logits - highest[..., None]
        target = torch.where(mine, shifted.gather(-1, index)[..., 0], 0.0)
        dist.all_reduce(target, group=group)
        weights = shifted.exp()
        total = weights.sum(-1)
        dist.all_reduce(total, group=group)
        ctx.save_for_backward(weights / total[..., None], index, mine)
        return (total.log() - target).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        probability, index, mine = ctx.saved_tensors
        out = probability.scatter_add(-1, index, -mine[..., None].to(probability.dtype))
        return out * (grad / mine.numel()), None, None


def vocabulary_loss(logits: Tensor, targets: Tensor, group: ProcessGroup) -> Tensor:
    """Mean loss of [batch, seq, vocab/T] against [batch, seq]; the same number on all ranks of the group."""
    return _VocabularyLoss.apply(logits, targets, group)


def _part(linear: nn.Linear, dim: int, group: ProcessGroup) -> nn.Linear:
    """This rank's columns (dim 0: outputs) or rows (dim 1: inputs) of a matrix."""
    weight = linear.weight.data.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].contiguous()
    part = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    part.weight = nn.Parameter(weight)
    return part


def _divide_block(block: Block, group: ProcessGroup) -> None:
    for inner, columns, row in (
        (block.attention, ("wq", "wk", "wv"), "wo"),
        (block.feed_forward, ("w1", "w3"), "w2"),
    ):
        for name in columns:
            setattr(inner, name, _part(getattr(inner, name), 0, group))
        setattr(inner, row, _part(getattr(inner, row), 1, group))
    block.add_module("attention", _Inside(block.attention, group))
    block.add_module("feed_forward", _Inside(block.feed_forward, group))


def divide(model: Transformer, group: ProcessGroup) -> None:
    """Divide a model, or one pipeline stage of it, in place."""
    for block in model.blocks:
        assert isinstance(block, Block)
        _divide_block(block, group)
    if model.embedding is not None:
        model.add_module("embedding", _VocabularyEmbedding(model.embedding, group))
    if model.head is not None:
        model.add_module("head", _GatheredHead(model.head, group))


def norm_gradients(model: nn.Module) -> list[Tensor]:
    """Gradients that each rank has for its part of the sequence only and that must be summed over the group."""
    return [
        param.grad
        for module in model.modules()
        if isinstance(module, nn.LayerNorm)
        for param in module.parameters()
        if param.grad is not None
    ]

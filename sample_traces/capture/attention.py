"""Attention over a sequence divided between ranks: a ring of key-value blocks, and Ulysses' change of layout."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from sample_traces.capture.model import causal_attention, repeat_kv


class _Hop:
    """A block on its way to the next rank of the ring while the one from the previous rank comes in."""

    def __init__(self, block: Tensor, group: ProcessGroup) -> None:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        after = dist.get_global_rank(group, (rank + 1) % size)
        before = dist.get_global_rank(group, (rank - 1) % size)
        self._sent = block.contiguous()
        self._received = torch.empty_like(self._sent)
        self._works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self._sent, after, group),
                dist.P2POp(dist.irecv, self._received, before, group),
            ]
        )

    def wait(self) -> Tensor:
        """The block that came in."""
        for work in self._works:
            work.wait()
        return self._received


def _scores(q: Tensor, k: Tensor, diagonal: bool) -> Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if diagonal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return scores


class RingAttention(torch.autograd.Function):
    """Causal attention whose key-value blocks travel once around the ring (Liu et al. 2023).

    Keys and values of one rank travel as one tensor. Forward takes P - 1 hops. Backward takes P - 1 hops of the
    blocks and P - 1 of their gradients: a block's owner keeps its own contribution at home, and the sum of the others'
    arrives there with the last hop. A layer thus sends 3 (P - 1) blocks of 2 x batch x kv_heads x seq/P x head_dim.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup) -> Tensor:
        """Shapes as `AttentionCore`, with this rank's part of the sequence."""
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        times = q.shape[1] // k.shape[1]
        block = torch.stack([k, v])
        highest = torch.full(q.shape[:-1], float("-inf"))
        total, weighted = torch.zeros(q.shape[:-1]), torch.zeros_like(q)
        for step in range(size):
            hop = _Hop(block, group) if step < size - 1 else None
            owner = (rank - step) % size
            if owner <= rank:  # later positions are masked
                keys, values = (repeat_kv(part, times) for part in block)
                scores = _scores(q, keys, owner == rank)
                new = torch.maximum(highest, scores.amax(-1))
                scale, weights = (highest - new).exp(), (scores - new[..., None]).exp()
                total = total * scale + weights.sum(-1)
                weighted = weighted * scale[..., None] + weights @ values
                highest = new
            if hop is not None:
                block = hop.wait()
        out = weighted / total[..., None]
        ctx.save_for_backward(q, k, v, out, highest + total.log())
        ctx.group = group
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of this rank's q, k and v."""
        q, k, v, out, log_total = ctx.saved_tensors
        group: ProcessGroup = ctx.group
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        times = q.shape[1] // k.shape[1]
        delta = (grad * out).sum(-1, keepdim=True)
        block, grad_q = torch.stack([k, v]), torch.zeros_like(q)
        own, travelling = torch.zeros_like(block), torch.zeros_like(block)
        for step in range(size):
            hop = _Hop(block, group) if step < size - 1 else None
            owner = (rank - step) % size
            target = own if step == 0 else travelling
            if owner <= rank:
                keys, values = (repeat_kv(part, times) for part in block)
                weights = (_scores(q, keys, owner == rank) - log_total[..., None]).exp()
                grad_scores = weights * (grad @ values.transpose(-1, -2) - delta) * q.shape[-1] ** -0.5
                grad_q += grad_scores @ keys
                target[0] += _sum_heads(grad_scores.transpose(-1, -2) @ q, times)
                target[1] += _sum_heads(weights.transpose(-1, -2) @ grad, times)
            if step > 0:
                travelling = _Hop(travelling, group).wait()
            if hop is not None:
                block = hop.wait()
        grad_k, grad_v = own + travelling
        return grad_q, grad_k, grad_v, None


def _sum_heads(x: Tensor, times: int) -> Tensor:
    """Undo `repeat_kv` for gradients."""
    return x.unflatten(1, (-1, times)).sum(2)


class _ChangeLayout(torch.autograd.Function):
    """All-to-all between [batch, heads, seq/P, dim] and [batch, heads/P, seq, dim]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, to_heads: bool) -> Tensor:
        ctx.group, ctx.to_heads = group, to_heads
        return _all_to_all(x, group, to_heads)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _all_to_all(grad, ctx.group, not ctx.to_heads), None, None


def _all_to_all(x: Tensor, group: ProcessGroup, to_heads: bool) -> Tensor:
    split, joined = (1, 2) if to_heads else (2, 1)
    sent = torch.stack(x.chunk(dist.get_world_size(group), dim=split))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(received.unbind(), dim=joined)


def ulysses_attention(q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup) -> Tensor:
    """Attention on all tokens of a part of the heads (Jacobs et al. 2023): four all-to-alls forward, four backward."""
    q, k, v = (_ChangeLayout.apply(part, group, True) for part in (q, k, v))
    return _ChangeLayout.apply(causal_attention(q, k, v), group, False)

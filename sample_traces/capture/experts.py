"""A mixture of experts whose experts are divided between ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn import functional

from sample_traces.capture.model import ModelConfig


class AllToAll(torch.autograd.Function):
    """Rows to the ranks that want them; backward sends the gradients the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, received: list[int], sent: list[int], group: ProcessGroup | None) -> Tensor:
        """Rows per peer in `received` and `sent`; x [sum(sent), width] to [sum(received), width]."""
        ctx.received, ctx.sent, ctx.group = received, sent, group
        out = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """The same exchange with the counts changed over."""
        out = grad.new_empty(sum(ctx.sent), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.sent, ctx.received, group=ctx.group)
        return out, None, None, None


class ExpertLayer(nn.Module):
    """Feed-forward part of a layer: every token goes to its `top_k` best experts, wherever they are.

    Args:
        config: dimensions; an expert is a two-matrix feed-forward of width ``config.ffn``.
        experts: how many in all; the ranks of the group hold equal parts, in order.
        top_k: how many a token visits.
        group: the expert-parallel ranks.
    """

    def __init__(self, config: ModelConfig, experts: int, top_k: int, group: ProcessGroup) -> None:
        super().__init__()
        self.group, self.number, self.top_k = group, experts, top_k
        self.router = nn.Linear(config.hidden, experts, bias=False)
        held = experts // dist.get_world_size(group)
        self.w_in = nn.Parameter(torch.randn(held, config.hidden, config.ffn) * config.hidden**-0.5)
        self.w_out = nn.Parameter(torch.randn(held, config.ffn, config.hidden) * config.ffn**-0.5)

    def _counts(self, expert: Tensor) -> Tensor:
        """Rows that each rank sends to each of this rank's experts: [ranks, experts held]."""
        sent = torch.bincount(expert, minlength=self.number)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        return received.view(dist.get_world_size(self.group), -1)

    def _compute(self, x: Tensor, counts: Tensor) -> Tensor:
        """Each row of x, ordered by sender and expert, through its expert."""
        expert = torch.arange(counts.shape[1]).repeat(counts.shape[0]).repeat_interleave(counts.flatten())
        order = torch.argsort(expert, stable=True)
        parts = x[order].split(counts.sum(0).tolist())
        done = [
            functional.silu(part @ w_in) @ w_out for part, w_in, w_out in zip(parts, self.w_in, self.w_out, strict=True)
        ]
        return torch.empty_like(x).index_copy(0, order, torch.cat(done))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, hidden] to [batch, seq, hidden]."""
        rows = x.flatten(0, 1)
        weight, expert = torch.softmax(self.router(rows), dim=-1).topk(self.top_k, dim=-1)
        order = torch.argsort(expert.flatten(), stable=True)
        ranks = dist.get_world_size(self.group)
        sent = torch.bincount(expert.flatten(), minlength=self.number).view(ranks, -1).sum(1).tolist()
        counts = self._counts(expert.flatten())
        received = counts.sum(1).tolist()

        there = AllToAll.apply(rows.repeat_interleave(self.top_k, dim=0)[order], received, sent, self.group)
        back = AllToAll.apply(self._compute(there, counts), sent, received, self.group)
        visits = torch.empty_like(back).index_copy(0, order, back).view(len(rows), self.top_k, -1)
        return (visits * weight[..., None]).sum(1).view_as(x)

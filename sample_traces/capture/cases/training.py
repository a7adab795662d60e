"""What the cases share: data, the optimizer and the plain training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sample_traces.capture.job import Step
from sample_traces.capture.model import ModelConfig, cross_entropy, tokens

Data = tuple[Tensor, Tensor]
"""Inputs and targets, the micro-batches stacked along dimension 0."""


def rank_tokens(config: ModelConfig, replica: int, micro_batches: int = 1) -> Data:
    """The data of one data-parallel replica."""
    return tokens(config, seed=1000 + replica, micro_batches=micro_batches)


def adamw(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of every case: fused, so that it is one operator in the trace.

    Distributed and plain parameters may be mixed; the fused operator wants them apart.
    """
    by_kind: dict[bool, list[nn.Parameter]] = {}
    for param in params:
        by_kind.setdefault(isinstance(param, DTensor), []).append(param)
    return torch.optim.AdamW([{"params": group} for group in by_kind.values()], lr=1e-3, fused=True)


def accumulate(model: nn.Module, data: Data, micro_batches: int = 1) -> Step:
    """Forward and backward over each micro-batch, adding up gradients."""
    inputs, targets = (part.chunk(micro_batches) for part in data)

    def step() -> None:
        for x, y in zip(inputs, targets, strict=True):
            cross_entropy(model(x), y).backward()

    return step


def train(
    model: nn.Module, data: Data, *, micro_batches: int = 1, before_update: Callable[[], None] = lambda: None
) -> Step:
    """A whole training step: gradients, then what `before_update` does with them, then AdamW."""
    optimizer = adamw(model.parameters())
    gradients = accumulate(model, data, micro_batches)

    def step() -> None:
        optimizer.zero_grad()
        gradients()
        before_update()
        optimizer.step()

    return step

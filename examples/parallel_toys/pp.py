"""A pipeline of four stages and four micro-batches in GPipe order: all forward passes, then all backward ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from examples.parallel_toys.launch import WORLD, Step

_WIDTH, _MICRO_BATCHES, _ROWS = 4, 4, 2


def _alone(weights: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of all layers, computed by one process."""
    leaves = [weight.clone().requires_grad_() for weight in weights]
    loss = torch.zeros(())
    for x in inputs:
        for weight in leaves:
            x = torch.tanh(x @ weight)
        loss = loss + x.sum()
    return list(torch.autograd.grad(loss, leaves))


def prepare(rank: int, scale: int = 1) -> Step:
    """Rank r holds layer r; the same seed everywhere gives everyone the whole model to compare with."""
    torch.manual_seed(0)
    weights = [torch.randn(_WIDTH, _WIDTH) * 0.5 for _ in range(WORLD)]
    inputs = [torch.randn(scale * _ROWS, _WIDTH) for _ in range(_MICRO_BATCHES)]
    reference = _alone(weights, inputs)[rank]

    def receive(peer: int) -> Tensor:
        tensor = torch.empty_like(inputs[0])
        dist.recv(tensor, peer)
        return tensor

    def step() -> float:
        weight = weights[rank].clone().requires_grad_()
        kept: list[tuple[Tensor, Tensor]] = []  # input and output of each micro-batch, needed for its backward pass
        for x in inputs:
            entering = x if rank == 0 else receive(rank - 1).requires_grad_()
            leaving = torch.tanh(entering @ weight)
            if rank < WORLD - 1:
                dist.send(leaving.detach(), rank + 1)
            kept.append((entering, leaving))
        for entering, leaving in kept:
            grad = torch.ones_like(leaving) if rank == WORLD - 1 else receive(rank + 1)
            leaving.backward(grad)
            if rank > 0:
                assert entering.grad is not None
                dist.send(entering.grad, rank - 1)
        assert weight.grad is not None
        return (weight.grad - reference).abs().max().item()

    return step


def report(outcomes: Sequence[float]) -> str:
    """How far each stage's gradient is from the reference."""
    errors = [f"{error:.1e}" for error in outcomes]
    return "\n".join(
        [
            f"{WORLD} stages x {_MICRO_BATCHES} micro-batches, GPipe",
            f"largest difference of the weights' gradients from one process, by stage: {errors}",
        ]
    )

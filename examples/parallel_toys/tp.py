"""Tensor parallelism of two matrices on two ranks: columns, ReLU, rows. The other two ranks look on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from examples.parallel_toys.launch import Step

_X = ((1.0, 2.0),)
_A = ((1.0, 2.0), (3.0, 4.0))
_B = ((1.0, 0.0), (0.0, 2.0))
_RANKS = (0, 1)


class Enter(torch.autograd.Function):
    """Megatron's f: the identity forward, an all-reduce of the gradient backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        """Hand x on to this rank's columns."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Add up what the columns of all ranks say about x."""
        total = grad.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class Leave(torch.autograd.Function):
    """Megatron's g: an all-reduce forward, the identity backward."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        """Add up the partial products of the rows of all ranks."""
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Every rank needs the whole gradient, and has it."""
        return grad, None


class Outcome(NamedTuple):
    """Results and gradients of one rank; of all matrices where one rank computes alone."""

    y: Tensor
    partial: Tensor
    z: Tensor
    grad_a: Tensor
    grad_b: Tensor
    grad_x: Tensor


def _leaf(values: Any) -> Tensor:
    return torch.as_tensor(values).clone().requires_grad_()


def _gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


def _alone() -> Outcome:
    x, a, b = _leaf(_X), _leaf(_A), _leaf(_B)
    y = torch.relu(x @ a)
    z = y @ b
    z.sum().backward()
    return Outcome(y.detach(), z.detach(), z.detach(), *map(_gradient, (a, b, x)))


def prepare(rank: int, scale: int = 1) -> Step:
    """Rank t of two holds column t of A and row t of B."""
    rows = torch.tensor(_X).repeat(scale, 1)
    group = dist.new_group(list(_RANKS), group_desc="tp")

    def step() -> Outcome | None:
        if rank not in _RANKS:
            return None
        x = _leaf(rows)
        a = _leaf(torch.tensor(_A)[:, rank : rank + 1])
        b = _leaf(torch.tensor(_B)[rank : rank + 1, :])
        y = torch.relu(Enter.apply(x, group) @ a)
        partial = y @ b
        z = Leave.apply(partial, group)
        z.sum().backward()
        return Outcome(y.detach(), partial.detach(), z.detach(), *map(_gradient, (a, b, x)))

    return step


def report(outcomes: Sequence[Outcome]) -> str:
    """The two ranks beside the single process."""
    one, (first, second) = _alone(), outcomes[:2]
    same = (
        torch.equal(first.z, one.z)
        and torch.equal(first.grad_x, one.grad_x)
        and torch.equal(torch.cat([first.grad_a, second.grad_a], 1), one.grad_a)
        and torch.equal(torch.cat([first.grad_b, second.grad_b], 0), one.grad_b)
    )
    return "\n".join(
        [
            f"forward   rank 0: Y0 = {first.y.tolist()}  Z0 = Y0 B0 = {first.partial.tolist()}",
            f"          rank 1: Y1 = {second.y.tolist()}  Z1 = Y1 B1 = {second.partial.tolist()}",
            f"          all-reduce (g): Z = {first.z.tolist()}  alone: Z = {one.z.tolist()}",
            f"backward  dB0 = {first.grad_b.tolist()}  dB1 = {second.grad_b.tolist()}",
            f"                               alone: dB = {one.grad_b.tolist()}",
            f"          dA0 = {first.grad_a.tolist()}  dA1 = {second.grad_a.tolist()}",
            f"                               alone: dA = {one.grad_a.tolist()}",
            f"          all-reduce (f): dX = {first.grad_x.tolist()}  alone: dX = {one.grad_x.tolist()}",
            f"every element equals that of one process: {same}",
        ]
    )

"""An all-reduce is a reduce-scatter and an all-gather: why ZeRO-1 and ZeRO-2 send no more than data parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from examples.parallel_toys.launch import WORLD, Step

_ELEMENTS = 8


class Outcome(NamedTuple):
    """What one rank ends up with."""

    summed: Tensor  # by the all-reduce
    part: Tensor  # by the reduce-scatter
    updated: Tensor  # by the all-gather of the updated parts


def prepare(rank: int, scale: int = 1) -> Step:
    """Rank r has the gradient 10 r + [0, 1, ..., 7]."""
    gradient = 10.0 * rank + torch.arange(scale * _ELEMENTS)

    def step() -> Outcome:
        summed = gradient.clone()
        dist.all_reduce(summed)  # data parallelism: everybody gets the whole sum

        part = torch.empty(len(gradient) // WORLD)
        dist.reduce_scatter_single(part, gradient)  # ZeRO: everybody gets the sum of the part that it owns,
        updated = torch.empty_like(gradient)
        dist.all_gather_single(updated, part * 0.5)  # updates it (here: halves it) and passes it on
        return Outcome(summed, part, updated)

    return step


def report(outcomes: Sequence[Outcome]) -> str:
    """The results of rank 0."""
    summed, part, updated = outcomes[0]
    same = all(torch.equal(outcome.updated, outcome.summed * 0.5) for outcome in outcomes)
    return "\n".join(
        [
            f"all-reduce:                {summed.tolist()}",
            f"reduce-scatter, rank 0:    {part.tolist()}",
            f"all-gather of the halves:  {updated.tolist()}",
            f"RS, update, AG == AR x 0.5 on every rank: {same}",
        ]
    )

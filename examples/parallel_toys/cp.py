"""Ring attention: queries stay, keys and values travel, and a running softmax puts the parts together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from examples.parallel_toys.launch import WORLD, Step

_TOKENS, _WIDTH = 8, 4


class Partial(NamedTuple):
    """Attention of some queries to some of the keys, not yet divided by the softmax's denominator."""

    highest: Tensor  # score, per query
    denominator: Tensor  # sum of exp(score - highest)
    numerator: Tensor  # the same weights times the values


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Partial:
    scores = q @ k.T
    highest = scores.max(dim=1).values
    weights = torch.exp(scores - highest[:, None])
    return Partial(highest, weights.sum(dim=1), weights @ v)


def _merge(a: Partial, b: Partial) -> Partial:
    highest = torch.maximum(a.highest, b.highest)
    of_a, of_b = torch.exp(a.highest - highest), torch.exp(b.highest - highest)
    return Partial(
        highest,
        a.denominator * of_a + b.denominator * of_b,
        a.numerator * of_a[:, None] + b.numerator * of_b[:, None],
    )


class Outcome(NamedTuple):
    """Whose blocks a rank used, in order, and how far its result is from the reference."""

    blocks: list[int]
    error: float


def prepare(rank: int, scale: int = 1) -> Step:
    """Rank r holds tokens 2 r and 2 r + 1; one seed everywhere gives all of them the whole sequence to compare with."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(scale * _TOKENS, _WIDTH) for _ in range(3))
    part = slice(rank * len(q) // WORLD, (rank + 1) * len(q) // WORLD)
    reference = (torch.softmax(q @ k.T, dim=1) @ v)[part]
    after, before = (rank + 1) % WORLD, (rank - 1) % WORLD

    def step() -> Outcome:
        block = torch.cat([k[part], v[part]], dim=1)
        blocks = [rank]
        result = _attend(q[part], *block.split(_WIDTH, dim=1))
        for hop in range(1, WORLD):
            received = torch.empty_like(block)
            sending = dist.isend(block, after)
            dist.recv(received, before)
            assert sending is not None  # this rank belongs to the group
            sending.wait()
            block = received
            blocks.append((rank - hop) % WORLD)
            result = _merge(result, _attend(q[part], *block.split(_WIDTH, dim=1)))
        output = result.numerator / result.denominator[:, None]
        return Outcome(blocks, (output - reference).abs().max().item())

    return step


def report(outcomes: Sequence[Outcome]) -> str:
    """Every column of blocks is a permutation: no rank waits for a block that another one uses."""
    lines = [f"rank {rank}: key-value blocks {outcome.blocks}" for rank, outcome in enumerate(outcomes)]
    errors = [f"{outcome.error:.1e}" for outcome in outcomes]
    return "\n".join([*lines, f"largest difference from attention in one process, by rank: {errors}"])

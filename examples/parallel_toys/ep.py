"""Expert parallelism: tokens travel to the ranks that hold their experts, and the results travel back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from examples.parallel_toys.launch import WORLD, Step
from sample_traces.capture.experts import AllToAll

_EXPERTS, _TOP_K, _TOKENS, _WIDTH = 8, 2, 16, 4
_HELD = _EXPERTS // WORLD
_CAPACITY_FACTOR = 1.25


class Routing(NamedTuple):
    """Where the tokens of one rank go: [tokens, top_k] each."""

    expert: Tensor
    weight: Tensor


class Outcome(NamedTuple):
    """What one rank sent and received, and how far it is from the reference."""

    sent: list[int]  # tokens per rank
    received: list[int]
    chosen: list[int]  # tokens per expert
    forward_error: float
    backward_error: float


def _alone(x: Tensor, routing: Routing, experts: Tensor) -> tuple[Tensor, Tensor]:
    """Output and expert gradients for the tokens of this rank, every token looking its experts up itself."""
    leaf = experts.clone().requires_grad_()
    out = torch.stack(
        [
            torch.stack([w * torch.tanh(token @ leaf[e]) for e, w in zip(chosen, weight, strict=True)]).sum(0)
            for token, chosen, weight in zip(x, routing.expert, routing.weight, strict=True)
        ]
    )
    (grad,) = torch.autograd.grad(out.sum(), leaf)
    return out.detach(), grad


def _route(x: Tensor, router: Tensor) -> Routing:
    weight, expert = torch.softmax(x @ router, dim=1).topk(_TOP_K, dim=1)
    return Routing(expert, weight)


def _exchange_counts(sent: list[int]) -> list[int]:
    received = torch.empty(WORLD, dtype=torch.long)
    dist.all_to_all_single(received, torch.tensor(sent))
    return received.tolist()


def prepare(rank: int, scale: int = 1) -> Step:
    """Rank r holds experts 2 r and 2 r + 1 and has 16 tokens of its own; all have the router of rank 0."""
    torch.manual_seed(0)
    experts = torch.randn(_EXPERTS, _WIDTH, _WIDTH) * 0.5
    torch.manual_seed(100 + rank)
    x = torch.randn(scale * _TOKENS, _WIDTH)
    router = torch.randn(_WIDTH, _EXPERTS)
    dist.broadcast(router, src=0)
    routing = _route(x, router)
    reference, reference_grad = _alone(x, routing, experts)
    dist.all_reduce(reference_grad)  # an expert's whole gradient comes from the tokens of all ranks
    held = slice(rank * _HELD, (rank + 1) * _HELD)

    def step() -> Outcome:
        mine = experts[held].clone().requires_grad_()
        expert = routing.expert.flatten()
        destination = expert // _HELD
        order = torch.argsort(destination, stable=True)
        sent = torch.bincount(destination, minlength=WORLD).tolist()
        received = _exchange_counts(sent)
        their_expert = torch.empty(sum(received), dtype=torch.long)
        dist.all_to_all_single(their_expert, expert[order], received, sent)

        arrived = AllToAll.apply(x.repeat_interleave(_TOP_K, dim=0)[order], received, sent, None)  # dispatch
        done = torch.zeros_like(arrived)
        for index, matrix in enumerate(mine):
            rows = their_expert == held.start + index
            done[rows] = torch.tanh(arrived[rows] @ matrix)
        back = AllToAll.apply(done, sent, received, None)  # combine
        visits = torch.zeros_like(back).index_copy(0, order, back).view(len(x), _TOP_K, _WIDTH)
        out = (routing.weight[..., None] * visits).sum(1)
        out.sum().backward()
        assert mine.grad is not None
        return Outcome(
            sent,
            received,
            torch.bincount(expert, minlength=_EXPERTS).tolist(),
            (out - reference).abs().max().item(),
            (mine.grad - reference_grad[held]).abs().max().item(),
        )

    return step


def report(outcomes: Sequence[Outcome]) -> str:
    """The dispatch matrix, the load of ranks and experts, and the differences from one process."""
    loads = [sum(outcome.received) for outcome in outcomes]
    mean = sum(loads) / WORLD
    per_expert = [sum(counts) for counts in zip(*(outcome.chosen for outcome in outcomes), strict=True)]
    capacity = math.ceil(_CAPACITY_FACTOR * WORLD * _TOKENS * _TOP_K / _EXPERTS)
    full = [expert for expert, load in enumerate(per_expert) if load > capacity]
    rows = [f"  rank {rank}: {outcome.sent}  sum {sum(outcome.sent)}" for rank, outcome in enumerate(outcomes)]
    return "\n".join(
        [
            "tokens sent to ranks 0..3:",
            *rows,
            f"tokens received by rank: {loads}  mean {mean:.0f}, busiest / mean = {max(loads) / mean:.2f}",
            f"tokens per expert: {per_expert}  mean {sum(per_expert) / _EXPERTS:.0f}",
            f"capacity at factor {_CAPACITY_FACTOR}: {capacity}; experts above it: {full}",
            f"largest difference of the output, by rank: {[f'{outcome.forward_error:.1e}' for outcome in outcomes]}",
            f"largest difference of the experts' gradients: {[f'{o.backward_error:.1e}' for o in outcomes]}",
        ]
    )

"""Holds the divided programs against one process: ``python -m sample_traces.capture.check``.

A capture is only worth something if the program is right. Two processes compute loss and gradients with ring attention,
Ulysses, Megatron-style matrices and divided experts; each compares with the undivided model that it runs as well.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.multiprocessing.spawn import spawn

from sample_traces.capture import megatron
from sample_traces.capture.cases.context import core_of, divide, positions
from sample_traces.capture.experts import ExpertLayer
from sample_traces.capture.job import free_port
from sample_traces.capture.model import ModelConfig, Transformer, cross_entropy, tokens

WORLD = 2
TOLERANCE = 1e-5
"""Of the largest element: float32 sums in another order."""

_CONFIG = ModelConfig(layers=2, hidden=64, heads=4, kv_heads=2, ffn=96, vocab=128, seq=32, batch=2)


def _model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(_CONFIG)


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: param.grad for name, param in model.named_parameters() if param.grad is not None}


def _distance(got: Tensor, expected: Tensor) -> float:
    return ((got - expected).abs().max() / expected.abs().max()).item()


def _whole() -> tuple[Tensor, dict[str, Tensor]]:
    model = _model()
    inputs, targets = tokens(_CONFIG, seed=1)
    loss = cross_entropy(model(inputs), targets)
    loss.backward()
    return loss.detach(), _gradients(model)


def _context(kind: str, group: ProcessGroup) -> float:
    """Largest distance of loss and gradients with the sequence divided."""
    expected_loss, expected = _whole()
    model, mine = _model(), positions(_CONFIG, dist.get_rank(), WORLD)
    divide(model, core_of(kind, group), mine, _CONFIG.head_dim)
    inputs, targets = (part[:, mine.start : mine.stop] for part in tokens(_CONFIG, seed=1))
    loss = cross_entropy(model(inputs), targets)
    loss.backward()
    got = _gradients(model) | {"loss": loss.detach().clone()}
    for value in got.values():
        dist.all_reduce(value)
    return max(_distance(value / WORLD, (expected | {"loss": expected_loss})[name]) for name, value in got.items())


def _tensor(group: ProcessGroup) -> float:
    """Largest distance of loss and gradients with the matrices divided."""
    expected_loss, expected = _whole()
    model = _model()
    inputs, targets = tokens(_CONFIG, seed=1)
    megatron.divide(model, group)
    loss = megatron.vocabulary_loss(model(inputs), targets, group)
    loss.backward()
    for grad in megatron.norm_gradients(model):
        dist.all_reduce(grad)
    distances = [_distance(loss.detach(), expected_loss)]
    for name, grad in _gradients(model).items():
        whole = expected[name.replace("inner.", "").replace("columns.", "")]
        divided = [dim for dim in range(grad.dim()) if grad.shape[dim] != whole.shape[dim]]
        part = whole.chunk(WORLD, divided[0])[dist.get_rank()] if divided else whole
        distances.append(_distance(grad, part))
    return max(distances)


def _experts(group: ProcessGroup) -> float:
    """Largest distance of output and gradients with the experts divided."""
    rank = dist.get_rank()
    alone = [dist.new_group([other]) for other in range(WORLD)][rank]
    assert isinstance(alone, ProcessGroup)
    torch.manual_seed(0)
    whole, divided = ExpertLayer(_CONFIG, 8, 2, alone), ExpertLayer(_CONFIG, 8, 2, group)
    divided.router.load_state_dict(whole.router.state_dict())
    divided.w_in.data.copy_(whole.w_in.data.chunk(WORLD)[rank])
    divided.w_out.data.copy_(whole.w_out.data.chunk(WORLD)[rank])
    torch.manual_seed(1 + rank)
    x = torch.randn(2, 6, _CONFIG.hidden)
    expected, got = whole(x), divided(x)
    expected.square().sum().backward()
    got.square().sum().backward()
    distances = [_distance(got.detach(), expected.detach())]
    for name, grad in _gradients(divided).items():
        reference = _gradients(whole)[name].clone()
        if name.startswith("w_"):
            dist.all_reduce(reference)
            reference = reference.chunk(WORLD)[rank]
        distances.append(_distance(grad, reference))
    return max(distances)


def _process(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    group = dist.group.WORLD
    assert group is not None
    distances = {
        "ring": _context("ring", group),
        "ulysses": _context("ulysses", group),
        "megatron": _tensor(group),
        "experts": _experts(group),
    }
    for name, distance in distances.items():
        if not distance <= TOLERANCE:
            raise AssertionError(f"{name}: rank {rank} differs from one process by {distance:.1e}")
        if rank == 0:
            print(f"{name}: largest relative difference from one process {distance:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(_process, args=(free_port(),), nprocs=WORLD)

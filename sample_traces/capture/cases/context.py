"""Context parallelism: the sequence divided between ranks that hold the same parameters."""

from __future__ import annotations

from functools import partial

import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from sample_traces.capture.attention import RingAttention, ulysses_attention
from sample_traces.capture.cases.training import rank_tokens, train
from sample_traces.capture.job import Case, Step, TrueLayout
from sample_traces.capture.model import Attention, AttentionCore, ModelConfig, Transformer, rotations


def core_of(kind: str, group: ProcessGroup) -> AttentionCore:
    """Attention over a divided sequence: ``ring`` or ``ulysses``."""
    if kind == "ring":
        return lambda q, k, v: RingAttention.apply(q, k, v, group)
    return partial(ulysses_attention, group=group)


def positions(config: ModelConfig, part: int, parts: int) -> range:
    """The tokens of one of `parts` ranks."""
    length = config.seq // parts
    return range(part * length, (part + 1) * length)


def divide(model: nn.Module, core: AttentionCore, mine: range, head_dim: int) -> None:
    """Let every attention of the model work on these positions of the sequence."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.core = core
            module.factors = rotations(mine, head_dim)


def _context_parallel(config: ModelConfig, kind: str) -> Step:
    group = dist.group.WORLD
    assert group is not None
    mine = positions(config, dist.get_rank(), dist.get_world_size())
    model = Transformer(config)
    divide(model, core_of(kind, group), mine, config.head_dim)
    inputs, targets = (part[:, mine.start : mine.stop].contiguous() for part in rank_tokens(config, replica=0))
    # The ranks hold the same parameters and different tokens: their gradients are averaged as those of replicas are.
    return train(DistributedDataParallel(model), (inputs, targets))


CASES = (
    Case(
        name="cp4_ring",
        world=4,
        about="ring attention, keys and values in one message, 3(P-1) hops per layer; gradients averaged by DDP",
        config=ModelConfig(layers=3, hidden=96, heads=8, kv_heads=2, ffn=240, vocab=144, seq=80, batch=2),
        layout=TrueLayout(cp=4, cp_kind="ring"),
        build=partial(_context_parallel, kind="ring"),
    ),
    Case(
        name="ulysses4",
        world=4,
        about="all-to-all on q, k, v and the output of attention, forward and backward; gradients averaged by DDP",
        config=ModelConfig(layers=3, hidden=96, heads=8, kv_heads=4, ffn=240, vocab=144, seq=64, batch=2),
        layout=TrueLayout(cp=4, cp_kind="ulysses"),
        build=partial(_context_parallel, kind="ulysses"),
    ),
)

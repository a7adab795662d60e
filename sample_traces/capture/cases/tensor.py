"""Tensor parallelism with DTensor, with and without sequence parallelism."""

from __future__ import annotations

from functools import partial

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from sample_traces.capture.cases.training import rank_tokens, train
from sample_traces.capture.job import Case, Step, TrueLayout
from sample_traces.capture.model import ModelConfig, Transformer


def tensor_parallel(model: Transformer, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Divide the matrices of a model, or of one pipeline stage of it.

    The plan is the usual one: columns then rows in attention and feed-forward, the vocabulary in embedding and head.
    With sequence parallelism the activations between them are divided along the sequence.
    """
    between = Shard(1) if sequence_parallel else Replicate()
    ends: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    block: dict[str, ParallelStyle] = {
        f"{part}": PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
        for part in ("attention", "feed_forward")
    }
    for name in ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3"):
        block[name] = ColwiseParallel()
    for name in ("attention.wo", "feed_forward.w2"):
        block[name] = RowwiseParallel(output_layouts=between)
    if sequence_parallel:
        ends["norm"] = SequenceParallel()
        block |= {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
    present = dict(model.named_children())
    parallelize_module(model, mesh, {name: style for name, style in ends.items() if present.get(name) is not None})
    for layer in model.blocks:
        parallelize_module(layer, mesh, block)


def _tp(config: ModelConfig, sequence_parallel: bool) -> Step:
    model = Transformer(config)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    tensor_parallel(model, mesh, sequence_parallel=sequence_parallel)
    return train(model, rank_tokens(config, replica=0))


CASES = (
    Case(
        name="tp4",
        world=4,
        about="DTensor: columns then rows in attention and feed-forward, vocabulary-parallel embedding and head",
        config=ModelConfig(layers=3, hidden=96, heads=8, kv_heads=4, ffn=256, vocab=160, seq=40, batch=2),
        layout=TrueLayout(tp=4),
        build=partial(_tp, sequence_parallel=False),
    ),
    Case(
        name="tp4_sp",
        world=4,
        about="as tp4 with activations divided along the sequence between the matrices",
        config=ModelConfig(layers=3, hidden=64, heads=8, kv_heads=4, ffn=192, vocab=128, seq=48, batch=3),
        layout=TrueLayout(tp=4, sp=True),
        build=partial(_tp, sequence_parallel=True),
    ),
)

"""Data parallelism: DDP, FSDP2, HSDP, and a ZeRO-1 optimizer."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from sample_traces.capture.cases.training import accumulate, adamw, rank_tokens, train
from sample_traces.capture.job import Case, Step, TrueLayout
from sample_traces.capture.model import ModelConfig, Transformer

_SMALL = ModelConfig(layers=3, hidden=96, heads=8, kv_heads=4, ffn=256, vocab=160, seq=40, batch=2)


def _ddp(config: ModelConfig) -> Step:
    model = DistributedDataParallel(Transformer(config), bucket_cap_mb=0.5)
    return train(model, rank_tokens(config, dist.get_rank()))


def _shard_all(model: Transformer, mesh: DeviceMesh, reshard: bool, policy: MixedPrecisionPolicy) -> None:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)


def _fsdp2(config: ModelConfig, reshard: bool = True) -> Step:
    model = Transformer(config)
    _shard_all(model, init_device_mesh("cpu", (dist.get_world_size(),)), reshard, MixedPrecisionPolicy())
    return train(model, rank_tokens(config, dist.get_rank()))


def _fsdp2_bf16(config: ModelConfig, micro_batches: int) -> Step:
    model = Transformer(config)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    _shard_all(model, init_device_mesh("cpu", (dist.get_world_size(),)), True, policy)

    def clip() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)

    data = rank_tokens(config, dist.get_rank(), micro_batches)
    return train(model, data, micro_batches=micro_batches, before_update=clip)


def _hsdp(config: ModelConfig, replicate: int, shard: int) -> Step:
    mesh = init_device_mesh("cpu", (replicate, shard), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = Transformer(config)
    _shard_all(model, mesh, True, MixedPrecisionPolicy())
    return train(model, rank_tokens(config, dist.get_rank()))


class _FlatBucket:
    """Parameters and gradients of one module in two flat buffers, of which each rank updates its part."""

    def __init__(self, module: nn.Module) -> None:
        params = list(module.parameters())
        world, rank = dist.get_world_size(), dist.get_rank()
        part = -(-sum(p.numel() for p in params) // world)
        self.values, self.grads = torch.zeros(part * world), torch.zeros(part * world)
        offset = 0
        for param in params:
            place = slice(offset, offset + param.numel())
            self.values[place].copy_(param.data.flatten())
            param.data = self.values[place].view_as(param)
            param.grad = self.grads[place].view_as(param)
            offset += param.numel()
        self.owned = nn.Parameter(self.values.chunk(world)[rank].clone())
        self.owned.grad = torch.zeros(part)

    def reduce(self) -> dist.Work:
        """Start the sum of all gradients into the owned part."""
        assert self.owned.grad is not None
        return dist.reduce_scatter_single(self.owned.grad, self.grads, async_op=True)

    def gather(self) -> dist.Work:
        """Start bringing everybody's updated part in."""
        return dist.all_gather_single(self.values, self.owned.data, async_op=True)


def _zero1(config: ModelConfig, micro_batches: int) -> Step:
    model = Transformer(config)
    ends = [part for part in (model.embedding, model.norm, model.head) if part is not None]
    buckets = [_FlatBucket(part) for part in (*model.blocks, nn.ModuleList(ends))]
    optimizer = adamw(bucket.owned for bucket in buckets)

    gradients = accumulate(model, rank_tokens(config, dist.get_rank(), micro_batches), micro_batches)

    def step() -> None:
        gradients()
        for work in [bucket.reduce() for bucket in buckets]:
            work.wait()
        optimizer.step()
        for work in [bucket.gather() for bucket in buckets]:
            work.wait()
        for bucket in buckets:
            bucket.grads.zero_()

    return step


CASES = (
    Case(
        name="ddp4",
        world=4,
        about="DistributedDataParallel, buckets of 0.5 MiB",
        config=_SMALL,
        layout=TrueLayout(dp=4),
        build=_ddp,
    ),
    Case(
        name="ddp4_raw",
        world=4,
        about="the same job on gloo as it comes, which writes no process-group metadata",
        config=_SMALL,
        layout=TrueLayout(dp=4),
        build=_ddp,
        recorded=False,
    ),
    Case(
        name="fsdp2_4",
        world=4,
        about="fully_shard per block and root, parameters released after the forward pass",
        config=_SMALL,
        layout=TrueLayout(dp=4, zero_stage=3, zero_by_traffic=3),
        build=_fsdp2,
        facts={"reshard_after_forward": True},
    ),
    Case(
        name="fsdp2_4_noreshard",
        world=4,
        about="fully_shard with reshard_after_forward=False: parameters gathered once, the traffic of ZeRO-2",
        config=ModelConfig(layers=4, hidden=80, heads=5, kv_heads=5, ffn=224, vocab=144, seq=56, batch=1),
        layout=TrueLayout(dp=4, zero_stage=2, zero_by_traffic=2),
        build=partial(_fsdp2, reshard=False),
        facts={"reshard_after_forward": False},
    ),
    Case(
        name="fsdp2_4_bf16",
        world=4,
        about="fully_shard with bfloat16 parameters and float32 reduction, two micro-batches, gradient clipping",
        config=ModelConfig(layers=3, hidden=112, heads=7, kv_heads=7, ffn=288, vocab=192, seq=32, batch=2),
        layout=TrueLayout(dp=4, zero_stage=3, zero_by_traffic=3, microbatches=2),
        build=partial(_fsdp2_bf16, micro_batches=2),
        facts={"reshard_after_forward": True, "dtype": "bfloat16", "reduce_dtype": "float32"},
    ),
    Case(
        name="hsdp_2x4",
        world=8,
        about="fully_shard on a mesh of 2 replicas x 4 shards",
        config=ModelConfig(layers=3, hidden=96, heads=6, kv_heads=6, ffn=256, vocab=128, seq=24, batch=2),
        layout=TrueLayout(dp=8, zero_stage=3, zero_by_traffic=3, hsdp_shard=4, hsdp_replicate=2),
        build=partial(_hsdp, replicate=2, shard=4),
        facts={"reshard_after_forward": True},
    ),
    Case(
        name="zero1_4",
        world=4,
        about="flat buckets: reduce-scatter of gradients after the last micro-batch, AdamW on the owned quarter,"
        " all-gather of parameters",
        config=ModelConfig(layers=4, hidden=72, heads=6, kv_heads=3, ffn=192, vocab=136, seq=48, batch=2),
        layout=TrueLayout(dp=4, zero_stage=1, zero_by_traffic=1, microbatches=2),
        build=partial(_zero1, micro_batches=2),
    ),
)

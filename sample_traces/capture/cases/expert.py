"""Expert parallelism inside data parallelism."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from sample_traces.capture.cases.training import rank_tokens, train
from sample_traces.capture.experts import ExpertLayer
from sample_traces.capture.job import Case, Step, TrueLayout
from sample_traces.capture.model import ModelConfig, Transformer

_EXPERTS, _TOP_K, _EP = 8, 2, 4
_CONFIG = ModelConfig(layers=3, hidden=80, heads=5, kv_heads=5, ffn=160, vocab=144, seq=36, batch=2)


def _expert_parallel(config: ModelConfig) -> Step:
    mesh = init_device_mesh("cpu", (dist.get_world_size() // _EP, _EP), mesh_dim_names=("edp", "ep"))
    group, copies = mesh.get_group("ep"), mesh.get_group("edp")
    model = Transformer(config, feed_forward=partial(ExpertLayer, experts=_EXPERTS, top_k=_TOP_K, group=group))
    experts = {name: param for name, param in model.named_parameters() if name.endswith((".w_in", ".w_out"))}
    # DDP averages what every rank holds; an expert is held by the ranks of one expert-data-parallel group only.
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, experts)
    replicated = DistributedDataParallel(model)

    def reduce_experts() -> None:
        grads = [param.grad for param in experts.values() if param.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat, group=copies)
        for grad, reduced in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(reduced.view_as(grad))

    return train(replicated, rank_tokens(config, dist.get_rank()), before_update=reduce_experts)


def _expert_params(config: ModelConfig) -> int:
    return config.layers * _EXPERTS * 2 * config.hidden * config.ffn


def _dense_params(config: ModelConfig) -> int:
    feed_forward = 3 * config.hidden * config.ffn
    return config.params - config.layers * (feed_forward - config.hidden * _EXPERTS)


CASES = (
    Case(
        name="ep4_dp8",
        world=8,
        about="8 experts over 4 ranks, two per token; dense parameters averaged over 8 ranks, experts over pairs",
        config=_CONFIG,
        layout=TrueLayout(dp=8, ep=4),
        build=_expert_parallel,
        facts={
            "params": _dense_params(_CONFIG) + _expert_params(_CONFIG),
            "params_dense": _dense_params(_CONFIG),
            "params_expert_local": _expert_params(_CONFIG) // _EP,
            "experts": _EXPERTS,
            "topk": _TOP_K,
        },
    ),
)

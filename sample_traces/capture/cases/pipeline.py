"""Pipeline parallelism with torch.distributed.pipelining, alone and together with tensor and data parallelism."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from sample_traces.capture import megatron
from sample_traces.capture.cases.training import adamw, rank_tokens
from sample_traces.capture.job import Case, Step, TrueLayout
from sample_traces.capture.model import ModelConfig, Transformer, cross_entropy

_SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved_1f1b": ScheduleInterleaved1F1B}


def _stages(config: ModelConfig, group: ProcessGroup, virtual: int) -> dict[int, Transformer]:
    """This rank's stages by number: rank r of P holds r, r + P, r + 2P, ..."""
    ranks = dist.get_world_size(group)
    layers = config.layers // (ranks * virtual)
    numbers = [dist.get_rank(group) + chunk * ranks for chunk in range(virtual)]
    return {n: Transformer(config, layers=range(n * layers, (n + 1) * layers)) for n in numbers}


def _pipeline(
    config: ModelConfig,
    group: ProcessGroup,
    layout: TrueLayout,
    *,
    stages: dict[int, Transformer],
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    replica: int = 0,
    before_update: Callable[[], None] = lambda: None,
) -> Step:
    """The training step of one pipeline rank."""
    total = layout.pp * layout.vp
    parts = [PipelineStage(model, n, total, torch.device("cpu"), group=group) for n, model in stages.items()]
    assert layout.schedule is not None
    kind = _SCHEDULES[layout.schedule]
    runner = kind(parts if layout.vp > 1 else parts[0], layout.microbatches, loss_fn=loss)
    optimizer = adamw(param for model in stages.values() for param in model.parameters())
    inputs, targets = rank_tokens(config, replica, layout.microbatches)
    args = (inputs,) if 0 in stages else ()
    last: dict[str, Tensor | list[Tensor]] = {"target": targets, "losses": []} if total - 1 in stages else {}

    def step() -> None:
        optimizer.zero_grad()
        runner.step(*args, **last)
        before_update()
        optimizer.step()

    return step


def _pp(config: ModelConfig, layout: TrueLayout) -> Step:
    group = dist.group.WORLD
    assert group is not None
    return _pipeline(config, group, layout, stages=_stages(config, group, layout.vp))


def _sum(grads: list[Tensor], group: ProcessGroup) -> None:
    """Sum gradients over a group in one flat buffer."""
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat, group=group)
    for grad, summed in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(summed.view_as(grad))


def _three_dimensions(config: ModelConfig, layout: TrueLayout) -> Step:
    mesh = init_device_mesh("cpu", (layout.pp, layout.dp, layout.tp), mesh_dim_names=("pp", "dp", "tp"))
    tensor_group, replicas = mesh.get_group("tp"), mesh.get_group("dp")
    stages = _stages(config, mesh.get_group("pp"), layout.vp)
    whole = nn.ModuleList(stages.values())
    for model in stages.values():
        megatron.divide(model, tensor_group)

    def reduce() -> None:
        _sum(megatron.norm_gradients(whole), tensor_group)
        _sum([param.grad for param in whole.parameters() if param.grad is not None], replicas)

    return _pipeline(
        config,
        mesh.get_group("pp"),
        layout,
        stages=stages,
        loss=partial(megatron.vocabulary_loss, group=tensor_group),
        replica=mesh.get_local_rank("dp"),
        before_update=reduce,
    )


def _case(name: str, about: str, config: ModelConfig, layout: TrueLayout) -> Case:
    several = layout.tp * layout.dp > 1
    return Case(
        name=name,
        world=layout.pp * layout.dp * layout.tp,
        about=about,
        config=config,
        layout=layout,
        build=partial(_three_dimensions if several else _pp, layout=layout),
        facts={"stages": layout.pp * layout.vp},
    )


CASES = (
    _case(
        "pp2_gpipe",
        "two stages, all forward passes before all backward ones",
        ModelConfig(layers=4, hidden=96, heads=6, kv_heads=6, ffn=256, vocab=128, seq=40, batch=1),
        TrueLayout(pp=2, schedule="gpipe", microbatches=4),
    ),
    _case(
        "pp4_1f1b",
        "four stages, one forward then one backward",
        ModelConfig(layers=4, hidden=80, heads=5, kv_heads=5, ffn=208, vocab=112, seq=48, batch=2),
        TrueLayout(pp=4, schedule="1f1b", microbatches=8),
    ),
    _case(
        "pp4_interleaved_v2",
        "eight stages on four ranks, two each, interleaved",
        ModelConfig(layers=8, hidden=112, heads=7, kv_heads=7, ffn=304, vocab=96, seq=64, batch=2),
        TrueLayout(pp=4, schedule="interleaved_1f1b", microbatches=8, vp=2),
    ),
    _case(
        "tp2_pp2_dp2",
        "Megatron-style tensor and sequence parallelism, 1F1B, two replicas whose gradients are summed in one buffer",
        ModelConfig(layers=4, hidden=128, heads=4, kv_heads=4, ffn=352, vocab=192, seq=64, batch=2),
        TrueLayout(tp=2, pp=2, dp=2, sp=True, schedule="1f1b", microbatches=3),
    ),
)

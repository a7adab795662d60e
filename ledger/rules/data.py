"""Data parallelism over flat buffers: the closed form, and Megatron's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from ledger.rules.flow import Flow
from ledger.stages import Number, Stage
from ledger.weights import Weight, elements


@dataclass(frozen=True)
class Copies:
    """Which groups hold the same parameters.

    Attributes:
        name: put before what travels.
        whole, shard, replicate: groups of `ledger.mesh.group_axes`.
        expert: these are the experts', laid over the expert mesh.
    """

    name: str
    whole: str
    shard: str
    replicate: str
    expert: bool

    def shard_ranks(self, stage: Stage) -> int:
        """Ranks one sharded copy is spread over."""
        return stage.config.expert_shard_ranks if self.expert else stage.config.shard_ranks


DENSE = Copies("", "dp", "dp_shard", "dp_replicate", expert=False)
EXPERT = Copies("expert ", "edp", "edp_shard", "edp_replicate", expert=True)


def held(stage: Stage) -> Iterator[tuple[Copies, tuple[Weight, ...]]]:
    """The stage's dense weights and its experts, each with the groups they are copied over; empty ones left out."""
    for copies, weights in ((DENSE, stage.dense_weights), (EXPERT, stage.expert_weights)):
        if elements(weights):
            yield copies, weights


def dtypes(stage: Stage) -> tuple[str, str]:
    """Of parameters as gathered, of gradients as reduced."""
    return stage.config.param_dtype, stage.config.grad_dtype or stage.config.param_dtype


def dp_flow(
    part: str,
    primitive: str,
    phase: str,
    group: str,
    size: Number,
    dtype: str,
    *,
    source: str,
    calls: Number = 1,
    formula: str = "1; N of the stage",
    overlap: str = "yes",
    bucketed: bool = False,
) -> Flow:
    """A data-parallel `Flow`."""
    return Flow(
        dim="dp",
        part=part,
        primitive=primitive,
        phase=phase,
        group=group,
        calls=calls,
        elements=size,
        dtype=dtype,
        overlap=overlap,
        formula=formula,
        source=source,
        bucketed=bucketed,
    )


def closed_form(stage: Stage) -> Iterator[Flow]:
    """N/(tp·pp) parameters, one group of all copies: 2N to all-reduce, N + N sharded, 3N with ZeRO-3.

    Source: Rajbhandari et al. 2020, section 7.
    """
    config, source = stage.config, "Rajbhandari et al. 2020, section 7"
    local = stage.model.parameters // (config.tp * config.pp)
    params, grads = dtypes(stage)
    if config.zero_stage == 0:
        yield dp_flow("gradients", "all_reduce", "backward", "dp", local, grads, source=source)
        return
    yield dp_flow("gradients", "reduce_scatter", "backward", "dp_shard", local, grads, source=source)
    phases = ["optimizer"] if config.zero_stage < 3 else ["forward"]
    if config.zero_stage == 3 and config.reshard_after_forward is not False:
        phases.append("backward")
    for phase in phases:
        yield dp_flow("parameters", "all_gather", phase, "dp_shard", local, params, source=source)
    shard = local // config.shard_ranks
    yield dp_flow(
        "gradients", "all_reduce", "backward", "dp_replicate", shard, grads, source=source, formula="1; N/shard"
    )


@dataclass(frozen=True)
class FlatBuffers:
    """Megatron: gradients in flat buffers, reduced once per step; the distributed optimizer gathers parameters back.

    Stages 2 and 3 are Megatron-FSDP: sharded gradients are reduced in every microbatch, sharded parameters gathered
    in both directions of each. Sharded buffers are padded at their end to a multiple of the sharding ranks and of 128
    (with several buckets each has such an end). ``fp8_linears`` gathers the matrices of linear layers in one byte.
    """

    fp8_linears: bool = False
    source: str = "megatron/core/distributed/param_and_grad_buffer.py; megatron/core/optimizer/distrib_optimizer.py"
    fsdp_source: str = "megatron/core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py"

    def __call__(self, stage: Stage) -> Iterator[Flow]:
        """The stage's buffers."""
        zero = stage.config.zero_stage
        _, grads = dtypes(stage)
        source = self.fsdp_source if zero >= 2 else self.source
        calls = stage.runs if zero >= 2 else 1
        for copies, weights in held(stage):
            size, part = elements(weights), f"{copies.name}gradients"
            if zero == 0:
                yield dp_flow(part, "all_reduce", "backward", copies.whole, size, grads, source=source, bucketed=True)
                continue
            size = _padded(size, copies.shard_ranks(stage))
            yield dp_flow(
                part,
                "reduce_scatter",
                "backward",
                copies.shard,
                size,
                grads,
                source=source,
                calls=calls,
                formula="1 (m with sharded gradients); N of the stage",
                bucketed=True,
            )
            yield from self._gathers(stage, copies, weights, source)
            shard = size // copies.shard_ranks(stage)
            yield dp_flow(
                part,
                "all_reduce",
                "backward",
                copies.replicate,
                shard,
                grads,
                source=source,
                calls=calls,
                formula="as the reduce-scatter; N/shard",
                bucketed=True,
            )

    def _gathers(self, stage: Stage, copies: Copies, weights: tuple[Weight, ...], source: str) -> Iterator[Flow]:
        whole, m = stage.config.zero_stage == 3, stage.runs
        phases = (("forward", m), ("backward", m)) if whole else (("optimizer", 1),)
        linear = ("attention", "mlp", "experts", "shared_experts") if self.fp8_linears else ()
        for dtype, size in (
            ("uint8", elements(weight for weight in weights if weight.part in linear)),
            (stage.config.param_dtype, elements(weight for weight in weights if weight.part not in linear)),
        ):
            for phase, calls in phases:
                yield dp_flow(
                    f"{copies.name}parameters",
                    "all_gather",
                    phase,
                    copies.shard,
                    _padded(size, copies.shard_ranks(stage)),
                    dtype,
                    source=source,
                    calls=calls,
                    formula="1 (m in each direction with sharded parameters); N of the stage",
                    overlap="partial",
                    bucketed=True,
                )


def _padded(size: int, ranks: int) -> int:
    """Source: megatron/core/distributed/param_and_grad_buffer.py, bucket ends under the distributed optimizer."""
    multiple = lcm(ranks, 128)
    return -(-size // multiple) * multiple

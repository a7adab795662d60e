"""PyTorch data parallelism: DDP's buckets and FSDP2's units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ledger.payloads import fsdp_counts
from ledger.rules.data import DENSE, EXPERT, Copies, dp_flow, dtypes, held
from ledger.rules.flow import Flow
from ledger.stages import Stage
from ledger.weights import Weight, elements

_DDP = "torch/csrc/distributed/c10d/reducer.hpp (buckets of 1 and 25 MiB)"
_ZERO1 = "Rajbhandari et al. 2020, section 7"
_FSDP2 = "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py"


@dataclass(frozen=True)
class Unit:
    """Modules that FSDP gathers and scatters together.

    Attributes:
        count: how many units of this content.
        gathers_forward: per microbatch, where nothing is kept.
        regathered: parameters are dropped after forward and gathered again.
        scatters: the pieces its gradients leave in; empty for one piece.
        expert: its ranks are those of the expert mesh.
    """

    name: str
    weights: tuple[Weight, ...]
    count: int = 1
    gathers_forward: int = 1
    regathered: bool = True
    scatters: tuple[tuple[Weight, ...], ...] = ()
    expert: bool = False


UnitPlan = Callable[[Stage], Iterator[Unit]]
"""How a framework cuts a model into FSDP units."""


def _layer_units(stage: Stage, *, keep_last: bool) -> Iterator[Unit]:
    """Layers of the same content as one entry; experts by themselves where expert parallelism spreads them."""
    apart = stage.config.ep > 1
    counts: dict[tuple[tuple[Weight, ...], bool, bool], int] = {}
    for order, weights in enumerate(stage.layer_local):
        kept = keep_last and order == len(stage.layer_local) - 1
        experts = tuple(weight for weight in weights if apart and weight.split == "expert")
        block = tuple(weight for weight in weights if weight not in experts)
        for key in ((block, kept, False), (experts, kept, True)):
            if key[0]:
                counts[key] = counts.get(key, 0) + 1
    for (weights, kept, expert), count in counts.items():
        name = "expert layer parameters" if expert else "layer parameters"
        yield Unit(name, weights, count, regathered=not kept, expert=expert)


def _parts(stage: Stage, *names: str) -> tuple[Weight, ...]:
    return tuple(weight for weight in stage.ends_local if weight.part in names)


def blocks_and_root(stage: Stage) -> Iterator[Unit]:
    """Every layer a unit; the root holds embedding, norm and output layer and is not gathered again in backward."""
    yield from _layer_units(stage, keep_last=False)
    yield Unit("root parameters", stage.ends_local, regathered=False)


def kept_last_block_and_root(stage: Stage) -> Iterator[Unit]:
    """The same, and the last layer is kept as well (torchtitan v0.1 and scripts written after it)."""
    yield from _layer_units(stage, keep_last=True)
    yield Unit("root parameters", stage.ends_local, regathered=False)


def embedding_blocks_output(stage: Stage) -> Iterator[Unit]:
    """Embedding, layers, and norm with output layer; the last is kept (torchtitan v0.2)."""
    yield Unit("embedding parameters", _parts(stage, "embedding"))
    yield from _layer_units(stage, keep_last=False)
    yield Unit("output parameters", _parts(stage, "norm", "output", "mtp"), regathered=False)


def embedding_blocks_chunked_output(stage: Stage) -> Iterator[Unit]:
    """The same with a chunked loss: the output unit is gathered for forward, loss and backward (torchtitan v0.3).

    The output layer's gradient leaves after the loss, the norm's at the end.
    """
    yield Unit("embedding parameters", _parts(stage, "embedding"))
    yield from _layer_units(stage, keep_last=False)
    output, rest = _parts(stage, "output"), _parts(stage, "norm", "mtp")
    yield Unit("output parameters", (*rest, *output), gathers_forward=2, scatters=(output, rest))


@dataclass(frozen=True)
class ShardedUnits:
    """FSDP2 (`fully_shard`): units of modules, each gathered and scattered by itself, in every microbatch.

    Stage 0 is DDP, stage 1 an optimizer sharded by hand (one reduce-scatter, one all-gather), stages 2 and 3
    `fully_shard` without and with reshard_after_forward. Dimension 0 of each tensor is padded to the sharding ranks.

    Attributes:
        plan: how the model is cut into units.
        reduce_once: gradients are scattered in the last microbatch only (accelerate's no_sync).
    """

    plan: UnitPlan
    reduce_once: bool = False

    def __call__(self, stage: Stage) -> Iterator[Flow]:
        """The stage's units, or its gradients as a whole."""
        if stage.config.zero_stage < 2:
            yield from _whole(stage)
            return
        for unit in self.plan(stage):
            if elements(unit.weights):
                copies = EXPERT if unit.expert else DENSE
                yield from self._gathers(stage, unit, copies)
                yield from self._scatters(stage, unit, copies)

    def _counts(self, stage: Stage, unit: Unit) -> tuple[int, int, int]:
        """Gathers forward and backward, and scatters, of all units of this content."""
        config = stage.config
        drop = config.zero_stage == 3 and config.reshard_after_forward is not False
        pipelined = config.pp > 1
        counts = fsdp_counts(drop, stage.runs, root=not unit.regathered, pipelined=pipelined)
        forward = counts.gather_forward * (1 if pipelined else unit.gathers_forward)
        scatters = 1 if self.reduce_once else counts.scatter_backward
        return unit.count * forward, unit.count * counts.gather_backward, unit.count * scatters

    def _gathers(self, stage: Stage, unit: Unit, copies: Copies) -> Iterator[Flow]:
        params, _ = dtypes(stage)
        size = _padded(unit.weights, copies.shard_ranks(stage))
        forward, backward, _ = self._counts(stage, unit)
        fewer = not isinstance(stage.config.reshard_after_forward, bool)
        for phase, group, calls in (
            ("forward", copies.shard, forward),
            ("backward", "reshard" if fewer else copies.shard, backward),
        ):
            yield dp_flow(
                unit.name,
                "all_gather",
                phase,
                group,
                size,
                params,
                source=_FSDP2,
                calls=calls,
                formula="units x m (1 with a pipeline); P of the unit",
            )

    def _scatters(self, stage: Stage, unit: Unit, copies: Copies) -> Iterator[Flow]:
        _, grads = dtypes(stage)
        ranks = copies.shard_ranks(stage)
        _, _, calls = self._counts(stage, unit)
        name = unit.name.replace("parameters", "gradients")
        for piece in unit.scatters or (unit.weights,):
            size = _padded(piece, ranks)
            formula = "units x m (1 with a pipeline); P of the unit"
            yield dp_flow(
                name,
                "reduce_scatter",
                "backward",
                copies.shard,
                size,
                grads,
                source=_FSDP2,
                calls=calls,
                formula=formula,
            )
            formula = "as the reduce-scatter; P/shard"
            shard = size // ranks
            yield dp_flow(
                name,
                "all_reduce",
                "backward",
                copies.replicate,
                shard,
                grads,
                source=_FSDP2,
                calls=calls,
                formula=formula,
            )


def _padded(weights: tuple[Weight, ...], ranks: int) -> int:
    return sum(weight.padded(ranks) for weight in weights)


def _whole(stage: Stage) -> Iterator[Flow]:
    params, grads = dtypes(stage)
    for copies, weights in held(stage):
        size, name = elements(weights), copies.name
        if stage.config.zero_stage == 0:
            yield dp_flow(
                f"{name}gradients", "all_reduce", "backward", copies.whole, size, grads, source=_DDP, bucketed=True
            )
            continue
        for part, primitive, phase, dtype in (
            ("gradients", "reduce_scatter", "backward", grads),
            ("parameters", "all_gather", "optimizer", params),
        ):
            yield dp_flow(name + part, primitive, phase, copies.shard, size, dtype, source=_ZERO1, bucketed=True)

"""Calls that carry no payload worth counting: batches, norms, losses, flags. They show which groups exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ledger.rules.flow import Flow
from ledger.stages import Stage


@dataclass(frozen=True)
class Small:
    """One kind of small call.

    Attributes:
        calls, elements: of a stage; calls may be 0.
    """

    part: str
    primitive: str
    phase: str
    group: str
    dtype: str
    calls: Callable[[Stage], int]
    elements: Callable[[Stage], int]
    formula: str
    source: str

    def __call__(self, stage: Stage) -> Iterator[Flow]:
        """The call, unless the stage makes none."""
        calls = self.calls(stage)
        if calls:
            yield Flow(
                dim="control",
                part=self.part,
                primitive=self.primitive,
                phase=self.phase,
                group=self.group,
                calls=calls,
                elements=self.elements(stage),
                dtype=self.dtype,
                overlap="no",
                formula=self.formula,
                source=self.source,
                noise=True,
            )


def _one(_stage: Stage) -> int:
    return 1


def _two(_stage: Stage) -> int:
    return 2


def _batch(stage: Stage) -> int:
    return stage.config.seq_len * stage.config.micro_batch_size


def _on_loss(stage: Stage) -> int:
    return stage.runs if stage.heads else 0


def _sharded(stage: Stage) -> int:
    return int(stage.config.zero_stage > 0)


def _replicated(stage: Stage) -> int:
    return int(stage.config.zero_stage == 0)


def _tensors(stage: Stage) -> int:
    return sum(weight.copies for weight in stage.dense_weights)


_BATCH = "megatron/training/utils.py, get_batch_on_this_tp_rank"
_CLIP = "megatron/core/optimizer/clip_grads.py"
_TT = "torchtitan/distributed/utils.py"

MEGATRON = (
    Small(
        "batch, int64", "broadcast", "forward", "tp", "int64",
        lambda stage: stage.runs * (3 if stage.config.pp == 1 else 2 * (stage.embeddings > 0) + (stage.heads > 0)),
        _batch, "m x (tokens, positions; labels); b·s", _BATCH,
    ),
    Small(
        "batch, loss mask", "broadcast", "forward", "tp", "float32", _on_loss, _batch, "m; b·s", _BATCH,
    ),
    Small("loss", "all_reduce", "forward", "dp", "float32", _on_loss, _one, "m; 1", "megatron loss_func"),
    # The distributed optimizer holds a part on every rank, plain replicas need only the model's own parts.
    Small("gradient norm", "all_reduce", "optimizer", "world", "float32", _sharded, _one, "1; 1", _CLIP),
    Small("gradient norm", "all_reduce", "optimizer", "model", "float32", _replicated, _one, "1; 1", _CLIP),
    Small(
        "expert load", "all_reduce", "forward", "tp_cp", "int64",
        lambda stage: int(stage.moe_layers) * stage.runs,
        lambda stage: stage.model.moe.experts if stage.model.moe else 0,
        "mixture layers x m; E", "megatron/core/transformer/moe/router.py",
    ),
)  # fmt: skip

TORCHTITAN = (
    Small("gradient norms", "all_reduce", "optimizer", "dp_shard", "float32", _one, _tensors, "1; tensors", _TT),
    Small("gradient norms", "all_reduce", "optimizer", "tp", "float32", _one, _tensors, "1; tensors", _TT),
    Small("gradient norm", "all_reduce", "optimizer", "pp", "float32", _one, _one, "1; 1", _TT),
    Small("valid tokens", "all_reduce", "forward", "dp_plain", "int64", _one, _one, "1; 1", "torchtitan/train.py"),
    Small("tokens seen", "all_reduce", "optimizer", "dp", "int64", _one, _one, "1; 1", "torchtitan/train.py"),
    Small("loss, sum and max", "all_reduce", "optimizer", "dp", "float32", _two, _one, "2; 1", "torchtitan/train.py"),
)

DEEPSPEED = (
    Small(
        "overflow", "all_reduce", "optimizer", "dp", "uint8",
        lambda stage: int(stage.config.zero_stage in (1, 2) and stage.config.param_dtype != "float32"),
        _one, "1; 1", "deepspeed/runtime/zero/stage_1_and_2.py",
    ),
    Small(
        "gradient norm", "all_reduce", "optimizer", "dp", "float64", lambda stage: int(stage.config.zero_stage == 3),
        _one, "1; 1", "deepspeed/runtime/zero/stage3.py",
    ),
    Small(
        "gradient norm", "all_reduce", "optimizer", "dp", "float32",
        lambda stage: int(stage.config.zero_stage in (1, 2)),
        _one, "1; 1", "deepspeed/runtime/zero/stage_1_and_2.py",
    ),
    Small(
        "loss", "broadcast", "optimizer", "pp", "float32", lambda stage: int(stage.config.pp > 1),
        lambda _: 2, "1; 2", "deepspeed/runtime/pipe/engine.py",
    ),
)  # fmt: skip

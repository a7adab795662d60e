"""Bytes a rank holds: parameters, gradients, optimizer states, activations."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from ledger.config import ParallelConfig
from ledger.dtypes import dtype_bytes
from ledger.errors import LedgerError
from ledger.model import ModelSpec
from ledger.pipeline import microbatches_in_flight
from ledger.stages import Stage

OPTIMIZER_STATE_BYTES = MappingProxyType({"adam": 8, "momentum": 4, "sgd": 0})
"""Bytes per parameter of the optimizer's own float32 states; a float32 master copy comes on top in mixed precision."""

PRECISIONS = MappingProxyType({"bf16": ("bfloat16", True), "fp32": ("float32", False)})
"""Type of parameters, and whether a float32 master copy is kept beside them."""


@dataclass(frozen=True)
class StateBytes:
    """What stays in memory from step to step (gradients included), in bytes."""

    params_bytes: int
    grads_bytes: int
    optim_bytes: int

    @property
    def total_bytes(self) -> int:
        """All three."""
        return self.params_bytes + self.grads_bytes + self.optim_bytes


def state_bytes(
    parameters: int, precision: str = "bf16", optimizer: str = "adam", grad_dtype: str | None = None
) -> StateBytes:
    """State of ``parameters`` parameters held whole: 16 bytes each for bf16 or fp32 with Adam.

    bf16: 2 + 2 + (4 master + 4 + 4); fp32: 4 + 4 + (4 + 4). ``grad_dtype`` changes the middle term (Megatron keeps
    gradients in float32: 18 bytes). Source: Rajbhandari et al. 2020, section 3.1.

    Raises:
        LedgerError: unknown precision, optimizer or dtype.
    """
    per_param, per_grad, per_state = _bytes_per_parameter(precision, optimizer, grad_dtype)
    return StateBytes(parameters * per_param, parameters * per_grad, parameters * per_state)


def _bytes_per_parameter(precision: str, optimizer: str, grad_dtype: str | None) -> tuple[int, int, int]:
    if precision not in PRECISIONS:
        raise LedgerError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}", key="precision")
    if optimizer not in OPTIMIZER_STATE_BYTES:
        raise LedgerError(f"optimizer {optimizer!r} is not one of {', '.join(OPTIMIZER_STATE_BYTES)}", key="optimizer")
    dtype, master = PRECISIONS[precision]
    size = dtype_bytes(dtype)
    return size, dtype_bytes(grad_dtype or dtype), OPTIMIZER_STATE_BYTES[optimizer] + (4 if master else 0)


def per_gpu_state(model: ModelSpec, config: ParallelConfig, whole: StateBytes) -> StateBytes:
    """A rank's share of ``whole`` in closed form: tp and pp divide every byte, ep the experts', ZeRO what it shards.

    Experts are sharded over their own copies, dp·cp/ep ranks. Stages count as equal.
    """
    experts = Fraction(model.expert_parameters, model.parameters)
    model_ranks = config.tp * config.pp
    shard = config.shard_ranks

    def split(total: int, over: int) -> int:
        dense = total * (1 - experts) / model_ranks / over
        expert = total * experts / (model_ranks * config.ep) / max(Fraction(over, config.ep), Fraction(1))
        return int(dense + expert)

    return StateBytes(
        params_bytes=split(whole.params_bytes, shard if config.zero_stage >= 3 else 1),
        grads_bytes=split(whole.grads_bytes, shard if config.zero_stage >= 2 else 1),
        optim_bytes=split(whole.optim_bytes, shard if config.zero_stage >= 1 else 1),
    )


def stage_state(
    stage: Stage, precision: str = "bf16", optimizer: str = "adam", grad_dtype: str | None = None
) -> StateBytes:
    """What a rank of this very stage holds, weight by weight (`ledger.stages.pipeline_stage`).

    Raises:
        LedgerError: unknown precision, optimizer or dtype.
    """
    config = stage.config
    per_param, per_grad, per_state = _bytes_per_parameter(precision, optimizer, grad_dtype)

    def held(per_element: int, sharded: bool) -> int:
        dense = stage.dense_parameters * per_element
        expert = stage.expert_parameters * per_element
        if not sharded:
            return dense + expert
        return -(-dense // config.shard_ranks) + -(-expert // config.expert_shard_ranks)

    return StateBytes(
        params_bytes=held(per_param, config.zero_stage >= 3),
        grads_bytes=held(per_grad, config.zero_stage >= 2),
        optim_bytes=held(per_state, config.zero_stage >= 1),
    )


def activation_bytes_per_layer(model: ModelSpec, config: ParallelConfig, *, flash: bool = True) -> int:
    """Activations one layer keeps for backward, for one microbatch on one rank.

    sbh(34 + 5as/h) in two-byte types without parallelism. Tensor parallelism alone leaves 10sbh whole,
    sbh(10 + 24/t + 5as/(ht)); sequence parallelism divides everything by t; context parallelism divides s. The 5as/h
    term is the score matrix: FlashAttention never stores it, and selective recomputation drops it. Full recomputation
    keeps the layer's input only, 2sbh (2sbh/t with sequence parallelism).
    Source: Korthikanti et al. 2022, equations 1, 2, 4 and section 5.
    """
    t = config.tp
    sbh = config.tokens * model.hidden
    if config.recompute == "full":
        return 2 * sbh // (t if config.sp else 1)
    split = Fraction(34, t) if config.sp else 10 + Fraction(24, t)
    total = sbh * split
    if not flash and config.recompute == "none":
        # Queries of this rank's share against keys of the whole sequence.
        total += Fraction(5 * model.heads * config.seq_len * config.tokens, t)
    return int(total)


def activation_bytes(
    model: ModelSpec,
    config: ParallelConfig,
    stage: int = 0,
    *,
    layers: Fraction | int | None = None,
    flash: bool = True,
) -> int:
    """Activations of transformer layers that pipeline rank ``stage`` holds at its peak.

    Layers of the stage (L/p unless given) times microbatches in flight under the schedule.

    Raises:
        LedgerError: no such stage.
    """
    held = Fraction(model.layers, config.pp) if layers is None else Fraction(layers)
    flying = microbatches_in_flight(config.schedule, config.pp, config.microbatches, config.virtual_stages, stage)
    if config.pp == 1:
        flying = Fraction(1)
    return int(activation_bytes_per_layer(model, config, flash=flash) * held * flying)

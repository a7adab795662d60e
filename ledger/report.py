"""`prediction`: everything the ledger says about one layout, ready to be printed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ledger.config import ParallelConfig
from ledger.memory import (
    StateBytes,
    activation_bytes,
    activation_bytes_per_layer,
    per_gpu_state,
    stage_state,
    state_bytes,
)
from ledger.model import ModelSpec
from ledger.pipeline import Bubble, bubble, microbatches_in_flight
from ledger.profiles import Profile
from ledger.profiles import profile as named
from ledger.rows import CommRow, merge_stages, stage_rows
from ledger.stages import Stage


@dataclass(frozen=True)
class StageMemory:
    """What a rank of one kind of stage holds.

    Attributes:
        stage: first | middle | last | all.
        layers: transformer layers; a fraction where stages are averaged.
        parameters: held by the rank before data-parallel sharding.
        state: parameters, gradients and optimizer states after it.
        activation_bytes_per_layer: of one microbatch, FlashAttention assumed.
        microbatches_in_flight: whose activations are held at once.
        activation_bytes: layers x microbatches in flight.
    """

    stage: str
    layers: float
    parameters: int
    state: StateBytes
    activation_bytes_per_layer: int
    microbatches_in_flight: float
    activation_bytes: int


@dataclass(frozen=True)
class DimensionTotal:
    """What a rank of one kind of stage sends per step in one dimension over one kind of link, noise not counted."""

    stage: str
    dim: str
    link: str
    sent_bytes: int


@dataclass(frozen=True)
class Prediction:
    """The ledger of one model in one layout under one profile.

    Attributes:
        config: with the profile's defaults filled in.
        profile: its name.
        parameters, active_parameters: of the whole model; of one token's path.
        memory: per kind of stage.
        bubble: idle share in both conventions.
        rows: payload, by dimension; ``stage`` says which ranks a row holds for.
        noise: small calls, kept apart.
        totals: sums of ``rows`` per kind of stage, dimension and link.
    """

    model: ModelSpec
    config: ParallelConfig
    profile: str
    parameters: int
    active_parameters: int
    memory: tuple[StageMemory, ...]
    bubble: Bubble
    rows: tuple[CommRow, ...]
    noise: tuple[CommRow, ...]
    totals: tuple[DimensionTotal, ...]

    def sent_bytes(self, stage: str | None = None, *, dim: str | None = None, link: str | None = None) -> int:
        """Bytes a rank of ``stage`` sends per step; of the busiest kind of stage where none is named."""
        if stage is None:
            return max(self.sent_bytes(each.stage, dim=dim, link=link) for each in self.memory)
        return sum(
            total.sent_bytes
            for total in self.totals
            if total.stage == stage and dim in (None, total.dim) and link in (None, total.link)
        )


def prediction(
    model: ModelSpec, config: ParallelConfig, profile: str | Profile = "textbook", *, optimizer: str = "adam"
) -> Prediction:
    """The whole ledger of ``model`` in the layout ``config``, as ``profile`` communicates.

    Raises:
        LedgerError: unknown profile or optimizer, or a model that does not fit the layout.
    """
    chosen = named(profile) if isinstance(profile, str) else profile
    resolved = chosen.resolve(config)
    stages = chosen.stages(model, resolved)
    per_stage = [stage_rows(stage, chosen.flows(stage)) for stage in stages]
    merged = merge_stages(per_stage, resolved)
    rows = tuple(row for row in merged if not row.noise)
    shown = _one_of_each_kind(stages)
    return Prediction(
        model=model,
        config=resolved,
        profile=chosen.name,
        parameters=model.parameters,
        active_parameters=model.active_parameters,
        memory=tuple(_memory(stage, chosen, optimizer) for stage in shown),
        bubble=bubble(resolved.schedule, resolved.pp, resolved.microbatches, resolved.virtual_stages),
        rows=rows,
        noise=tuple(row for row in merged if row.noise),
        totals=_totals(rows, [stage.kind for stage in shown]),
    )


def _one_of_each_kind(stages: Iterable[Stage]) -> list[Stage]:
    """The first stage of each kind, or of the middle ones the one with most layers."""
    kinds: dict[str, Stage] = {}
    for stage in stages:
        held = kinds.get(stage.kind)
        if held is None or stage.layers > held.layers:
            kinds[stage.kind] = stage
    return list(kinds.values())


def _memory(stage: Stage, profile: Profile, optimizer: str) -> StageMemory:
    model, config = stage.model, stage.config
    rank = stage.index or 0
    precision = "fp32" if config.param_dtype == "float32" else profile.precision
    grads = config.grad_dtype if precision == "bf16" else None
    if stage.index is None:
        state = per_gpu_state(model, config, state_bytes(model.parameters, precision, optimizer, grads))
        parameters = model.parameters // (config.tp * config.pp)
    else:
        state = stage_state(stage, precision, optimizer, grads)
        parameters = stage.dense_parameters + stage.expert_parameters
    if not profile.training:
        return StageMemory(stage.kind, float(stage.layers), parameters, StateBytes(state.params_bytes, 0, 0), 0, 0, 0)
    flying = microbatches_in_flight(config.schedule, config.pp, config.microbatches, config.virtual_stages, rank)
    return StageMemory(
        stage=stage.kind,
        layers=float(stage.layers),
        parameters=parameters,
        state=state,
        activation_bytes_per_layer=activation_bytes_per_layer(model, config),
        microbatches_in_flight=float(flying),
        activation_bytes=activation_bytes(model, config, rank, layers=stage.layers),
    )


def _totals(rows: Iterable[CommRow], kinds: list[str]) -> tuple[DimensionTotal, ...]:
    sums: dict[tuple[str, str, str], int] = {}
    for row in rows:
        for kind in kinds if row.stage == "all" else [row.stage]:
            key = (kind, row.dim, row.link)
            sums[key] = sums.get(key, 0) + row.sent_bytes_per_step
    return tuple(DimensionTotal(kind, dim, link, sent) for (kind, dim, link), sent in sums.items())

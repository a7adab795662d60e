"""Pipeline parallelism: activations forward, gradients back, and the embedding both ends share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ledger.payloads import pp_boundary_elements, sends_per_rank
from ledger.rules.flow import Flow
from ledger.stages import Stage


def _boundary(stage: Stage) -> int:
    config = stage.config
    return pp_boundary_elements(stage.tokens, stage.model.hidden, config.tp, sp=config.sp)


@dataclass(frozen=True)
class StageBoundary:
    """Messages between stages, counted from where the chunks sit."""

    source: str
    overlap: str
    interleaved_overlap: str
    backward: bool = True
    tensors: int = 1

    def __call__(self, stage: Stage) -> Iterator[Flow]:
        """The stage's sends."""
        config = stage.config
        if stage.index is None or config.pp == 1:
            return
        sends = sends_per_rank(config.schedule, config.pp, config.virtual_stages, config.microbatches, stage.index)
        overlap = self.overlap if config.virtual_stages == 1 else self.interleaved_overlap
        phases = (("forward", sends.forward), ("backward", sends.backward if self.backward else 0))
        for phase, count in phases:
            if count:
                yield Flow(
                    dim="pp",
                    part="stage boundary",
                    primitive="send_recv",
                    phase=phase,
                    group="pp",
                    calls=count * self.tensors,
                    elements=_boundary(stage),
                    dtype=config.act_dtype,
                    overlap=overlap,
                    formula="m per hand-over to another rank; A/tp with SP, else A",
                    source=self.source,
                )


def every_rank_both_ways(stage: Stage) -> Iterator[Flow]:
    """Closed form of the textbook: 2·m·v messages on every rank, ends included."""
    config = stage.config
    if config.pp == 1:
        return
    for phase in ("forward", "backward"):
        yield Flow(
            dim="pp",
            part="stage boundary",
            primitive="send_recv",
            phase=phase,
            group="pp",
            calls=config.microbatches * config.virtual_stages,
            elements=_boundary(stage),
            dtype=config.act_dtype,
            overlap="yes",
            formula="m·v each way; A/tp with SP, else A",
            source="Narayanan et al. 2021, section 2.2.2",
        )


@dataclass(frozen=True)
class EmbeddingTie:
    """First and last stage hold one embedding each and add up its gradients, once per step."""

    source: str

    def __call__(self, stage: Stage) -> Iterator[Flow]:
        """The shared embedding's all-reduce, on the two ends only."""
        model, config = stage.model, stage.config
        shared = model.tied or model.mtp_layers > 0
        if shared and config.pp > 1 and stage.embedding_copies == 1 and stage.kind in ("first", "last"):
            yield Flow(
                dim="pp",
                part="embedding tie",
                primitive="all_reduce",
                phase="optimizer",
                group="embedding",
                calls=1,
                elements=-(-model.vocab // config.tp) * model.hidden,
                dtype=config.grad_dtype or "float32",
                overlap="no",
                formula="1; V·h/tp",
                source=self.source,
            )


def residual_and_hidden(stage: Stage) -> Iterator[Flow]:
    """Inference: hidden state and residual, each cut over the tensor-parallel group and gathered on arrival.

    Source: vllm/distributed/parallel_state.py, send_tensor_dict and recv_tensor_dict.
    """
    config = stage.config
    if stage.index is None or config.pp == 1:
        return
    source = "vllm/distributed/parallel_state.py, send_tensor_dict"
    if stage.index < config.pp - 1:
        yield Flow(
            dim="pp",
            part="hidden and residual",
            primitive="send_recv",
            phase="forward",
            group="pp",
            calls=2 * config.microbatches,
            elements=stage.boundary // config.tp,
            dtype=config.act_dtype,
            overlap="partial",
            formula="2·m; A/tp",
            source=source,
        )
    if stage.index > 0:
        yield Flow(
            dim="tp",
            part="hidden and residual",
            primitive="all_gather",
            phase="forward",
            group="tp",
            calls=2 * config.microbatches,
            elements=stage.boundary,
            dtype=config.act_dtype,
            overlap="no",
            formula="2·m; A",
            source=source,
        )

"""What one pipeline rank holds and runs: its layers, embedding, output layer, and how often each sees a microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from ledger.config import ParallelConfig
from ledger.errors import LedgerError
from ledger.model import ModelSpec
from ledger.pipeline import chunks_of_rank
from ledger.weights import Weight, elements, embedding_weights, layer_weights, mtp_weights, output_weights

Number = int | Fraction


@dataclass(frozen=True)
class Stage:
    """One pipeline rank (``index``), or the average over all of them (``index`` null: layers may be fractions).

    Attributes:
        layers: transformer layers held, those of MTP modules included.
        moe_layers: how many of them are mixtures of experts.
        layer_ids: which ones; empty for the average.
        runs: microbatches each layer sees in a step.
        embeddings: passes through an embedding per microbatch.
        heads: passes through an output layer (and loss) per microbatch.
        mtp_modules: multi-token-prediction modules held.
        embedding_copies, output_copies: how often those weights are held.
    """

    model: ModelSpec
    config: ParallelConfig
    index: int | None
    layers: Number
    moe_layers: Number
    layer_ids: tuple[int, ...]
    runs: int
    embeddings: int
    heads: int
    mtp_modules: int
    embedding_copies: int
    output_copies: int

    @property
    def kind(self) -> str:
        """``first``, ``middle`` or ``last``; ``all`` for the average or the only stage."""
        if self.index is None or self.config.pp == 1:
            return "all"
        if self.index == 0:
            return "first"
        return "last" if self.index == self.config.pp - 1 else "middle"

    @property
    def dense_layers(self) -> Number:
        """Layers that are not mixtures of experts."""
        return self.layers - self.moe_layers

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch on this rank, whole sequence of its context-parallel share."""
        return self.config.tokens

    @property
    def local_tokens(self) -> int:
        """The same, where sequence parallelism has split them."""
        return self.tokens // self.config.tp if self.config.sp else self.tokens

    @property
    def boundary(self) -> int:
        """A: elements of a layer-boundary activation."""
        return self.tokens * self.model.hidden

    @cached_property
    def layer_local(self) -> tuple[tuple[Weight, ...], ...]:
        """Per layer held, the trained weights on this rank, experts included."""
        return tuple(self._local(layer_weights(self.model, layer)) for layer in self.layer_ids)

    @cached_property
    def ends_local(self) -> tuple[Weight, ...]:
        """Embedding, final norm, output layer and MTP projections on this rank."""
        held = list(embedding_weights(self.model)) * self.embedding_copies
        held += list(output_weights(self.model)) * self.output_copies
        layer = len(layer_weights(self.model, self.model.layers))
        held += list(mtp_weights(self.model)[:-layer]) * self.mtp_modules
        return self._local(tuple(held))

    def _local(self, weights: Sequence[Weight]) -> tuple[Weight, ...]:
        config = self.config
        trained = (weight for weight in weights if weight.part != "router_bias")
        return tuple(weight.local(config.tp, etp=config.etp, ep=config.ep) for weight in trained)

    @cached_property
    def dense_weights(self) -> tuple[Weight, ...]:
        """Everything on this rank but routed experts."""
        layers = tuple(weight for layer in self.layer_local for weight in layer if weight.split != "expert")
        return (*layers, *self.ends_local)

    @cached_property
    def expert_weights(self) -> tuple[Weight, ...]:
        """Routed experts on this rank."""
        return tuple(weight for layer in self.layer_local for weight in layer if weight.split == "expert")

    @property
    def dense_parameters(self) -> int:
        """Elements of `dense_weights`."""
        return elements(self.dense_weights)

    @property
    def expert_parameters(self) -> int:
        """Elements of `expert_weights`."""
        return elements(self.expert_weights)


def average_stage(model: ModelSpec, config: ParallelConfig) -> Stage:
    """The stage of closed forms that divide layers by pp and know no ends: L/p layers and nothing else."""
    return Stage(
        model=model,
        config=config,
        index=None,
        layers=Fraction(model.layers, config.pp),
        moe_layers=Fraction(model.moe_layers, config.pp),
        layer_ids=(),
        runs=config.microbatches,
        embeddings=0,
        heads=0,
        mtp_modules=0,
        embedding_copies=0,
        output_copies=0,
    )


def pipeline_stage(model: ModelSpec, config: ParallelConfig, index: int, *, weighted: bool = False) -> Stage:
    """Pipeline rank ``index`` as it is: its own layers, the embedding on the first chunk, the output on the last.

    Layers go evenly to the p·v chunks. Where they do not divide, or ``weighted`` asks for it, embedding and output
    layer count as a layer each and the remainder goes to the first chunks (torchtitan
    distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part).

    Raises:
        LedgerError: more chunks than layers, ``layers_per_stage`` that does not add up, or no such stage.
    """
    if not 0 <= index < config.pp:
        raise LedgerError(f"stage {index} is outside a pipeline of {config.pp}", key="stage")
    schedule, p, v = config.schedule, config.pp, config.virtual_stages
    bidirectional = schedule == "dualpipe" and p > 1
    chunks = chunk_layers(model, config, weighted=weighted)
    held = (index, p - 1 - index) if bidirectional else chunks_of_rank(schedule, p, v, index)
    ids = tuple(layer for chunk in held for layer in chunks[chunk])
    firsts, lasts = held.count(0), held.count(len(chunks) - 1)
    mtp = model.mtp_layers * lasts
    ids += tuple(model.layers + module for module in range(model.mtp_layers)) * lasts
    on_last_only = mtp and not firsts
    share = 2 if bidirectional else 1
    if config.microbatches % share:
        raise LedgerError("dualpipe needs an even number of microbatches", key="microbatches")
    return Stage(
        model=model,
        config=config,
        index=index,
        layers=len(ids),
        moe_layers=sum(model.is_moe_layer(layer) for layer in ids),
        layer_ids=ids,
        runs=config.microbatches // share,
        embeddings=firsts + mtp,
        heads=lasts + mtp,
        mtp_modules=mtp,
        # A tied or MTP model keeps another copy of the embedding on the last stage.
        embedding_copies=firsts + (lasts if on_last_only or (model.tied and lasts and not firsts) else 0),
        output_copies=lasts,
    )


def chunk_layers(model: ModelSpec, config: ParallelConfig, *, weighted: bool = False) -> tuple[tuple[int, ...], ...]:
    """Layer numbers of every chunk (global stage), in forward order.

    Raises:
        LedgerError: more chunks than layers, or ``layers_per_stage`` that does not add up.
    """
    p, v = config.pp, config.virtual_stages
    if config.layers_per_stage is not None:
        counts = _declared_chunks(model, config)
    elif p * v == 1:
        counts = [model.layers]
    else:
        counts = _spread(model.layers, p * v, weighted=weighted)
    starts = [sum(counts[:chunk]) for chunk in range(len(counts))]
    return tuple(tuple(range(start, start + count)) for start, count in zip(starts, counts, strict=True))


def _spread(layers: int, chunks: int, *, weighted: bool) -> list[int]:
    if chunks > layers:
        raise LedgerError(f"{layers} layers cannot fill {chunks} pipeline chunks", key="pp")
    if layers % chunks == 0 and not weighted:
        return [layers // chunks] * chunks
    each, rest = divmod(layers + 2, chunks)
    counts = [each + (chunk < rest) for chunk in range(chunks)]
    counts[0] -= 1
    counts[-1] -= 1
    return counts


def _declared_chunks(model: ModelSpec, config: ParallelConfig) -> list[int]:
    declared, v = config.layers_per_stage or (), config.virtual_stages
    if sum(declared) != model.layers:
        raise LedgerError(
            f"layers_per_stage adds up to {sum(declared)}, the model has {model.layers}", key="layers_per_stage"
        )
    counts = [0] * (config.pp * v)
    for index, layers in enumerate(declared):
        held = chunks_of_rank(config.schedule, config.pp, v, index)
        for order, chunk in enumerate(sorted(held)):
            counts[chunk] = layers // v + (order < layers % v)
    return counts


def stages(model: ModelSpec, config: ParallelConfig, *, weighted: bool = False) -> tuple[Stage, ...]:
    """Every pipeline rank."""
    return tuple(pipeline_stage(model, config, index, weighted=weighted) for index in range(config.pp))

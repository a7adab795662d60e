"""Tensor parallelism: layer boundaries, vocabulary, loss, and the gradients of weights every rank holds whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ledger.laws import Calls, tp_law
from ledger.payloads import tp_calls_per_layer, tp_calls_per_sublayer, vocab_calls
from ledger.rules.flow import Flow
from ledger.stages import Number, Stage
from ledger.weights import elements


@dataclass(frozen=True)
class LayerActivations:
    """Collectives at the sublayer boundaries of every layer.

    Attributes:
        law: the profile whose counts apply (`ledger.payloads.TP_LAWS`).
        forward_overlap, backward_overlap: with sequence parallelism.
        reduce_forward_overlap, reduce_backward_overlap: without.
        gather_dtype: null is the activations' own type.
        mixture: how a mixture-of-experts block counts: ``sublayer`` like a plain one, ``shared`` only if it has shared
            experts, ``none`` not at all (its traffic belongs to the expert rules).
        latent: gather the low-rank queries, keys and values of latent attention instead of its input.
    """

    law: str
    forward_overlap: str = "no"
    backward_overlap: str = "partial"
    reduce_forward_overlap: str = "no"
    reduce_backward_overlap: str = "partial"
    gather_dtype: str | None = None
    mixture: str = "shared"
    latent: bool = False

    def __call__(self, stage: Stage) -> Iterator[Flow]:
        """The stage's boundary collectives."""
        config, model = stage.config, stage.model
        sp, columns = config.sp, 5 if model.gated else 4
        latent = self.latent and sp and model.mla is not None
        whole = tp_calls_per_layer(self.law, sp, config.recompute, column_linears=columns)
        attention = tp_calls_per_sublayer(self.law, "attention", sp, config.recompute, column_linears=3)
        block = tp_calls_per_sublayer(self.law, "mlp", sp, config.recompute, column_linears=columns - 3)
        plain = {} if latent else attention
        yield from self._flows(stage, stage.dense_layers, block if latent else whole, "layer activations")
        if stage.moe_layers:
            shared = model.moe is not None and model.moe.shared_ffn > 0
            counted = self.mixture == "sublayer" or (self.mixture == "shared" and shared)
            mixed = _merge(plain, block) if counted else plain
            yield from self._flows(stage, stage.moe_layers, mixed, "layer activations (mixture)")
        if latent:
            yield from self._latent(stage)

    def _flows(self, stage: Stage, layers: Number, calls: Mapping[str, Calls], part: str) -> Iterator[Flow]:
        for primitive, count in calls.items():
            for phase, per_layer in (("forward", count.forward), ("backward", count.in_backward)):
                if per_layer and layers:
                    yield self._flow(stage, primitive, phase, layers * per_layer, stage.boundary, part, str(per_layer))

    def _flow(
        self, stage: Stage, primitive: str, phase: str, per_microbatch: Number, size: Number, part: str, formula: str
    ) -> Flow:
        reduce = primitive == "all_reduce"
        forward = self.reduce_forward_overlap if reduce else self.forward_overlap
        backward = self.reduce_backward_overlap if reduce else self.backward_overlap
        dtype = self.gather_dtype if primitive == "all_gather" and self.gather_dtype else stage.config.act_dtype
        return Flow(
            dim="tp",
            part=part,
            primitive=primitive,
            phase=phase,
            group="tp",
            calls=per_microbatch * stage.runs,
            elements=size,
            dtype=dtype,
            overlap=forward if phase == "forward" else backward,
            formula=f"{formula} per layer x layers x m; A = tok·h",
            source=tp_law(self.law).source,
        )

    def _latent(self, stage: Stage) -> Iterator[Flow]:
        """Latent attention under sequence parallelism gathers ranks of q and kv and the rotary key, not the input.

        Source: megatron/core/transformer/multi_latent_attention.py.
        """
        mla = stage.model.mla
        assert mla is not None
        again = 1 if stage.config.recompute == "full" else 0
        query = stage.model.hidden if mla.q_rank is None else mla.q_rank
        widths = (("q", query, 2), ("kv", mla.kv_rank, 2), ("k_rope", mla.rope_dim, 0))
        part = "latent attention"
        for name, width, backward_gathers in widths:
            size = stage.tokens * width
            backward = backward_gathers // 2 + again
            yield self._flow(stage, "all_gather", "forward", stage.layers, size, part, f"1 of tok·{name}")
            if backward:
                calls = stage.layers * backward
                yield self._flow(stage, "all_gather", "backward", calls, size, part, f"{backward} of tok·{name}")
            yield self._flow(stage, "reduce_scatter", "backward", stage.layers, size, part, f"1 of tok·{name}")
        boundary = stage.boundary
        yield self._flow(stage, "reduce_scatter", "forward", stage.layers, boundary, part, "1 of A")
        yield self._flow(stage, "all_gather", "backward", stage.layers, boundary, part, "1 of A")
        if again:
            yield self._flow(stage, "reduce_scatter", "backward", stage.layers, boundary, part, "1 of A repeated")


def _merge(first: Mapping[str, Calls], second: Mapping[str, Calls]) -> dict[str, Calls]:
    nothing = Calls(0, 0)
    names = dict.fromkeys([*first, *second])
    return {name: first.get(name, nothing) + second.get(name, nothing) for name in names}


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary-parallel embedding and output layer.

    ``regather`` and the counts follow `ledger.payloads.vocab_calls`.
    """

    law: str
    source: str
    overlap: str = "no"

    def __call__(self, stage: Stage) -> Iterator[Flow]:
        """The ends' collectives."""
        calls = vocab_calls(self.law, stage.config.sp)
        for part, passes in (("embedding", stage.embeddings), ("lm_head", stage.heads)):
            for primitive, count in calls[part].items():
                for phase, per_pass in (("forward", count.forward), ("backward", count.in_backward)):
                    if passes and per_pass:
                        yield Flow(
                            dim="tp",
                            part=part,
                            primitive=primitive,
                            phase=phase,
                            group="tp",
                            calls=passes * per_pass * stage.runs,
                            elements=stage.boundary,
                            dtype=stage.config.act_dtype,
                            overlap=self.overlap,
                            formula=f"{per_pass} x m; A = tok·h",
                            source=self.source,
                        )


@dataclass(frozen=True)
class CrossEntropy:
    """Loss over a split vocabulary: three all-reduces of one number per token (max, target logit, sum), in float32."""

    source: str

    def __call__(self, stage: Stage) -> Iterator[Flow]:
        """The loss stage's reductions."""
        if stage.heads:
            yield Flow(
                dim="tp",
                part="cross entropy",
                primitive="all_reduce",
                phase="forward",
                group="tp",
                calls=3 * stage.heads * stage.runs,
                elements=stage.tokens,
                dtype="float32",
                overlap="no",
                formula="3 x m; tok",
                source=self.source,
                bucketed=True,  # a chunked loss cuts the tokens into as many calls as chunks
            )


@dataclass(frozen=True)
class GatheredLogits:
    """Loss over whole logits: the vocabulary shards are gathered first."""

    source: str

    def __call__(self, stage: Stage) -> Iterator[Flow]:
        """The loss stage's all-gather."""
        if stage.heads:
            yield Flow(
                dim="tp",
                part="logits",
                primitive="all_gather",
                phase="forward",
                group="tp",
                calls=stage.heads * stage.runs,
                elements=stage.tokens * stage.model.vocab,
                dtype=stage.config.act_dtype,
                overlap="no",
                formula="1 x m; tok·V",
                source=self.source,
            )


def replicated_gradients_once(stage: Stage) -> Iterator[Flow]:
    """Megatron with sequence parallelism: gradients of weights every rank holds whole, flattened, once per step.

    Norms, biases of row-parallel layers, routers, the down-projections of latent attention.

    Source: megatron/core/distributed/finalize_model_grads.py.
    """
    whole = [weight for weight in stage.dense_weights if weight.split == "none" and weight.part != "embedding"]
    if stage.config.sp:
        yield Flow(
            dim="tp",
            part="replicated gradients",
            primitive="all_reduce",
            phase="optimizer",
            group="tp",
            calls=1,
            elements=elements(whole),
            dtype=stage.config.grad_dtype or "float32",
            overlap="no",
            formula="1; weights of the stage that tp does not split",
            source="megatron/core/distributed/finalize_model_grads.py",
        )


def norm_gradients_each(stage: Stage) -> Iterator[Flow]:
    """DTensor with sequence parallelism: each norm vector's gradient is a partial sum, reduced by itself.

    Under FSDP that happens when a unit's gradients are scattered, else when the optimizer first uses them.
    Source: torch/distributed/tensor/parallel/style.py, SequenceParallel.
    """
    config = stage.config
    if not config.sp:
        return
    sharded = config.zero_stage >= 2
    repeats = stage.runs if sharded and config.pp == 1 else 1
    vectors = [weight for weight in stage.dense_weights if weight.part == "norm"]
    for width in sorted({weight.rows for weight in vectors}):
        yield Flow(
            dim="tp",
            part="norm gradients",
            primitive="all_reduce",
            phase="backward" if sharded else "optimizer",
            group="tp",
            calls=sum(weight.copies for weight in vectors if weight.rows == width) * repeats,
            elements=width,
            dtype=config.param_dtype,
            overlap="no",
            formula="norm vectors of the stage (x m without a pipeline); their width",
            source="torch/distributed/tensor/parallel/style.py, SequenceParallel",
        )

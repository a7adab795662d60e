"""Expert parallelism: tokens to their experts and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ledger.payloads import capacity, ep_dispatch_elements
from ledger.rules.flow import Flow
from ledger.stages import Number, Stage


def _ep_flow(
    stage: Stage,
    part: str,
    primitive: str,
    phase: str,
    per_layer: int,
    size: Number,
    *,
    source: str,
    formula: str,
    group: str = "ep",
    dtype: str | None = None,
    overlap: str = "no",
    noise: bool = False,
) -> Flow:
    return Flow(
        dim="ep",
        part=part,
        primitive=primitive,
        phase=phase,
        group=group,
        calls=per_layer * stage.moe_layers * stage.runs,
        elements=size,
        dtype=dtype or stage.config.act_dtype,
        overlap=overlap,
        formula=formula,
        source=source,
        noise=noise,
    )


def _routed(stage: Stage) -> int:
    """T·k·h: what dispatch and combine carry where nothing is dropped or padded."""
    config, model = stage.config, stage.model
    assert model.moe is not None
    sp = config.sp
    return ep_dispatch_elements(stage.tokens, model.hidden, model.moe.top_k, config.tp, sp=sp)


def closed_form(stage: Stage) -> Iterator[Flow]:
    """Two all-to-alls forward and two backward per mixture layer, of tok·k·h elements times the capacity factor.

    Tokens are not divided by tp. Source: Lepikhin et al. 2020 (GShard), section 3.2.
    """
    moe = stage.model.moe
    if moe is None:
        return
    size = stage.boundary * moe.top_k * Fraction(moe.capacity_factor or 1).limit_denominator(10**6)
    for phase in ("forward", "backward"):
        yield _ep_flow(
            stage,
            "dispatch and combine",
            "all_to_all",
            phase,
            2,
            size,
            source="Lepikhin et al. 2020 (GShard), section 3.2",
            formula="2 per layer x layers x m; tok·k·h·CF",
            overlap="partial",
        )


@dataclass(frozen=True)
class AllToAll:
    """Tokens by all-to-all with the splits the router gives.

    Attributes:
        probabilities: the routing weights travel with the tokens, and their gradients back.
        counts: ``tp_ep_gather`` (Megatron gathers tokens per expert) or ``all_to_all`` (torchtitan exchanges them).
        whole_expert_tokens: where experts are split themselves (etp > 1), tokens are gathered over that group and the
            results scattered.
        repeated: recomputation that repeats the forward exchange.
    """

    source: str
    counts: str
    probabilities: bool = False
    whole_expert_tokens: bool = True
    repeated: tuple[str, ...] = ("full",)

    def __call__(self, stage: Stage) -> Iterator[Flow]:
        """The stage's exchanges."""
        moe = stage.model.moe
        if moe is None or not stage.moe_layers:
            return
        again = 1 if stage.config.recompute in self.repeated else 0
        for phase, times in (("forward", 1), ("backward", 1 + again)):
            yield from self._tokens(stage, phase, times)
        yield from self._counts(stage, 1, "forward")
        if again:
            yield from self._counts(stage, again, "backward")

    def _tokens(self, stage: Stage, phase: str, times: int) -> Iterator[Flow]:
        moe = stage.model.moe
        assert moe is not None
        size, source = _routed(stage), self.source
        formula = f"{2 * times} per layer x layers x m; T·k·h"
        yield _ep_flow(
            stage, "dispatch and combine", "all_to_all", phase, 2 * times, size, source=source, formula=formula
        )
        weights = size // stage.model.hidden
        if self.probabilities:
            formula = f"{times} per layer x layers x m; T·k"
            yield _ep_flow(
                stage, "routing weights", "all_to_all", phase, times, weights, source=source, formula=formula
            )
        if self.whole_expert_tokens and stage.config.etp > 1:
            whole = size * stage.config.etp
            formula = f"{times} per layer x layers x m; etp·T·k·h"
            for primitive in ("all_gather", "reduce_scatter"):
                yield _ep_flow(
                    stage,
                    "tokens of split experts",
                    primitive,
                    phase,
                    times,
                    whole,
                    source=source,
                    formula=formula,
                    group="etp",
                )

    def _counts(self, stage: Stage, times: int, phase: str) -> Iterator[Flow]:
        moe = stage.model.moe
        assert moe is not None
        gathered = self.counts == "tp_ep_gather"
        config = stage.config
        yield _ep_flow(
            stage,
            "tokens per expert",
            "all_gather" if gathered else "all_to_all",
            phase,
            times,
            moe.experts * (config.etp * config.ep if gathered else 1),
            source=self.source,
            formula="1 per layer x layers x m; E counts" + (" of every rank" if gathered else ""),
            group="tp_ep" if gathered else "ep",
            dtype="int64",
            noise=True,
        )


def padded_capacity(stage: Stage) -> Iterator[Flow]:
    """DeepSpeed: every expert gets exactly its capacity, padded; E·C·h elements there and back.

    Source: deepspeed/moe/sharded_moe.py.
    """
    moe, config = stage.model.moe, stage.config
    if moe is None or not stage.moe_layers:
        return
    slots = max(4, capacity(stage.tokens, moe.top_k, moe.experts, moe.capacity_factor or 1.0))
    again = 1 if config.recompute == "full" else 0
    for phase, times in (("forward", 1), ("backward", 1 + again)):
        yield _ep_flow(
            stage,
            "dispatch and combine",
            "all_to_all",
            phase,
            2 * times,
            moe.experts * slots * stage.model.hidden,
            source="deepspeed/moe/sharded_moe.py",
            formula=f"{2 * times} per layer x layers x m; E·C·h, C = ceil(CF·k·tok/E), at least 4",
        )


def partial_outputs(stage: Stage) -> Iterator[Flow]:
    """Transformers: experts are masked, their partial outputs summed; no token moves.

    Source: transformers/integrations/tensor_parallel.py and moe.py.
    """
    moe = stage.model.moe
    if moe is None or not stage.moe_layers:
        return
    source = "transformers/integrations/tensor_parallel.py"
    group = "ep" if stage.config.ep > 1 else "tp"
    for phase, part, size, symbols in (
        ("forward", "expert outputs", stage.boundary, "A"),
        ("backward", "expert input gradients", stage.boundary, "A"),
        ("backward", "routing weight gradients", stage.tokens * moe.top_k, "tok·k"),
    ):
        yield _ep_flow(
            stage,
            part,
            "all_reduce",
            phase,
            1,
            size,
            source=source,
            formula=f"1 per layer x layers x m; {symbols}",
            group=group,
        )


def gathered_tokens(stage: Stage) -> Iterator[Flow]:
    """vLLM with data-parallel attention: tokens of all ranks gathered before the experts, results scattered after.

    Source: vllm/distributed/device_communicators/all2all.py, AgRsAll2AllManager.
    """
    moe = stage.model.moe
    if moe is None or not stage.moe_layers or stage.config.dp == 1:
        return
    whole = stage.config.ep * stage.boundary
    for part, primitive, size, symbols in (
        ("tokens", "all_gather", whole, "ep·tok·h"),
        ("router logits", "all_gather", stage.config.ep * stage.tokens * moe.experts, "ep·tok·E"),
        ("expert outputs", "reduce_scatter", whole, "ep·tok·h"),
    ):
        yield _ep_flow(
            stage,
            part,
            primitive,
            "forward",
            1,
            size,
            source="vllm/distributed/device_communicators/all2all.py, AgRsAll2AllManager",
            formula=f"1 per layer x layers; {symbols}",
        )

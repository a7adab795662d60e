"""Context parallelism: keys and values round a ring, gathered, or exchanged for heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import MappingProxyType

from ledger.payloads import CpLaw, cp_calls_per_layer
from ledger.rules.flow import Flow
from ledger.stages import Number, Stage

_DEFAULT_OVERLAP = MappingProxyType({"ring": "yes", "all_gather": "no", "ulysses": "no", "hierarchical": "partial"})


@dataclass(frozen=True)
class ContextParallel:
    """Calls of every attention layer.

    Attributes:
        law: the profile whose counts apply.
        source: per cp_kind.
        overlap: per cp_kind.
        repeated: kinds of recomputation that run attention, and so its exchange, again in backward.
        whole_heads: an all-to-all of keys and values is charged at full width, as if there were no grouped heads.
    """

    law: str
    source: MappingProxyType[str, str]
    overlap: MappingProxyType[str, str] = field(default_factory=lambda: _DEFAULT_OVERLAP)
    repeated: tuple[str, ...] = ("full",)
    whole_heads: bool = False

    def __call__(self, stage: Stage) -> Iterator[Flow]:
        """The stage's context-parallel calls."""
        config = stage.config
        kind = config.cp_kind
        for call in cp_calls_per_layer(self.law, kind, config.cp, inner=config.cp_inner):
            yield self._flow(stage, call, kind, call.phase, call.calls)
            if call.phase == "forward" and config.recompute in self.repeated:
                yield self._flow(stage, call, kind, "backward", call.calls)

    def _flow(self, stage: Stage, call: CpLaw, kind: str, phase: str, per_layer: int) -> Flow:
        group = {"ring": "cp_ring" if call.primitive == "send_recv" else "cp", "hierarchical": "cp_outer"}.get(
            kind, "cp"
        )
        if call.inner:
            group = "cp_inner"
        size, symbols = self._elements(stage, call)
        return Flow(
            dim="cp",
            part=f"{kind} attention",
            primitive=call.primitive,
            phase=phase,
            group=group,
            calls=stage.layers * per_layer * stage.runs,
            elements=size,
            dtype=call.dtype or stage.config.act_dtype,
            overlap=self.overlap[kind],
            formula=f"{per_layer} per layer x layers x m; {symbols}",
            source=self.source[kind],
            whole_payload=call.one_hot,
        )

    def _elements(self, stage: Stage, call: CpLaw) -> tuple[Number, str]:
        model, tp = stage.model, stage.config.tp
        if not call.widths:
            # Under hierarchical exchange a rank rings cp_inner times the tokens of 1/cp_inner of the heads: the same.
            block = stage.tokens * (model.key_width + model.value_width) // tp
            return call.kv_blocks * block, f"{call.kv_blocks} KV, KV = tok·(k + v)/tp"
        if self.whole_heads:
            return stage.boundary // tp, "tok·h/tp"
        # Grouped heads fewer than the ranks they are dealt to are copied first, one per rank.
        heads = model.key_value_heads
        copies = max(1, -(-stage.config.cp * tp // heads)) if call.widths in ("k", "v") else 1
        width = {
            "q": model.query_width,
            "k": model.key_width * copies,
            "v": model.value_width * copies,
            "o": model.output_width,
        }[call.widths]
        return stage.tokens * width // tp, f"tok·{call.widths}/tp"

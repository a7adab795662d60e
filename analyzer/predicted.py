"""What the ledger predicts for the ranks that were read: from a model, or from the run's own forward pass.

Both give bytes that a rank sends per step, averaged over the ranks read, per dimension and primitive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import lcm

from ledger.config import ParallelConfig
from ledger.dtypes import dtype_bytes
from ledger.laws import family
from ledger.model import ModelSpec, MoESpec
from ledger.parallel import predict_stage
from ledger.rows import CommRow
from ledger.weights import layer_weights

Key = tuple[str, str]
"""Dimension and primitive."""


@dataclass
class Predicted:
    """Bytes a rank sends per step, and how the numbers came about.

    Attributes:
        profile: the ledger profile.
        bytes: by dimension and primitive.
        named: bytes beyond (or short of) the prediction, by their cause.
        said: where a number of ``bytes`` comes from, where it comes from the run itself.
        overlap: per dimension, whether compute can hide most of its bytes: yes | partial | no.
        hideable: per dimension, the share of its bytes of each of these.
        skipped: dimensions that were not predicted, each with the reason.
        notes: what else was assumed.
        most_padding: per dimension and primitive, bytes by which buffers may be padded at most.
    """

    profile: str
    bytes: dict[Key, float] = field(default_factory=dict)
    named: dict[Key, dict[str, float]] = field(default_factory=dict)
    said: dict[Key, str] = field(default_factory=dict)
    overlap: dict[str, str] = field(default_factory=dict)
    hideable: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    most_padding: dict[Key, float] = field(default_factory=dict)

    def add(self, dim: str, primitive: str, sent: float, said: str = "") -> None:
        """Predict ``sent`` more bytes."""
        if sent:
            self.bytes[dim, primitive] = self.bytes.get((dim, primitive), 0.0) + sent
            if said:
                self.said[dim, primitive] = said

    def name(self, dim: str, primitive: str, sent: float, cause: str) -> None:
        """Give bytes beyond the prediction a cause."""
        if sent:
            causes = self.named.setdefault((dim, primitive), {})
            causes[cause] = causes.get(cause, 0.0) + sent

    def padding(self, key: Key, observed: float) -> str | None:
        """A sentence where padding can account for what was sent beyond the prediction."""
        beyond = observed - self.bytes.get(key, 0.0)
        if 0 < beyond <= self.most_padding.get(key, 0.0):
            return f"{beyond:,.0f} B of padding: weights and buckets begin at round addresses"
        return None


MEGATRON_ALIGNMENT, MEGATRON_BUCKET = 64, 128
"""Weights begin at multiples of 64 elements, buckets end at multiples of lcm(ranks, 128):
megatron/core/distributed/param_and_grad_buffer.py."""


ENDS = 4
"""Weights outside of layers, at most: embeddings, final norm, output layer."""


def from_model(
    model: ModelSpec, config: ParallelConfig, profile: str, stages: Sequence[int], *, tokens_known: bool
) -> Predicted:
    """Predict from a model.

    Args:
        model: the model.
        config: the layout, with the tokens of a microbatch.
        profile: whose traffic.
        stages: pipeline stage of each rank that was read.
        tokens_known: whether ``config`` has the real number of tokens; if not, only parameters are predicted.

    Raises:
        LedgerError: the model does not fit the layout.
    """
    out = Predicted(profile)
    by_overlap: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    of_stage = {stage: predict_stage(model, config, stage, profile) for stage in sorted(set(stages))}
    for stage in stages:
        for row in of_stage[stage]:
            if not tokens_known and row.dim != "dp":
                out.skipped[row.dim] = "the tokens of a microbatch could not be read from the traffic"
                continue
            out.add(row.dim, row.primitive, row.sent_bytes_per_step / len(stages))
            if row.dim == "dp" and family(profile) == "megatron" and config.zero_stage:
                key = (row.dim, row.primitive)
                out.most_padding[key] = out.most_padding.get(key, 0.0) + _padding(row, model) / len(stages)
            by_overlap[row.dim][row.overlap] += row.sent_bytes_per_step
    out.overlap = {dim: max(sizes, key=lambda kind: sizes[kind]) for dim, sizes in by_overlap.items()}
    out.hideable = {
        dim: {kind: sent / sum(sizes.values()) for kind, sent in sizes.items()}
        for dim, sizes in by_overlap.items()
        if sum(sizes.values())
    }
    return out


def stand_in(config: ParallelConfig) -> ModelSpec:
    """A model that fits a layout, for questions whose answer does not depend on its size."""
    heads = config.tp * config.cp
    hidden = 64 * heads
    experts = MoESpec(experts=config.ep, top_k=1, expert_ffn=4 * hidden) if config.ep > 1 else None
    return ModelSpec(
        layers=config.pp * config.virtual_stages,
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        vocab=256 * config.tp,
        moe=experts,
    )


def _padding(row: CommRow, model: ModelSpec) -> float:
    """Most bytes that alignment can add to what a rank sends of its flat buffers in a step."""
    tensors = sum(len(layer_weights(model, layer)) for layer in range(model.layers)) + ENDS
    added = tensors * (MEGATRON_ALIGNMENT - 1) + lcm(row.group_size, MEGATRON_BUCKET)
    return added * dtype_bytes(row.dtype) * row.sent_bytes_per_step / max(row.payload_bytes, 1)

"""What the ledger predicts for the ranks that were read: from a model, or from the run's own forward pass.

Both give bytes that a rank sends per step, averaged over the ranks read, per dimension and primitive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ledger.config import ParallelConfig
from ledger.model import ModelSpec
from ledger.parallel import predict_stage

Key = tuple[str, str]
"""Dimension and primitive."""


@dataclass
class Predicted:
    """Bytes a rank sends per step, and how the numbers came about.

    Attributes:
        profile: the ledger profile.
        bytes: by dimension and primitive.
        named: bytes beyond the prediction that have a known cause, with the cause.
        said: where a number of ``bytes`` comes from, where it comes from the run itself.
        overlap: per dimension, whether compute can hide most of its bytes: yes | partial | no.
        skipped: dimensions that were not predicted, each with the reason.
        notes: what else was assumed.
    """

    profile: str
    bytes: dict[Key, float] = field(default_factory=dict)
    named: dict[Key, list[tuple[float, str]]] = field(default_factory=dict)
    said: dict[Key, str] = field(default_factory=dict)
    overlap: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, dim: str, primitive: str, sent: float, said: str = "") -> None:
        """Predict ``sent`` more bytes."""
        if sent:
            self.bytes[dim, primitive] = self.bytes.get((dim, primitive), 0.0) + sent
            if said:
                self.said[dim, primitive] = said

    def name(self, dim: str, primitive: str, sent: float, cause: str) -> None:
        """Give bytes beyond the prediction a cause."""
        if sent:
            self.named.setdefault((dim, primitive), []).append((sent, cause))


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
            by_overlap[row.dim][row.overlap] += row.sent_bytes_per_step
    out.overlap = {dim: max(sizes, key=lambda kind: sizes[kind]) for dim, sizes in by_overlap.items()}
    return out

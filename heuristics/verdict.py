"""What layout inference answers with: degrees, evidence, alternatives, and which dimension each call belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

DIMENSIONS = ("tp", "cp", "pp", "dp", "ep")
"""The five degrees, in the order they are always printed."""

Dim = Literal["tp", "cp", "pp", "dp", "ep", "control", "unknown"]


@dataclass(frozen=True)
class DimensionVerdict:
    """One dimension: its degree, how sure, and why.

    ``degree`` is null when undecided, and then ``evidence`` or ``against`` holds the reason.
    """

    degree: int | None
    confidence: float
    groups: tuple[tuple[int, ...], ...] = ()  # global ranks
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()


@dataclass(frozen=True)
class Alternative:
    """A layout that was considered and came out behind."""

    tp: int | None
    cp: int | None
    pp: int | None
    dp: int | None
    ep: int | None
    zero_stage: int | None
    confidence: float
    why_less: str


@dataclass(frozen=True)
class ModelGuess:
    """Model dimensions read back from payloads; null where the traffic does not fix them."""

    layers: int | None = None
    hidden: int | None = None
    tokens_per_microbatch: int | None = None
    parameters_per_rank: int | None = None  # dense parameters held by one (tp, pp) shard before data-parallel sharding
    activation_elements: int | None = None  # at a layer boundary, one microbatch, before tensor-parallel sharding
    kv_width: int | None = None
    experts: int | None = None
    vocab: int | None = None
    sources: tuple[str, ...] = ()  # one sentence per field: what it was read from


@dataclass(frozen=True)
class Layout:
    """The parallel layout of a job; every field is null where the evidence does not decide.

    ``dp`` is the replica count of dense parameters (``dp_shard * dp_replicate``).
    """

    tp: int | None = None
    cp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    sequence_parallel: bool | None = None
    data_parallel: str | None = None  # none | ddp | zero1 | zero2 | zero3 | hsdp
    zero_stage: int | None = None
    dp_shard: int | None = None
    dp_replicate: int | None = None
    cp_kind: str | None = None  # ring | all_gather | ulysses | hierarchical
    pp_schedule: str | None = None  # gpipe | 1f1b | interleaved_1f1b | zero_bubble | zbv | dualpipe
    virtual_stages: int | None = None
    microbatches: int | None = None
    rank_order: str | None = None  # fastest first: tp-cp-ep-dp-pp
    recompute: str | None = None  # none | selective | full
    grad_reduce_dtype: str | None = None
    confidence: float = 0.0
    source: str = "behaviour"  # metadata | behaviour | both
    profile: str | None = None  # the ledger profile that explains the traffic
    dimensions: MappingProxyType[str, DimensionVerdict] = field(default_factory=lambda: MappingProxyType({}))
    alternatives: tuple[Alternative, ...] = ()
    model: ModelGuess = ModelGuess()
    stage_of_rank: MappingProxyType[int, int] = field(default_factory=lambda: MappingProxyType({}))
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inference:
    """A layout together with the dimension of every call.

    Attributes:
        layout: the verdict.
        dims: per rank given, one `Dim` per row of that rank's ``collectives``, in the same order.
    """

    layout: Layout
    dims: tuple[Sequence[Dim], ...]

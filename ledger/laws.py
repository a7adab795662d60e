"""How often each framework calls its tensor-parallel collectives: one table, per sublayer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ledger.errors import LedgerError
from ledger.names import meant


@dataclass(frozen=True)
class Calls:
    """Calls of one primitive: in forward, in backward proper, and repeated forward work inside backward."""

    forward: int
    backward: int
    recompute: int = 0

    @property
    def in_backward(self) -> int:
        """Everything that runs during backward."""
        return self.backward + self.recompute

    def __add__(self, other: Calls) -> Calls:
        return Calls(self.forward + other.forward, self.backward + other.backward, self.recompute + other.recompute)

    @property
    def total(self) -> int:
        """The whole step's share of one layer and microbatch."""
        return self.forward + self.backward + self.recompute


@dataclass(frozen=True)
class TpLaw:
    """Calls per sublayer (attention or feed-forward) and microbatch of one way to write tensor parallelism.

    Attributes:
        gather, scatter: with sequence parallelism.
        reduce: without.
        per_column_linear: without sequence parallelism, backward reduces the input gradient of every column-parallel
            linear by itself, instead of once per sublayer.
        full, selective: forward calls repeated inside backward, per sublayer, by kind of recomputation.
        source: where this is written.
    """

    gather: Calls
    scatter: Calls
    reduce: Calls
    per_column_linear: bool
    full: Mapping[str, Mapping[str, int]]
    selective: Mapping[str, Mapping[str, int]]
    source: str


_NONE: Mapping[str, Mapping[str, int]] = MappingProxyType({})
_ALL_AGAIN = MappingProxyType({"all_gather": 1, "reduce_scatter": 1, "all_reduce": 1})
_GATHER_AGAIN = MappingProxyType({"all_gather": 1})
_EVERYTHING = MappingProxyType({"attention": _ALL_AGAIN, "mlp": _ALL_AGAIN})

TP_LAWS: Mapping[str, TpLaw] = MappingProxyType(
    {
        "textbook": TpLaw(
            gather=Calls(1, 1),
            scatter=Calls(1, 1),
            reduce=Calls(1, 1),
            per_column_linear=False,
            full=_EVERYTHING,
            selective=_NONE,
            source="Korthikanti et al. 2022, sections 4.2 and 5",
        ),
        "megatron": TpLaw(
            # Backward gathers the input of the column-parallel linear again, for the weight gradient.
            gather=Calls(1, 2),
            scatter=Calls(1, 1),
            reduce=Calls(1, 1),
            per_column_linear=False,
            full=_EVERYTHING,
            selective=_NONE,  # core attention only: no collective inside
            source="megatron/core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication",
        ),
        "torch": TpLaw(
            gather=Calls(1, 1),
            scatter=Calls(1, 1),
            reduce=Calls(1, 0),
            per_column_linear=True,
            # Recomputation stops at the last saved input: the layer's final reduction is not repeated.
            full=MappingProxyType({"attention": _ALL_AGAIN, "mlp": _GATHER_AGAIN}),
            selective=MappingProxyType({"attention": _GATHER_AGAIN, "mlp": _GATHER_AGAIN}),
            source="torch/distributed/tensor/parallel/style.py; torch/utils/checkpoint.py (early stop)",
        ),
        "hf": TpLaw(
            gather=Calls(1, 1),
            scatter=Calls(1, 1),
            reduce=Calls(1, 0),
            per_column_linear=True,
            full=_EVERYTHING,
            selective=_NONE,
            source="transformers/integrations/tensor_parallel.py",
        ),
        "deepspeed": TpLaw(
            gather=Calls(1, 1),
            scatter=Calls(1, 1),
            reduce=Calls(1, 1),
            per_column_linear=False,
            full=_EVERYTHING,
            selective=_NONE,
            source="deepspeed/module_inject/layers.py",
        ),
        "inference": TpLaw(
            gather=Calls(1, 0),
            scatter=Calls(1, 0),
            reduce=Calls(1, 0),
            per_column_linear=False,
            full=_NONE,
            selective=_NONE,
            source="vllm/model_executor/layers/linear.py, RowParallelLinear",
        ),
    }
)
"""By family; `FAMILY` says which one a profile belongs to."""

FAMILY: Mapping[str, str] = MappingProxyType(
    {
        "textbook": "textbook",
        "megatron": "megatron",
        "megatron_fp8": "megatron",
        "torch": "torch",
        "torchtitan": "torch",
        "torchtitan_0_1": "torch",
        "torchtitan_0_3": "torch",
        "hf": "hf",
        "deepspeed": "deepspeed",
        "inference": "inference",
    }
)
"""The family of laws each profile follows."""


def family(profile: str) -> str:
    """The family of a profile.

    Raises:
        LedgerError: no such profile; the message offers the closest names.
    """
    try:
        return FAMILY[profile]
    except KeyError:
        hint = meant(profile, FAMILY, f"known: {', '.join(FAMILY)}", most=2)
        raise LedgerError(f"unknown profile {profile!r}; {hint}", key="profile") from None


def tp_law(profile: str) -> TpLaw:
    """The tensor-parallel law of a profile.

    Raises:
        LedgerError: no such profile.
    """
    return TP_LAWS[family(profile)]

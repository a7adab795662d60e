"""Payload laws: how many elements travel, how often, as small functions that work in both directions.

The ledger multiplies them out into predicted rows; layout inference calls them to ask whether an observed size or count
is one that a dimension can produce. Sizes are elements of the array as nccl-tests counts it (S of
`ledger.collectives.collective_bytes`), counts are calls of one rank. Notation: tokens of one microbatch on one rank
after context parallelism (``tokens``), hidden size, k/v width over all heads (``kv_width``), group sizes n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from types import MappingProxyType

from ledger.config import CP_KINDS, RECOMPUTE
from ledger.errors import LedgerError
from ledger.laws import Calls, family, tp_law
from ledger.pipeline import Sends, sends_per_rank

__all__ = [
    "Calls",
    "CpLaw",
    "FsdpCounts",
    "Sends",
    "capacity",
    "cp_calls_per_layer",
    "cp_kv_elements",
    "ep_dispatch_elements",
    "expert_data_ranks",
    "fsdp_counts",
    "gradient_calls",
    "imbalance",
    "pp_boundary_elements",
    "ring_variants",
    "sends_per_rank",
    "tp_boundary_elements",
    "tp_calls_per_layer",
    "tp_calls_per_sublayer",
    "ulysses_elements",
    "vocab_calls",
]


# Tensor parallel


def tp_boundary_elements(tokens: int, hidden: int) -> int:
    """Payload S of every tensor-parallel collective of a layer: the layer-boundary activation, A = tokens x hidden.

    Source: Shoeybi et al. 2019 section 3; Korthikanti et al. 2022 section 4.2.2 (all-gather + reduce-scatter).
    """
    return tokens * hidden


def tp_calls_per_layer(
    profile: str, sp: bool, recompute: str = "none", *, column_linears: int = 5
) -> Mapping[str, Calls]:
    """Tensor-parallel calls per dense transformer layer and microbatch, by primitive.

    ``column_linears`` counts the column-parallel linears whose input gradients are reduced one by one where a framework
    does that (q, k, v, gate, up: 5; four without a gate; 2 where their inputs are prepared once per sublayer).

    Raises:
        LedgerError: unknown profile or recompute.
    """
    attention = tp_calls_per_sublayer(profile, "attention", sp, recompute, column_linears=column_linears)
    mlp = tp_calls_per_sublayer(profile, "mlp", sp, recompute, column_linears=0)
    return MappingProxyType({primitive: calls + mlp[primitive] for primitive, calls in attention.items()})


def tp_calls_per_sublayer(
    profile: str, sublayer: str, sp: bool, recompute: str = "none", *, column_linears: int
) -> Mapping[str, Calls]:
    """The same for ``attention`` or ``mlp`` alone.

    Raises:
        LedgerError: unknown profile, sublayer or recompute.
    """
    if recompute not in RECOMPUTE:
        raise LedgerError(f"recompute {recompute!r} is not one of {', '.join(RECOMPUTE)}", key="recompute")
    if sublayer not in ("attention", "mlp"):
        raise LedgerError(f"sublayer {sublayer!r} is neither attention nor mlp", key="sublayer")
    law = tp_law(profile)
    by_sublayer: Mapping[str, Mapping[str, int]] = {"selective": law.selective, "full": law.full}.get(recompute, {})
    repeated = by_sublayer.get(sublayer, {})
    if sp:
        calls = {"all_gather": law.gather, "reduce_scatter": law.scatter}
    else:
        backward = column_linears if law.per_column_linear else law.reduce.backward
        calls = {"all_reduce": Calls(law.reduce.forward, backward)}
    return MappingProxyType(
        {name: Calls(each.forward, each.backward, repeated.get(name, 0)) for name, each in calls.items()}
    )


def vocab_calls(profile: str, sp: bool) -> Mapping[str, Mapping[str, Calls]]:
    """Calls per microbatch of the vocabulary-parallel embedding (first stage) and output layer (last stage).

    Every payload is the layer-boundary activation.

    Raises:
        LedgerError: unknown profile.
    """
    kind = family(profile)
    if kind == "textbook":
        return MappingProxyType({"embedding": {}, "lm_head": {}})
    if kind == "inference":
        return MappingProxyType({"embedding": {"all_reduce": Calls(1, 0)}, "lm_head": {}})
    if not sp:
        return MappingProxyType({"embedding": {"all_reduce": Calls(1, 0)}, "lm_head": {"all_reduce": Calls(0, 1)}})
    regather = 1 if kind == "megatron" else 0
    return MappingProxyType(
        {
            "embedding": {"reduce_scatter": Calls(1, 0), "all_gather": Calls(0, 1)},
            "lm_head": {"all_gather": Calls(1, regather), "reduce_scatter": Calls(0, 1)},
        }
    )


# Context parallel


def cp_kv_elements(tokens: int, kv_width: int, tp: int = 1) -> int:
    """One rank's keys and values, KV = 2 x tokens x kv_width / tp: the block a ring passes on."""
    return 2 * tokens * kv_width // tp


def ulysses_elements(tokens: int, width: int, tp: int = 1) -> int:
    """One all-to-all of queries or outputs (``width`` = hidden) or of keys or values (``width`` = kv_width)."""
    return tokens * width // tp


@dataclass(frozen=True)
class CpLaw:
    """One kind of call of context parallelism in one attention layer and microbatch.

    ``kv_blocks`` is the payload S in units of one rank's K and V together (`cp_kv_elements`); ``widths`` says
    instead that the payload is tokens x width / tp of the queries ("q"), keys ("k"), values ("v") or outputs ("o").
    """

    primitive: str
    phase: str
    calls: int
    kv_blocks: Fraction
    widths: str = ""
    dtype: str = ""  # empty: the activations' own
    one_hot: bool = False  # an all-to-all with one non-zero split: really a send
    inner: bool = False  # runs in the inner group of hierarchical context parallelism


def cp_calls_per_layer(profile: str, kind: str, n: int, *, inner: int = 1, kept: bool = False) -> tuple[CpLaw, ...]:
    """Context-parallel calls per attention layer and microbatch in a group of ``n``.

    * ``ring``, sent as messages (textbook, Megatron with TransformerEngine): n-1 blocks of K and V forward; backward
      n-1 blocks of K and V and n-1 of their gradients. TransformerEngine stacks both, so the sizes are KV, then 2·KV,
      then KV.
    * ``ring`` in torch (default rotation): one all-gather of K and V in each direction, and n one-hot all-to-alls of
      the gradients in float32.
    * ``all_gather``: K and V gathered in both directions (TransformerEngine), or in forward alone and ``kept`` for
      backward (an autograd function that saves them); their gradients scattered; all exposed.
    * ``ulysses``: q, k, v and o change layout by all-to-all, their gradients change back.
    * ``hierarchical``: ulysses over ``inner`` ranks, ring over n/inner.

    Raises:
        LedgerError: unknown profile or kind.
    """
    written_by = family(profile)
    if kind not in CP_KINDS:
        raise LedgerError(f"cp_kind {kind!r} is not one of {', '.join(CP_KINDS)}", key="cp_kind")
    if n == 1:
        return ()
    if kind == "ulysses":
        return _ulysses_calls(inner=False)
    if kind == "hierarchical":
        inside = _ulysses_calls(inner=True) if inner > 1 else ()
        return (*inside, *cp_calls_per_layer(profile, "ring", n // inner))
    if kind == "all_gather":
        half = Fraction(n, 2)
        again = () if kept else (CpLaw("all_gather", "backward", 2, half),)
        return (CpLaw("all_gather", "forward", 2, half), *again, CpLaw("reduce_scatter", "backward", 2, half))
    if written_by in ("torch", "hf"):
        return (
            CpLaw("all_gather", "forward", 1, Fraction(n)),
            CpLaw("all_gather", "backward", 1, Fraction(n)),
            CpLaw("all_to_all", "backward", n, Fraction(1), dtype="float32", one_hot=True),
        )
    return (
        CpLaw("send_recv", "forward", n - 1, Fraction(1)),
        CpLaw("send_recv", "backward", n - 1, Fraction(2)),
    )


def ring_variants(n: int) -> Mapping[str, tuple[CpLaw, ...]]:
    """The ways a ring of ``n`` has been written, by name: which of them fits tells the implementation.

    * ``stacked``: TransformerEngine; K and V in one message, later stacked with their gradients: n-1 sends each way,
      3(n-1) blocks.
    * ``separate``: K and V as two messages, and their gradients go the whole way home: 2(n-1) sends of half a block
      forward, 2(n-1) + 2n backward, 3n-2 blocks.
    * ``torch_all_gather``, ``torch_all_to_all``: torch's two rotations; gradients as one-hot all-to-alls in float32.

    Source: transformer_engine context_parallel.py;
    torch/distributed/tensor/experimental/_context_parallel/_attention.py.
    """
    half, one = Fraction(1, 2), Fraction(1)
    gradients = CpLaw("all_to_all", "backward", n, one, dtype="float32", one_hot=True)
    return MappingProxyType(
        {
            "stacked": cp_calls_per_layer("megatron", "ring", n),
            "separate": (
                CpLaw("send_recv", "forward", 2 * (n - 1), half),
                CpLaw("send_recv", "backward", 2 * (n - 1) + 2 * n, half),
            ),
            "torch_all_gather": cp_calls_per_layer("torch", "ring", n),
            "torch_all_to_all": (
                CpLaw("all_to_all", "forward", n - 1, one, one_hot=True),
                CpLaw("all_to_all", "backward", n - 1, one, one_hot=True),
                gradients,
            ),
        }
    )


def _ulysses_calls(*, inner: bool) -> tuple[CpLaw, ...]:
    """q, k, v and o change layout in forward, their gradients in backward."""
    return tuple(
        CpLaw("all_to_all", phase, 1, Fraction(0), widths=width, inner=inner)
        for phase in ("forward", "backward")
        for width in ("q", "k", "v", "o")
    )


# Pipeline


def pp_boundary_elements(tokens: int, hidden: int, tp: int = 1, *, sp: bool = True) -> int:
    """One message between stages: A, or A/tp where sequence parallelism keeps the boundary split.

    Source: megatron/core/pipeline_parallel/schedules.py, get_tensor_shapes.
    """
    return tokens * hidden // (tp if sp else 1)


# Experts


def ep_dispatch_elements(tokens: int, hidden: int, top_k: int, tp: int = 1, *, sp: bool = True) -> int:
    """Elements one rank hands to its experts' owners (dispatch), and gets back (combine): T·k·h.

    T is tokens/tp where sequence parallelism has split them before the layer.
    """
    return tokens * top_k * hidden // (tp if sp else 1)


def capacity(tokens: int, top_k: int, experts: int, factor: float) -> int:
    """Most tokens one expert accepts, C = ceil(factor x tokens x top_k / experts).

    Source: Fedus et al. 2021 (Switch Transformer) section 2.2; megatron/core/transformer/moe/moe_utils.py get_capacity.

    Raises:
        LedgerError: no expert, or a factor that is not positive.
    """
    if experts < 1 or factor <= 0:
        raise LedgerError(f"{experts} experts at capacity factor {factor} hold nothing", key="capacity_factor")
    return ceil(Fraction(factor).limit_denominator(10**6) * tokens * top_k / experts)


def imbalance(loads: Sequence[float]) -> float:
    """rho: the largest load over the mean load.

    Raises:
        LedgerError: no load at all.
    """
    total = sum(loads)
    if not loads or total <= 0:
        raise LedgerError("imbalance needs at least one positive load", key="loads")
    return max(loads) * len(loads) / total


def expert_data_ranks(tp: int, cp: int, dp: int, ep: int, etp: int) -> int:
    """Ranks that hold the same experts and reduce their gradients, tp·cp·dp/(etp·ep).

    Source: megatron/core/parallel_state.py, the expert rank generator.

    Raises:
        LedgerError: the expert mesh does not divide the dense one.
    """
    ranks, rest = divmod(tp * cp * dp, etp * ep)
    if rest:
        raise LedgerError(f"etp {etp} x ep {ep} does not divide tp x cp x dp = {tp * cp * dp}", key="ep")
    return ranks


# Data parallel


@dataclass(frozen=True)
class FsdpCounts:
    """Calls per step for one sharded unit (a layer)."""

    gather_forward: int
    gather_backward: int
    scatter_backward: int

    @property
    def gather(self) -> int:
        """All-gathers of both directions."""
        return self.gather_forward + self.gather_backward


def fsdp_counts(reshard: bool, microbatches: int, *, root: bool = False, pipelined: bool = False) -> FsdpCounts:
    """Calls per step of one FSDP unit.

    Every microbatch gathers and scatters again. The root unit, and a unit that is not resharded, is gathered in forward
    only. Under a pipeline the parameters stay gathered over all microbatches and gradients are scattered once, at the
    end.

    Source: torch/distributed/fsdp/_fully_shard/_fsdp_state.py and _fsdp_param_group.py;
    torch/distributed/pipelining/schedules.py (REDUCE_GRAD).
    """
    if pipelined:
        return FsdpCounts(1, 0, 1)
    again = reshard and not root
    return FsdpCounts(microbatches, microbatches if again else 0, microbatches)


def gradient_calls(profile: str, zero_stage: int, microbatches: int, *, pipelined: bool = False) -> Mapping[str, int]:
    """How often all parameters (or gradients) of a rank travel per step, by primitive, in units of their number N.

    Source: docs/ledger.md lists the file of each framework.

    Raises:
        LedgerError: unknown profile or stage.
    """
    kind = family(profile)
    if zero_stage not in (0, 1, 2, 3):
        raise LedgerError(f"zero_stage must be 0, 1, 2 or 3, not {zero_stage}", key="zero_stage")
    if kind == "inference":
        return MappingProxyType({})
    if zero_stage == 0:
        return MappingProxyType({"all_reduce": 1})
    if kind == "deepspeed":
        return MappingProxyType(
            {
                1: {"all_reduce": 1, "all_gather": 1},
                2: {"all_reduce": microbatches, "all_gather": 1},
                3: {"reduce_scatter": microbatches, "all_gather": 2 * microbatches},
            }[zero_stage]
        )
    units = kind in ("torch", "hf") and zero_stage >= 2  # fully_shard: each microbatch starts over
    repeats = microbatches if units and not pipelined else 1
    gathers = 2 if zero_stage == 3 and not (units and pipelined) else 1
    return MappingProxyType({"reduce_scatter": repeats, "all_gather": gathers * repeats})

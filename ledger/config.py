"""`ParallelConfig`: one small object that says what a layout is, validated when it is made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ledger.dtypes import dtype_bytes
from ledger.errors import LedgerError

CP_KINDS = ("ring", "all_gather", "ulysses", "hierarchical")
SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "zero_bubble", "zbv", "dualpipe", "dualpipev")
RECOMPUTE = ("none", "selective", "full")
DIMS = ("tp", "cp", "pp", "dp", "ep")

_LAYOUT_TERM = re.compile(r"(tp|cp|pp|dp|ep)(\d+)")
_V_SHAPED = frozenset({"zbv", "dualpipev"})
_POSITIVE = ("tp", "cp", "pp", "dp", "ep", "virtual_stages", "microbatches", "micro_batch_size", "seq_len")


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How a model is spread over ranks and fed.

    ``dp`` is the number of replicas of dense parameters; experts are laid over the same ranks a second time, as
    ``expert_tp x ep x (what is left)``. Sizes are in tokens and bytes; data types by their normalised names.

    Attributes:
        sequence_parallel: layer-boundary activations are split over the tensor-parallel group; null is the profile's
            own default, and counts as yes where no profile is asked (`sp`).
        zero_stage: 0 plain data parallel, 1 optimizer states, 2 gradients, 3 parameters too (FSDP).
        hsdp_shard: ranks of the data-parallel dimension that share one sharded copy; null shards over all of them.
        reshard_after_forward: stage 3 only: whether parameters are dropped after forward, or the size of the smaller
            group they are kept over.
        virtual_stages: model chunks per pipeline rank.
        seq_len: tokens of one sequence, before context parallelism cuts it.
        cp_inner: ranks of the all-to-all part of hierarchical context parallelism.
        layers_per_stage: transformer layers of each pipeline rank; null spreads them evenly.
        param_dtype: of parameters as gathered and of gradients where no other type is given.
        act_dtype: of activations as sent.
        grad_dtype: of gradients as reduced; null is the profile's own default.
        expert_tp: tensor-parallel degree of the experts; null is the profile's own default.
        rank_order: dimensions from the fastest-changing rank digit to the slowest.

    Raises:
        LedgerError: a degree is not positive, or two fields contradict each other.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    sequence_parallel: bool | None = None
    zero_stage: int = 0
    hsdp_shard: int | None = None
    reshard_after_forward: bool | int = True
    virtual_stages: int = 1
    microbatches: int = 1
    micro_batch_size: int = 1
    seq_len: int = 8192
    cp_kind: str = "ring"
    cp_inner: int = 1
    schedule: str = "1f1b"
    layers_per_stage: tuple[int, ...] | None = None
    gpus_per_node: int = 8
    param_dtype: str = "bfloat16"
    act_dtype: str = "bfloat16"
    grad_dtype: str | None = None
    recompute: str = "none"
    expert_tp: int | None = None
    rank_order: str = "tp-cp-ep-dp-pp"

    def __post_init__(self) -> None:
        for key in (*_POSITIVE, "gpus_per_node", "cp_inner"):
            if getattr(self, key) < 1:
                raise LedgerError(f"{key} must be at least 1, not {getattr(self, key)}", key=key)
        self._check_choices()
        self._check_data_parallel()
        self._check_experts()
        self._check_pipeline()
        if (self.seq_len * self.micro_batch_size) % self.cp:
            raise LedgerError(f"seq_len x micro_batch_size is not divisible by cp {self.cp}", key="seq_len")
        if self.cp % self.cp_inner:
            raise LedgerError(f"cp {self.cp} is not a multiple of cp_inner {self.cp_inner}", key="cp_inner")

    def _check_choices(self) -> None:
        for key, choices in (("cp_kind", CP_KINDS), ("schedule", SCHEDULES), ("recompute", RECOMPUTE)):
            if getattr(self, key) not in choices:
                raise LedgerError(f"{key} {getattr(self, key)!r} is not one of {', '.join(choices)}", key=key)
        if sorted(self.rank_order.split("-")) != sorted(DIMS):
            raise LedgerError(f"rank_order {self.rank_order!r} must name tp, cp, ep, dp and pp once", key="rank_order")
        for name in (self.param_dtype, self.act_dtype, self.grad_dtype or self.param_dtype):
            dtype_bytes(name)

    def _check_data_parallel(self) -> None:
        if self.zero_stage not in (0, 1, 2, 3):
            raise LedgerError(f"zero_stage must be 0, 1, 2 or 3, not {self.zero_stage}", key="zero_stage")
        if self.hsdp_shard is not None:
            if self.zero_stage == 0:
                raise LedgerError("hsdp_shard needs a zero_stage of at least 1", key="hsdp_shard")
            if self.hsdp_shard < 1 or self.dp % self.hsdp_shard:
                raise LedgerError(f"dp {self.dp} is not a multiple of hsdp_shard {self.hsdp_shard}", key="hsdp_shard")
        keep = self.reshard_after_forward
        if not isinstance(keep, bool) and (keep < 1 or self.shard_ranks % keep):
            raise LedgerError(
                f"reshard_after_forward {keep} does not divide the {self.shard_ranks} sharding ranks",
                key="reshard_after_forward",
            )

    def _check_experts(self) -> None:
        if self.expert_tp is not None and self.expert_tp < 1:
            raise LedgerError(f"expert_tp must be at least 1, not {self.expert_tp}", key="expert_tp")
        if (self.tp * self.cp * self.dp) % (self.ep * (self.expert_tp or 1)):
            raise LedgerError(
                f"experts need ep x expert_tp = {self.ep * (self.expert_tp or 1)} to divide "
                f"tp x cp x dp = {self.tp * self.cp * self.dp}",
                key="ep",
            )

    def _check_pipeline(self) -> None:
        if self.schedule in _V_SHAPED and self.virtual_stages != 2:
            raise LedgerError(
                f"{self.schedule} needs virtual_stages 2, not {self.virtual_stages}", key="virtual_stages"
            )
        if self.layers_per_stage is not None and len(self.layers_per_stage) != self.pp:
            raise LedgerError(
                f"layers_per_stage lists {len(self.layers_per_stage)} stages, pp is {self.pp}", key="layers_per_stage"
            )

    @classmethod
    def parse(cls, layout: str, **fields: Any) -> ParallelConfig:
        """A config from ``tp8-cp1-pp16-dp128[-ep1]``; dimensions left out are 1, the rest comes from ``fields``.

        Raises:
            LedgerError: the text is not of that form, or the config it describes is not valid.
        """
        degrees: dict[str, Any] = {}
        for term in layout.strip().lower().split("-"):
            match = _LAYOUT_TERM.fullmatch(term)
            if match is None:
                raise LedgerError(
                    f"layout {layout!r}: {term!r} is not a dimension and its degree; write tp8-cp1-pp16-dp128[-ep1]",
                    key="layout",
                )
            dim = match[1]
            if dim in degrees:
                raise LedgerError(f"layout {layout!r} names {dim} twice", key="layout")
            degrees[dim] = int(match[2])
        return cls(**degrees, **fields)

    def __str__(self) -> str:
        text = f"tp{self.tp}-cp{self.cp}-pp{self.pp}-dp{self.dp}"
        return f"{text}-ep{self.ep}" if self.ep > 1 else text

    @property
    def world_size(self) -> int:
        """Ranks of the job; experts reuse them."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def grad_ranks(self) -> int:
        """Ranks that hold a copy of the same dense parameters, and over which their gradients are summed."""
        return self.dp * self.cp

    @property
    def dp_shard(self) -> int:
        """Data-parallel ranks one sharded copy is spread over; 1 where nothing is sharded."""
        if self.zero_stage == 0:
            return 1
        return self.dp if self.hsdp_shard is None else self.hsdp_shard

    @property
    def dp_replicate(self) -> int:
        """Copies of the sharded state."""
        return self.dp // self.dp_shard

    @property
    def shard_ranks(self) -> int:
        """Ranks the state is sharded over: context-parallel ranks take part."""
        return 1 if self.zero_stage == 0 else self.dp_shard * self.cp

    @property
    def etp(self) -> int:
        """Tensor-parallel degree of the experts, ``tp`` unless given."""
        return self.tp if self.expert_tp is None else self.expert_tp

    @property
    def expert_grad_ranks(self) -> int:
        """Ranks that hold a copy of the same expert parameters."""
        return max(1, self.tp * self.cp * self.dp // (self.etp * self.ep))

    @property
    def expert_shard_ranks(self) -> int:
        """Ranks expert state is sharded over."""
        return max(1, self.shard_ranks * self.tp // (self.etp * self.ep))

    @property
    def sp(self) -> bool:
        """Whether layer boundaries are split over tokens, where it matters."""
        return self.sequence_parallel is not False

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch on one rank, before sequence parallelism."""
        return self.seq_len * self.micro_batch_size // self.cp

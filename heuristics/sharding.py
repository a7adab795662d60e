"""Which of optimizer state, gradients and parameters are sharded: the ZeRO stage that the traffic shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heuristics.dimensions.claim import count, elements, of, per_step
from heuristics.dimensions.data import REGATHERED
from heuristics.dimensions.order import all_after, pieces_before
from heuristics.view import OPTIMIZER

if TYPE_CHECKING:
    from heuristics.dimensions.claim import Claim
    from heuristics.view import Family, RankView


@dataclass(frozen=True)
class Sharding:
    """The verdict on one data-parallel claim.

    Attributes:
        stage: 0 to 3, None if the traffic allows several; then ``allowed`` lists them.
        name: ``ddp``, ``zero1``, ``zero2`` or ``zero3``.
    """

    stage: int | None
    allowed: tuple[int, ...]
    sentence: str

    @property
    def name(self) -> str | None:
        """The contract's word for the scheme."""
        return None if self.stage is None else ("ddp", "zero1", "zero2", "zero3")[self.stage]


def sharding(view: RankView, claim: Claim, microbatches: int | None) -> Sharding:
    """Read the stage from when and how often gradients are reduced and parameters gathered."""
    families = [f for f in view.families if f.index in claim.families and f.calls_per_step]
    if _spread(view, claim, families):
        return Sharding(
            None, (0, 1, 2, 3), "calls of unknown size on several streams: which belong together is not known"
        )
    families += _on_other_streams(view, claim, families)
    scatters, reduces = of(families, "reduce_scatter"), of(families, "all_reduce", "reduce")
    gathers, broadcasts = of(families, "all_gather"), of(families, "broadcast")
    if scatters:
        return _scattered(view, scatters, gathers)
    return _reduced(reduces, gathers, broadcasts, microbatches)


def _spread(view: RankView, claim: Claim, families: list[Family]) -> bool:
    """Whether gradients are scattered on several streams, where nothing says which calls a group makes."""
    unsized = any(f.size < 0 for f in of(families, "reduce_scatter"))
    return unsized and any(f.size < 0 for f in of(view.on_other_streams(claim.group), "reduce_scatter"))


def _on_other_streams(view: RankView, claim: Claim, families: list[Family]) -> list[Family]:
    """Gathers and reductions of the same units on other streams, where the group that makes them has no name."""
    units = {f.size for f in families if f.size > 0}
    others = [f for f in view.on_other_streams(claim.group) if f.size in units and f.index not in claim.families]
    return of([f for f in others if f.is_tensor and f.calls_per_step], "reduce_scatter", "all_gather")


def _scattered(view: RankView, scatters: list[Family], gathers: list[Family]) -> Sharding:
    if not gathers:
        reason = "gradients are scattered, but no parameters are gathered in the window"
        return Sharding(None, (1, 2, 3), reason)
    scattered = _calls_by_size(scatters)
    gathered = _calls_by_size(gathers)
    shared = scattered.keys() & gathered.keys()
    again = {size for size in shared if _gathered_again(scatters, gathers, size)}
    if again:
        example = max(again)
        ratio = count(gathered[example] / scattered[example])
        return Sharding(3, (3,), f"units are gathered {ratio} times per reduction: parameters are freed after forward")
    late = _late(view, scatters, gathers)
    if late and not shared and len(gathers) > len(scatters) and sum(gathered.values()) >= 2 * sum(scattered.values()):
        sentence = (
            "parameters come back tensor by tensor, gradients leave in buckets: small tensors kept whole by ZeRO-3"
        )
        return Sharding(3, (3,), sentence)  # deepspeed/runtime/zero/stage3.py, persistent parameters
    if late:
        return Sharding(1, (1,), "parameters are gathered once, after the last gradient is scattered")
    leading = pieces_before(view, _indices(gathers), _indices(scatters))
    if not leading and view.sequence.size:
        return Sharding(None, (1, 2), "gathers and reductions overlap in time: the stage cannot be told")
    if not shared:
        return Sharding(3, (3,), "parameters are gathered before use in other pieces than gradients are reduced in")
    return _gathered_once(scatters, gathers)


def _gathered_again(scatters: list[Family], gathers: list[Family], size: int) -> bool:
    """Whether units of a size are gathered once more after forward, for half of their gradients at least.

    Gradients may be reduced once for several microbatches (``no_sync``), each of which gathers for its forward: only
    where no reduction is known to lie in backward does the number of gathers alone decide.
    """
    own = [f for f in gathers if f.size == size]
    scattered = per_step(f for f in scatters if f.size == size)
    if per_step(own) < (1 + REGATHERED) * scattered:
        return False
    if not any(f.backward for f in scatters):
        return True
    return sum(f.backward + f.by_phase[OPTIMIZER] for f in own) >= REGATHERED * scattered


def _late(view: RankView, scatters: list[Family], gathers: list[Family]) -> bool:
    """Whether parameters are gathered after their gradients are scattered, unit by unit where units match."""
    if all_after(view, _indices(gathers), _indices(scatters)):
        return True
    units = {f.size for f in scatters}
    if {f.size for f in gathers} - units:
        return False
    same = [([f for f in gathers if f.size == unit], [f for f in scatters if f.size == unit]) for unit in units]
    return all(not gather or all_after(view, _indices(gather), _indices(scatter)) for gather, scatter in same)


def _gathered_once(scatters: list[Family], gathers: list[Family]) -> Sharding:
    """Gathered once, before the first reduction: FSDP without resharding, or an optimizer that gathers late.

    The two move the same bytes at the same places. FSDP gathers and scatters whole tensors
    (torch/distributed/fsdp: all_gather_into_tensor, reduce_scatter_tensor); Megatron's distributed optimizer works on
    coalesced buffers (megatron/core/distributed/param_and_grad_buffer.py).
    """
    ops = {f.op for f in scatters + gathers if f.op}
    coalesced = {op for op in ops if "coalesced" in op}
    if ops and coalesced == ops:
        return Sharding(1, (1,), "coalesced parameter buffers are gathered ahead of use: a sharded optimizer")
    if ops and not coalesced:
        return Sharding(2, (2, 3), "units are gathered once, in forward, and kept until their gradient is scattered")
    return Sharding(None, (1, 2), "gathered once before use: a sharded optimizer and unsharded forward look the same")


def _reduced(
    reduces: list[Family], gathers: list[Family], broadcasts: list[Family], microbatches: int | None
) -> Sharding:
    if not gathers and not broadcasts:
        return Sharding(0, (0,), "gradients are all-reduced and nothing is gathered: parameters are replicated")
    if broadcasts:
        return Sharding(1, (1,), "each rank broadcasts the parameters it updated: the optimizer is sharded")
    passes = elements(reduces) / max(elements(gathers), 1.0)
    if passes >= 1.5:
        sentence = f"gradients are reduced {count(passes)} times per gather of the parameters: in every microbatch"
        return Sharding(2, (2,), sentence)
    if microbatches and microbatches > 1:
        return Sharding(1, (1,), f"one reduction for {microbatches} microbatches, then parameters are gathered")
    reason = "one reduction and one gather per step: with one microbatch stages 1 and 2 send the same"
    return Sharding(None, (1, 2), reason)


def declared_sharding(view: RankView) -> Sharding | None:
    """A sharded optimizer on a group of one rank moves nothing, but its calls are there."""
    alone = [f for f in view.families if view.group(f.group).size == 1]
    scatters, gathers = of(alone, "reduce_scatter"), of(alone, "all_gather")
    if {f.size for f in scatters} & {f.size for f in gathers}:
        sentence = "gradients are scattered and parameters gathered on a group of one rank: a sharded optimizer is on"
        return Sharding(1, (1,), sentence)
    return None


def _calls_by_size(families: list[Family]) -> dict[int, float]:
    calls: dict[int, float] = {}
    for family in families:
        calls[family.size] = calls.get(family.size, 0.0) + family.calls_per_step
    return calls


def _indices(families: list[Family]) -> frozenset[int]:
    return frozenset(f.index for f in families)

"""Expert parallelism: tokens sent to the ranks that hold their experts, and back."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from heuristics.dimensions.claim import (
    FAIR,
    STRONG,
    SURE,
    WEAK,
    Claim,
    Test,
    count,
    indices,
    of,
    per_step,
)
from heuristics.dimensions.order import (
    FOUR_PER_ATTENTION,
    attention_between,
    attention_share,
    attention_since,
    begins_after_attention,
)
from heuristics.view import SCALARS

if TYPE_CHECKING:
    from heuristics.view import Family, RankView

DISPATCH_LIBRARIES = frozenset({"deep_ep", "hybrid_ep", "mori", "pplx", "nccl_ep"})
"""Libraries that do nothing but expert dispatch and combine."""

EACH_LAYER = 0.9
"""Share of calls with attention before them that shows one call per layer; steps have a few calls of other kinds."""

MAX_EXPERTS = 4096
"""Count exchanges carry a number per expert and rank: no published model has more experts than this."""


def claims(view: RankView, group: int) -> list[Claim]:
    """Expert-parallel readings of the calls on one group."""
    families = view.on_group(group)
    return [
        *_by_library(group, families),
        *_uneven(view, group, families),
        *_padded(view, group, families),
        *_gathered(view, group, families),
        *_routing_maps(view, group, families),
    ]


def _by_library(group: int, families: list[Family]) -> list[Claim]:
    own = [f for f in families if f.library in DISPATCH_LIBRARIES]
    if not own:
        return []
    names = ", ".join(sorted({f.library for f in own}))
    test = Test(SURE, f"{count(per_step(own))} dispatch and combine kernels per step of {names}")
    return [Claim("ep", "dispatch", group, indices(own), (test,), MappingProxyType({}))]


def _workload_tests(view: RankView) -> list[Test]:
    """Recommendation models exchange rows of embedding tables just as uneven as tokens."""
    if view.runs_experts:
        return [Test(FAIR, "kernels of experts run in the window")]
    if view.runs_embedding_bags:
        return [Test(-SURE - STRONG, "embedding tables are looked up: the exchanges carry their rows")]
    return []


def _counts(families: list[Family]) -> list[Family]:
    """Exchanges of token counts: small integers, by all-to-all, gather or reduction.

    Nothing but counts is exchanged as integers, so where sizes are not recorded all-to-alls still tell.
    """
    integers = [f for f in families if not f.is_float]
    known = [f for f in of(integers, "all_to_all", "all_gather", "all_reduce") if 1 < f.size <= MAX_EXPERTS]
    return known + [f for f in of(integers, "all_to_all") if f.size < 0]


def _uneven(view: RankView, group: int, families: list[Family]) -> list[Claim]:
    """Dispatch and combine with the router's own split sizes."""
    floats = [f for f in families if f.is_float and f.role == "payload"]
    exchanges = [f for f in of(floats, "all_to_all") if f.split == "uneven"]
    if not exchanges:
        return []
    calls = per_step(exchanges)
    tests = [Test(STRONG, f"{count(calls)} all-to-alls per step with uneven splits: tokens routed to experts")]
    counts = _counts(families)
    if counts:
        tests.append(Test(STRONG, f"{count(per_step(counts))} exchanges of integer counts per step go before them"))
    if view.has_backward and any(f.backward for f in exchanges):
        tests.append(Test(WEAK, "they come back in backward"))
    elif view.has_backward and not counts:
        tests.append(Test(-FAIR, "none of them comes back in backward"))
    tests += _workload_tests(view)
    claimed = indices(exchanges) | indices(counts)
    claimed |= indices(
        f for f in of(floats, "all_to_all") if f.split == "equal" and f.size in {e.size for e in exchanges}
    )
    return [Claim("ep", "dispatch", group, claimed, tuple(tests), MappingProxyType({}))]


def _gathered(view: RankView, group: int, families: list[Family]) -> list[Claim]:
    """All tokens gathered, partial outputs reduce-scattered (Megatron MoEAllGatherTokenDispatcher).

    The calls are those of sequence parallelism, on the ranks that share experts; attention lies outside each pair.
    """
    floats = [f for f in families if f.is_tensor]
    gathers, scatters = of(floats, "all_gather"), of(floats, "reduce_scatter")
    sizes = {f.size for f in gathers} & {f.size for f in scatters if f.forward}
    if not sizes:
        return []
    gather, scatter = ([f for f in side if f.size in sizes] for side in (gathers, scatters))
    tests = [Test(WEAK, "activations are gathered and their sums scattered in forward")]
    if attention_between(view, indices(gather), indices(scatter)) == 0.0:
        tests.append(Test(STRONG, "attention never runs between gather and reduce-scatter: only experts do"))
    maps = [f for f in of(families, "all_gather") if not f.is_float and f.size > SCALARS]
    if maps:
        tests.append(Test(STRONG, f"{count(per_step(maps))} gathers of integer routing maps per step go with them"))
    tests += _workload_tests(view)
    claimed = indices(gather + scatter + maps) | indices(g for g in gathers if g.calls_per_step == per_step(maps))
    return [Claim("ep", "dispatch", group, claimed, tuple(tests), MappingProxyType({}))]


def _routing_maps(view: RankView, group: int, families: list[Family]) -> list[Claim]:
    """The routing maps alone, where tokens cannot be told from the activations of tensor-parallel ranks.

    Without names the calls of two groups may share a stream; maps of integers, one for each attention, remain.
    """
    maps = [f for f in of(families, "all_gather") if not f.is_float and f.size > SCALARS and f.calls_per_step >= 2]
    if view.group(group).identified or not maps:
        return []
    since = attention_since(view, indices(maps))
    if not len(since) or (since > 0).mean() < EACH_LAYER:
        return []
    said = f"{count(per_step(maps))} gathers of integer routing maps per step, attention before each: one per layer"
    return [Claim("ep", "routing_map", group, indices(maps), (Test(STRONG, said),), MappingProxyType({}))]


def _padded(view: RankView, group: int, families: list[Family]) -> list[Claim]:
    """Dispatch padded to capacity: equal splits, after attention (GShard; DeepSpeed moe/sharded_moe.py)."""
    floats = [f for f in families if f.is_tensor]
    exchanges = [f for f in of(floats, "all_to_all") if f.split == "equal"]
    if not exchanges:
        return []
    counts = _counts(families)
    tests = []
    if counts:
        tests.append(Test(STRONG, f"{count(per_step(counts))} exchanges of integer counts per step go with them"))
    if view.has_backward and any(f.backward for f in exchanges) and not any(f.forward for f in exchanges):
        tests.append(Test(-STRONG, "all of them lie in backward, and tokens leave in forward"))
    attended = begins_after_attention(view, indices(exchanges))
    if attended:
        tests.append(Test(STRONG, "attention runs before the first exchange: tokens leave after it"))
    elif attended is False:
        tests.append(Test(-STRONG, "the first exchange comes before any attention"))
    elif (share := attention_share(view, indices(exchanges))) is not None and share <= FOUR_PER_ATTENTION:
        tests.append(Test(-STRONG, "four exchanges for each attention: its own q, k, v and output"))
    tests += _workload_tests(view)
    if {f.ndim for f in exchanges} == {3}:
        tests.append(Test(WEAK, "the tensors have three dimensions: experts, capacity, hidden"))
    facts = MappingProxyType({"padded": True})
    return [Claim("ep", "dispatch", group, indices(exchanges + counts), tuple(tests), facts)]

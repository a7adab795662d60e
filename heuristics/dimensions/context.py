"""Context parallelism: keys and values travel around the attention of every layer."""

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
from heuristics.dimensions.keys_values import all_even, among_more, in_pairs, shaped, speaks_for_keys
from heuristics.dimensions.order import (
    FOUR_PER_ATTENTION,
    adjacent_pairs,
    attention_share,
    begins_after_attention,
)
from heuristics.dimensions.p2p import Traffic, traffic
from heuristics.view import OPTIMIZER, UNKNOWN

if TYPE_CHECKING:
    from heuristics.view import Family, RankView


def claims(view: RankView, group: int) -> list[Claim]:
    """Context-parallel readings of the calls on one group."""
    families = [f for f in view.on_group(group) if f.role == "payload"]
    floats = [f for f in families if f.is_tensor]
    return [
        *_ring(view, group, families),
        *_one_hot_ring(group, floats),
        *_ulysses(view, group, floats),
        *_gathered_keys(view, group, floats),
    ]


def _ring(view: RankView, group: int, families: list[Family]) -> list[Claim]:
    """Ring attention by point-to-point messages (Liu et al. 2023): one neighbour sends, the other receives."""
    seen = traffic(families, layers=True)
    if seen is None or seen.sends != seen.receives:
        return []
    facts = MappingProxyType({"cp_kind": "ring"})
    tests = _ring_tests(view, view.group(group).size, seen)
    between = sum(f.by_phase[UNKNOWN] + f.by_phase[OPTIMIZER] for f in families if f.index in seen.families)
    if not view.group(group).identified and between > 0 and not _alike_in_every_layer(seen):
        tests.append(Test(-STRONG, "some lie between passes, as those of a pipeline do, and their group is not known"))
    return [Claim("cp", "ring", group, seen.families, tuple(tests), facts)]


def _alike_in_every_layer(seen: Traffic) -> bool:
    """Whether backward sends a whole number of times what forward does, as layers that all do the same must."""
    backward, forward = round(seen.in_backward), seen.sends + seen.receives - round(seen.in_backward)
    return min(backward, forward) > 0 and max(backward, forward) % min(backward, forward) == 0


def _ring_tests(view: RankView, size: int, seen: Traffic) -> list[Test]:
    tests = []
    if seen.in_backward:
        sentence = f"{count(seen.in_backward)} messages per step are issued from inside backward, a layer at a time"
        tests.append(Test(STRONG, sentence))
    elif view.has_backward:
        tests.append(Test(-STRONG, "no message is issued from inside backward, where attention would need keys again"))
    to, source = seen.to, seen.source
    if size > 2 and len(to) == 1 and len(source) == 1:
        if to != source:
            tests.append(Test(STRONG, f"sends only to rank {min(to)}, receives only from rank {min(source)}: a ring"))
        else:
            tests.append(Test(-STRONG, "the neighbour that is sent to also sends: a link used both ways"))
    elif len(to) > 1 or len(source) > 1:
        tests.append(Test(-STRONG, "messages go to more than one neighbour"))
    if view.off_mesh and size == view.world_size:
        tests.append(Test(-SURE, "ranks of the job have their nearest partners at different distances: no rings"))
    pairs = adjacent_pairs(view, seen.send_families, seen.receive_families)
    if pairs == 1.0:
        tests.append(Test(WEAK, "every send is issued together with a receive"))
    elif view.sequence.size:
        tests.append(Test(-STRONG, "some sends stand alone between passes, as those of a pipeline do"))
    return tests


def _one_hot_ring(group: int, floats: list[Family]) -> list[Claim]:
    """Torch writes the ring as all-to-alls with one non-zero split (torch ring attention, permute_tensor)."""
    hops = [f for f in of(floats, "all_to_all") if f.split == "one_hot"]
    if not hops:
        return []
    tests = [Test(SURE, f"{count(per_step(hops))} all-to-alls per step send everything to one rank: hops of a ring")]
    blocks = {f.size for f in hops}
    gathers = [f for f in of(floats, "all_gather") if any(f.size % block == 0 for block in blocks)]
    if gathers:
        tests.append(Test(FAIR, "gathers of the same blocks bring all keys and values together"))
    facts = MappingProxyType({"cp_kind": "ring"})
    return [Claim("cp", "ring", group, indices(hops + gathers), tuple(tests), facts)]


def _ulysses(view: RankView, group: int, floats: list[Family]) -> list[Claim]:
    """Head exchange before and after attention (Jacobs et al. 2023): equal splits, first before any attention."""
    exchanges = [f for f in of(floats, "all_to_all") if f.split == "equal"]
    if not exchanges:
        return []
    tests = []
    attended = begins_after_attention(view, indices(exchanges))
    if attended is False:
        tests.append(Test(STRONG, "the first exchange of the step comes before any attention, which waits for it"))
    elif attended:
        tests.append(Test(-STRONG, "attention runs before the first exchange"))
    else:
        tests += _per_attention(view, exchanges)
    counts = [f for f in of(view.on_group(group), "all_to_all") if not f.is_float]
    if counts:
        tests.append(Test(-STRONG, f"{count(per_step(counts))} exchanges of integers per step go with them: tokens"))
    ndim = max(f.ndim for f in exchanges)
    if ndim >= 4:
        tests.append(Test(FAIR, f"the tensors have {ndim} dimensions: heads and sequence"))
    if per_step(exchanges) % 4 == 0:
        tests.append(
            Test(WEAK, f"{count(per_step(exchanges))} equal exchanges per step: q, k, v and output of each layer")
        )
    facts = MappingProxyType({"cp_kind": "ulysses"})
    return [Claim("cp", "ulysses", group, indices(exchanges), tuple(tests), facts)]


def _per_attention(view: RankView, exchanges: list[Family]) -> list[Test]:
    """Exchanges per attention, where the first of a step is not known: four move q, k, v and the output of a layer.

    Experts exchange twice per layer. So does attention whose q, k and v travel together, which says nothing.
    """
    share = attention_share(view, indices(exchanges))
    if share is None:
        return []
    if share <= FOUR_PER_ATTENTION:
        return [Test(STRONG, "four exchanges for each attention: q, k, v and output")]
    return [Test(-STRONG, "two exchanges for each attention: those of experts, or of q, k and v together")]


def _gathered_keys(view: RankView, group: int, floats: list[Family]) -> list[Claim]:
    """Keys and values gathered whole before attention (Llama 3, section 3.3.2; TransformerEngine AllGather class)."""
    floats = shaped(of(floats, "all_gather", "reduce_scatter")) or floats
    gathers = [f for f in of(floats, "all_gather") if f.forward]
    scatters = [f for f in of(floats, "reduce_scatter") if not f.forward and f.size in {g.size for g in gathers}]
    scatters = [f for f in scatters if f.dtype in {g.dtype for g in gathers}]
    if not gathers or not scatters or not view.has_backward:
        return []
    keys = in_pairs(view, floats)
    paired = [g for g in gathers if g.size in {f.size for f in scatters} and (not keys or g.size in keys)]
    scatters = [f for f in scatters if not keys or f.size in keys]
    dims = {f.ndim for f in paired + scatters if f.ndim}
    tests = list(max(keys.values(), key=lambda found: sum(test.weight for test in found), default=()))
    if dims and min(dims) >= 3:
        tests.append(Test(STRONG, "tensors of an activation's shape are gathered in forward and scattered in backward"))
    elif dims == {1}:
        tests.append(Test(-STRONG, "the buffers are flat, as parameters are"))
    if len({f.size for f in paired}) == 1 and all_even(scatters):
        tests.append(Test(WEAK, "one size, an even number of times: keys and values"))
    if more := among_more(view, group):
        said = f"gradients are reduced among {more} ranks, of which these are a part: what they gather is no parameter"
        tests.append(Test(speaks_for_keys(view, keys), said))
    facts = MappingProxyType({"cp_kind": "all_gather"})
    return [Claim("cp", "all_gather", group, indices(paired + scatters), tuple(tests), facts)]

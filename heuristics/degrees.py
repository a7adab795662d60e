"""The degrees of the whole job: what the ranks say, put together under the rule that they multiply to the world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from heuristics.view import within

if TYPE_CHECKING:
    from heuristics.axes import Axes, Axis
    from heuristics.view import RankView

NINES = 2
"""Claims of one job share their blind spots, so no weight of evidence is worth more than this many nines."""


@dataclass(frozen=True)
class Degree:
    """One degree of the job.

    Attributes:
        value: None if undecided.
        confidence: that the value is right.
        reasons: why, in sentences; for an undecided degree, why not.
        rivals: other values that ranks claimed.
    """

    value: int | None
    confidence: float
    reasons: tuple[str, ...] = ()
    rivals: tuple[int, ...] = ()

    @property
    def withdrawn(self) -> bool:
        """Whether ranks claimed a value that the rest of the job contradicts."""
        return self.value is None and bool(self.rivals)


@dataclass(frozen=True)
class Degrees:
    """All degrees of a job, and the two factors of hybrid sharding."""

    tp: Degree
    cp: Degree
    pp: Degree
    dp: Degree
    ep: Degree
    shard: int | None
    replicate: int | None
    replicated: bool  # whether some group reduces dense gradients
    contradiction: str | None = None  # why claimed degrees were withdrawn

    def known(self) -> dict[str, int]:
        """Values by dimension, undecided ones left out."""
        every = {"tp": self.tp, "cp": self.cp, "pp": self.pp, "dp": self.dp, "ep": self.ep}
        return {dim: degree.value for dim, degree in every.items() if degree.value is not None}


def certainty(weight: float) -> float:
    """Confidence from log odds, with the number of nines bounded."""
    return float(1.0 - 10.0 ** -max(0.0, min(weight, NINES)))


def degrees(views: Sequence[RankView], axes: Sequence[Axes], explained: float, undecided: Mapping[str, str]) -> Degrees:
    """Put the ranks together.

    Args:
        views: the ranks.
        axes: what each of them says.
        explained: share of the payload that some claim covers, 0 to 1.
        undecided: dimensions that unexplained calls might serve, and those calls.
    """
    world = world_size(views)
    if world != 1 and not any(f.is_tensor and f.calls_per_step for view in views for f in view.families):
        silent = Degree(None, 0.0, ("no call moves a tensor in what was recorded",))
        return Degrees(silent, silent, silent, silent, silent, None, None, replicated=False)
    sync = _not_over_all(_vote(_on_every_stage(axes)), axes, world)
    tp, cp, ep = (_voted(views, axes, dim, explained, undecided.get(dim)) for dim in ("tp", "cp", "ep"))
    pp = _pipeline(views, axes, explained, undecided.get("pp"))
    tp, pp = (_closed(degree, sync, (tp, pp), world) for degree in (tp, pp))
    if ep.value == 1 and tp.value != 1 and any(view.runs_experts for view in views):
        ep = Degree(None, 0.0, ("experts run without any exchange of tokens: they may be split among the tp ranks",))
    ep = _experts_or_slices(ep, tp, axes)
    pp = _pipeline_by_product(pp, tp, cp, sync, axes, world)
    tp = _tensor_by_product(tp, pp, sync, axes, world)
    dp = _data(tp, cp, pp, sync, axes, world, views)
    replicated = any(axis is not None for axis in _on_every_stage(axes))
    shard, replicate = _vote([a.shard for a in axes]), _vote([a.replicate for a in axes])
    settled = Degrees(
        tp, cp, pp, dp, ep, shard.value if shard else None, replicate.value if replicate else None, replicated
    )
    return _checked(settled, world)


def _not_over_all(sync: Degree | None, axes: Sequence[Axes], world: int | None) -> Degree | None:
    """Ranks that split a model, in groups of whatever size, hold different parts: no gradient goes to all of them."""
    split = {dim for dim in ("tp", "pp") for a in axes if dim in a.axes and not a.axes[dim].degree}
    known = {dim for dim in split for a in axes if dim in a.axes and a.axes[dim].degree}
    if sync is None or sync.value is None or sync.value != world or not split - known:
        return sync
    return replace(sync, value=None, confidence=0.0)


def _on_every_stage(axes: Sequence[Axes]) -> list[Axis | None]:
    """The gradient groups of the ranks; none if whole stages of a pipeline go without: then they tie embeddings."""
    found = [a.sync for a in axes]
    staged = [a.sync is not None for a in axes if "pp" in a.axes]
    return [None] * len(found) if any(staged) and not all(staged) else found


def world_size(views: Sequence[RankView]) -> int | None:
    """The job's size: as stated, else the highest rank of a listed group plus one; None if nothing says."""
    stated = {view.world_size for view in views if view.world_size}
    if len(stated) == 1:
        return stated.pop()
    return None


def _vote(claimed: Sequence[Axis | None]) -> Degree | None:
    """The degree that the ranks which see a dimension agree on, by total weight."""
    totals: dict[int, float] = {}
    best: dict[int, float] = {}
    for axis in claimed:
        if axis is not None and axis.degree:
            totals[axis.degree] = totals.get(axis.degree, 0.0) + max(axis.weight, 0.1)
            best[axis.degree] = max(best.get(axis.degree, 0.0), axis.weight)
    if not totals:
        return None
    value = max(totals, key=lambda degree: totals[degree])
    share = totals[value] / sum(totals.values())
    return Degree(value, certainty(best[value]) * share, rivals=tuple(d for d in totals if d != value))


def _sure(degree: Degree) -> bool:
    """Whether a degree may settle others: one in ten that it is wrong, at most."""
    return degree.confidence >= certainty(1)


def _closed(degree: Degree, sync: Degree | None, others: Sequence[Degree], world: int | None) -> Degree:
    """A degree left open by unexplained calls is 1 if the ranks that hold the same parameters are all ranks."""
    if degree.value is not None or sync is None or sync.value is None or world is None or not _sure(sync):
        return degree
    if sync.value * prod(other.value or 1 for other in others) == world:
        return Degree(1, sync.confidence, ("gradients are reduced over every rank that is left",))
    return degree


def _voted(
    views: Sequence[RankView], axes: Sequence[Axes], dim: str, explained: float, undecided: str | None
) -> Degree:
    claimed = [a.axes.get(dim) for a in axes]
    vote = _vote(claimed)
    if vote is not None:
        return vote
    if any(axis is not None for axis in claimed):
        return Degree(None, 0.0, (f"the size of the {dim} group is not recorded{_who_tells(views, dim)}",))
    if undecided is not None:
        return Degree(None, 0.0, (f"{undecided} calls per step are unexplained and may serve {dim}",))
    return Degree(1, certainty(NINES) * explained, (f"no call behaves like {dim}",))


def _who_tells(views: Sequence[RankView], dim: str) -> str:
    """The rank whose trace would say which of several groups a dimension has, as the end of a sentence."""
    ranks = sorted({view.told_by[dim] for view in views if dim in view.told_by} - {view.rank for view in views})
    return f": several groups fit; give the trace of rank {ranks[0]} to decide" if ranks else ""


def _pipeline(views: Sequence[RankView], axes: Sequence[Axes], explained: float, undecided: str | None) -> Degree:
    chains = _chains(views, axes)
    if chains is not None:
        return Degree(chains, certainty(NINES), (f"messages link the ranks in chains of {chains}",))
    return _voted(views, axes, "pp", explained, undecided)


def _chains(views: Sequence[RankView], axes: Sequence[Axes]) -> int | None:
    """Length of the chains that pipeline messages form, when every rank of every chain is given."""
    links: dict[int, set[int]] = {}
    for view, seen in zip(views, axes, strict=True):
        pipeline = seen.axes.get("pp")
        if pipeline is None or view.rank < 0:
            continue
        claimed = frozenset().union(*[claim.families for claim in pipeline.claims])
        links[view.rank] = {f.peer for f in view.with_peer if f.index in claimed}
    if not links or any(not peers or not peers <= links.keys() for peers in links.values()):
        return None
    sizes, left = set(), set(links)
    while left:
        chain, edge = set(), {left.pop()}
        while edge:
            chain |= edge
            edge = {peer for rank in edge for peer in links[rank]} - chain
        sizes.add(len(chain))
        left -= chain
    return sizes.pop() if len(sizes) == 1 else None


def _pipeline_by_product(
    pp: Degree, tp: Degree, cp: Degree, sync: Degree | None, axes: Sequence[Axes], world: int | None
) -> Degree:
    """Where messages run over the world group, the other degrees say how long the pipeline is."""
    if not any("pp" in a.axes for a in axes) or world is None or tp.value is None or cp.value is None:
        return pp
    if sync is None and any(axis is not None for axis in _on_every_stage(axes)):
        return pp  # gradients are reduced over a group of unknown size
    rest = tp.value * (sync.value if sync and sync.value else cp.value)
    if pp.value is not None and (sync is None or pp.value * rest == world):
        return pp
    if pp.value is not None and rest == world and _only_neighbours(axes, world) and sync and _sure(sync):
        said = f"neighbours of a group of all ranks send to each other, but tp and dp account for all {world} ranks"
        return Degree(None, 0.0, (said,), (pp.value,))
    if world % rest == 0 and world // rest > 1 and (pp.value is None or pp.confidence < certainty(NINES)):
        said = f"{world} ranks over {rest} per stage leave {world // rest} stages"
        if pp.value is not None:
            return Degree(None, 0.0, (f"{said}, but messages run over a group of {pp.value}",), (pp.value,))
        return Degree(world // rest, certainty(1), (said,), pp.rivals)
    return pp


def _only_neighbours(axes: Sequence[Axes], world: int) -> bool:
    """Whether a pipeline's length is known only from ranks next to each other in the group of all ranks.

    Messages of such ranks show that stages lie side by side, not where a pipeline ends and the next begins.
    """
    found = [a.axes["pp"] for a in axes if "pp" in a.axes]
    return bool(found) and all(axis.degree in (0, world) for axis in found)


def _experts_or_slices(ep: Degree, tp: Degree, axes: Sequence[Axes]) -> Degree:
    """Routing maps are gathered among ranks that share experts or slices of each expert (Megatron's ``tp_ep`` group).

    With as many members as tensor-parallel ranks, on a group that is not named, the two send the same.
    """
    seen = [a.axes["ep"] for a in axes if "ep" in a.axes]
    maps = seen and all(claim.kind == "routing_map" for axis in seen for claim in axis.claims)
    if not maps or ep.value is None or tp.value != ep.value:
        return ep
    said = (
        f"{tp.value} ranks exchange tokens, which hold either different experts or slices of each, as tensor ranks do"
    )
    return Degree(None, 0.0, (said,), (1, ep.value))


def _tensor_by_product(tp: Degree, pp: Degree, sync: Degree | None, axes: Sequence[Axes], world: int | None) -> Degree:
    """Where no call of the tensor-parallel ranks records how many they are, the other degrees leave it."""
    if tp.value is not None or not any("tp" in a.axes for a in axes):
        return tp
    if world is None or pp.value is None or sync is None or sync.value is None:
        return tp
    rest = pp.value * sync.value
    if world % rest or world // rest < 2:
        return tp
    said = f"{world} ranks, {rest} that hold other parameters or replicas, leave {world // rest}"
    return Degree(world // rest, min(certainty(1), sync.confidence, pp.confidence), (said,), tp.rivals)


def _data(
    tp: Degree,
    cp: Degree,
    pp: Degree,
    sync: Degree | None,
    axes: Sequence[Axes],
    world: int | None,
    views: Sequence[RankView],
) -> Degree:
    model = None if None in (tp.value, cp.value, pp.value) else prod(d.value or 1 for d in (tp, cp, pp))
    if sync is not None and sync.value:
        return _from_sync(sync, cp, model, axes, world)
    if any(axis is not None for axis in _on_every_stage(axes)):
        if model and world and world % model == 0:
            weight = max(axis.weight for axis in _on_every_stage(axes) if axis is not None)
            return Degree(world // model, certainty(min(weight, 1)), (f"{world} ranks, {model} per replica",))
        return Degree(None, 0.0, (f"the group that reduces gradients is not recorded{_who_tells(views, 'dp')}",))
    if model is None or world is None or world % model:
        return Degree(None, 0.0, ("nothing seen reduces gradients, and the other degrees do not fix the rest",))
    replicas = world // model
    if replicas == 1:
        return Degree(1, certainty(NINES), ("the other degrees account for every rank",))
    if any("ep" in a.axes for a in axes) and not any(view.has_backward for view in views):
        said = "ranks exchange tokens for experts, so each works on its own: data-parallel attention"
        return Degree(replicas, certainty(1), (said,))
    seen = "no gradient is reduced in the window"
    return Degree(None, 0.0, (f"{seen}: {replicas} copies may be replicas or separate jobs",))


def _from_sync(sync: Degree, cp: Degree, model: int | None, axes: Sequence[Axes], world: int | None) -> Degree:
    """Gradients are reduced over data times context; the context part is taken out if it is inside."""
    if cp.value is None:
        said = f"gradients are reduced over {sync.value} ranks, of which an unknown part may split the sequence"
        return Degree(None, 0.0, (said,), sync.rivals)
    members, context = sync.value or 1, cp.value or 1
    inside = _context_inside(axes) if context > 1 else False
    if inside is None:  # ranks not listed: the product decides
        inside = bool(world and model and members % context == 0 and model * (members // context) == world)
    said = f"gradients are reduced over {members} ranks"
    if inside:
        said = f"{said}, {context} of which split the sequence"
        return Degree(members // context, min(sync.confidence, cp.confidence), (said,), sync.rivals)
    return Degree(members, sync.confidence, (said,), sync.rivals)


def _context_inside(axes: Sequence[Axes]) -> bool | None:
    """Whether the context ranks lie inside the group that reduces gradients; one rank of a mesh tells for all."""
    for seen in axes:
        context, sync = seen.axes.get("cp"), seen.sync
        if context is not None and sync is not None and context.ranks and sync.ranks:
            return within(context.ranks, sync.ranks)
    return None


def _checked(found: Degrees, world: int | None) -> Degrees:
    """Degrees that do not multiply to the world contradict each other: the weakest are withdrawn."""
    values: Mapping[str, int | None] = {
        "tp": found.tp.value,
        "cp": found.cp.value,
        "pp": found.pp.value,
        "dp": found.dp.value,
    }
    if world is None or None in values.values() or prod(v for v in values.values() if v) == world:
        return found
    if found.dp.value != 1 and prod(values[dim] or 1 for dim in ("tp", "cp", "pp")) == world and values["pp"] != 1:
        return _without_replicas(found)
    product = " x ".join(f"{dim}{value}" for dim, value in values.items())
    why = f"{product} is not the world of {world}"
    standing = {dim: (values[dim] == 1, getattr(found, dim).confidence) for dim in values}
    weakest = min(standing.values())
    kept = {dim: getattr(found, dim) for dim in ("tp", "cp", "pp", "dp", "ep")}
    for dim in (dim for dim in values if dim == "dp" or standing[dim] == weakest):
        kept[dim] = Degree(None, 0.0, (*kept[dim].reasons, why), (values[dim] or 1, *kept[dim].rivals))
    lowered = {dim: Degree(d.value, min(d.confidence, 0.5), d.reasons, d.rivals) for dim, d in kept.items()}
    return Degrees(
        **lowered, shard=found.shard, replicate=found.replicate, replicated=found.replicated, contradiction=why
    )


def _without_replicas(found: Degrees) -> Degrees:
    """The other degrees take every rank: what looked like gradients are those of embeddings tied across stages."""
    said = "the other degrees account for every rank; reductions between stages are those of tied embeddings"
    dp = Degree(1, certainty(1), (said,), (found.dp.value or 1,))
    return replace(found, dp=dp, shard=None, replicate=None, contradiction=said)

"""The layout of a job whose traces say nothing but kernel names, streams and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

import numpy as np

from heuristics.kernels_only.absent import HIDDEN, reduces_gradients, ruled_out
from heuristics.kernels_only.calls import Calls, timed
from heuristics.kernels_only.clocks import Clocks, align
from heuristics.kernels_only.partners import meetings
from heuristics.kernels_only.roles import FEWEST, Role, roles, unexplained
from heuristics.kernels_only.together import Group, together, usual_scatter
from heuristics.kernels_only.traffic import Seen, observed
from heuristics.members import MAY_SERVE
from heuristics.timing import EXPERTS
from heuristics.verdict import DIMENSIONS, Dim, DimensionVerdict, Inference, Layout
from heuristics.view import GroupView, RankView, compact

CERTAIN, LIKELY = 0.95, 0.8
"""All ranks agree, every tensor is explained and the degrees multiply to the world; or one of these is missing."""

TIDY, CLOSEST = 0.1, 0.02
"""Where nearly all ends have another within this much of the usual scatter the files share a clock, and ends of members
are closer by as much than usual; but not by more than the second."""

LOOSE = 6.0
"""Where the nearest ends are further off than so many times the usual scatter they are no witness of a group: ends that
have nothing to do with each other are off by anything up to `together.NEAR`."""

MOST_RANKS = 128
"""Every rank is compared with every other: 0.7 ms a pair and step, so 12 s for one step of as many."""

NEGLIGIBLE = 0.05
"""Unexplained share of the communication time that hides no dimension."""


@dataclass(frozen=True)
class Job:
    """All ranks with their roles."""

    views: Sequence[RankView]
    seen: Sequence[Seen]
    roles: Sequence[Sequence[Role]]

    @property
    def ranks(self) -> list[int]:
        """The global rank at each place."""
        return [one.calls.rank for one in self.seen]


def infer_from_times(views: Sequence[RankView]) -> tuple[Inference, Sequence[RankView]]:
    """Layout and dimension of every call, from the coincidence of ends and the place of calls among landmarks.

    Args:
        views: ranks of one job, all with `RankView.timing`.

    Returns:
        The verdict; and where it is open, but all calls are on one group, the ranks with that group, to be read by
        order and number as if the file had said it (without any, no ranks). The ranks as they are where some are
        missing whose calls would tell the groups, but kernels say how many take part.
    """
    if len(views) > MOST_RANKS:
        said = (
            f"times of {len(views)} ranks are too many to compare; give those of at most {MOST_RANKS} that form a job"
        )
        unknown: tuple[list[Dim], ...] = tuple(["unknown"] * len(view.family_of_call) for view in views)
        return Inference(_undecided(said), unknown), ()
    calls = timed(views)
    clocks = Clocks(np.zeros(len(calls), dtype=np.int64), np.zeros(len(calls), dtype=np.int64))
    usual = usual_scatter(calls, clocks)
    scale = max(usual, CLOSEST) if usual <= TIDY else 1.0
    if usual > TIDY:
        clocks = align(calls)
        usual = usual_scatter(calls, clocks)
    found = observed(calls, clocks, meetings(calls, together(calls, clocks, scale)))
    job = Job(views, found, [roles(one) for one in found])
    silent = _hosted(calls) or usual > LOOSE or len(set(clocks.component.tolist())) > 1
    silent = silent or not any(one.moving for one in found)
    dims = tuple(_dims(job, place) for place in range(len(views)))
    world = _world(job)
    if world is None or len(set(job.ranks)) < world:
        if any(f.members > 1 and f.calls_per_step > 0 for view in views for f in view.families):
            return Inference(_undecided(_missing(job.ranks, world)), dims), views
        layout = _of_some(job, world)
    else:
        layout = _layout(job, world)
        if silent and layout.confidence:
            layout = _undecided("ends of calls scatter too much to tell who takes part in which")
    return Inference(layout, dims), () if layout.confidence else _by_order(job, silent=silent)


def _hosted(ranks: Sequence[Calls]) -> bool:
    """Whether most calls are on no stream: they were recorded on the CPU, and end when they were asked for."""
    streams = np.concatenate([calls.streams for calls in ranks])
    return 2 * int((streams < 0).sum()) > len(streams)


def _by_order(job: Job, *, silent: bool) -> Sequence[RankView]:
    """Ranks to be read by order and number of calls: as they are if times show no group; of two, on their one group."""
    count = max(len(job.seen), *(view.world_size for view in job.views), 0)
    unnamed = any(not f.primitive for view in job.views for f in view.families)
    if unnamed or any(f.library in HIDDEN for view in job.views for f in view.families):
        return ()
    if count != 2:
        return job.views if silent and 2 < count <= len(set(job.ranks)) else ()
    if any(f.primitive == "send_recv" for view in job.views for f in view.families):
        return ()  # stages, neighbours or experts
    world = GroupView(count, compact(range(count)), "", "", declared=False)
    return [
        replace(view, world_size=count, groups=(world,), families=tuple(replace(f, group=0) for f in view.families))
        for view in job.views
    ]


def _dims(job: Job, place: int) -> list[Dim]:
    view, seen = job.views[place], job.seen[place]
    dims: list[Dim] = ["control"] * len(view.family_of_call)
    if view.timing is not None:  # what took no time was not measured: it may carry anything
        dims = ["control" if ns > 0 else "unknown" for ns in view.timing.dur_ns.tolist()]
    tensors = set(seen.calls.row[seen.tensor].tolist())
    for row in tensors:
        dims[row] = "unknown"
    for role in job.roles[place]:
        for row in seen.calls.row[role.rows].tolist():
            dims[row] = role.dim
    return dims


@dataclass(frozen=True)
class Axis:
    """One dimension as the ranks show it: its degree, its groups, and why."""

    degree: int | None
    groups: tuple[tuple[int, ...], ...]
    sentence: str


def _stated(job: Job) -> int | None:
    """How many ranks the files say there are."""
    worlds = {view.world_size for view in job.views if view.world_size}
    return worlds.pop() if len(worlds) == 1 else None


def _world(job: Job) -> int | None:
    """How many ranks there are; those given, if several, numbered without a gap, and nothing says otherwise."""
    whole = len(job.ranks) > 1 and sorted(job.ranks) == list(range(len(job.ranks)))
    return _stated(job) or (len(job.ranks) if whole else None)


def _layout(job: Job, world: int) -> Layout:
    if unnamed := _unnamed(job):
        return _undecided(unnamed)
    axes = {dim: _axis(job, dim) for dim in ("tp", "cp", "ep")}
    axes["pp"] = _pipeline(job)
    if any(axis.degree is None for axis in axes.values()):
        return _undecided(next(axis.sentence for axis in axes.values() if axis.degree is None))
    for dim, said in _open(job).items():
        if axes[dim].degree == 1:
            return _undecided(said)
    model = prod(axes[dim].degree or 1 for dim in ("tp", "pp"))
    context = axes["cp"].degree or 1
    sync, said = _sync(job, world, model, context, bool(axes["ep"].groups))
    if sync is None:
        return _undecided(said)
    axes["dp"] = sync
    if not axes["ep"].groups and (axes["tp"].degree or 1) > 1 and any(EXPERTS in one.landmarks for one in job.seen):
        said = "experts run without any exchange of tokens: they may be split among the tp ranks"
        axes["ep"] = Axis(None, (), said)
    return _decided(job, axes, CERTAIN if _stated(job) else LIKELY)


def _of_some(job: Job, world: int | None) -> Layout:
    """The dimensions that a few ranks rule out; if nothing but replicas is left, these are all ranks."""
    reason = _missing(job.ranks, world)
    absent = ruled_out(job.views) if world != 2 else {}  # two ranks are one group: see `_by_order`
    known = {dim: DimensionVerdict(1, LIKELY, evidence=(said,)) for dim, said in absent.items()}
    if world is not None and {"tp", "cp", "pp"} <= absent.keys() and reduces_gradients(job.views):
        said = f"gradients are reduced, and no call splits a model: {world} ranks hold replicas"
        known["dp"] = DimensionVerdict(world, LIKELY, evidence=(said,))
    verdicts = {dim: known.get(dim, DimensionVerdict(None, 0.0, against=(reason,))) for dim in DIMENSIONS}
    return Layout(
        tp=verdicts["tp"].degree,
        cp=verdicts["cp"].degree,
        pp=verdicts["pp"].degree,
        dp=verdicts["dp"].degree,
        ep=verdicts["ep"].degree,
        confidence=LIKELY if known else 0.0,
        dimensions=MappingProxyType(verdicts),
    )


def _open(job: Job) -> dict[str, str]:
    """Dimensions that calls without a role may serve, with those calls."""
    found: dict[str, str] = {}
    for one, own in zip(job.seen, job.roles, strict=True):
        share, calls = unexplained(one, own)
        for primitive, number in calls.items():
            if number >= FEWEST and (primitive in ("send_recv", "") or share > NEGLIGIBLE):
                for dim in set(MAY_SERVE.get(primitive, DIMENSIONS)) - {"dp"}:
                    found.setdefault(
                        dim, f"{number} {primitive or 'unnamed'} calls of rank {one.calls.rank} fit no role"
                    )
    return found


def _unnamed(job: Job) -> str:
    """Why nothing can be told where kernels have one name whatever they do, as RCCL's have; else empty."""
    names = np.concatenate([one.calls.primitives for one in job.seen])
    unnamed = int((names == "").sum())
    if 2 * unnamed <= len(names):
        return ""
    sizes = sorted({len(moving.group) for one in job.seen for moving in one.moving})
    shown = (
        f"they end together on groups of {', '.join(map(str, sizes))}"
        if sizes
        else "no group of ranks ends them together"
    )
    return (
        f"{unnamed} of {len(names)} calls are kernels of one name for every primitive: {shown}, but whether they "
        "gather, reduce, scatter or exchange is not known; give traces that record collectives, or an NCCL log"
    )


def _missing(ranks: Sequence[int], world: int | None) -> str:
    if world is None:
        return "the traces do not say how many ranks there are"
    absent = next(rank for rank in range(world) if rank not in set(ranks))
    return (
        f"without sizes and groups only ranks that finish together show a group, and {world - len(set(ranks))} of "
        f"{world} are not here: give the trace of rank {absent} and the others"
    )


def _undecided(reason: str) -> Layout:
    verdict = DimensionVerdict(None, 0.0, against=(reason,))
    return Layout(dimensions=MappingProxyType(dict.fromkeys(DIMENSIONS, verdict)))


def _global(job: Job, group: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(job.ranks[place] for place in group))


def _axis(job: Job, dim: Dim) -> Axis:
    """The groups that ranks use for a dimension; their size must be one, and a rank must be in one group."""
    own = [[role for role in found if role.dim == dim] for found in job.roles]
    if not any(own):
        return Axis(1, (), f"no call behaves like {dim}")
    sentence = next(found[0].sentence for found in own if found)
    groups = {role.group for found in own for role in found}
    groups = _linked(len(own), groups) if dim == "cp" else groups  # neighbours on a ring, or two ways in turn
    sizes = {len(group) for group in groups}
    if len(sizes) != 1 or sum(map(len, groups)) != len(own):
        return Axis(None, (), f"ranks do not agree on the groups of {dim}")
    degree = sizes.pop()
    return Axis(degree, tuple(sorted(_global(job, group) for group in groups)), sentence)


def _linked(count: int, groups: set[Group]) -> set[Group]:
    root = list(range(count))

    def find(one: int) -> int:
        while root[one] != one:
            one = root[one]
        return one

    for group in groups:
        for member in group:
            root[find(member)] = find(group[0])
    parts: dict[int, list[int]] = {}
    for one in range(count):
        parts.setdefault(find(one), []).append(one)
    return {tuple(part) for part in parts.values() if len(part) > 1}


def _pipeline(job: Job) -> Axis:
    """Chains of messages between neighbours that are the same distance apart all over the job."""
    links = Counter(role.group for found in job.roles for role in found if role.dim == "pp" for _ in role.rows)
    if not links:
        return Axis(1, (), "no rank sends to one that stands at another layer")
    strides: Counter[int] = Counter()
    for (one, other), times in links.items():
        strides[other - one] += times
    stride = strides.most_common(1)[0][0]
    chains = _linked(len(job.seen), {link for link in links if link[1] - link[0] == stride})
    sizes = {len(chain) for chain in chains}
    if len(sizes) != 1 or sum(map(len, chains)) != len(job.seen):
        return Axis(None, (), "messages between stages do not link the ranks in chains of one length")
    degree = sizes.pop()
    said = next(role.sentence for found in job.roles for role in found if role.dim == "pp")
    return Axis(degree, tuple(sorted(_global(job, chain) for chain in chains)), f"{said}, in chains of {degree}")


def _sync(job: Job, world: int, model: int, context: int, experts: bool) -> tuple[Axis | None, str]:
    """The ranks that reduce dense gradients: with the model's they make up the world, context ranks among them."""
    if world % (model * context):
        return None, f"{world} ranks do not divide into {model * context} that share one copy of the model"
    members = world // model
    degree = members // context
    own = [_data_groups(found, members) for found in job.roles]
    if all(own):
        groups = {group for found in own for group in found if len(group) > 1}
        if not experts and (left := _left_over(job, groups)):
            return None, left
        said = next((role.sentence for role in job.roles[0] if role.dim == "dp"), "")
        said = said or "the other degrees account for every rank"
        return Axis(degree, tuple(sorted(_global(job, group) for group in groups)), said), ""
    sizes = [len(role.group) for found in job.roles for role in found if role.dim == "dp"]
    if sizes:
        return None, f"{model} ranks per replica leave {members}, but gradients are reduced over {max(sizes)}"
    trained = any(one.attention_backward or (one.phase == 1).any() for one in job.seen)
    if experts and not trained:
        return Axis(degree, (), "ranks exchange tokens for experts: data-parallel attention"), ""
    return None, f"no gradient is reduced in the window: {degree} copies may be replicas or separate jobs"


def _left_over(job: Job, groups: set[Group]) -> str:
    """What is reduced like gradients on other groups than those of dp: without experts there is nothing it could be."""
    for one, found in zip(job.seen, job.roles, strict=True):
        for role in found:
            tensors = int(one.tensor[role.rows].sum())
            if role.dim == "dp" and role.kind == "scatter" and role.group not in groups and tensors >= FEWEST:
                where = f"{tensors} calls of rank {one.calls.rank} on {len(role.group)} ranks"
                return f"{where} are like gradients: {role.sentence}"
    return ""


def _data_groups(own: Sequence[Role], members: int) -> list[Group]:
    """The gradient group of one rank, or the two of hybrid sharding, if it has the size that the world leaves.

    Groups that work in step may look like one when gradients are scattered; parameters are gathered on the same ones.
    """
    data = [role for role in own if role.dim == "dp"]
    if not data:
        return [(0,)] if members == 1 else []
    certain = [role for role in data if role.kind == "scatter"] or data
    whole = [role.group for role in certain if len(role.group) == members]
    wider = [role.group for role in certain if len(role.group) > members]
    if whole and all(set(whole[0]) < set(group) for group in wider):
        return whole[:1]
    scattered = {role.group for role in data if role.kind == "scatter"}
    gathered = {role.group for role in data if role.kind == "parameters" and len(role.group) == members}
    inside = [g for g in gathered if any(set(g) < set(wide) for wide in scattered)]
    if inside and not whole:
        return inside[:1]
    replicas = {role.group for role in data if role.kind == "gradients"}
    for shard in scattered:
        for replica in replicas:
            if len(shard) * len(replica) == members and len(set(shard) & set(replica)) == 1:
                return [shard, replica]
    return []


def _decided(job: Job, axes: Mapping[str, Axis], confidence: float) -> Layout:
    shares = [unexplained(one, own) for one, own in zip(job.seen, job.roles, strict=True)]
    rest = max(share for share, _ in shares)
    if rest > NEGLIGIBLE:
        confidence = min(confidence, LIKELY)
    if not any(one.attention for one in job.seen):
        confidence = min(confidence, LIKELY)
    degrees = {dim: axis.degree for dim, axis in axes.items()}
    kinds = {role.kind for own in job.roles for role in own if role.dim == "tp"}
    dimensions = {
        dim: DimensionVerdict(axes[dim].degree, confidence, axes[dim].groups, (axes[dim].sentence,))
        if axes[dim].degree is not None
        else DimensionVerdict(None, 0.0, against=(axes[dim].sentence,))
        for dim in DIMENSIONS
    }
    return Layout(
        tp=degrees["tp"],
        cp=degrees["cp"],
        pp=degrees["pp"],
        dp=degrees["dp"],
        ep=degrees["ep"],
        sequence_parallel="sequence" in kinds if (degrees["tp"] or 1) > 1 else None,
        confidence=confidence if None not in degrees.values() else min(confidence, LIKELY),
        dimensions=MappingProxyType(dimensions),
        notes=("calls carry no sizes and no groups: both are told by who finishes together, and when",),
    )

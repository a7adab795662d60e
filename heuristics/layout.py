"""The layout of a job: claims of every rank, put together, with what was considered and left behind."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from heuristics.declared import declared_dims, declared_layout
from heuristics.degrees import Degree, Degrees, degrees
from heuristics.dimensions.claim import of
from heuristics.dimensions.data import SAME_ELEMENTS, one_pass
from heuristics.dimensions.p2p import marked_off_mesh
from heuristics.guess import model_guess
from heuristics.members import alternatives, merged_groups, open_dimensions, unexplained_share
from heuristics.mesh import rank_order, without
from heuristics.observe import views
from heuristics.resolve import resolved
from heuristics.schedule import Schedule, schedule
from heuristics.seen import Kind, Seen, kinds, see
from heuristics.sharding import Sharding, declared_sharding, sharding
from heuristics.verdict import DIMENSIONS, Dim, DimensionVerdict, Inference, Layout
from heuristics.view import RankView
from parsers.garbage import no_garbage_collection

if TYPE_CHECKING:
    from heuristics.axes import Axes
    from heuristics.labelled import LabelledRank
    from heuristics.roles import Roles
    from heuristics.view import Family

NO_PROMISE = 0.8
"""Most confidence of a layout of which something stays open: no sizes and no groups, a dimension that the source does
not show, an undecided degree."""

ENOUGH_RANKS = 64
"""Ranks looked at where every rank of a mesh says the same."""


def infer(ranks: Sequence[LabelledRank], *, use_names: bool = True) -> Inference:
    """Infer the parallel layout of a job from the calls of some or all of its ranks.

    Args:
        ranks: labelled ranks of one job.
        use_names: whether group descriptions may raise confidence. They never decide.

    Returns:
        The layout and, per rank given, the dimension of every call.
    """
    return infer_views(views(ranks, use_names=use_names))


def _fragment() -> Layout:
    """Nothing decided: how often and in which phase a call is made does not show in a piece of a step."""
    reason = "the dumps hold a piece of a step; only the groups' descriptions could tell"
    undecided = DimensionVerdict(None, 0.0, against=(reason,))
    return Layout(dimensions=MappingProxyType(dict.fromkeys(DIMENSIONS, undecided)))


def _without(layout: Layout, hidden: Collection[str]) -> Layout:
    """A layout of which some dimensions cannot be seen: that no call was theirs says nothing."""
    reason = "this source does not show its calls: they run inside of operations that compute"
    verdicts = {
        dim: DimensionVerdict(None, 0.0, against=(reason,)) if dim in hidden else verdict
        for dim, verdict in layout.dimensions.items()
    }
    return replace(
        layout,
        dimensions=MappingProxyType(verdicts),
        confidence=min(layout.confidence, NO_PROMISE),
        tp=None if "tp" in hidden else layout.tp,
        cp=None if "cp" in hidden else layout.cp,
        ep=None if "ep" in hidden else layout.ep,
    )


@no_garbage_collection()
def infer_views(ranks: Sequence[RankView]) -> Inference:
    """`infer` on views."""
    if ranks and all(view.timing is not None and not view.unseen for view in ranks):
        from heuristics.kernels_only.layout import infer_from_times  # few jobs need it

        found, ranks = infer_from_times(ranks)
        return _capped(_by_roles(ranks)) if ranks else found
    return _by_roles(ranks)


def _capped(found: Inference) -> Inference:
    """No promise where nothing but order and number of calls decides."""
    dimensions = {d: replace(v, confidence=min(v.confidence, NO_PROMISE)) for d, v in found.layout.dimensions.items()}
    confidence = min(found.layout.confidence, NO_PROMISE)
    return replace(found, layout=replace(found.layout, confidence=confidence, dimensions=MappingProxyType(dimensions)))


def _by_roles(ranks: Sequence[RankView]) -> Inference:
    """From the roles of the calls on each group, rank by rank."""
    ranks = marked_off_mesh(resolved(ranks))
    seen = see(ranks)
    alike = kinds(seen)
    share = unexplained_share(alike)
    undecided = open_dimensions(alike, share)
    found = degrees(ranks, [s.axes for s in seen], 1.0 - share, undecided)
    pipelines = [(s.view, claim) for s in seen for claim in s.roles.of("pp", "stage_link")[:1]]
    staged = found.pp.value != 1 and not found.pp.withdrawn
    plan = schedule(pipelines, found.pp.value) if staged else Schedule()
    layout = _layout(seen, alike, found, plan, undecided)
    hidden = {dim for view in ranks for dim in view.unseen}
    if hidden:
        layout = _without(layout, hidden)
    names: list[Sequence[Dim]] = [s.dims for s in seen]
    if not staged:
        names = _without_stages(names)
    if ranks and all(view.fragment for view in ranks):
        layout = declared_layout(ranks) or _fragment()
        names = [declared_dims(view) for view in ranks]
    return Inference(layout, _of_calls(ranks, names))


def _without_stages(names: Sequence[Sequence[Dim]]) -> list[Sequence[Dim]]:
    """Where there is no pipeline, what looked like its messages is not known; ranks of one kind keep one list."""
    kept = {id(own): ["unknown" if dim == "pp" else dim for dim in own] for own in names}
    return [kept[id(own)] for own in names]


def _of_calls(ranks: Sequence[RankView], names: Sequence[Sequence[Dim]]) -> tuple[list[Dim], ...]:
    """Per rank, the dimension of each call."""
    words = {id(own): np.array(own, dtype=object) for own in names}
    return tuple(words[id(own)][view.family_of_call].tolist() for view, own in zip(ranks, names, strict=True))


def _layout(
    seen: Sequence[Seen], alike: Sequence[Kind], found: Degrees, plan: Schedule, undecided: Mapping[str, str]
) -> Layout:
    known = found.known()
    ones = [kind.first for kind in alike]
    stage = _sharding(ones, found, plan, undecided)
    hybrid = found.replicate is not None and (found.replicate or 1) > 1
    dp = found.dp.value
    sharded = stage.stage if stage is not None else None
    confidence = min(getattr(found, dim).confidence for dim in DIMENSIONS if dim in known) if known else 0.0
    voices = _Voices.of(seen)
    verdicts = {dim: _verdict(dim, getattr(found, dim), voices, stage, plan) for dim in DIMENSIONS}
    return Layout(
        tp=found.tp.value,
        cp=found.cp.value,
        pp=found.pp.value,
        dp=dp,
        ep=found.ep.value,
        sequence_parallel=_sequence_parallel(ones, found.tp.value),
        data_parallel=_scheme(stage, dp, hybrid),
        zero_stage=sharded,
        dp_shard=_shard(found, stage),
        dp_replicate=_replicate(found, stage),
        cp_kind=_context_kind(ones, found.cp.value),
        pp_schedule=plan.name,
        virtual_stages=plan.virtual_stages,
        microbatches=plan.microbatches,
        rank_order=_order(seen, found),
        recompute=_recompute(ones),
        grad_reduce_dtype=_gradient_dtype(ones),
        confidence=round(confidence if len(known) == len(DIMENSIONS) else min(confidence, NO_PROMISE), 4),
        source="both" if any(g.desc for s in ones for g in s.view.groups) else "behaviour",
        dimensions=MappingProxyType(verdicts),
        alternatives=alternatives(alike, found, sharded),
        model=model_guess(alike, found, plan),
        stage_of_rank=MappingProxyType(dict(plan.stage_of_rank)),
        notes=(),
    )


def _sharding(seen: Sequence[Seen], found: Degrees, plan: Schedule, undecided: Mapping[str, str]) -> Sharding | None:
    """The stage that the claimed calls show, unless unexplained ones may bring parameters back."""
    stage = _claimed_sharding(seen, found, plan)
    if stage is None and found.dp.value and not undecided and all(s.view.has_backward is False for s in seen):
        return Sharding(0, (0,), "no backward runs and nothing gathers parameters: every replica holds its own")
    if stage is not None and stage.stage == 0 and "all_gather" in undecided.get("dp", ""):
        reason = f"{undecided['dp']} calls per step are unexplained and may bring parameters back"
        return Sharding(None, (0, 1, 2), reason)
    if stage is not None and stage.stage == 0 and any(not s.view.steps and _gathers_beside(s) for s in seen):
        reason = "steps are not found, and as many elements as the gradients have are gathered among the reductions"
        return Sharding(None, (0, 1, 2), reason)
    if stage is not None and stage.stage == 0 and any(_unsized_beside(s) for s in seen):
        reason = "gathers of unknown size come with the reductions: whether they bring parameters back does not show"
        return Sharding(None, (0, 1, 2), reason)
    return stage


def _unclaimed_beside(s: Seen) -> list[Family]:
    """What no claim covers of the ranks whose gradients are all-reduced; none where they are reduced in another way."""
    if s.axes.dense is None or s.axes.dense.kind != "gradient_reduce":
        return []
    claimed = {index for claim in s.roles.accepted for index in claim.families}
    return [f for f in s.view.on_group(s.axes.dense.group) if f.index not in claimed]


def _unsized_beside(s: Seen) -> bool:
    """Whether something of unknown size is gathered or broadcast by the ranks whose gradients are all-reduced."""
    return any(f.is_tensor and f.size < 0 for f in of(_unclaimed_beside(s), "all_gather", "broadcast"))


def _gathers_beside(s: Seen) -> bool:
    """Whether gathers that no claim covers may bring back the parameters whose gradients are all-reduced."""
    gathered = one_pass(of(_unclaimed_beside(s), "all_gather"))
    if s.axes.dense is None or not gathered:
        return False
    reduces = of([f for f in s.view.families if f.index in s.axes.dense.families], "all_reduce", "reduce")
    parameters = one_pass(reduces)
    return abs(gathered - parameters) <= SAME_ELEMENTS * parameters


def _claimed_sharding(seen: Sequence[Seen], found: Degrees, plan: Schedule) -> Sharding | None:
    """The stage that the ranks agree on; the undecided verdict if none decides."""
    alike = {id(s.axes.dense): s for s in seen if s.axes.dense is not None}  # kinds may share the claim
    again = [claim for s in seen for claim in s.roles.of("dp", "parameter_regather")]
    if again and alike:
        return Sharding(3, (3,), again[0].evidence[0])
    verdicts = [sharding(s.view, s.axes.dense, plan.microbatches) for s in alike.values() if s.axes.dense is not None]
    if not verdicts or not found.replicated or found.contradiction is not None:
        alone = [d for s in seen if (d := declared_sharding(s.view)) is not None]
        if alone:
            return alone[0]
        if found.dp.value == 1 and found.contradiction is None:
            return Sharding(0, (0,), "one replica: nothing to shard")
        return Sharding(None, (), found.contradiction) if found.contradiction is not None else None
    decided = {v.stage for v in verdicts if v.stage is not None}
    if len(decided) == 1:
        return next(v for v in verdicts if v.stage is not None)
    undecided = [v for v in verdicts if v.stage is None]
    if undecided:
        return undecided[0]
    return Sharding(None, tuple(sorted(decided)), "ranks disagree on the stage")


def _scheme(stage: Sharding | None, dp: int | None, hybrid: bool) -> str | None:
    if stage is None or dp is None:
        return None
    if stage.stage == 0 and dp == 1:
        return "none"
    return "hsdp" if hybrid and stage.stage == 3 else stage.name


def _shard(found: Degrees, stage: Sharding | None) -> int | None:
    if found.shard is not None:
        return found.shard
    if stage is None or stage.stage is None:
        return None
    return found.dp.value if stage.stage > 0 else (1 if found.dp.value is not None else None)


def _replicate(found: Degrees, stage: Sharding | None) -> int | None:
    if found.replicate is not None:
        return found.replicate
    shard = _shard(found, stage)
    return found.dp.value // shard if found.dp.value is not None and shard and found.dp.value % shard == 0 else None


def _sequence_parallel(seen: Sequence[Seen], tp: int | None) -> bool | None:
    kinds = {claim.kind for s in seen for claim in s.roles.of("tp")}
    if (tp or 1) == 1 or not kinds:
        return None
    return "activation_exchange" in kinds  # with it, all-reduces are those of norms and of the vocabulary


def _context_kind(seen: Sequence[Seen], cp: int | None) -> str | None:
    kinds = {str(c.facts["cp_kind"]) for s in seen for c in s.roles.of("cp") if "cp_kind" in c.facts}
    if (cp or 1) == 1 or not kinds:
        return None
    return kinds.pop() if len(kinds) == 1 else "hierarchical"


def _order(seen: Sequence[Seen], found: Degrees) -> str | None:
    own = [_own_groups(s) for s in seen[:ENOUGH_RANKS]]
    kept = [{dim: ranks for dim, ranks in groups.items() if not getattr(found, dim).withdrawn} for groups in own]
    orders = {order for groups in kept if (order := rank_order(groups)) is not None}
    longest = max((len(order) for order in orders), default=0)
    best = {order for order in orders if len(order) == longest}
    return best.pop() if len(best) == 1 else None


def _own_groups(s: Seen) -> dict[str, Sequence[int]]:
    groups: dict[str, Sequence[int]] = {
        dim: axis.ranks for dim, axis in s.axes.axes.items() if axis.ranks and axis.degree > 1
    }
    sync = s.axes.sync
    if sync is not None and sync.ranks and s.view.rank >= 0:
        data = without(sync.ranks, groups.get("cp", ()), s.view.rank)
        if len(data) > 1 and set(data) != set(groups.get("cp", ())):
            groups["dp"] = data
    if "ep" in groups and groups["ep"] == groups.get("dp"):
        del groups["ep"]
    return groups


def _gradient_dtype(seen: Sequence[Seen]) -> str | None:
    dtypes = {
        f.dtype
        for s in seen
        if s.axes.dense is not None
        for f in s.view.families
        if f.index in s.axes.dense.families and f.primitive in ("reduce_scatter", "all_reduce", "reduce") and f.dtype
    }
    return dtypes.pop() if len(dtypes) == 1 else None


REPEATED = 1 / 3
"""Of the reduce-scatters of forward at least, if layers are recomputed: torch.utils.checkpoint stops before the last of
the two in a layer, and the embedding's own comes on top, so one layer repeats one of three."""


def _recompute(seen: Sequence[Seen]) -> str | None:
    """Forward collectives that come back inside backward; None where backward has reasons of its own for as many.

    Backward scatters what forward gathered, and exchanges what forward exchanged; what is more is forward again.
    """
    for s in seen:
        for claim in s.roles.of("tp", "activation_exchange"):
            own = [f for f in s.view.families if f.index in claim.families]
            scatters, gathers = of(own, "reduce_scatter"), of(own, "all_gather")
            forward, backward = sum(f.forward for f in scatters), sum(f.backward for f in scatters)
            if forward and backward:
                return "full" if backward - sum(f.forward for f in gathers) >= REPEATED * forward else None
        for claim in s.roles.of("cp", "ulysses"):
            own = [f for f in s.view.families if f.index in claim.families]
            forward, backward = sum(f.forward for f in own), sum(f.backward for f in own)
            if forward and backward >= (1 + REPEATED) * forward:
                return "full"
    return None


@dataclass(frozen=True)
class _Voices:
    """What all ranks say; the roles, which ranks of one behaviour share, once each.

    Attributes:
        ranks: every rank and what it says about the mesh.
        first: roles in the order in which the first rank of each comes.
        last: roles in the order in which the last rank of each comes.
    """

    ranks: Sequence[tuple[RankView, Axes]]
    first: Sequence[Roles]
    last: Sequence[Roles]

    @classmethod
    def of(cls, seen: Sequence[Seen]) -> _Voices:
        first = {id(s.roles): s.roles for s in seen}
        last = {id(s.roles): s.roles for s in reversed(seen)}
        return cls([(s.view, s.axes) for s in seen], list(first.values()), list(reversed(last.values())))


def _verdict(dim: str, degree: Degree, voices: _Voices, stage: Sharding | None, plan: Schedule) -> DimensionVerdict:
    claims = [c for one in voices.last for c in one.of(dim)]
    by_kind = {c.kind: c for c in sorted(claims, key=lambda c: c.weight)}  # ranks say the same; one speaks for all
    strongest = sorted(by_kind.values(), key=lambda c: -c.weight)
    evidence = [sentence for claim in strongest for sentence in claim.evidence]
    if dim == "dp" and stage is not None:
        evidence.append(stage.sentence)
    if dim == "pp":
        evidence += plan.reasons
    evidence += degree.reasons
    against = [sentence for claim in strongest for sentence in claim.against]
    faint = sorted((c for one in voices.first for c in one.faint if c.dim == dim), key=lambda c: -c.weight)
    against += [sentence for claim in faint[:1] for sentence in claim.against]
    if degree.rivals:
        who = "its own calls" if degree.withdrawn else "some ranks"
        against.append(f"{who} show {', '.join(map(str, degree.rivals))}")
    return DimensionVerdict(
        degree.value,
        round(degree.confidence, 4),
        merged_groups(voices.ranks, dim) if (degree.value or 1) > 1 else (),
        tuple(dict.fromkeys(evidence)),
        tuple(dict.fromkeys(against)),
    )

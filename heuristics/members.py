"""Which dimension each family belongs to, which groups each dimension has, and which readings came out behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from heuristics.dimensions.claim import Claim, indices
from heuristics.dimensions.norms import is_statistic
from heuristics.dimensions.order import all_after
from heuristics.mesh import without
from heuristics.verdict import Alternative, Dim

if TYPE_CHECKING:
    from heuristics.axes import Axes
    from heuristics.degrees import Degrees
    from heuristics.roles import Roles
    from heuristics.seen import Kind
    from heuristics.view import Family, RankView

MAX_ALTERNATIVES = 3

WORTH_SAYING = 0.001
"""A reading less likely than this is no alternative."""

MAY_SERVE = {
    "all_reduce": ("tp", "dp", "ep"),
    "all_gather": ("tp", "cp", "dp", "ep"),
    "reduce_scatter": ("tp", "cp", "dp", "ep"),
    "all_to_all": ("cp", "ep", "dp"),
    "send_recv": ("cp", "pp"),
    "exchange": ("cp", "pp", "ep"),  # a point-to-point kernel whose operation is not known
}
"""Dimensions that some framework serves with a primitive (gradients by all-to-all: MegaScale-MoE, section 4)."""

EDGE_SHARE = 0.25
"""A window that opens late loses the arguments of at most the calls in flight, a small part of a step."""

COMBINES = frozenset({"reduce_scatter", "all_reduce", "all_to_all"})
"""What brings the tokens of experts back after they were gathered."""

MOST_LAYERS_PER_CALL = 4
"""Layers per exchange, at most: some published models have experts in every fourth layer only (NLLB-MoE)."""

ATTENTION_KERNELS = 4
"""Kernels that attention takes in a layer, at most, forward and backward together (FlashAttention 2 has four)."""

NEGLIGIBLE = 0.005
"""Unexplained payload below this share hides no dimension: the smallest, a pipeline's, sends more."""


def family_dims(view: RankView, roles: Roles, axes: Axes) -> list[Dim]:
    """The dimension of each family of a rank, by index."""
    named: dict[int, Dim] = {}
    owner: dict[int, Dim] = {}
    dim: Dim
    for claim in reversed(roles.accepted):
        dim = "pp" if claim in axes.ties else claim.dim
        named |= dict.fromkeys(claim.families, dim)
        if claim.group >= 0:
            owner[claim.group] = dim
    doubted = _doubted(roles)
    return [named.get(family.index) or _leftover(view, family, owner, doubted) for family in view.families]


def _doubted(roles: Roles) -> Mapping[int, frozenset[str]]:
    """Per family that no claim which stands covers, the dimensions that something speaks for."""
    found: dict[int, frozenset[str]] = {}
    for claim in roles.faint:
        if claim.weight > 0:
            for index in claim.families:
                found[index] = found.get(index, frozenset()) | {claim.dim}
    return found


def _leftover(view: RankView, family: Family, owner: dict[int, Dim], doubted: Mapping[int, frozenset[str]]) -> Dim:
    """A family that no claim covers: control traffic, or a lesser call of the dimension that owns its group."""
    if view.group(family.group).size == 1:
        return "control"
    dim = owner.get(family.group, "unknown")
    if not family.is_tensor or family.primitive == "barrier":
        return "control"
    if family.primitive in ("all_to_all", "send_recv"):
        return "unknown"  # never a lesser call of another dimension
    if dim == "tp" and family.calls_per_step >= 2:
        return "tp"  # norms' gradients, vocabulary-parallel loss: small, but once per layer or microbatch
    if is_statistic(view, family):
        return "control"
    if not view.group(family.group).identified:
        return "unknown"  # groups may share a stream
    if doubted.get(family.index, frozenset()) - {dim}:
        return "unknown"  # too little for a claim of its own, enough not to count it among the lesser calls of another
    return dim


def unexplained_share(kinds: Sequence[Kind]) -> float:
    """Share of the payload that no dimension explains, over all ranks; of the calls, where sizes are not recorded.

    Where some sizes are not recorded, the larger of the two: what has a size by its elements, what has none by calls.
    """
    elements = calls = unknown = unsized = 0.0
    for kind in kinds:
        for family, dim in zip(kind.first.view.families, kind.first.dims, strict=True):
            elements += (own := kind.ranks * family.elements_per_step)
            calls += (often := kind.ranks * family.calls_per_step)
            if dim == "unknown":
                unknown += own
                unsized += often if family.size < 0 else 0.0
    return max(unknown / elements if elements else 0.0, unsized / calls if calls else 0.0)


@dataclass(frozen=True)
class _Open:
    """What is unexplained of one primitive: calls per step over all ranks, whether they may be calls of every layer."""

    calls: float
    layered: bool


def open_dimensions(kinds: Sequence[Kind], share: float) -> dict[str, str]:
    """Dimensions that the unexplained calls might serve, and which calls those are, as ``12 all_to_all``.

    ``share`` is `unexplained_share` of the same.

    Nothing is open where they carry a negligible share of the payload. Calls that come too seldom for every layer serve
    no dimension that splits layers, and tokens that are gathered for experts come back by another primitive.
    """
    if share < NEGLIGIBLE:
        return {}
    views = [kind.first.view for kind in kinds]
    unexplained = _unexplained(kinds)
    attends = any(view.attention_before.any() or not view.sequence.size for view in views)
    found: dict[str, list[str]] = {}
    for primitive, seen in unexplained.items():
        for served in MAY_SERVE.get(primitive, ()):
            if served in ("tp", "cp", "ep") and not seen.layered:
                continue
            if served == "dp" and all(view.has_backward is False for view in views):
                continue
            if served == "ep" and primitive == "all_gather" and not unexplained.keys() & COMBINES:
                continue
            if served != "cp" or attends:
                found.setdefault(served, []).append(f"{seen.calls:.0f} {primitive}")
    return {dim: " and ".join(said) for dim, said in found.items()}


def _unexplained(kinds: Sequence[Kind]) -> dict[str, _Open]:
    """Unexplained calls by primitive, without those that carry next to nothing of all that is sent."""
    total = sum(kind.ranks * f.elements_per_step for kind in kinds for f in kind.first.view.families)
    found: dict[str, _Open] = {}
    carried: dict[str, float] = {}
    for kind in kinds:
        view, names = kind.first.view, kind.first.dims
        layers = int(view.attention_before.sum()) / (1 if view.has_backward is False else ATTENTION_KERNELS)
        own = [f for f, d in zip(view.families, names, strict=True) if d == "unknown" and f.calls_per_step]
        calls_of: dict[str, float] = {}
        for family in own:
            calls_of[family.primitive] = calls_of.get(family.primitive, 0.0) + family.calls_per_step
        for family in own:
            if _at_the_edge(view, family):
                continue
            call = "exchange" if family.primitive == "send_recv" and not family.direction else family.primitive
            layered = not layers or calls_of[family.primitive] * MOST_LAYERS_PER_CALL > layers
            before = found.get(call, _Open(0.0, False))
            found[call] = _Open(before.calls + kind.ranks * family.calls_per_step, before.layered or layered)
            share = kind.ranks * family.elements_per_step if family.size >= 0 else inf
            carried[call] = carried.get(call, 0.0) + share
    return {call: seen for call, seen in found.items() if carried[call] >= NEGLIGIBLE * total}


def _at_the_edge(view: RankView, family: Family) -> bool:
    """Kernels that were queued before the window carry no arguments.

    They are few beside those of their kind that do, or all of them come before the first that does.
    """
    told = view.sized.get((family.primitive, family.library), [])
    if family.size >= 0 or not told:
        return False
    if family.calls_per_step <= EDGE_SHARE * sum(f.calls_per_step for f in told):
        return True
    return all_after(view, indices(told), frozenset({family.index}))


def merged_groups(seen: Sequence[tuple[RankView, Axes]], dim: str) -> tuple[tuple[int, ...], ...]:
    """The distinct groups of a dimension, sorted; of data parallelism those without the context ranks."""
    groups: set[Sequence[int]] = set()
    for view, axes in seen:
        if dim == "dp":
            groups |= _data_groups(view, axes)
        elif dim in axes.axes and axes.axes[dim].ranks:
            groups.add(axes.axes[dim].ranks or ())
    return tuple(sorted({tuple(sorted(group)) for group in groups}))


def _data_groups(view: RankView, axes: Axes) -> set[Sequence[int]]:
    if axes.shard is not None and axes.replicate is not None:
        return {axis.ranks for axis in (axes.shard, axes.replicate) if axis.ranks}
    if axes.sync is None or axes.sync.ranks is None:
        return set()
    context = axes.axes.get("cp")
    if context is None or not context.ranks or view.rank < 0:
        return {axes.sync.ranks}
    return {without(axes.sync.ranks, context.ranks, view.rank)}


def alternatives(kinds: Sequence[Kind], found: Degrees, zero_stage: int | None) -> tuple[Alternative, ...]:
    """Layouts in which a losing claim had won: the loser's dimension takes the winner's group."""
    ranked: dict[tuple[str, str], tuple[float, Alternative]] = {}
    for kind in kinds:
        for loser, winner in kind.first.roles.rejected:
            if loser.dim == winner.dim or loser.group < 0 or loser.weight <= 0:
                continue
            chance = 10.0 ** -max(winner.weight - loser.weight, 0.0)
            key = (winner.dim, loser.dim)
            if key not in ranked or ranked[key][0] < chance:
                ranked[key] = (chance, _swapped(kind.first.view, loser, winner, found, zero_stage, chance))
    best = sorted(ranked.values(), key=lambda pair: -pair[0])
    return tuple(alternative for chance, alternative in best[:MAX_ALTERNATIVES] if chance >= WORTH_SAYING)


def _swapped(
    view: RankView, loser: Claim, winner: Claim, found: Degrees, zero_stage: int | None, chance: float
) -> Alternative:
    values: dict[str, int | None] = {dim: getattr(found, dim).value for dim in ("tp", "cp", "pp", "dp", "ep")}
    values[winner.dim] = 1
    values[loser.dim] = view.group(loser.group).size or None
    why = (*loser.against, *winner.evidence)
    return Alternative(
        tp=values["tp"],
        cp=values["cp"],
        pp=values["pp"],
        dp=values["dp"],
        ep=values["ep"],
        zero_stage=None if "dp" in (loser.dim, winner.dim) else zero_stage,
        confidence=round(chance / (1.0 + chance), 4),
        why_less=why[0] if why else "less evidence",
    )

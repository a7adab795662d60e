"""The layout that a job's own groups declare, for sources that show too few calls to see it at work.

A Flight Recorder dump of a hung job holds a fragment of one step, so how often and in which phase a group is used
cannot be counted; but it lists every group with its ranks and the framework's description. What the descriptions claim
is believed as far as it holds together: every rank must declare groups of the same sizes that meet in the rank alone,
the degrees must multiply to the world, and no call may contradict the role. Names raise no confidence above `TRUSTED`.

Sources: megatron/core/parallel_state.py (``group_desc``), torch/distributed/device_mesh.py (``mesh_<dim>``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from heuristics.mesh import rank_order
from heuristics.verdict import DIMENSIONS, Dim, DimensionVerdict, Layout

if TYPE_CHECKING:
    from heuristics.view import RankView

TRUSTED = 0.85
"""Confidence in descriptions that hold together: below a promise (0.9), because nothing was seen at work."""

_MEANS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("tp", re.compile(r"TENSOR_MODEL_PARALLEL_GROUP|(?:mesh_)?tp")),
    ("cp", re.compile(r"CONTEXT_PARALLEL_GROUP|(?:mesh_)?cp")),
    ("pp", re.compile(r"PIPELINE_MODEL_PARALLEL_GROUP|(?:mesh_)?pp")),
    ("dp", re.compile(r"DATA_PARALLEL_GROUP|(?:mesh_)?dp")),
    ("dp*cp", re.compile(r"DATA_PARALLEL_GROUP_WITH_CP|mesh_dp_cp")),
    ("tp*cp", re.compile(r"TENSOR_AND_CONTEXT_PARALLEL_GROUP")),
    ("ep", re.compile(r"EXPERT_MODEL_PARALLEL_GROUP|(?:mesh_)?ep")),
)
"""Descriptions that name one dimension, or the product of two. Others (embedding, model parallel) define none."""

_NEVER = {
    "tp": frozenset({"send_recv", "all_to_all"}),
    "pp": frozenset({"all_to_all", "reduce_scatter", "all_gather"}),
    "dp": frozenset({"send_recv", "all_to_all"}),
    "dp*cp": frozenset({"send_recv", "all_to_all"}),
}
"""Primitives that no framework runs for a dimension (tensor-parallel rings overlap with GEMMs in kernels)."""

_DIM_OF: Mapping[str, Dim] = MappingProxyType(
    {"tp": "tp", "cp": "cp", "pp": "pp", "dp": "dp", "dp*cp": "dp", "ep": "ep"}
)


@dataclass(frozen=True)
class _Declared:
    """What one rank declares: the ranks of its group per meaning, and primitives seen on it."""

    rank: int
    groups: Mapping[str, tuple[int, ...]]
    primitives: Mapping[str, frozenset[str]]
    scattered: bool  # tensors are reduce-scattered over the tp group


def declared_layout(ranks: Sequence[RankView]) -> Layout | None:
    """The layout by the groups' descriptions; null where they name no dimension.

    Degrees that do not follow, or contradict each other, are null with the reason.

    Args:
        ranks: views of one job's ranks, with names (see `heuristics.observe.view`).
    """
    seen = [declared for rank in ranks if (declared := _declared(rank)) is not None]
    if not any(one.groups for one in seen):
        return None
    worlds = {rank.world_size for rank in ranks if rank.world_size}
    world = worlds.pop() if len(worlds) == 1 else None
    sizes, against = _sizes(seen)
    degrees = _degrees(sizes, world)
    known = [degrees.get(dim) for dim in ("tp", "cp", "pp", "dp")]
    multiplies = world is not None and None not in known and prod(k or 1 for k in known) == world
    if not multiplies and None not in known:
        against = {**against, "dp": f"the declared degrees do not multiply to the world of {world}"}
    confidence = TRUSTED if multiplies and not against else 0.5
    verdicts = {dim: _verdict(dim, degrees, seen, against, confidence) for dim in DIMENSIONS}
    values = {dim: verdict.degree for dim, verdict in verdicts.items()}
    orders = {order for one in seen if (order := rank_order(_own(one, values))) is not None}
    return Layout(
        tp=values["tp"],
        cp=values["cp"],
        pp=values["pp"],
        dp=values["dp"],
        ep=values["ep"],
        sequence_parallel=True if (values["tp"] or 1) > 1 and any(one.scattered for one in seen) else None,
        rank_order=orders.pop() if len(orders) == 1 else None,
        confidence=round(min(verdict.confidence for verdict in verdicts.values()), 4),
        source="metadata",
        dimensions=MappingProxyType(verdicts),
        stage_of_rank=MappingProxyType(_stages(seen) if (values["pp"] or 1) > 1 else {}),
        notes=("the layout is what the groups' descriptions declare; too few calls are there to see it at work",),
    )


def _declared(rank: RankView) -> _Declared | None:
    if rank.rank < 0:
        return None
    groups: dict[str, tuple[int, ...]] = {}
    place: dict[int, str] = {}
    for row, group in enumerate(rank.groups):
        meaning = next((m for m, said in _MEANS if group.desc and said.fullmatch(group.desc)), None)
        if meaning is not None and group.ranks:
            groups.setdefault(meaning, tuple(group.ranks))
            place[row] = meaning
    primitives: dict[str, set[str]] = {}
    scattered = False
    for family in rank.families:
        meaning = place.get(family.group)
        if meaning is not None and family.primitive:
            primitives.setdefault(meaning, set()).add(family.primitive)
            scattered |= meaning == "tp" and family.primitive == "reduce_scatter" and family.is_float
    return _Declared(rank.rank, groups, {m: frozenset(p) for m, p in primitives.items()}, scattered)


def declared_dims(rank: RankView) -> list[Dim]:
    """The dimension of each family of a rank by the description of its group, where that names one dimension."""
    dims: list[Dim] = []
    for family in rank.families:
        group = rank.group(family.group)
        meaning = next((m for m, said in _MEANS if group.desc and said.fullmatch(group.desc)), "unknown")
        dims.append(_DIM_OF.get(meaning, "unknown") if family.is_tensor else "control")
    return dims


def _sizes(seen: Sequence[_Declared]) -> tuple[dict[str, int], dict[str, str]]:
    """Size per meaning, and what speaks against a dimension."""
    sizes: dict[str, int] = {}
    against: dict[str, str] = {}
    for meaning, _ in _MEANS:
        found = {len(one.groups[meaning]) for one in seen if meaning in one.groups}
        dim = meaning.split("*", 1)[0]
        if len(found) > 1:
            against[dim] = f"ranks declare groups of {' and '.join(map(str, sorted(found)))} for {meaning}"
            continue
        if found:
            sizes[meaning] = found.pop()
        wrong = {p for one in seen for p in one.primitives.get(meaning, ())} & _NEVER.get(meaning, frozenset())
        if wrong:
            against[dim] = f"{min(wrong)} runs on groups described as {meaning}"
    for one in seen:
        for first, second in (("tp", "pp"), ("tp", "dp"), ("pp", "dp"), ("tp", "dp*cp"), ("pp", "dp*cp")):
            shared = set(one.groups.get(first, ())) & set(one.groups.get(second, ())) - {one.rank}
            if shared:
                against[first] = f"groups of {first} and {second} share rank {min(shared)} beside rank {one.rank}"
    return sizes, against


def _degrees(sizes: Mapping[str, int], world: int | None) -> dict[str, int]:
    """Degrees that are declared, or follow from declared products and the world."""
    known = {dim: sizes[dim] for dim in DIMENSIONS if dim in sizes}
    if "cp" not in known and "tp*cp" in sizes and "tp" in known and sizes["tp*cp"] % known["tp"] == 0:
        known["cp"] = sizes["tp*cp"] // known["tp"]
    if "dp" not in known and "dp*cp" in sizes and "cp" in known and sizes["dp*cp"] % known["cp"] == 0:
        known["dp"] = sizes["dp*cp"] // known["cp"]
    missing = [dim for dim in ("tp", "cp", "pp", "dp") if dim not in known]
    rest = world / prod(known[dim] for dim in ("tp", "cp", "pp", "dp") if dim in known) if world else 0
    if rest == 1:
        known |= dict.fromkeys(missing, 1)  # the declared degrees account for every rank
    elif missing == ["dp"] and rest == int(rest) > 1:
        known["dp"] = int(rest)
    return known


def _verdict(
    dim: str, degrees: Mapping[str, int], seen: Sequence[_Declared], against: Mapping[str, str], confidence: float
) -> DimensionVerdict:
    if dim in against:
        return DimensionVerdict(None, 0.0, against=(against[dim],))
    value = degrees.get(dim)
    if value is None and dim == "ep" and not any("ep" in one.groups for one in seen):
        return DimensionVerdict(None, 0.0, evidence=("no group is described as ep: it may be 1, or not used yet",))
    if value is None:
        return DimensionVerdict(None, 0.0, evidence=(f"no group is described as {dim}",))
    groups = {tuple(sorted(one.groups[dim])) for one in seen if dim in one.groups} if value > 1 else set()
    if dim == "dp" and value > 1 and not groups and degrees.get("cp") == 1:
        groups = {tuple(sorted(one.groups["dp*cp"])) for one in seen if "dp*cp" in one.groups}
    said = f"the job describes groups of {value} as {dim}" if groups else f"the declared groups leave {dim} = {value}"
    return DimensionVerdict(value, confidence, tuple(sorted(groups)), (said,))


def _own(one: _Declared, degrees: Mapping[str, int | None]) -> dict[str, Sequence[int]]:
    groups: dict[str, Sequence[int]] = {
        dim: one.groups[dim] for dim in ("tp", "cp", "pp", "dp") if dim in one.groups and (degrees[dim] or 1) > 1
    }
    if "dp" not in groups and (degrees["dp"] or 1) > 1 and degrees["cp"] == 1 and "dp*cp" in one.groups:
        groups["dp"] = one.groups["dp*cp"]
    return groups


def _stages(seen: Sequence[_Declared]) -> dict[int, int]:
    """A pipeline group lists its ranks in order of stages (parallel_state.py builds it so)."""
    return {one.rank: one.groups["pp"].index(one.rank) for one in seen if one.rank in one.groups.get("pp", ())}

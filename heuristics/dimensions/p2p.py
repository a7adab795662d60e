"""Point-to-point messages of one rank on one group, as both pipelines and rings need to see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heuristics.arrays import NULL
from heuristics.dimensions.claim import indices, of, per_step

if TYPE_CHECKING:
    from heuristics.view import Family, RankView


@dataclass(frozen=True)
class Traffic:
    """Messages per step.

    Attributes:
        sends, receives: messages.
        to, source: global ranks sent to and received from; empty when the file names none.
        in_backward: messages issued from inside backward.
    """

    send_families: frozenset[int]
    receive_families: frozenset[int]
    sends: int
    receives: int
    to: frozenset[int]
    source: frozenset[int]
    in_backward: float

    @property
    def families(self) -> frozenset[int]:
        """All of them."""
        return self.send_families | self.receive_families


def traffic(families: Iterable[Family], *, layers: bool) -> Traffic | None:
    """The tensor messages of one kind among some families; None without any.

    Args:
        families: all families of a group.
        layers: whether to take the sizes that are (also) sent from inside autograd, a layer at a time, or the others.
            Without any of the others, all are taken, so that what speaks against them is said.
    """
    every = [f for f in of(families, "send_recv") if f.is_tensor and f.direction]
    within = {f.size for f in every if f.in_autograd}
    messages = [f for f in every if (f.size in within) == layers] or every
    if not messages:
        return None
    sends = [f for f in messages if f.direction == "send"]
    receives = [f for f in messages if f.direction == "recv"]
    return Traffic(
        send_families=indices(sends),
        receive_families=indices(receives),
        sends=round(per_step(sends)),
        receives=round(per_step(receives)),
        to=frozenset(f.peer for f in sends if f.peer >= 0),
        source=frozenset(f.peer for f in receives if f.peer >= 0),
        in_backward=sum(f.in_autograd for f in messages),
    )


def marked_off_mesh(views: Sequence[RankView]) -> tuple[RankView, ...]:
    """The views, each told whether messages over the world group link ranks that lie on no common mesh.

    Stages of a pipeline and places of a ring are evenly spaced: the nearest partner of every rank is as far away as
    that of every other. Groups that are listed may be made of any ranks, so only messages over all are looked at.
    """
    nearest = set()
    for view in views:
        own = view.rank
        peers = [f.peer for f in view.with_peer if f.peer != own and _over_the_world(view, f)]
        if own != NULL and peers:
            nearest.add(min([abs(peer - own) for peer in peers]))
    return tuple(replace(view, off_mesh=True) for view in views) if len(nearest) > 1 else tuple(views)


def _over_the_world(view: RankView, family: Family) -> bool:
    if family.group < 0 or view.groups[family.group].size != view.world_size:
        return False
    return family.primitive == "send_recv" and family.is_tensor and family.calls_per_step > 0

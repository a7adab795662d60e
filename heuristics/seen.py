"""What every rank shows, and the kinds of ranks there are: of thousands, most do the same on other groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heuristics.axes import Axes, AxesOf
from heuristics.members import family_dims
from heuristics.roles import Roles, roles
from heuristics.view import RankView, Signatures

if TYPE_CHECKING:
    from heuristics.verdict import Dim


@dataclass(frozen=True)
class Seen:
    """One rank with everything concluded about it; ranks of one kind share ``roles`` and ``dims``.

    Attributes:
        view: the rank.
        roles: what its calls serve.
        axes: what it says about the mesh.
        dims: the dimension of each of its families.
    """

    view: RankView
    roles: Roles
    axes: Axes
    dims: Sequence[Dim]


@dataclass(frozen=True)
class Kind:
    """Ranks that do the same: the first of them, and how many they are."""

    first: Seen
    ranks: int


def see(ranks: Sequence[RankView]) -> list[Seen]:
    """Conclude what each rank shows; what ranks of one kind have in common is worked out once."""
    signatures = Signatures()
    roles_of: dict[int, Roles] = {}
    axes_of: dict[tuple[int, frozenset[int]], AxesOf] = {}
    dims_of: dict[tuple[int, ...], Sequence[Dim]] = {}
    seen = []
    for view in ranks:
        alike = signatures.of(view)
        if alike not in roles_of:
            roles_of[alike] = roles(view)
        own = roles_of[alike]
        if (alike, view.doubtful) not in axes_of:
            axes_of[alike, view.doubtful] = AxesOf(view, own)
        axes = axes_of[alike, view.doubtful].at(view)
        tied = (alike, *map(id, axes.ties))
        if tied not in dims_of:
            dims_of[tied] = family_dims(view, own, axes)
        seen.append(Seen(view, own, axes, dims_of[tied]))
    return seen


def kinds(seen: Sequence[Seen]) -> list[Kind]:
    """The kinds in the order in which they come."""
    count = Counter(id(one.dims) for one in seen)
    first = {id(one.dims): one for one in reversed(seen)}
    return [Kind(first[kind], ranks) for kind, ranks in count.items()]

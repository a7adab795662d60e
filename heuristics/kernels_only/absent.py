"""What a few ranks of many rule out where only ranks that finish together would show a group.

Of a dimension that splits layers, every rank makes calls in forward, and of a pipeline every rank sends or receives. A
training step of one rank in which no such call lies says that the dimension is not there, whoever the others are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from heuristics.kernels_only.roles import FEWEST
from heuristics.members import MAY_SERVE
from heuristics.view import BACKWARD, FORWARD, UNKNOWN

if TYPE_CHECKING:
    from heuristics.view import Family, RankView

HIDDEN = frozenset({"torch_symm_mem"})
"""Libraries whose calls show in part only: symmetric memory moves data by copies that name no peer."""

GRADIENTS = ("all_reduce", "reduce_scatter", "reduce")


def ruled_out(views: Sequence[RankView]) -> Mapping[str, str]:
    """Dimensions that no call of the ranks can serve, with why.

    Nothing is ruled out without a whole step with its backward, nor where some calls do not show what they do.
    """
    calls = [f for view in views for f in view.families if f.calls_per_step > 0 and f.role == "payload"]
    whole = all(view.steps and view.has_backward for view in views)
    if not whole or not calls or any(not f.primitive or f.library in HIDDEN for f in calls):
        return {}
    found = {}
    for dim in ("tp", "cp", "ep"):
        if not any(_may_serve(f, dim) for f in calls) or (dim == "cp" and all(map(_has_tables_only, views))):
            found[dim] = f"no call in the forward of a whole step can serve {dim}"
    if not any(f.primitive == "send_recv" for f in calls):
        found["pp"] = "a whole step passes without a message to another stage"
    else:
        found.pop("ep", None)  # experts may be on other stages
    return found


def reduces_gradients(views: Sequence[RankView]) -> bool:
    """Whether ranks reduce in backward, and more often than a loss or a norm would be."""
    return all(sum(f.by_phase[BACKWARD] for f in view.families if f.primitive in GRADIENTS) >= FEWEST for view in views)


def _may_serve(family: Family, dim: str) -> bool:
    """Whether a call may be one of a dimension that splits layers: those come in forward as well as in backward."""
    early = family.by_phase[FORWARD] + family.by_phase[UNKNOWN]
    return early > 0 and dim in MAY_SERVE.get(family.primitive, ())


def _has_tables_only(view: RankView) -> bool:
    """A recommendation model: its exchanges carry rows of embedding tables, and no attention runs whose context ranks
    could split."""
    return view.runs_embedding_bags and not view.attention_before.any() and bool(view.sequence.size)

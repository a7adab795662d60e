"""Model dimensions read back from payloads, for a ledger that is given no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from heuristics.dimensions.claim import of
from heuristics.verdict import ModelGuess

if TYPE_CHECKING:
    from heuristics.axes import Axes
    from heuristics.degrees import Degrees
    from heuristics.roles import Roles
    from heuristics.schedule import Schedule
    from heuristics.seen import Kind
    from heuristics.view import Family, RankView


def model_guess(kinds: Sequence[Kind], found: Degrees, plan: Schedule) -> ModelGuess:
    """Read what the payloads fix; the rest stays null.

    The layer-boundary activation has tokens x hidden elements; its recorded last dimension is the hidden size. The
    gradients of one step, counted once, are the dense parameters of one shard.
    """
    sources: list[str] = []
    activation, hidden = _activation(kinds)
    tokens = activation // hidden if activation and hidden and activation % hidden == 0 else None
    if activation:
        said = f"activation of {activation:,} elements from the {'tensor' if _has(kinds, 'tp') else 'stage'} exchanges"
        sources.append(said)
    if hidden:
        sources.append(f"hidden {hidden:,} from the last dimension of the exchanged activations")
    parameters = max((_parameters(kind.first.view, kind.first.axes) for kind in kinds), default=0)
    if parameters:
        sources.append(f"{parameters:,} parameters per rank from one pass over the reduced gradients")
    layers = _layers(kinds, found, plan)
    if layers:
        sources.append(f"{layers} layers per rank from the tensor-parallel exchanges in forward")
    return ModelGuess(
        layers=layers,
        hidden=hidden,
        tokens_per_microbatch=tokens,
        parameters_per_rank=parameters or None,
        activation_elements=activation,
        sources=tuple(sources),
    )


def _has(kinds: Sequence[Kind], dim: str) -> bool:
    return any(kind.first.roles.of(dim) for kind in kinds)


def _claimed(view: RankView, roles: Roles, dim: str) -> list[Family]:
    wanted = {index for claim in roles.of(dim) for index in claim.families}
    return [f for f in view.families if f.index in wanted]


def _activation(kinds: Sequence[Kind]) -> tuple[int | None, int | None]:
    sizes: Counter[int] = Counter()
    widths: Counter[int] = Counter()
    for kind in kinds:
        view, found = kind.first.view, kind.first.roles
        for claim in found.of("tp"):
            size = claim.facts.get("activation_elements")
            if isinstance(size, int) and size > 0:
                sizes[size] += kind.ranks
        for dim in ("tp", "pp") if not found.of("tp") else ("tp",):
            for family in _claimed(view, found, dim):
                if dim == "pp" and not found.of("tp") and family.primitive == "send_recv":
                    sizes[family.size] += kind.ranks
                if family.ndim >= 2 and family.last_dim > 1 and (not sizes or family.size in sizes):
                    widths[family.last_dim] += kind.ranks
    return _most(sizes), _most(widths)


def _most(counter: Counter[int]) -> int | None:
    return counter.most_common(1)[0][0] if counter else None


def _parameters(view: RankView, axes: Axes) -> int:
    if axes.dense is None:
        return 0
    families = [f for f in view.families if f.index in axes.dense.families]
    reduces: Iterable[Family] = of(families, "reduce_scatter") or of(families, "all_reduce", "reduce")
    listed = list(reduces)
    repeats = min((round(f.calls_per_step) for f in listed), default=1) or 1
    return round(sum(f.elements_per_step for f in listed) / repeats)


def _layers(kinds: Sequence[Kind], found: Degrees, plan: Schedule) -> int | None:
    """Two sublayers per layer: half the forward exchanges of one microbatch, less a vocabulary layer where odd."""
    if (found.pp.value or 1) > 1 or plan.microbatches not in (None, 1):
        return None
    counts = set()
    for kind in kinds:
        for claim in kind.first.roles.of("tp"):
            families = [f for f in kind.first.view.families if f.index in claim.families]
            main = of(families, "reduce_scatter") or of(families, "all_reduce")
            size = claim.facts.get("activation_elements")
            forward = sum(f.forward for f in main if f.size == size)
            if forward and round(forward) == forward:
                counts.add(int(forward) // 2)
    return counts.pop() if len(counts) == 1 else None

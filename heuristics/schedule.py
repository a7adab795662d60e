"""The pipeline schedule, its microbatches and virtual stages, from what the ranks of a pipeline did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from heuristics.dimensions.pipeline import Annotated, Passes, annotated, passes, simple_schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heuristics.dimensions.claim import Claim
    from heuristics.view import RankView

T = TypeVar("T")


@dataclass(frozen=True)
class Schedule:
    """What is known of a pipeline's schedule; None where the ranks given do not tell.

    Attributes:
        name: as in the contract.
        stage_of_rank: position in the pipeline per global rank, where it follows from the messages.
        reasons: sentences, also for what could not be decided.
    """

    name: str | None = None
    microbatches: int | None = None
    virtual_stages: int | None = None
    stage_of_rank: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    reasons: tuple[str, ...] = ()


def schedule(ranks: Sequence[tuple[RankView, Claim]], pipeline_ranks: int | None) -> Schedule:
    """Combine the ranks that take part in pipelines.

    Args:
        ranks: views with their accepted pipeline claim.
        pipeline_ranks: ranks per pipeline, None if not known.
    """
    if not ranks:
        return Schedule()
    seen = _passes_of_all(ranks)
    stages = _stages(seen, pipeline_ranks)
    marked = [a for view, _ in seen if (a := annotated(view.actions, pipeline_ranks)) is not None]
    if marked and (max(a.virtual_stages for a in marked) > 1 or any(a.schedule for a in marked)):
        return _from_marks(marked, stages)
    simple = _simple(seen, pipeline_ranks, stages)
    if simple is not None:
        return simple
    return _interleaved(seen, pipeline_ranks, stages)


def _passes_of_all(ranks: Sequence[tuple[RankView, Claim]]) -> list[tuple[RankView, Passes]]:
    """The passes of every rank; ranks of one behaviour share their claim and differ in who their peers are."""
    known: dict[int, tuple[int, Passes]] = {}
    seen = []
    for view, claim in ranks:
        if id(claim) not in known:
            known[id(claim)] = (view.rank, passes(view, claim))
        first, found = known[id(claim)]
        seen.append((view, found.moved(view.rank - first)))
    return seen


def _from_marks(marked: Sequence[Annotated], stages: Mapping[int, int]) -> Schedule:
    name = _agreed(a.schedule for a in marked)
    micro, virtual = _agreed(a.microbatches for a in marked), _agreed(a.virtual_stages for a in marked)
    said = f"the framework marks {micro} microbatches over {virtual} stages per rank"
    return Schedule(name, micro, virtual, stages, (said,))


def _simple(
    seen: Sequence[tuple[RankView, Passes]], pipeline_ranks: int | None, stages: Mapping[int, int]
) -> Schedule | None:
    found = [simple_schedule(p.order, p.position, pipeline_ranks) for _, p in seen if p.order]
    if not found or any(micro is None for _, micro, _ in found):
        return None
    names = {name for name, _, _ in found if name}
    micro = _agreed(m for _, m, _ in found)
    if len(names) > 1 or micro is None:
        return None
    name = names.pop() if names else None
    if name == "gpipe" and micro % (pipeline_ranks or 1) == 0 and all(p.position == "middle" for _, p in seen):
        reason = f"a rank between first and last cannot tell {micro} microbatches from fewer over several chunks"
        return Schedule(None, None, None, stages, (f"{reason}; give the trace of the first stage",))
    if name == "1f1b" and all(not view.steps and p.position == "last" for view, p in seen):
        reason = f"the last stage alternates {micro} passes without a pause, and nothing says where a step ends"
        return Schedule(name, None, 1, stages, (f"{reason}; give the trace of another stage",))
    if name == "1f1b":
        reason = f"passes alternate after a warm-up on {micro} microbatches: 1F1B"
    elif name == "gpipe":
        reason = f"all {micro} forward passes come before the first backward pass: GPipe"
    else:
        reason = f"{micro} microbatches are no more than the warm-up of this rank: give the trace of the last stage"
    return Schedule(name, micro, 1, stages, (reason,))


def _interleaved(
    seen: Sequence[tuple[RankView, Passes]], pipeline_ranks: int | None, stages: Mapping[int, int]
) -> Schedule:
    """Several chunks per rank, without marks: m(2v-1) messages leave an end rank in m·v backward passes.

    Source: Narayanan et al. 2021, section 2.2.2; the hand-over between chunks wraps around to the first rank.
    """
    ends = [p for view, p in seen if _at_an_end(view.rank, p, pipeline_ranks, stages)]
    solved = {_solve(p.sends, p.backward_passes) for p in ends} - {None}
    if len(solved) == 1:
        micro, virtual = solved.pop() or (0, 0)
        reason = (
            f"end ranks send {ends[0].sends} messages in {ends[0].backward_passes} backward passes: "
            f"m(2v-1) and m·v give {micro} microbatches over {virtual} chunks per rank"
        )
        if all(p.forwards_first for _, p in seen):  # breadth first, or no more microbatches than the warm-up takes
            also = "every forward pass comes before the first backward pass: the schedule's order does not show"
            return Schedule(None, micro, virtual, stages, (reason, also))
        return Schedule("interleaved_1f1b", micro, virtual, stages, (reason,))
    reason = "the order of messages fits no schedule with one stage per rank; give the trace of the first stage"
    return Schedule(None, None, None, stages, (reason,))


def _solve(sends: int, backward_passes: int) -> tuple[int, int] | None:
    micro = 2 * backward_passes - sends
    if micro <= 0 or backward_passes % micro:
        return None
    virtual = backward_passes // micro
    return (micro, virtual) if virtual > 1 else None


def _at_an_end(rank: int, seen: Passes, pipeline_ranks: int | None, stages: Mapping[int, int]) -> bool:
    """Whether a rank is the first or the last: by its stage, or as the hand-over between chunks wraps around to it."""
    if pipeline_ranks is None or pipeline_ranks == 2:
        return pipeline_ranks == 2
    if rank in stages:
        return stages[rank] in (0, pipeline_ranks - 1)
    if seen.previous is None or seen.following is None:
        return False
    near, far = sorted(abs(peer - rank) for peer in (seen.previous, seen.following))
    return far == (pipeline_ranks - 1) * near


def _stages(seen: Sequence[tuple[RankView, Passes]], pipeline_ranks: int | None) -> Mapping[int, int]:
    """Stage per rank: the first rank starts a step by sending; the others follow along their neighbours.

    From single ranks of a long pipeline only the ends are known, and with 1F1B the distance to the end.
    """
    following = {view.rank: p.following for view, p in seen if p.position == "middle" and p.following is not None}
    before = {view.rank: p.previous for view, p in seen if p.previous is not None}
    stages: dict[int, int] = {}
    for view, p in seen:
        if p.position == "first" and view.rank >= 0:
            stages[view.rank] = 0
    for view, p in seen:
        if view.rank in stages or view.rank < 0:
            continue
        path = [view.rank]
        while path[-1] in before and before[path[-1]] not in path:
            path.append(before[path[-1]])
        if path[-1] in stages and stages[path[-1]] == 0:
            stages[view.rank] = len(path) - 1
        elif pipeline_ranks is not None:
            _, _, behind = simple_schedule(p.order, p.position, pipeline_ranks)
            if behind is not None and (p.position == "last" or following.get(view.rank) is not None):
                stages[view.rank] = pipeline_ranks - 1 - behind
    return MappingProxyType(stages)


def _agreed(values: Iterable[T | None]) -> T | None:
    """The one value that all who know it agree on; None if they differ or none knows."""
    known = Counter(value for value in values if value is not None)
    return next(iter(known)) if len(known) == 1 else None

"""Pipeline parallelism: activations to the next stage, their gradients back, and a schedule that orders the two."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL
from heuristics.dimensions.claim import STRONG, SURE, WEAK, Claim, Test, count
from heuristics.dimensions.p2p import Traffic, traffic
from heuristics.view import BACKWARD

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.view import RankView

FORWARD_PASS, BACKWARD_PASS = "F", "B"

FEWEST_MESSAGES = 2
"""One message and one answer per step may be anything; a pipeline worth its bubble runs several microbatches."""


def claims(view: RankView, group: int) -> list[Claim]:
    """Pipeline readings of the calls on one group."""
    families = [f for f in view.on_group(group) if f.role == "payload"]
    seen = traffic(families, layers=False)
    if seen is None:
        return []
    tests = _link_tests(view, view.group(group).size, seen)
    return [Claim("pp", "stage_link", group, seen.families, tuple(tests), MappingProxyType({}))]


def _link_tests(view: RankView, size: int, seen: Traffic) -> list[Test]:
    tests = []
    if seen.to and seen.to == seen.source:
        weight = STRONG if size > 2 or len(seen.to) > 1 else WEAK
        ranks = ", ".join(map(str, sorted(seen.to)))
        tests.append(Test(weight, f"the link to rank {ranks} carries as much back as forth: activations and gradients"))
    one_way = not (seen.sends and seen.receives) or (seen.to and seen.source and not seen.to & seen.source)
    if view.has_backward is False and one_way and max(seen.sends, seen.receives) >= FEWEST_MESSAGES:
        tests.append(Test(STRONG, "messages only go one way and no backward runs: the stages of inference"))
    if seen.in_backward:
        tests.append(Test(-STRONG, f"{count(seen.in_backward)} messages per step are issued from inside backward"))
    elif view.has_backward:
        tests.append(Test(STRONG, "messages lie between whole passes, none inside backward"))
    if view.off_mesh and size == view.world_size:
        said = "ranks of the job have their nearest partners at different distances: stages are evenly spaced"
        tests.append(Test(-SURE - STRONG, said))
    if view.rank in seen.to | seen.source:
        tests.append(Test(-SURE - STRONG, "some messages go to the rank itself, which no stage sends"))
    if seen.sends + seen.receives <= FEWEST_MESSAGES and not view.actions and view.has_backward is not False:
        tests.append(Test(-STRONG, "one exchange per step: passes of several microbatches would make more"))
    if view.actions:
        tests.append(Test(STRONG, "the framework marks the passes of its pipeline schedule"))
    sizes = {f.size for f in view.families if f.index in seen.families}
    if len(sizes) == 1 and min(sizes) > 0:
        tests.append(Test(WEAK, f"one size, {sizes.pop():,} elements: the stage boundary"))
    return tests


@dataclass(frozen=True)
class Passes:
    """What one pipeline rank did in a step.

    Attributes:
        order: forward and backward passes as their messages show them, such as ``FFBFBB``.
        position: ``first``, ``last`` or ``middle`` of the pipeline, None if the messages do not tell.
        previous, following: global ranks of the neighbours, None where there is none or several.
        sends: messages sent per step.
        backward_passes: backward passes per step, counted between messages.
        forwards_first: whether half of the messages lie before the first backward pass, as if all forwards did.
    """

    order: str
    position: str | None
    previous: int | None
    following: int | None
    sends: int
    backward_passes: int
    forwards_first: bool = False

    def moved(self, by: int) -> Passes:
        """The same passes of a rank so many places on, whose peers are as far away."""
        if not by:
            return self
        return Passes(
            self.order,
            self.position,
            _moved(self.previous, by),
            _moved(self.following, by),
            self.sends,
            self.backward_passes,
            self.forwards_first,
        )


def _moved(peer: int | None, by: int) -> int | None:
    """A peer so many places on; none, and one that is not known, stay."""
    return peer if peer is None or peer == NULL else peer + by


def passes(view: RankView, claim: Claim) -> Passes:
    """Read the passes of a rank from its messages.

    The first rank starts a step with a send, every other with a receive from the rank before it. From then on a send to
    the next rank ends a forward pass, a receive from it starts a backward pass (and the mirror image at the last rank).
    """
    by_index = {f.index: f for f in view.families}
    where = np.flatnonzero(np.isin(view.sequence, list(claim.families)))
    messages = [by_index[int(index)] for index in view.sequence[where]]
    peers = {f.peer for f in messages}
    first = messages[0]
    if peers == {NULL} and first.direction != "send":  # a middle stage and the last look the same without peers
        return Passes("", None, None, None, 0, _gaps_with_backward(view, where))
    previous = None if first.direction == "send" else first.peer
    others = sorted(peers - {previous})
    following = others[0] if len(others) == 1 else None
    position = "first" if previous is None else "middle" if others else "last"
    order = "".join(_pass_of(f.direction or "", f.peer, previous, position) for f in messages)
    return Passes(
        order=order,
        position=position,
        previous=previous,
        following=following if position != "last" else None,
        sends=sum(f.direction == "send" for f in messages),
        backward_passes=_gaps_with_backward(view, where),
        forwards_first=_messages_before_backward(view, where) >= len(where) // 2,
    )


def _pass_of(direction: str, peer: int, previous: int | None, position: str) -> str:
    """Which pass a message stands for; empty for the half of a pair that says nothing new."""
    if position == "first":
        return FORWARD_PASS if direction == "send" else BACKWARD_PASS
    if position == "last":
        return FORWARD_PASS if direction == "recv" else BACKWARD_PASS
    if direction == "send":
        return BACKWARD_PASS if peer == previous else FORWARD_PASS
    return ""


def _gaps_with_backward(view: RankView, where: npt.NDArray[np.int64]) -> int:
    """Stretches between neighbouring messages, and after the last, in which autograd ran: the backward passes."""
    busy = view.backward_before | (view.phases == BACKWARD)
    # An entry's mark stands for the work since the entry before, so a stretch ends with the mark of its last entry.
    total = np.concatenate([[0], np.cumsum(busy)])
    ends = np.append(where[1:] + 1, len(view.sequence))
    ran = total[ends] - total[where + 1] > 0
    ran[-1] |= view.backward_after
    return int(ran.sum())


def _messages_before_backward(view: RankView, where: npt.NDArray[np.int64]) -> int:
    busy = np.flatnonzero(view.backward_before | (view.phases == BACKWARD))
    return int((where < busy[0]).sum()) if len(busy) else len(where)


def simple_schedule(
    order: str, position: str | None, pipeline_ranks: int | None
) -> tuple[str | None, int | None, int | None]:
    """GPipe and 1F1B with one stage per rank, recognised by the order of passes.

    Args:
        order: `Passes.order`.
        position: `Passes.position`.
        pipeline_ranks: ranks of the pipeline, if known.

    Returns:
        The schedule, the microbatches, and the number of ranks behind this one (1F1B runs that many forward passes
        ahead); each None if the order does not tell. With no more microbatches than warm-up passes the two schedules
        coincide on a rank; 1F1B never runs ahead by more than the pipeline is long, and not at all on the last rank: a
        rank between that does has the messages of several chunks (Narayanan et al. 2021, section 2.2.2).
    """
    order = _without_evaluation(order)
    forwards, backwards = order.count(FORWARD_PASS), order.count(BACKWARD_PASS)
    if not forwards or forwards != backwards:
        return None, None, None
    lead = len(order) - len(order.lstrip(FORWARD_PASS))
    if lead == forwards:
        longest = 1 if position == "last" else pipeline_ranks
        return ("gpipe" if longest is not None and forwards > longest else None), forwards, None
    if order == "F" * lead + "BF" * (forwards - lead) + "B" * lead and lead <= (pipeline_ranks or lead):
        return "1f1b", forwards, 0 if position == "last" else lead - 1
    return None, None, None


def _without_evaluation(order: str) -> str:
    """The passes of training: forward passes after the last backward pass of a step have none of their own."""
    trained = order.rstrip(FORWARD_PASS)
    return trained or order


@dataclass(frozen=True)
class Annotated:
    """A schedule read from the actions that torch.distributed.pipelining writes (schedules.py, `_Action`)."""

    schedule: str | None
    microbatches: int
    virtual_stages: int
    stages: tuple[int, ...]


_ACTION = re.compile(r"(\d{1,6})(F|I|W|B)(\d{1,6})$")


def annotated(actions: tuple[str, ...], pipeline_ranks: int | None) -> Annotated | None:
    """The schedule behind the marked actions of one step; None if there are none.

    Stages ``r`` and ``2p-1-r`` on one rank are V-shaped, ``r`` and ``r+p`` looped. Backward split into input (I) and
    weight (W) passes is a zero-bubble schedule; forward and backward fused (OVERLAP_F_B) is DualPipe.
    """
    fused = [a for a in actions if "OVERLAP_F_B" in a]
    inner = [part for a in fused for part in re.findall(r"(?<!\d)\d{1,6}[FIWB]\d{1,6}(?!\d)", a)]
    parsed = [m.groups() for a in (*actions, *inner) if (m := _ACTION.match(a))]
    if not parsed:
        return None
    stages = tuple(sorted({int(stage) for stage, _, _ in parsed}))
    micro = {int(number) for _, kind, number in parsed if kind == "F"}
    split = any(kind in "IW" for _, kind, _ in parsed)
    passes = "".join("F" if kind == "F" else "B" for _, kind, _ in parsed)
    breadth_first = "BF" not in passes and not fused
    v = len(stages)
    shape = _shape(stages, pipeline_ranks)
    if v == 1:
        schedule = "zero_bubble" if split else None
    elif fused and shape != "looped":
        schedule = "dualpipe"
    elif shape == "v":
        schedule = "zbv" if split else None
    elif shape == "looped":
        whole = None if breadth_first else "interleaved_1f1b"  # looped breadth-first has no name in the document
        schedule = "interleaved_zero_bubble" if split else whole
    else:
        schedule = None
    return Annotated(schedule, len(micro), v, stages)


def _shape(stages: tuple[int, ...], p: int | None) -> str | None:
    if len(stages) < 2 or p is None:
        return None
    if all(b - a == p for a, b in itertools.pairwise(stages)):
        return "looped" if not (len(stages) == 2 and sum(stages) == 2 * p - 1) else None
    return "v" if len(stages) == 2 and sum(stages) == 2 * p - 1 else None

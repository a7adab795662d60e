"""Pipeline schedules: who runs and sends what, in which order.

Orders of compute follow Megatron-LM (megatron/core/pipeline_parallel/schedules.py) and PyTorch
(torch/distributed/pipelining/schedules.py): GPipe (Huang et al. 2019), 1F1B and interleaved 1F1B (Narayanan et al.
2021), zero bubble H1 and V (Qi et al. 2023, 2024) and DualPipeV (DeepSeek-AI 2025, the cut-in-half form of DualPipe).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Act:
    """Something a pipeline rank does for one microbatch of one of its stages.

    ``kind``: F forward, B whole backward, I gradient of inputs, W gradient of weights, and with a ``SEND_`` or
    ``RECV_`` in front the transfer of what F or B (I) made; OVERLAP_F_B runs its parts as one. ``stage`` counts over
    the whole model.
    """

    kind: str
    stage: int
    microbatch: int
    parts: tuple[Act, ...] = ()

    def __str__(self) -> str:
        """As `torch.distributed.pipelining` names the profiler's range."""
        if self.parts:
            return f"({';'.join(map(str, self.parts))}){self.kind}"
        return f"{self.stage}{self.kind}{self.microbatch}"


Step: TypeAlias = tuple[Act, ...]
"""One act, or several transfers that are launched as one group."""


def stages_of(schedule: str, rank: int, pp: int, v: int) -> tuple[int, ...]:
    """The stages of a pipeline rank, chunk by chunk: looped, or for V-shaped schedules there and back."""
    if schedule in ("zbv", "dualpipev"):
        return rank, 2 * pp - 1 - rank
    return tuple(rank + chunk * pp for chunk in range(v))


def home(schedule: str, stage: int, pp: int) -> int:
    """The pipeline rank of a stage."""
    if schedule in ("zbv", "dualpipev"):
        return stage if stage < pp else 2 * pp - 1 - stage
    return stage % pp


def gpipe(rank: int, pp: int, _v: int, m: int) -> list[Act]:
    """All forward, then all backward."""
    del pp
    return [Act("F", rank, i) for i in range(m)] + [Act("B", rank, i) for i in range(m)]


def looped_bfs(rank: int, pp: int, v: int, m: int) -> list[Act]:
    """GPipe over several chunks, breadth first."""
    stages = stages_of("looped_bfs", rank, pp, v)
    forward = [Act("F", stage, i) for stage in stages for i in range(m)]
    return forward + [Act("B", act.stage, act.microbatch) for act in reversed(forward)]


def one_f_one_b(rank: int, pp: int, _v: int, m: int) -> list[Act]:
    """Warm up, alternate, cool down."""
    warm = min(m, pp - 1 - rank)
    acts = [Act("F", rank, i) for i in range(warm)]
    for i in range(m - warm):
        acts += [Act("F", rank, warm + i), Act("B", rank, i)]
    return acts + [Act("B", rank, i) for i in range(m - warm, m)]


def interleaved(rank: int, pp: int, v: int, m: int, slack: int = 2) -> list[Act]:
    """1F1B over v chunks, microbatches in rounds of pp; ``slack``: forwards ahead per following rank."""
    total = m * v

    def place(k: int, forward: bool) -> tuple[int, int]:
        chunk = k % (pp * v) // pp
        return (chunk if forward else v - 1 - chunk), k // (pp * v) * pp + k % pp

    def act(kind: str, k: int) -> Act:
        chunk, microbatch = place(k, kind == "F")
        return Act(kind, rank + chunk * pp, microbatch)

    warm = min(total, (pp - rank - 1) * slack + (v - 1) * pp)
    acts = [act("F", k) for k in range(warm)]
    for k in range(total - warm):
        acts += [act("F", warm + k), act("B", k)]
    return acts + [act("B", k) for k in range(total - warm, total)]


def zero_bubble(order: Callable[[int, int, int, int], list[Act]]) -> Callable[[int, int, int, int], list[Act]]:
    """A schedule with backward split: weight gradients lag behind by the rank's place and fill the tail."""

    def split(rank: int, pp: int, v: int, m: int) -> list[Act]:
        acts: list[Act] = []
        late: list[Act] = []
        for act in order(rank, pp, v, m):
            if act.kind != "B":
                acts.append(act)
                continue
            acts.append(Act("I", act.stage, act.microbatch))
            late.append(Act("W", act.stage, act.microbatch))
            if len(late) > rank:
                acts.append(late.pop(0))
        return acts + late

    return split


def zbv(rank: int, pp: int, _v: int, m: int) -> list[Act]:
    """Zero bubble on a V of two chunks per rank."""
    n = max(2 * pp - 1, m)
    first, second = rank, 2 * pp - 1 - rank
    done = {(kind, stage): 0 for kind in "FIW" for stage in (first, second)}
    acts: list[Act] = []

    def do(kinds: str, stage: int) -> None:
        for kind in kinds:
            acts.append(Act(kind, stage, done[kind, stage]))
            done[kind, stage] += 1

    for _ in range(2 * (pp - rank) - 1):
        do("F", first)
    for _ in range(rank):
        do("F", second)
        do("F", first)
    for _ in range(pp - rank):
        do("F", second)
        do("IW", second)
    while done["F", second] < done["F", first] or done["F", first] < n:
        if done["F", first] < n:
            do("F", first)
        do("IW", first)
        do("F", second)
        do("IW", second)
    for _ in range(rank):
        do("I", first)
        do("I", second)
    for _ in range(pp - rank):
        do("I", first)
        do("W", first)
    for stage in (second, first):
        while done["W", stage] < done["I", stage]:
            do("W", stage)
    return [act for act in acts if act.microbatch < m]


def dualpipe_v(rank: int, pp: int, _v: int, m: int) -> list[Act]:
    """DualPipe cut in half: two chunks per rank, forward of one beside backward of the other; needs m >= 2·pp."""
    if m < 2 * pp:
        raise ValueError(f"DualPipeV needs at least {2 * pp} microbatches on {pp} stages, not {m}")
    first, second = rank, 2 * pp - 1 - rank
    count = {(kind, stage): 0 for kind in "FB" for stage in (first, second)}
    acts: list[Act] = []
    late: list[Act] = []

    def forward(stage: int) -> None:
        acts.append(Act("F", stage, count["F", stage]))
        count["F", stage] += 1

    def backward(stage: int, split: bool = False) -> None:
        i = count["B", stage]
        count["B", stage] += 1
        acts.append(Act("I" if split else "B", stage, i))
        if split:
            late.append(Act("W", stage, i))

    for _ in range((pp - rank - 1) * 2):
        forward(first)
    for _ in range(rank + 1):
        forward(first)
        forward(second)
    for _ in range(pp - rank - 1):
        backward(second, split=True)
        acts.append(late.pop(0))
        forward(second)

    def both(ahead: int, behind: int) -> None:
        forward(ahead)
        backward(behind)
        parts = tuple(acts[-2:])
        acts[-2:] = [Act("OVERLAP_F_B", -1, -1, parts)]

    for i in range(m - 2 * pp + rank + 1):
        if i == 0 and rank == pp - 1:
            forward(first)
            backward(second)
        else:
            both(first, second)
        both(second, first)
    for _ in range(pp - rank - 1):
        backward(second)
        both(second, first)
    split = False
    for i in range(rank + 1):
        split = split or (i == (rank + 1) // 2 and rank % 2 == 1)
        backward(second, split)
        split = split or (i == (rank + 1) // 2 and rank % 2 == 0)
        backward(first, split)
    for _ in range(pp - rank - 1):
        if late:
            acts.append(late.pop(0))
        backward(first, split=True)
    return acts + late


ORDERS: dict[str, Callable[[int, int, int, int], list[Act]]] = {
    "gpipe": gpipe,
    "looped_bfs": looped_bfs,
    "1f1b": one_f_one_b,
    "interleaved_1f1b": interleaved,
    "zb_h1": zero_bubble(one_f_one_b),
    "interleaved_zb": zero_bubble(partial(interleaved, slack=1)),
    "zbv": zbv,
    "dualpipev": dualpipe_v,
}


@lru_cache(maxsize=16)
def with_transfers(schedule: str, pp: int, v: int, m: int) -> list[list[Act]]:
    """Every rank's acts with sends and receives among them, one by one.

    A receive enters its rank's list at the moment the sender finishes, so that the order on every pair of ranks is the
    same on both sides (the way of `_add_send_recv` in torch/distributed/pipelining/schedules.py).
    """
    waiting = [list(ORDERS[schedule](rank, pp, v, m)) for rank in range(pp)]
    stages = pp * (2 if schedule in ("zbv", "dualpipev") else v)
    out: list[list[Act]] = [[] for _ in range(pp)]
    have: set[tuple[str, int, int]] = set()
    while any(waiting):
        moved = False
        for rank in range(pp):
            if not waiting[rank] or not _ready(waiting[rank][0], stages, have):
                continue
            moved = True
            act = waiting[rank].pop(0)
            out[rank].append(act)
            _deliver(schedule, act, stages, pp, out, have)
        if not moved:
            raise ValueError(f"{schedule} with pp {pp}, v {v}, m {m} cannot go on: {[w[:1] for w in waiting]}")
    return out


def _ready(act: Act, stages: int, have: set[tuple[str, int, int]]) -> bool:
    """Whether what an act needs is there; what its own earlier parts make counts."""
    if act.parts:
        made = {_makes(part) for part in act.parts}
        return all(_ready(part, stages, have | made) for part in act.parts)
    if act.kind == "F":
        return act.stage == 0 or ("F", act.stage - 1, act.microbatch) in have
    if act.kind == "W":
        return True
    return act.stage == stages - 1 or ("B", act.stage + 1, act.microbatch) in have


def _makes(act: Act) -> tuple[str, int, int]:
    return "F" if act.kind == "F" else "B", act.stage, act.microbatch


def _deliver(
    schedule: str, act: Act, stages: int, pp: int, out: list[list[Act]], have: set[tuple[str, int, int]]
) -> None:
    """What an act makes is sent to the rank that needs it; on the same rank it is just there."""
    for part in act.parts:
        _deliver(schedule, part, stages, pp, out, have)
    if act.parts or act.kind == "W":
        return
    have.add(_makes(act))
    word = _makes(act)[0]
    target = act.stage + (1 if word == "F" else -1)
    if not 0 <= target < stages:
        return
    source, there = home(schedule, act.stage, pp), home(schedule, target, pp)
    if source != there:
        out[source].append(Act(f"SEND_{word}", act.stage, act.microbatch))
        out[there].append(Act(f"RECV_{word}", target, act.microbatch))


def single_stage(schedule: str, rank: int, pp: int, m: int) -> list[Step]:
    """GPipe, 1F1B or ZB-H1 with one stage per rank: transfers around each act, fused where 1F1B alternates.

    The steady state sends an activation and receives a gradient (and the reverse) in one group
    (`send_forward_recv_backward` in Megatron-LM, `_batch_p2p` in `Schedule1F1B`).
    """
    warm = m if schedule == "gpipe" else min(m, pp - 1 - rank)
    steps: list[list[Act]] = []
    for i in range(warm):
        steps += [[Act("RECV_F", rank, i)], [Act("F", rank, i)], [Act("SEND_F", rank, i)]]
    if warm < m:
        steps.append([Act("RECV_F", rank, warm)])
    for i in range(m - warm):
        steps += [[Act("F", rank, warm + i)], [Act("SEND_F", rank, warm + i), Act("RECV_B", rank, i)]]
        following = [Act("RECV_F", rank, warm + i + 1)] if warm + i + 1 < m else []
        steps += [[Act("B", rank, i)], [Act("SEND_B", rank, i), *following]]
    for i in range(m - warm, m):
        steps += [[Act("RECV_B", rank, i)], [Act("B", rank, i)], [Act("SEND_B", rank, i)]]
    barred = {0: ("RECV_F", "SEND_B"), pp - 1: ("SEND_F", "RECV_B")}
    if pp > 1:
        kept = [tuple(a for a in step if a.kind not in barred.get(rank, ())) for step in steps]
    else:
        kept = [tuple(a for a in step if a.kind in "FB") for step in steps]
    whole = [step for step in kept if step]
    return _split_backward(whole, rank) if schedule == "zb_h1" else whole


def _split_backward(steps: list[Step], rank: int) -> list[Step]:
    """Backward in two: the gradient of the inputs at its place, that of the weights later, after what is sent."""
    out: list[Step] = []
    late: list[Act] = []
    due = False
    for step in steps:
        if due and step[0].kind in "FB":
            out.append((late.pop(0),))
            due = False
        if step[0].kind == "B":
            out.append((Act("I", step[0].stage, step[0].microbatch),))
            late.append(Act("W", step[0].stage, step[0].microbatch))
            due = len(late) > rank
        else:
            out.append(step)
    return out + [(act,) for act in late]

"""Ranks written down by hand: what a rank calls in one step, in order, for tests of layout inference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heuristics.view import BACKWARD, FORWARD, OPTIMIZER, UNKNOWN, Family, GroupView, RankView

PHASE = {"F": FORWARD, "B": BACKWARD, "O": OPTIMIZER, "?": UNKNOWN}


@dataclass(frozen=True)
class Call:
    """One call: primitive, payload elements, phase letter, group, and what else the trace would say of it."""

    primitive: str
    size: int
    phase: str
    group: int = 0
    dtype: str = "bfloat16"
    op: str = ""
    split: str | None = None
    direction: str | None = None
    peer: int = -1
    ndim: int = 0
    last_dim: int = 0
    library: str = "nccl"
    attention: int = 0  # attention kernels since the call before
    autograd: bool | None = None  # autograd work since the call before; by default, in backward


def reduce(size: int, phase: str, **more: object) -> Call:
    """An all-reduce."""
    return Call("all_reduce", size, phase, **more)  # type: ignore[arg-type]


def gather(size: int, phase: str, **more: object) -> Call:
    """An all-gather of ``size`` elements in all."""
    return Call("all_gather", size, phase, **more)  # type: ignore[arg-type]


def scatter(size: int, phase: str, **more: object) -> Call:
    """A reduce-scatter of ``size`` elements in all."""
    return Call("reduce_scatter", size, phase, **more)  # type: ignore[arg-type]


def exchange(size: int, phase: str, split: str = "equal", **more: object) -> Call:
    """An all-to-all."""
    return Call("all_to_all", size, phase, split=split, **more)  # type: ignore[arg-type]


def send(size: int, peer: int, phase: str = "?", **more: object) -> Call:
    """A message to a rank."""
    return Call("send_recv", size, phase, direction="send", peer=peer, **more)  # type: ignore[arg-type]


def recv(size: int, peer: int, phase: str = "?", **more: object) -> Call:
    """A message from a rank."""
    return Call("send_recv", size, phase, direction="recv", peer=peer, **more)  # type: ignore[arg-type]


def group(*ranks: int, desc: str = "") -> GroupView:
    """A declared group."""
    return GroupView(len(ranks), ranks, "", desc, declared=True)


def rank(
    calls: Sequence[Call], groups: Iterable[GroupView], *, world: int, number: int = 0, backward_after: bool = False
) -> RankView:
    """The view of a rank that makes these calls in every step."""
    keys = [_key(call) for call in calls]
    order = sorted(set(keys), key=str)
    index = np.array([order.index(key) for key in keys], dtype=np.int64)
    autograd = np.array([c.phase == "B" if c.autograd is None else c.autograd for c in calls], dtype=bool)
    families = tuple(
        _family(number, [c for c, k in zip(calls, keys, strict=True) if k == key]) for number, key in enumerate(order)
    )
    phases = np.array([PHASE[c.phase] for c in calls], dtype=np.int64)
    return RankView(
        rank=number,
        world_size=world,
        groups=tuple(groups),
        families=families,
        family_of_call=index,
        sequence=index,
        phases=phases,
        attention_before=np.array([c.attention for c in calls], dtype=np.int64),
        backward_before=autograd,
        backward_after=backward_after,
        steps=1,
        has_backward=bool(autograd.any() or (phases == BACKWARD).any() or backward_after),
        ends_ns=np.arange(len(calls), dtype=np.int64),
    )


def _key(call: Call) -> Call:
    return replace(call, phase="F", attention=0, autograd=None)


def _family(index: int, calls: Sequence[Call]) -> Family:
    first = calls[0]
    by_phase = [0.0, 0.0, 0.0, 0.0]
    for call in calls:
        by_phase[PHASE[call.phase]] += 1
    return Family(
        index=index,
        group=first.group,
        primitive=first.primitive,
        op=first.op,
        dtype=first.dtype,
        size=first.size,
        calls_per_step=float(len(calls)),
        by_phase=(by_phase[0], by_phase[1], by_phase[2], by_phase[3]),
        in_autograd=by_phase[BACKWARD],
        split=first.split,
        direction=first.direction,
        peer=first.peer,
        ndim=first.ndim,
        last_dim=first.last_dim,
        library=first.library,
    )

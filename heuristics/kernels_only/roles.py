"""What each group of a rank is for: the role of its calls by where in a layer and in a step they stand.

Calls on one group are told apart by *channel*: stream, primitive and dtype. Two dimensions may share a group (context
and data parallelism, experts and data parallelism), but then their calls are on different channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heuristics.dimensions.expert import DISPATCH_LIBRARIES
from heuristics.timing import ATTENTION, ATTENTION_BACKWARD, EXPERTS
from heuristics.view import BACKWARD, FORWARD, OPTIMIZER

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.kernels_only.together import Group
    from heuristics.kernels_only.traffic import Moving, Seen
    from heuristics.verdict import Dim

LASTING = 0.75
"""Share of the calls of a channel that must carry tensors, where gradients are reduced."""

FEWEST = 4
"""Calls from which on a pattern of layers shows: two layers of two."""

OFTEN, NEVER = 0.4, 0.1
"""Share of attention kernels that wait for an exchange: half of them on a ring of two; none with experts."""

AT_ONCE_NS = 60_000
"""Attention that waits for keys and values starts this soon after them; a projection in between takes longer."""

COLLECTIVE = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")

HALF_PRECISION = frozenset({"bfloat16", "float16", ""})


@dataclass(frozen=True)
class Role:
    """One use of a group by one rank.

    Attributes:
        dim: the dimension.
        kind: ``sequence``, ``reduce``, ``ring``, ``exchange``, ``keys``, ``link``, ``scatter``, ``gradients`` ...
        group: the members.
        rows: the calls it explains, as positions in the rank's calls.
        sentence: why.
    """

    dim: Dim
    kind: str
    group: Group
    rows: npt.NDArray[np.int64]
    sentence: str


def roles(seen: Seen) -> list[Role]:
    """All roles of one rank's groups."""
    found: list[Role] = []
    for moving in seen.moving:
        own = [*_tensor(seen, moving), *_dispatched(moving), *_messages(seen, moving)]
        if not any(role.dim == "tp" for role in own):
            own += _keys(seen, moving)
            own += _gradients(seen, moving, _rows(own))
        found += own
    return found or _without_phases(seen)


def _without_phases(seen: Seen) -> list[Role]:
    """No mark and no attention tells forward from backward: a sharded optimizer is told by the order of a step.

    Once per step gradients are scattered, then parameters gathered, on one group and on a stream of their own; what is
    all-reduced before that on an orthogonal group, several times a step, is inside of layers.
    """
    if seen.attention or np.isin(seen.phase, (FORWARD, BACKWARD)).any() or seen.calls.timing.step.max(initial=-1) < 1:
        return []
    step = seen.calls.timing.step[seen.calls.row]
    for sharded in seen.moving:
        scatters, gathers = (sharded.of(name, tensors=False) for name in ("reduce_scatter", "all_gather"))
        once = len(scatters) and len(scatters) == len(gathers) and len(sharded.rows) == 2 * len(scatters)
        if not once or not (step[scatters] == step[gathers]).all() or not (scatters < gathers).all():
            continue
        said = "gradients are scattered and parameters gathered after them, once per step: a sharded optimizer"
        found = [Role("dp", "scatter", sharded.group, sharded.rows, said)]
        for moving in seen.moving:
            reduces = moving.of("all_reduce", tensors=False)
            last = np.searchsorted(scatters, reduces)
            inside = len(reduces) == len(moving.rows) >= FEWEST * len(scatters) and last.max() < len(scatters)
            orthogonal = len(set(moving.group) & set(sharded.group)) == 1
            if inside and orthogonal and (step[scatters[last]] == step[reduces]).all():
                often = len(reduces) // len(scatters)
                also = f"{often} all-reduces per step come before, on ranks that hold the same replica: layer outputs"
                found.append(Role("tp", "reduce", moving.group, moving.rows, also))
        return found
    return []


def _rows(own: Sequence[Role]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.empty(0, dtype=np.int64), *(role.rows for role in own)])


def _tensor(seen: Seen, moving: Moving) -> list[Role]:
    """Partial activations are reduced in forward: by reduce-scatter or all-reduce. Gradients never are."""
    scatters, gathers = moving.of("reduce_scatter"), moving.of("all_gather")
    forward = scatters[moving.phase[scatters] == FORWARD]
    if len(forward) >= FEWEST and len(gathers) >= FEWEST:
        return [_sequence(seen, moving, forward, gathers)]
    return _reduces(seen, moving)


def _sequence(seen: Seen, moving: Moving, forward: npt.NDArray[np.int64], gathers: npt.NDArray[np.int64]) -> Role:
    """With attention between gather and reduce-scatter the group splits layers; without, only experts lie between."""
    timing = seen.calls.timing
    starts = timing.landmark_ns[timing.landmark == ATTENTION]
    opened = seen.calls.end_ns[gathers]
    before = np.searchsorted(opened, seen.calls.start_ns[forward], side="right") - 1
    usable = before >= 0
    since = opened[before[usable]]
    inside = np.searchsorted(starts, seen.calls.start_ns[forward[usable]]) > np.searchsorted(starts, since)
    calls = len(forward)
    if len(starts) and not inside.any():
        own = np.concatenate([moving.of("all_gather", "reduce_scatter")])
        streams = set(seen.calls.streams[forward].tolist())
        own = own[np.isin(seen.calls.streams[own], list(streams))]
        said = f"{calls} reduce-scatters lie in forward, and attention never between them and the gathers before"
        return Role("ep", "gathered", moving.group, own, said)
    said = f"{calls} reduce-scatters lie in forward: partial activations are reduced there, gradients never are"
    return Role("tp", "sequence", moving.group, moving.of(*COLLECTIVE, tensors=False), said)


def _reduces(seen: Seen, moving: Moving) -> list[Role]:
    trained = seen.attention_backward > 0 or bool((seen.phase == BACKWARD).any())
    reduces = moving.of("all_reduce", tensors=trained)
    forward = int((moving.phase[reduces] == FORWARD).sum())
    backward = int((moving.phase[reduces] == BACKWARD).sum())
    if trained and forward >= FEWEST and backward >= FEWEST:
        said = f"{forward} all-reduces lie in forward and {backward} in backward: activations"
        return [Role("tp", "reduce", moving.group, moving.of(*COLLECTIVE, tensors=False), said)]
    if not trained and seen.attention and len(reduces) >= max(FEWEST, seen.attention):
        said = f"{len(reduces)} all-reduces for {seen.attention} attention kernels and no backward: layer outputs"
        return [Role("tp", "reduce", moving.group, moving.of(*COLLECTIVE, tensors=False), said)]
    return []


def _dispatched(moving: Moving) -> list[Role]:
    """Kernels of libraries that do nothing but expert dispatch."""
    own = moving.rows[np.isin(moving.calls.libraries[moving.rows], list(DISPATCH_LIBRARIES))]
    if not len(own):
        return []
    return [Role("ep", "exchange", moving.group, own, f"{len(own)} kernels of an expert dispatch library")]


def _messages(seen: Seen, moving: Moving) -> list[Role]:
    """Send-receive kernels: stages of a pipeline stand at different layers, members of anything else at the same."""
    rows = moving.of("send_recv")
    if not len(rows) or moving.apart is None:
        return []
    if moving.apart.far:
        said = f"{len(rows)} messages pass between ranks that stand at different layers of the model"
        return [Role("pp", "link", moving.group, rows, said)]
    if len(moving.apart.level) < len(moving.group) - 1:
        return []
    return [
        role for stream in np.unique(seen.calls.streams[rows]) for role in _exchange(seen, moving, rows, int(stream))
    ]


def _exchange(seen: Seen, moving: Moving, every: npt.NDArray[np.int64], stream: int) -> list[Role]:
    """Attention waits for keys and heads, or works beside them; tokens leave for experts after it and are back before.

    The time between the last exchange and attention decides, and which kernels lie around: those of experts or not.
    """
    timing, rows = seen.calls.timing, every[seen.calls.streams[every] == stream]
    kinds = np.append(timing.landmark, -1)
    place = np.searchsorted(timing.landmark_ns, seen.calls.start_ns[rows], side="right")
    before, after = np.where(place > 0, kinds[place - 1], -1), kinds[place]
    experts = float(((before == EXPERTS) | (after == EXPERTS)).mean())
    waits = _waited_for(seen, rows)
    if experts >= 0.5 and waits <= NEVER:
        return [Role("ep", "exchange", moving.group, rows, f"{len(rows)} exchanges lie around the kernels of experts")]
    if not seen.attention_backward or waits < OFTEN:
        return []
    beside = moving.of("all_gather", tensors=False)
    beside = beside[np.isin(seen.calls.streams[beside], seen.calls.streams[rows])]
    said = f"attention waits for {len(rows)} exchanges or runs beside them, on all members at once: keys or heads"
    return [Role("cp", "exchange", moving.group, np.concatenate([rows, beside]), said)]


def _waited_for(seen: Seen, rows: npt.NDArray[np.int64]) -> float:
    """Share of attention kernels that start right after one of the calls, or run beside one; of the better pass."""
    timing = seen.calls.timing
    soon = _at_once_ns(seen)
    opened, over = np.sort(seen.calls.start_ns[rows]), np.sort(seen.calls.end_ns[rows])
    shares = [0.0]
    for kind in (ATTENTION, ATTENTION_BACKWARD):
        own = timing.landmark == kind
        start, end = timing.landmark_ns[own], timing.landmark_ns[own] + timing.landmark_dur_ns[own]
        done = np.searchsorted(over, start, side="right")
        after = (done > 0) & (start - over[np.maximum(done - 1, 0)] <= soon)
        beside = np.searchsorted(opened, end) > np.searchsorted(over, start)
        shares.append(float((after | beside).mean()) if len(start) else 0.0)
    return max(shares)


def _at_once_ns(seen: Seen) -> float:
    """How soon attention starts after what it waits for: less than a projection of its own size takes."""
    timing = seen.calls.timing
    own = timing.landmark_dur_ns[timing.landmark == ATTENTION]
    usual = float(np.median(own)) if len(own) else 0.0
    return float(min(AT_ONCE_NS, max(0.5 * usual, 5_000.0)))


def _keys(seen: Seen, moving: Moving) -> list[Role]:
    """Keys and values gathered by twos right before attention, their gradients scattered by twos."""
    if not seen.attention or not seen.attention_backward:
        return []
    timing = seen.calls.timing
    attends = timing.landmark_ns[timing.landmark == ATTENTION]
    gathers = moving.of("all_gather", tensors=False)
    found = []
    for stream in np.unique(seen.calls.streams[gathers]):
        own = gathers[seen.calls.streams[gathers] == stream]
        forward = own[moving.phase[own] == FORWARD]
        scatters = moving.of("reduce_scatter", tensors=False)
        scatters = scatters[seen.calls.streams[scatters] == stream]
        if not _by_twos(len(forward), seen.attention) or not _by_twos(len(scatters), seen.attention_backward):
            continue
        follows = np.searchsorted(attends, seen.calls.end_ns[forward])
        wait = attends[np.minimum(follows, len(attends) - 1)] - seen.calls.end_ns[forward]
        last = np.append(np.diff(follows) > 0, True)
        if np.quantile(wait[last], 0.8) > _at_once_ns(seen) or set(seen.calls.dtypes[scatters]) - HALF_PRECISION:
            continue
        said = f"{len(forward)} gathers, two before each attention, which starts as soon as they end: keys and values"
        found.append(Role("cp", "keys", moving.group, np.concatenate([own, scatters]), said))
    return found


def _by_twos(calls: int, attentions: int) -> bool:
    return calls >= FEWEST and abs(calls - 2 * attentions) <= 0.1 * attentions


def _gradients(seen: Seen, moving: Moving, taken: npt.NDArray[np.int64]) -> list[Role]:
    """Reductions of tensors in or after backward and never in forward."""
    found = []
    gathers = np.setdiff1d(moving.of("all_gather"), taken)
    for primitive, kind in (("reduce_scatter", "scatter"), ("all_reduce", "gradients"), ("reduce", "gradients")):
        own = np.setdiff1d(_lasting(moving, primitive), taken)
        late = np.isin(moving.phase[own], (BACKWARD, OPTIMIZER))
        if not len(own) or (moving.phase[own] == FORWARD).any() or not late.any():
            continue
        said = f"{len(own)} {primitive.replace('_', '-')}s in or after backward and none in forward: gradients"
        found.append(Role("dp", kind, moving.group, np.concatenate([own, gathers]), said))
    return found or _parameters(seen, moving, gathers)


def _lasting(moving: Moving, primitive: str) -> npt.NDArray[np.int64]:
    """Calls of the channels of which most carry tensors: others only waited for ranks outside of the group."""
    every = moving.of(primitive, tensors=False)
    channels = np.stack([moving.calls.streams[every], moving.calls.kind[every]], axis=1)
    found = [np.empty(0, dtype=np.int64)]
    for channel in np.unique(channels, axis=0):
        rows = every[(channels == channel).all(axis=1)]
        if moving.tensor[rows].mean() >= LASTING:
            found.append(rows)
    return np.sort(np.concatenate(found))


def _parameters(seen: Seen, moving: Moving, gathers: npt.NDArray[np.int64]) -> list[Role]:
    """Gathers on streams of sharded data parallelism: parameters, if gradients are scattered as well."""
    if len(gathers) < FEWEST or len(moving.of("reduce_scatter")):
        return []
    beside = np.isin(seen.calls.streams, seen.calls.streams[gathers])
    sharding = np.isin(seen.calls.primitives[beside], ("all_gather", "reduce_scatter")).all()
    if not sharding or not (seen.calls.primitives == "reduce_scatter").any():
        return []
    said = f"{len(gathers)} gathers on a stream that nothing but gathers and reduce-scatters use: parameters"
    return [Role("dp", "parameters", moving.group, gathers, said)]


def unexplained(seen: Seen, own: Sequence[Role]) -> tuple[float, dict[str, int]]:
    """Share of the communication time of tensors that no role explains, and how many calls of which primitive."""
    explained = np.zeros(len(seen.calls), dtype=bool)
    for role in own:
        explained[role.rows] = True
    us = (seen.calls.end_ns - seen.calls.start_ns).astype(np.float64)
    tensor = seen.tensor
    rest = np.flatnonzero(tensor & ~explained)
    names, times = np.unique(seen.calls.primitives[rest], return_counts=True)
    total = us[tensor].sum()
    return float(us[rest].sum() / total) if total else 0.0, dict(zip(names.tolist(), times.tolist(), strict=True))

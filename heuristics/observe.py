"""From a labelled rank to its view: families, phases by position, and what ran between the calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL, code_of, codes, ints
from heuristics.columns import distinct
from heuristics.keys import call_keys, split_codes
from heuristics.phases import AUTOGRAD_THREAD
from heuristics.timing import timing_of
from heuristics.view import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    PHASES,
    UNKNOWN,
    Family,
    GroupView,
    RankView,
    compact,
)
from heuristics.work_names import is_attention, is_attention_backward, is_embedding_bag, is_expert
from parsers.columns import distinct_values

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from heuristics.labelled import LabelledRank

FRAGMENTS = frozenset({"flight_recorder"})
"""Sources that keep the last calls before they were written, wherever in a step that was."""


UNSEEN = MappingProxyType({"straggler_analysis": ("tp", "cp", "ep")})
"""Dimensions that a source does not show: there they run inside of operations that count as computing."""


def view(rank: LabelledRank, *, use_names: bool = True) -> RankView:
    """Reduce a labelled rank to its view.

    Args:
        rank: the labelled rank.
        use_names: whether group descriptions may be seen; identifiers are always used to join.
    """
    table = rank.collectives
    launches = _launch_times(table)
    order = np.argsort(launches, kind="stable")
    step, regular = _regular_steps(ints(table, "step"))
    autograd = _mark_times(rank, "autograd")
    since = np.empty_like(launches)
    since[order] = _since(rank, launches[order], step[order])
    backward_before = _marks_between(autograd, since, launches) > 0
    phase = _settled_phases(_phase_codes(table), step, order, backward_before)
    autograd_calls = _inside_autograd(rank, launches)
    group, groups = _groups(rank, autograd_calls, use_names)
    keys, text = call_keys(table, group)
    example, family_of_call = distinct(*keys.T)
    window = order[step[order] == regular[-1]] if len(regular) else order
    bounds = _window(rank, launches[window], regular)
    families = _families(table, keys[example], family_of_call, phase, autograd_calls, step, regular, text)
    return RankView(
        rank=NULL if rank.trace.identity.rank is None else rank.trace.identity.rank,
        world_size=rank.trace.identity.world_size or 0,
        groups=groups,
        families=families,
        family_of_call=family_of_call,
        sequence=family_of_call[window],
        phases=phase[window],
        attention_before=_attention_before(rank, since[window], launches, window, bounds[0]),
        backward_before=backward_before[window],
        backward_after=bool(_marks_between(autograd, launches[window][-1:], np.array([bounds[1]])).any()),
        steps=len(regular),
        actions=_actions(rank, bounds),
        optimizer_seen=bool(len(_mark_times(rank, "optimizer"))),
        has_backward=_has_backward(rank, autograd, phase),
        unseen=UNSEEN.get(rank.trace.format, ()),
        fragment=rank.trace.format in FRAGMENTS and not len(regular),
        runs_experts=bool(len(_named_times(rank, is_expert))),
        runs_embedding_bags=bool(len(_named_times(rank, is_embedding_bag))),
        ends_ns=ends_ns(table),
        steps_marked=rank.steps.source != "inferred",
        timing=timing_of(rank, phase) if says_nothing(groups, families) else None,
    )


def says_nothing(groups: Sequence[GroupView], families: Sequence[Family]) -> bool:
    """Whether no call says its size, and the file lists no group that it could be on."""
    return bool(families) and not any(g.declared for g in groups) and all(f.size < 0 for f in families)


def ends_ns(table: pa.Table) -> npt.NDArray[np.int64]:
    """When each call of a table with ``ts_ns`` and ``dur_ns`` was over; `NULL` where it has no interval."""
    return ints(table, "ts_ns") + ints(table, "dur_ns", 0)


def views(ranks: Sequence[LabelledRank], *, use_names: bool = True) -> tuple[RankView, ...]:
    """`view` of each rank."""
    return tuple(view(rank, use_names=use_names) for rank in ranks)


def _launch_times(table: pa.Table) -> npt.NDArray[np.int64]:
    launch, start = ints(table, "launch_ts_ns"), ints(table, "ts_ns")
    return np.where(launch == NULL, start, launch)


def _phase_codes(table: pa.Table) -> npt.NDArray[np.int64]:
    column, values = codes(table, "phase")
    lookup = np.array([*(PHASES.index(v) if v in PHASES else UNKNOWN for v in values), UNKNOWN], dtype=np.int64)
    return lookup[column]


def _settled_phases(
    phase: npt.NDArray[np.int64],
    step: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    backward_before: npt.NDArray[np.bool_],
) -> npt.NDArray[np.int64]:
    """Phases by position as well as by thread.

    What precedes the first backward work of its step is forward, what follows the last is after backward (`OPTIMIZER`),
    whoever issued it. What directly follows backward work within a step may still belong to it (a reduction that the
    framework issues once autograd has returned), so it is `UNKNOWN`, not forward.
    """
    settled = phase.copy()
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    evidence = (phase == BACKWARD) | backward_before
    if not evidence.any():
        return settled
    first = np.full(int(step.max(initial=0)) + 2, len(order), dtype=np.int64)
    np.minimum.at(first, step[evidence], place[evidence])
    settled[(phase == UNKNOWN) & (place < first[step]) & (first[step] < len(order))] = FORWARD
    last = np.full(int(step.max(initial=0)) + 2, -1, dtype=np.int64)
    np.maximum.at(last, step[evidence], place[evidence])
    early = (phase == FORWARD) | (phase == UNKNOWN)
    settled[early & backward_before] = UNKNOWN  # wins over forward by position: work was done just before
    ended = last[step]
    after = (place > ended) | ((place == ended) & backward_before)
    settled[early & after & (ended >= 0)] = OPTIMIZER
    return settled


def _regular_steps(step: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The step of each call, and the steps with the usual number of calls: clipped ones are left out.

    Steps may differ in earnest (a first iteration that rebuilds buckets); the number of calls most steps share, the
    latest such number at a tie, counts as usual.
    """
    seen, counts = np.unique(step[step >= 0], return_counts=True)
    if not len(seen):
        return np.zeros_like(step), np.empty(0, dtype=np.int64)
    values, often = np.unique(counts, return_counts=True)
    best = values[often == often.max()]
    last = next(count for count in counts[::-1] if count in best)
    return step, seen[counts == last]


def _families(
    table: pa.Table,
    unique: npt.NDArray[np.int64],
    family_of_call: npt.NDArray[np.int64],
    phase: npt.NDArray[np.int64],
    inside_autograd: npt.NDArray[np.bool_],
    step: npt.NDArray[np.int64],
    regular: npt.NDArray[np.int64],
    text: dict[str, list[str]],
) -> tuple[Family, ...]:
    inside = np.isin(step, regular) if len(regular) else np.ones(len(step), dtype=bool)
    per_step = 1.0 / max(len(regular), 1)
    count = len(unique)
    cells = np.bincount(family_of_call[inside] * 4 + phase[inside], minlength=4 * count).reshape(-1, 4)
    autograd = np.bincount(family_of_call[inside], weights=inside_autograd[inside], minlength=count) * per_step
    one_hot = np.bincount(family_of_call[split_codes(table) == 1], minlength=count)
    total = np.bincount(family_of_call, minlength=count)

    def say(name: str, code: int) -> str:
        return text[name][code] if code >= 0 else ""

    families = []
    for index, row in enumerate(unique.tolist()):
        group, primitive, op, dtype, direction, role, library, size, split, peer, ndim, last_dim, members, root, _ = row
        phases = cells[index] * per_step
        kind = None if split == NULL else "equal" if split == 0 else "uneven"
        if kind == "uneven" and one_hot[index] == total[index]:
            kind = "one_hot"
        families.append(
            Family(
                index=index,
                group=group,
                primitive=say("primitive", primitive),
                op=say("op", op),
                dtype=say("dtype", dtype),
                size=size,
                calls_per_step=float(phases.sum()),
                by_phase=(float(phases[0]), float(phases[1]), float(phases[2]), float(phases[3])),
                in_autograd=float(autograd[index]),
                split=kind,
                direction=say("direction", direction) or None,
                peer=peer,
                ndim=ndim,
                last_dim=last_dim,
                members=members,
                role=say("role", role) or "payload",
                library=say("library", library),
                root=root,
            )
        )
    return tuple(families)


def _groups(
    rank: LabelledRank, autograd_calls: npt.NDArray[np.bool_], use_names: bool
) -> tuple[npt.NDArray[np.int64], tuple[GroupView, ...]]:
    """The group of each call, and the groups.

    Calls that do not identify their group (none given, or only its size) are kept apart by stream: a communicator has
    a stream of its own for asynchronous calls. Messages have a stream per pair of ranks, so theirs are told apart only
    by whether a layer's backward sends on them, as rings do, or nothing but whole passes, as pipelines do.
    """
    columns = rank.groups.select(["name", "desc", "size", "ranks", "declared"]).to_pydict()
    groups = [
        GroupView(
            size=size or (len(ranks) if ranks else 0),
            ranks=compact(ranks) if ranks else None,
            name=name or "",
            desc=(desc or "") if use_names else "",
            declared=bool(declared),
        )
        for name, desc, size, ranks, declared in zip(*columns.values(), strict=True)
    ]
    of_call = ints(rank.collectives, "group")
    anonymous = np.array([*(not group.identified for group in groups), True])[of_call]
    primitive, names = codes(rank.collectives, "primitive")
    stream, message = ints(rank.collectives, "stream"), primitive == code_of(names, "send_recv")
    layered = np.isin(stream, stream[message & autograd_calls])
    stream = np.where(message, np.where(layered, NULL - 1, NULL), stream)
    example, number = distinct(of_call[anonymous], stream[anonymous])
    sizes = [groups[group].size if group >= 0 else 0 for group in of_call[anonymous][example].tolist()]
    of_call[anonymous] = len(groups) + number
    return of_call, (*groups, *(GroupView(size, None, "", "", declared=False) for size in sizes))


def _window(rank: LabelledRank, launches: npt.NDArray[np.int64], regular: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Start and end of the step that `RankView.sequence` shows, in ns."""
    steps = rank.steps.table
    if len(regular) and regular[-1] < steps.num_rows:
        start = int(ints(steps, "ts_ns")[regular[-1]])
        return start, start + int(ints(steps, "dur_ns")[regular[-1]])
    return (int(launches[0]), int(launches[-1])) if len(launches) else (0, 0)


def _mark_times(rank: LabelledRank, kind: str) -> npt.NDArray[np.int64]:
    marks = rank.trace.cpu_marks
    kinds, names = codes(marks, "kind")
    return np.sort(ints(marks, "ts_ns")[kinds == code_of(names, kind)])


def _inside_autograd(rank: LabelledRank, launches: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which calls were issued while autograd evaluated a function on the same thread, or on a thread of its own."""
    marks, table = rank.trace.cpu_marks, rank.collectives
    kinds, names = codes(marks, "kind")
    rows = np.flatnonzero(kinds == code_of(names, "autograd"))
    start, end = ints(marks, "ts_ns")[rows], ints(marks, "ts_ns")[rows] + ints(marks, "dur_ns")[rows]
    thread, of_call = ints(marks, "tid")[rows], ints(table, "tid")
    threads = rank.trace.metadata.get("threads")
    own_threads = (
        [t for t, name in threads.items() if AUTOGRAD_THREAD in str(name)] if isinstance(threads, dict) else []
    )
    inside: npt.NDArray[np.bool_] = np.isin(of_call, own_threads)
    for tid in distinct_values(of_call):
        own, calls = thread == tid, of_call == tid
        order = np.argsort(start[own], kind="stable")
        reached = np.maximum.accumulate(end[own][order]) if own.any() else end[own]
        before = np.searchsorted(start[own][order], launches[calls], side="right")
        reached = np.concatenate([[np.iinfo(np.int64).min], reached])
        inside[calls] |= reached[before] > launches[calls]
    return inside


def _named_times(rank: LabelledRank, wanted_name: Callable[[str, bool], bool]) -> npt.NDArray[np.int64]:
    """Starts of the kernels (on a CPU: the operators) whose name is wanted."""
    source = rank.trace.gpu_events if rank.trace.on_gpu else rank.trace.cpu_marks
    column, names = codes(source, "name")
    wanted = np.array([*(wanted_name(name, rank.trace.on_gpu) for name in names), False], dtype=bool)
    return np.sort(ints(source, "ts_ns")[wanted[column]]) if len(column) else np.empty(0, dtype=np.int64)


def _attention_before(
    rank: LabelledRank,
    since: npt.NDArray[np.int64],
    launches: npt.NDArray[np.int64],
    window: npt.NDArray[np.int64],
    begin: int,
) -> npt.NDArray[np.int64]:
    """Attention between neighbouring calls, on the clock where both are seen: kernels by start, operators by issue.

    The GPU runs behind: when the CPU begins a step, attention of the step before may still run, so what precedes the
    first call counts from the start of the call issued before it. A call may also start early, on a stream of its own,
    and wait there; what ran until the latest start so far has been counted.
    """
    attention = _named_times(rank, is_attention)
    if not rank.trace.on_gpu:
        return _marks_between(attention, since, launches[window])
    every = ints(rank.collectives, "ts_ns")
    starts = np.maximum.accumulate(every[window])
    earlier = every[launches < launches[window][:1]]
    first = np.minimum(starts[:1], max(begin, int(earlier.max(initial=begin))))
    return _marks_between(attention, np.concatenate([first, starts[:-1]]), starts)


def _since(rank: LabelledRank, launches: npt.NDArray[np.int64], step: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Per launch (in order), the launch before it, or the start of its step if that is later."""
    before = np.concatenate([launches[:1], launches[:-1]])
    starts = np.append(ints(rank.steps.table, "ts_ns"), np.iinfo(np.int64).min)
    latest: npt.NDArray[np.int64] = np.maximum(before, starts[step])
    return latest


def _marks_between(
    marks: npt.NDArray[np.int64], since: npt.NDArray[np.int64], upto: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """How many marks lie in each interval [since, upto)."""
    found: npt.NDArray[np.int64] = np.searchsorted(marks, upto) - np.searchsorted(marks, since)
    return found


def _actions(rank: LabelledRank, bounds: tuple[int, int]) -> tuple[str, ...]:
    """Pipeline actions that torch.distributed.pipelining writes as ``PP:<action>`` (schedules.py)."""
    marks = rank.trace.cpu_marks
    column, names = codes(marks, "name")
    wanted = np.array([*(name.startswith("PP:") for name in names), False], dtype=bool)
    times = ints(marks, "ts_ns")
    inside = wanted[column] & (times >= bounds[0]) & (times <= bounds[1]) if len(column) else np.zeros(0, dtype=bool)
    rows: list[int] = np.flatnonzero(inside).tolist()
    return tuple(names[column[row]][3:] for row in sorted(rows, key=lambda row: int(times[row])))


def _has_backward(rank: LabelledRank, autograd: npt.NDArray[np.int64], phase: npt.NDArray[np.int64]) -> bool | None:
    """Whether backward runs in the window.

    Marks of autograd say that it does. Their absence says nothing (operators may not have been recorded), but attention
    that runs forward and never backward says that it does not.
    """
    if len(autograd) or (phase == BACKWARD).any():
        return True
    if len(_named_times(rank, is_attention_backward)):
        return True
    return False if len(_named_times(rank, is_attention)) else None

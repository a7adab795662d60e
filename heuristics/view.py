"""What layout inference sees of one rank: its groups, its families of calls, and their order within a step.

A *family* is the calls of one rank that say the same thing again: same group, primitive, dtype, payload and peer. A
rank of a real job makes ten thousand calls and has twenty families, so everything after this module is small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL, code_of, codes, ints, lists

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from heuristics.labelled import LabelledRank

PHASES = ("forward", "backward", "optimizer", "unknown")
FORWARD, BACKWARD, OPTIMIZER, UNKNOWN = range(4)
"""Phase codes; `OPTIMIZER` stands for everything after the step's backward."""

SCALARS = 8
"""Payloads of at most this many elements are flags, counts, norms and losses: no tensor of a model is so small."""

INTEGER_DTYPES = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"})
"""Payloads of these types carry counts, tokens and flags, not activations or gradients (fp8 travels as uint8)."""


@dataclass(frozen=True)
class GroupView:
    """A process group as one rank knows it.

    Attributes:
        size: number of members, 0 if not known.
        ranks: global ranks in group order, or None; a `range` where they are evenly spaced.
        name: the identifier in the file, for joining only.
        desc: the description in the file; empty when names are not to be used.
        declared: named in the file's header.
    """

    size: int
    ranks: Sequence[int] | None
    name: str
    desc: str
    declared: bool


UNKNOWN_GROUP = GroupView(0, None, "", "", False)
"""Stands for the group of calls that name none."""


@dataclass(frozen=True)
class Family:
    """Calls of one rank that say the same thing again.

    Attributes:
        index: position in `RankView.families`.
        group: position in `RankView.groups`, -1 if not known.
        size: payload elements (total array, as the ledger's S), -1 if not known; for uneven all-to-alls the side that
            stays the same.
        calls_per_step: mean over the regular steps.
        by_phase: calls per step in forward, backward, optimizer, unknown.
        in_autograd: calls per step issued from inside an autograd function.
        split: ``equal``, ``uneven`` or ``one_hot`` for all-to-alls, else None.
        ndim: dimensions of the tensor handed in, 0 if not recorded.
        last_dim: its last dimension, 0 if not recorded.
        members: group size as the call itself shows it (stated, or from the two sides of a gather), 0 if unknown.
    """

    index: int
    group: int
    primitive: str
    op: str
    dtype: str
    size: int
    calls_per_step: float
    by_phase: tuple[float, float, float, float]
    in_autograd: float = 0.0
    split: str | None = None
    direction: str | None = None
    peer: int = NULL
    ndim: int = 0
    last_dim: int = 0
    members: int = 0
    role: str = "payload"
    library: str = ""

    @property
    def forward(self) -> float:
        """Calls per step in the forward phase."""
        return self.by_phase[FORWARD]

    @property
    def backward(self) -> float:
        """Calls per step in the backward phase."""
        return self.by_phase[BACKWARD]

    @property
    def is_float(self) -> bool:
        """Whether the payload can be activations, weights or gradients."""
        return self.dtype not in INTEGER_DTYPES

    @property
    def is_tensor(self) -> bool:
        """Whether it can carry a tensor of the model; a payload of unknown size can."""
        return self.role == "payload" and self.is_float and not 0 <= self.size <= SCALARS

    @property
    def elements_per_step(self) -> float:
        """Payload elements of all its calls in a step."""
        return max(self.size, 0) * self.calls_per_step


@dataclass(frozen=True)
class RankView:
    """One rank, reduced to what layout inference needs.

    Attributes:
        rank: global rank, -1 if not known.
        world_size: 0 if not known.
        family_of_call: per row of the rank's collectives, the family's index.
        sequence: families in launch order within one regular step.
        phases: the phase code of each entry of ``sequence``.
        attention_before: per entry of ``sequence``, attention kernels or operators since the entry before.
        backward_before: per entry of ``sequence``, whether autograd ran since the entry before.
        backward_after: whether autograd ran after the last entry, within the step.
        steps: regular steps averaged over; 0 when the file marks none and the window counts as one.
        actions: pipeline actions written by the framework in one step, such as ``0F1`` or ``4RECV_B0``.
        optimizer_seen: whether an optimizer step lies in the window.
        has_backward: whether autograd ran at all in the window; None when the file cannot say.
        runs_experts: whether kernels or operators of a mixture of experts run in the window.
        runs_embedding_bags: whether embedding-table lookups of recommendation models run in the window.
        ends_ns: per row of the rank's collectives, when the call was over.
        doubtful: groups that calls were put on by the group's description alone.
    """

    rank: int
    world_size: int
    groups: tuple[GroupView, ...]
    families: tuple[Family, ...]
    family_of_call: npt.NDArray[np.int64]
    sequence: npt.NDArray[np.int64]
    phases: npt.NDArray[np.int64]
    attention_before: npt.NDArray[np.int64]
    backward_before: npt.NDArray[np.bool_]
    backward_after: bool
    steps: int
    actions: tuple[str, ...] = ()
    optimizer_seen: bool = False
    has_backward: bool | None = None
    runs_experts: bool = False
    runs_embedding_bags: bool = False
    ends_ns: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    doubtful: frozenset[int] = frozenset()

    def group(self, index: int) -> GroupView:
        """A group by its position; -1 stands for calls whose group is not known."""
        return self.groups[index] if index >= 0 else UNKNOWN_GROUP

    def on_group(self, group: int) -> list[Family]:
        """The families that use one group in the regular steps."""
        return [family for family in self.families if family.group == group and family.calls_per_step > 0]


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
    keys, text = _call_keys(table)
    unique, family_of_call = _unique_rows(keys)
    window = order[step[order] == regular[-1]] if len(regular) else order
    bounds = _window(rank, launches[window], regular)
    return RankView(
        rank=NULL if rank.trace.identity.rank is None else rank.trace.identity.rank,
        world_size=rank.trace.identity.world_size or 0,
        groups=_groups(rank.groups, use_names),
        families=_families(table, unique, family_of_call, phase, _inside_autograd(rank, launches), step, regular, text),
        family_of_call=family_of_call,
        sequence=family_of_call[window],
        phases=phase[window],
        attention_before=_attention_before(rank, since[window], launches[window], window),
        backward_before=backward_before[window],
        backward_after=bool(_marks_between(autograd, launches[window][-1:], np.array([bounds[1]])).any()),
        steps=len(regular),
        actions=_actions(rank, bounds),
        optimizer_seen=bool(len(_mark_times(rank, "optimizer"))),
        has_backward=_has_backward(rank, autograd, phase),
        runs_experts=bool(len(_named_times(rank, _is_expert))),
        runs_embedding_bags=bool(len(_named_times(rank, _is_embedding_bag))),
        ends_ns=ints(table, "ts_ns") + ints(table, "dur_ns", 0),
    )


def compact(ranks: Sequence[int]) -> Sequence[int]:
    """Ranks as a `range` if they are evenly spaced, else as a tuple: a world group costs nothing per rank that way."""
    if len(ranks) < 2:
        return tuple(ranks)
    step = ranks[1] - ranks[0]
    spaced = range(ranks[0], ranks[0] + step * len(ranks), step) if step > 0 else ()
    return spaced if len(spaced) == len(ranks) and list(spaced) == list(ranks) else tuple(ranks)


def signature(view: RankView) -> int:
    """A hash of everything that roles are read from: ranks that do the same on groups of the same shape share it.

    Groups count by size, description and which of them have the same members; peers by their distance.
    """
    same: dict[object, int] = {}
    groups = tuple((g.size, g.desc, same.setdefault(g.ranks, len(same)), g.ranks is not None) for g in view.groups)
    families = tuple(replace(f, peer=f.peer - view.rank if f.peer >= 0 else NULL) for f in view.families)
    arrays = (view.sequence, view.phases, view.attention_before > 0, view.backward_before)
    marks = (view.backward_after, view.has_backward, view.runs_experts, view.runs_embedding_bags, bool(view.actions))
    return hash((view.world_size, groups, families, tuple(a.tobytes() for a in arrays), marks))


def views(ranks: Sequence[LabelledRank], *, use_names: bool = True) -> tuple[RankView, ...]:
    """`view` of each rank."""
    return tuple(view(rank, use_names=use_names) for rank in ranks)


def _unique_rows(keys: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    if not len(keys):
        return keys, np.empty(0, dtype=np.int64)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    return unique, np.asarray(inverse, dtype=np.int64).ravel()


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

    What follows the last backward work of its step is after backward (`OPTIMIZER`), whoever issued it; what directly
    follows backward work within a step may still belong to it (a reduction issued by the framework once autograd has
    returned), so it is `UNKNOWN`, not forward.
    """
    settled = phase.copy()
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    evidence = (phase == BACKWARD) | backward_before
    if not evidence.any():
        return settled
    last = np.full(int(step.max(initial=0)) + 2, -1, dtype=np.int64)
    np.maximum.at(last, step[evidence], place[evidence])
    early = (phase == FORWARD) | (phase == UNKNOWN)
    settled[early & backward_before] = UNKNOWN
    ended = last[step]
    after = (place > ended) | ((place == ended) & backward_before)
    settled[early & after & (ended >= 0)] = OPTIMIZER
    return settled


def _payload(table: pa.Table) -> npt.NDArray[np.int64]:
    """The ledger's S in elements: the larger side of gathers and scatters, the steadier side of uneven exchanges."""
    given, taken = ints(table, "in_nelems"), ints(table, "out_nelems")
    primitive, names = codes(table, "primitive")
    size = np.maximum(given, taken)
    exchanges = primitive == code_of(names, "all_to_all")
    if exchanges.any():
        values, counts = np.unique(np.concatenate([given[exchanges], taken[exchanges]]), return_counts=True)
        often_in = counts[np.searchsorted(values, given[exchanges])]
        often_out = counts[np.searchsorted(values, taken[exchanges])]
        steady = np.where(often_in > often_out, given[exchanges], taken[exchanges])
        size[exchanges] = np.where(often_in == often_out, size[exchanges], steady)
    return size


def _members(table: pa.Table) -> npt.NDArray[np.int64]:
    """Group size as a call shows it: stated, else the ratio between the two sides of a gather or scatter."""
    stated = ints(table, "group_size", 0)
    given, taken = ints(table, "in_nelems"), ints(table, "out_nelems")
    small, large = np.minimum(given, taken), np.maximum(given, taken)
    primitive, names = codes(table, "primitive")
    sided = np.isin(primitive, [code_of(names, "all_gather"), code_of(names, "reduce_scatter")])
    exact = sided & (small > 0) & (large % np.maximum(small, 1) == 0)
    return np.where(stated > 0, stated, np.where(exact, large // np.maximum(small, 1), 0))


def _spread(table: pa.Table, name: str) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Per row of a split list: whether there is one, whether all entries are equal, whether one entry is not zero."""
    offsets, flat = lists(table, name)
    lengths = np.diff(offsets)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    nonzero = np.bincount(rows, weights=flat != 0, minlength=len(lengths))
    total = np.bincount(rows, weights=flat, minlength=len(lengths))
    safe = np.maximum(lengths, 1)
    off_mean = np.bincount(rows, weights=flat * safe[rows] != total[rows], minlength=len(lengths))
    return lengths > 0, off_mean == 0, (nonzero == 1) & (lengths > 1)


def _split_codes(table: pa.Table) -> npt.NDArray[np.int64]:
    """0 equal, 1 one entry not zero, 2 uneven, -1 not an all-to-all."""
    primitive, names = codes(table, "primitive")
    listed_in, even_in, single_in = _spread(table, "in_split")
    listed_out, even_out, single_out = _spread(table, "out_split")
    uneven = (listed_in & ~even_in) | (listed_out & ~even_out)
    single = listed_in & listed_out & single_in & single_out
    code = np.where(single, 1, np.where(uneven, 2, 0))
    return np.where(primitive == code_of(names, "all_to_all"), code, NULL)


def _call_keys(table: pa.Table) -> tuple[npt.NDArray[np.int64], dict[str, list[str]]]:
    """One row of codes per call; calls with equal rows are one family."""
    text = {name: codes(table, name) for name in ("primitive", "op", "dtype", "direction", "role", "library")}
    offsets, flat = lists(table, "shape")
    ndim = np.diff(offsets)
    split = _split_codes(table)
    payload = _payload(table)
    columns = [
        ints(table, "group"),
        *(text[name][0] for name in ("primitive", "op", "dtype", "direction", "role", "library")),
        payload,
        np.where(split == 1, 2, split),  # a lone one-hot among uneven exchanges is chance: decided per family
        ints(table, "peer"),
        ndim,
        np.where(ndim > 0, np.append(flat, 0)[np.maximum(offsets[1:] - 1, 0)], 0),
        _members(table),
    ]
    extra = {name: values for name, (_, values) in text.items()}
    return np.stack(columns, axis=1) if len(payload) else np.empty((0, 13), dtype=np.int64), extra


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
    one_hot = np.bincount(family_of_call[_split_codes(table) == 1], minlength=count)
    total = np.bincount(family_of_call, minlength=count)

    def say(name: str, code: int) -> str:
        return text[name][code] if code >= 0 else ""

    families = []
    for index, row in enumerate(unique.tolist()):
        group, primitive, op, dtype, direction, role, library, size, split, peer, ndim, last_dim, members = row
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
            )
        )
    return tuple(families)


def _groups(table: pa.Table, use_names: bool) -> tuple[GroupView, ...]:
    columns = table.select(["name", "desc", "size", "ranks", "declared"]).to_pydict()
    return tuple(
        GroupView(
            size=size or (len(ranks) if ranks else 0),
            ranks=compact(ranks) if ranks else None,
            name=name or "",
            desc=(desc or "") if use_names else "",
            declared=bool(declared),
        )
        for name, desc, size, ranks, declared in zip(*columns.values(), strict=True)
    )


def _window(rank: LabelledRank, launches: npt.NDArray[np.int64], regular: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Start and end of the step that `RankView.sequence` shows, in ns."""
    steps = rank.trace.steps
    if len(regular) and regular[-1] < steps.num_rows:
        start = int(ints(steps, "ts_ns")[regular[-1]])
        return start, start + int(ints(steps, "dur_ns")[regular[-1]])
    return (int(launches[0]), int(launches[-1])) if len(launches) else (0, 0)


def _mark_times(rank: LabelledRank, kind: str) -> npt.NDArray[np.int64]:
    marks = rank.trace.cpu_marks
    kinds, names = codes(marks, "kind")
    return np.sort(ints(marks, "ts_ns")[kinds == code_of(names, kind)])


def _inside_autograd(rank: LabelledRank, launches: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which calls were issued while autograd evaluated a function on the same thread."""
    marks, table = rank.trace.cpu_marks, rank.collectives
    kinds, names = codes(marks, "kind")
    rows = np.flatnonzero(kinds == code_of(names, "autograd"))
    start, end = ints(marks, "ts_ns")[rows], ints(marks, "ts_ns")[rows] + ints(marks, "dur_ns")[rows]
    thread, of_call = ints(marks, "tid")[rows], ints(table, "tid")
    inside = np.zeros(len(launches), dtype=bool)
    for tid in np.unique(of_call):
        own, calls = thread == tid, of_call == tid
        order = np.argsort(start[own], kind="stable")
        reached = np.maximum.accumulate(end[own][order]) if own.any() else end[own]
        before = np.searchsorted(start[own][order], launches[calls], side="right")
        reached = np.concatenate([[np.iinfo(np.int64).min], reached])
        inside[calls] = reached[before] > launches[calls]
    return inside


def _named_times(rank: LabelledRank, wanted_name: Callable[[str, bool], bool]) -> npt.NDArray[np.int64]:
    """Starts of the kernels (on a CPU: the operators) whose name is wanted."""
    source = rank.trace.gpu_events if rank.trace.on_gpu else rank.trace.cpu_marks
    column, names = codes(source, "name")
    wanted = np.array([*(wanted_name(name, rank.trace.on_gpu) for name in names), False], dtype=bool)
    return np.sort(ints(source, "ts_ns")[wanted[column]]) if len(column) else np.empty(0, dtype=np.int64)


def _attention_before(
    rank: LabelledRank, since: npt.NDArray[np.int64], upto: npt.NDArray[np.int64], window: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Attention between neighbouring calls, on the clock where both are seen: kernels by start, operators by issue."""
    attention = _named_times(rank, _is_attention)
    if not rank.trace.on_gpu:
        return _marks_between(attention, since, upto)
    starts = ints(rank.collectives, "ts_ns")[window]
    return _marks_between(attention, np.concatenate([starts[:1], starts[:-1]]), starts)


_ATTENTION_KERNELS = (
    "flash_fwd",
    "flash_bwd",
    "flash_attn",
    "flashattn",
    "fmha",
    "attention",
    "batchprefill",
    "batchdecode",
)


def _is_attention(name: str, kernel: bool) -> bool:
    low = name.lower()
    if kernel:
        return any(word in low for word in _ATTENTION_KERNELS)
    return low.startswith(("aten::_scaled_dot_product", "aten::scaled_dot_product_attention_math"))


def _since(rank: LabelledRank, launches: npt.NDArray[np.int64], step: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Per launch (in order), the launch before it, or the start of its step if that is later."""
    before = np.concatenate([launches[:1], launches[:-1]])
    starts = np.append(ints(rank.trace.steps, "ts_ns"), np.iinfo(np.int64).min)
    latest: npt.NDArray[np.int64] = np.maximum(before, starts[step])
    return latest


def _is_expert(name: str, kernel: bool) -> bool:  # noqa: ARG001 (the words are the same in kernels and operators)
    low = name.lower()
    return any(word in low for word in ("moe", "expert", "grouped_gemm", "grouped_mm", "topk_softmax", "topkgating"))


def _is_embedding_bag(name: str, kernel: bool) -> bool:  # noqa: ARG001 (the words are the same in kernels and operators)
    low = name.lower()
    return any(word in low for word in ("embedding_bag", "embeddingbag", "split_embedding", "jagged"))


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
    if len(autograd) or (phase == BACKWARD).any():
        return True
    return False if rank.trace.cpu_marks.num_rows else None

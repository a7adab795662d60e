"""What layout inference sees of one rank: its groups, its families of calls, and their order within a step.

A *family* is the calls of one rank that say the same thing again: same group, primitive, dtype, payload and peer. A
rank of a real job makes ten thousand calls and has twenty families, so everything after this module is small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from heuristics.arrays import NULL

if TYPE_CHECKING:
    import numpy.typing as npt

    from heuristics.timing import Timing

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

    @property
    def identified(self) -> bool:
        """Whether calls on it can be told from calls on another group of the same size."""
        return bool(self.name) or self.ranks is not None

    @cached_property
    def marks(self) -> tuple[int, int, str]:
        """A hash of what it shares with the groups of the same kind on other ranks, a hash of its ranks, its name."""
        shape = hash((self.size, self.desc, self.declared, bool(self.name), self.ranks is not None))
        return shape, hash(self.ranks), self.name


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
        root: group rank of a message's peer, while its global rank is not known.
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
    root: int = NULL

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

    @cached_property
    def said(self) -> int:
        """A hash of everything that it says but who the peer is."""
        return hash(_SAID(self))

    def facing(self, peer: int) -> Family:
        """The same calls with another peer: `dataclasses.replace`, but a copy of what is there takes a tenth."""
        other = object.__new__(Family)
        other.__dict__.update(self.__dict__, peer=peer, said=self.said)
        return other


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
        fragment: whether the calls are a piece of a step, cut wherever the source stopped.
        unseen: dimensions whose calls the source does not show.
        ends_ns: per row of the rank's collectives, when the call was over.
        off_mesh: whether messages over the world group link ranks of the job that lie on no common mesh.
        doubtful: groups that calls were put on by the group's description alone.
        steps_marked: whether the file marks where steps begin; else any call of a step may be its first.
        told_by: per dimension whose group is one of several, a rank whose trace tells which.
        timing: times and landmarks, kept where the calls say neither their size nor their group.
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
    fragment: bool = False
    unseen: tuple[str, ...] = ()
    ends_ns: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    doubtful: frozenset[int] = frozenset()
    steps_marked: bool = True
    told_by: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    off_mesh: bool = False
    timing: Timing | None = None

    def without_names(self) -> RankView:
        """The same without the groups' descriptions; identifiers stay, for they only join."""
        return replace(self, groups=tuple(replace(group, desc="") for group in self.groups))

    def elsewhere(
        self,
        *,
        rank: int,
        world_size: int,
        groups: tuple[GroupView, ...],
        families: tuple[Family, ...],
        family_of_call: npt.NDArray[np.int64],
        ends_ns: npt.NDArray[np.int64],
        timing: Timing | None,
    ) -> RankView:
        """Another rank that does the same: `dataclasses.replace`, but a copy of what is there takes a fifth."""
        other = object.__new__(RankView)
        other.__dict__.update(
            self.__dict__,
            rank=rank,
            world_size=world_size,
            groups=groups,
            families=families,
            family_of_call=family_of_call,
            ends_ns=ends_ns,
            timing=timing,
        )
        for name in _WORKED_OUT:
            other.__dict__.pop(name, None)
        return other

    def group(self, index: int) -> GroupView:
        """A group by its position; -1 stands for calls whose group is not known."""
        return self.groups[index] if index >= 0 else UNKNOWN_GROUP

    def same_ranks(self, one: int, other: int) -> bool:
        """Whether two groups are known to have the same members."""
        if not self.group(one).identified or not self.group(other).identified:
            return False
        ranks = self.group(one).ranks
        return one == other or (ranks is not None and ranks == self.group(other).ranks)

    @property
    def calls_identified(self) -> bool:
        """Whether every call is on a group that can be told from the others."""
        if all(group.identified for group in self.groups):
            return all(family.group >= 0 for family in self.families)
        return all(self.group(group).identified for group in {family.group for family in self.families})

    def on_other_streams(self, group: int) -> list[Family]:
        """Families on other groups that, like this one, have no name and as many members; none where it has a name.

        Without names, groups are told apart by stream alone, and one group may use several: FSDP2 gathers on one stream
        and scatters on another (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py), and since torch 2.8
        synchronous calls run on the caller's stream (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
        """
        own = self.group(group)
        if own.identified:
            return []
        others = {f.group for f in self.families if f.group != group}
        alike = {g for g in others if not self.group(g).identified and self.group(g).size == own.size}
        return [family for family in self.families if family.group in alike]

    def on_group(self, group: int) -> list[Family]:
        """The families that use one group in the regular steps."""
        return list(self._of_group.get(group, ()))

    @cached_property
    def _of_group(self) -> dict[int, list[Family]]:
        found: dict[int, list[Family]] = {}
        for family in self.families:
            if family.calls_per_step > 0:
                found.setdefault(family.group, []).append(family)
        return found

    @cached_property
    def with_peer(self) -> list[Family]:
        """The families whose peer's rank is known."""
        return [family for family in self.families if family.peer >= 0]

    @cached_property
    def largest_float(self) -> int:
        """Elements of the largest tensor of floats that the rank communicates; 0 where none is known."""
        return max((family.size for family in self.families if family.is_float), default=0)

    @cached_property
    def sized(self) -> dict[tuple[str, str], list[Family]]:
        """The families whose size is known, by primitive and library."""
        found: dict[tuple[str, str], list[Family]] = {}
        for family in self.families:
            if family.size >= 0:
                found.setdefault((family.primitive, family.library), []).append(family)
        return found


_WORKED_OUT = tuple(name for name, value in vars(RankView).items() if isinstance(value, cached_property))
"""What a view keeps once somebody asked for it."""


def compact(ranks: Sequence[int]) -> Sequence[int]:
    """Ranks as a `range` if they are evenly spaced, else as a tuple: a world group costs nothing per rank that way."""
    if len(ranks) < 2:
        return tuple(ranks)
    step = ranks[1] - ranks[0]
    spaced = range(ranks[0], ranks[0] + step * len(ranks), step) if step > 0 else ()
    return spaced if len(spaced) == len(ranks) and list(spaced) == list(ranks) else tuple(ranks)


def within(inside: Sequence[int], ranks: Sequence[int]) -> bool:
    """Whether some ranks are a part of others, or all of them; evenly spaced ones are not looked through."""
    if isinstance(inside, range) and isinstance(ranks, range) and inside:
        return inside[0] in ranks and inside[-1] in ranks and (len(inside) == 1 or inside.step % ranks.step == 0)
    return set(inside) <= set(ranks)


_SAID = attrgetter(*(f.name for f in fields(Family) if f.name != "peer"))
"""Everything that a family says but who the peer is."""


class Signatures:
    """Hashes of everything that roles are read from: ranks that do the same on groups of the same shape share them.

    Groups count by size, description and which of them have the same name or the same members; peers by their distance.
    The ranks of one summary file share their arrays, each of which is hashed once.
    """

    def __init__(self) -> None:
        self._orders: dict[tuple[int, ...], tuple[int, tuple[object, ...]]] = {}

    def of(self, view: RankView) -> int:
        """The hash of one rank."""
        marks = [g.marks for g in view.groups]
        groups, members, names = zip(*marks, strict=True) if marks else ((), (), ())
        same = _first_alike(members), _first_alike(names)
        said = tuple([f.said for f in view.families])
        peers = tuple([(f.index, f.peer - view.rank) for f in view.with_peer])
        window = (view.backward_after, view.has_backward, view.steps_marked, view.off_mesh, bool(view.actions))
        runs = (view.runs_experts, view.runs_embedding_bags)
        return hash((view.world_size, groups, same, said, peers, self._order(view), window, runs))

    def _order(self, view: RankView) -> int:
        arrays = (view.sequence, view.phases, view.attention_before, view.backward_before)
        key = tuple(map(id, arrays))
        if key not in self._orders:
            attends = view.attention_before > 0
            said = (view.sequence, view.phases, attends, view.backward_before)
            self._orders[key] = (hash(tuple(a.tobytes() for a in said)), arrays)  # kept, so that no id is used again
        return self._orders[key][0]


def _first_alike(values: Sequence[object]) -> tuple[int, ...]:
    """Per value, where it comes first; empty where all differ."""
    if len(set(values)) == len(values):
        return ()
    first: dict[object, int] = {}
    return tuple([first.setdefault(value, place) for place, value in enumerate(values)])

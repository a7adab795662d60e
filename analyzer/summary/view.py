"""`RankView` as columns of a summary, and back: what a rank does, and where it stands.

Thousands of ranks do the same on groups that lie elsewhere. What they have in common is a text of its own
(`Behaviour`), which a file stores once for all of them and which is read once; the rest (`Place`) is short.
What follows from all ranks together (doubtful groups, ranks that would decide, messages off the mesh) is not stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from analyzer.summary.columns import BEHAVIOUR, FAMILY_OF_CALL, Rows
from analyzer.summary.timing import packed_timing, unpacked_timing
from heuristics.arrays import NULL
from heuristics.view import Family, GroupView, RankView

Ints = npt.NDArray[np.int64]


class _Group(msgspec.Struct, frozen=True, array_like=True):
    """`GroupView` with its ranks as first, end and step where they are evenly spaced."""

    size: int
    spaced: tuple[int, int, int] | None
    listed: tuple[int, ...] | None
    name: str
    desc: str
    declared: bool


class Place(msgspec.Struct, frozen=True):
    """Where a rank stands: its number, its groups (`_Group` each), and the families that have a peer, with it."""

    rank: int
    world_size: int
    groups: tuple[msgspec.Raw, ...]
    peers: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Behaviour:
    """What a rank does: `RankView` without its place and its calls; no family says who its peer is."""

    families: tuple[Family, ...]
    sequence: tuple[int, ...]
    phases: tuple[int, ...]
    attention_before: tuple[int, ...]
    backward_before: tuple[bool, ...]
    backward_after: bool
    steps: int
    actions: tuple[str, ...]
    optimizer_seen: bool
    has_backward: bool | None
    runs_experts: bool
    runs_embedding_bags: bool
    fragment: bool
    unseen: tuple[str, ...]
    steps_marked: bool
    timed: bool


_PLACES = msgspec.json.Decoder(Place)
_BEHAVIOURS = msgspec.json.Decoder(Behaviour)
_GROUPS = msgspec.json.Decoder(_Group)


def packed_calls(view: RankView) -> dict[str, npt.NDArray[Any]]:
    """Values per column that has one entry a call."""
    return {FAMILY_OF_CALL: view.family_of_call, **packed_timing(view.timing)}


def place_of(view: RankView) -> Place:
    """What the rank has of its own."""
    groups = tuple(msgspec.Raw(msgspec.json.encode(_group(group))) for group in view.groups)
    peers = tuple((place, family.peer) for place, family in enumerate(view.families) if family.peer >= 0)
    return Place(view.rank, view.world_size, groups, peers)


def behaviour_of(view: RankView) -> Behaviour:
    """What it has in common with all that do the same."""
    return Behaviour(
        families=tuple(family if family.peer < 0 else replace(family, peer=NULL) for family in view.families),
        sequence=tuple(view.sequence.tolist()),
        phases=tuple(view.phases.tolist()),
        attention_before=tuple(view.attention_before.tolist()),
        backward_before=tuple(view.backward_before.tolist()),
        backward_after=view.backward_after,
        steps=view.steps,
        actions=view.actions,
        optimizer_seen=view.optimizer_seen,
        has_backward=view.has_backward,
        runs_experts=view.runs_experts,
        runs_embedding_bags=view.runs_embedding_bags,
        fragment=view.fragment,
        unseen=view.unseen,
        steps_marked=view.steps_marked,
        timed=view.timing is not None,
    )


def _group(group: GroupView) -> _Group:
    spaced, listed = None, None
    if isinstance(group.ranks, range):
        spaced = (group.ranks.start, group.ranks.stop, group.ranks.step)
    elif group.ranks is not None:
        listed = tuple(group.ranks)
    return _Group(group.size, spaced, listed, group.name, group.desc, group.declared)


def _group_view(text: bytes) -> GroupView:
    group = _GROUPS.decode(text)
    ranks = range(*group.spaced) if group.spaced is not None else group.listed
    return GroupView(group.size, ranks, group.name, group.desc, group.declared)


class _Groups(dict[bytes, GroupView]):
    """Groups by their text, each read once."""

    def __missing__(self, text: bytes) -> GroupView:
        group = self[text] = _group_view(text)
        return group


class Views:
    """The views of a summary table, row by row; behaviours and groups that ranks share are read once.

    The columns `analyzer.summary.columns.FOR_CALLS` may be absent: then no view knows its calls.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._code, words = rows.words(BEHAVIOUR)
        self._behaviours = [_anywhere(word) for word in words]
        self._groups = _Groups()
        self._calls = FAMILY_OF_CALL in rows.schema.names

    @cached_property
    def _places(self) -> list[str]:
        return self._rows.texts("view")

    @property
    def timed(self) -> bool:
        """Whether some rank keeps times and landmarks (`RankView.timing`)."""
        return any(timed for _, timed in self._behaviours)

    def __iter__(self) -> Iterator[RankView]:
        return (self[row] for row in range(len(self._code)))

    def __getitem__(self, row: int) -> RankView:
        """The view of one rank.

        Raises:
            LookupError, msgspec.MsgspecError, ValueError: the values do not fit together.
        """
        if self._code[row] < 0:
            raise LookupError("a rank without what it does")
        alike, timed = self._behaviours[self._code[row]]
        place = _PLACES.decode(self._places[row])
        return alike.elsewhere(
            rank=place.rank,
            world_size=place.world_size,
            groups=tuple(map(self._groups.__getitem__, map(bytes, place.groups))),
            families=_facing(alike.families, place.peers),
            family_of_call=self._rows.ints(FAMILY_OF_CALL, row) if self._calls else _NONE,
            ends_ns=self._ends(row) if self._calls else _NONE,
            timing=unpacked_timing(self._rows, row) if timed and self._calls else None,
        )

    def _ends(self, row: int) -> Ints:
        return self._rows.ints("collectives.ts_ns", row) + self._rows.ints("collectives.dur_ns", row, 0)


_NONE = np.empty(0, dtype=np.int64)


def _anywhere(text: str) -> tuple[RankView, bool]:
    """A rank that does what the text says and stands nowhere; and whether times are kept of such ranks."""
    doc = _BEHAVIOURS.decode(text)
    if len({len(doc.sequence), len(doc.phases), len(doc.attention_before), len(doc.backward_before)}) > 1:
        raise ValueError("the calls of a step have more phases than calls, or fewer")
    view = RankView(
        rank=NULL,
        world_size=0,
        groups=(),
        families=doc.families,
        family_of_call=_NONE,
        sequence=np.array(doc.sequence, dtype=np.int64),
        phases=np.array(doc.phases, dtype=np.int64),
        attention_before=np.array(doc.attention_before, dtype=np.int64),
        backward_before=np.array(doc.backward_before, dtype=np.bool_),
        backward_after=doc.backward_after,
        steps=doc.steps,
        actions=doc.actions,
        optimizer_seen=doc.optimizer_seen,
        has_backward=doc.has_backward,
        runs_experts=doc.runs_experts,
        runs_embedding_bags=doc.runs_embedding_bags,
        fragment=doc.fragment,
        unseen=doc.unseen,
        steps_marked=doc.steps_marked,
        ends_ns=_NONE,
    )
    return view, doc.timed


def _facing(families: tuple[Family, ...], peers: tuple[tuple[int, int], ...]) -> tuple[Family, ...]:
    if not peers:
        return families
    own = list(families)
    for place, peer in peers:
        if place < 0:
            raise LookupError("a peer of no family")
        own[place] = families[place].facing(peer)
    return tuple(own)

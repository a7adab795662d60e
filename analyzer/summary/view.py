"""`RankView` as columns of a summary, and back.

What follows from all ranks together (doubtful groups, ranks that would decide, messages off the mesh) is not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from analyzer.summary.columns import Rows
from analyzer.summary.timing import packed_timing, unpacked_timing
from heuristics.view import Family, GroupView, RankView


@dataclass(frozen=True)
class _Group:
    """`GroupView` with its ranks as first, end and step where they are evenly spaced."""

    size: int
    spaced: tuple[int, int, int] | None
    listed: tuple[int, ...] | None
    name: str
    desc: str
    declared: bool


@dataclass(frozen=True)
class ViewHead:
    """`RankView` without its columns."""

    rank: int
    world_size: int
    groups: tuple[_Group, ...]
    families: tuple[Family, ...]
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


_HEADS = msgspec.json.Decoder(ViewHead)


def packed_view(view: RankView) -> dict[str, npt.NDArray[Any]]:
    """Values per column."""
    return {
        "view.family_of_call": view.family_of_call,
        "view.sequence": view.sequence,
        "view.phases": view.phases,
        "view.attention_before": view.attention_before,
        "view.backward_before": view.backward_before,
        **packed_timing(view.timing),
    }


def view_head(view: RankView) -> ViewHead:
    """What is stored beside the columns."""
    return ViewHead(
        rank=view.rank,
        world_size=view.world_size,
        groups=tuple(_group(group) for group in view.groups),
        families=view.families,
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


def _group_view(group: _Group) -> GroupView:
    ranks = range(*group.spaced) if group.spaced is not None else group.listed
    return GroupView(group.size, ranks, group.name, group.desc, group.declared)


def unpacked_view(rows: Rows, row: int) -> RankView:
    """The view of one rank, from the columns of `analyzer.summary.columns.FOR_LAYOUT`."""
    known = _HEADS.decode(rows.text("view", row))
    return RankView(
        rank=known.rank,
        world_size=known.world_size,
        groups=tuple(_group_view(group) for group in known.groups),
        families=known.families,
        family_of_call=rows.ints("view.family_of_call", row),
        sequence=rows.ints("view.sequence", row),
        phases=rows.ints("view.phases", row),
        attention_before=rows.ints("view.attention_before", row),
        backward_before=rows.ints("view.backward_before", row).astype(np.bool_),
        backward_after=known.backward_after,
        steps=known.steps,
        actions=known.actions,
        optimizer_seen=known.optimizer_seen,
        has_backward=known.has_backward,
        runs_experts=known.runs_experts,
        runs_embedding_bags=known.runs_embedding_bags,
        fragment=known.fragment,
        unseen=known.unseen,
        steps_marked=known.steps_marked,
        ends_ns=rows.ints("collectives.ts_ns", row) + rows.ints("collectives.dur_ns", row, 0),
        timing=unpacked_timing(rows, row) if known.timed else None,
    )

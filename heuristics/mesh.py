"""Geometry of rank groups: strides, nesting, and the order in which dimensions vary."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from heuristics.view import within


def stride(ranks: Sequence[int]) -> int | None:
    """Smallest distance between members; None for fewer than two."""
    ordered = sorted(ranks)
    return min((b - a for a, b in itertools.pairwise(ordered)), default=None)


def rank_order(groups: Mapping[str, Sequence[int]]) -> str | None:
    """Dimensions by how fast they vary along the ranks, fastest first, as ``tp-dp-pp``.

    Args:
        groups: per dimension of degree above 1, the group of one rank. Groups that contain another dimension's group
            (data parallel over context ranks) must be given without it.

    Returns:
        None if two dimensions start at the same distance, or none is given.
    """
    strides = {dim: stride(ranks) for dim, ranks in groups.items() if len(ranks) > 1}
    known = {dim: step for dim, step in strides.items() if step is not None}
    if not known or len(set(known.values())) != len(known):
        return None
    return "-".join(sorted(known, key=lambda dim: known[dim]))


def without(ranks: Sequence[int], inner: Sequence[int], rank: int) -> tuple[int, ...]:
    """The part of a group that is orthogonal to an inner axis through the rank.

    A group over two axes (data and context) is a grid of translates of the inner axis; the outer axis has one member in
    each, at the rank's own position. The group itself is returned if it is no such grid.
    """
    if len(inner) < 2 or not within(inner, ranks):
        return tuple(ranks)
    members, shifts = set(ranks), {other - rank for other in inner}
    used, own = set(inner), [rank]
    for candidate in sorted(members - used):
        block = {candidate + shift for shift in shifts}
        if block <= members and not block & used:
            used |= block
            own.append(candidate)
    return tuple(sorted(own)) if used == members else tuple(ranks)

"""Ranks within ranks, evenly spaced or listed."""

from __future__ import annotations

from itertools import product

from heuristics.view import compact, within


def test_ranks_within_ranks_are_those_of_their_sets() -> None:
    some = [range(first, first + step * count, step) for first, step, count in product((0, 1, 3), (1, 2, 3), (1, 2, 4))]
    listed = [*some, *(tuple(ranks) for ranks in some), (0, 1, 4), (1, 4, 5), (5,)]
    expected = [set(inside) <= set(ranks) for inside, ranks in product(listed, listed)]
    assert [within(inside, ranks) for inside, ranks in product(listed, listed)] == expected
    assert within(compact([2, 6, 10]), compact(range(0, 12, 2)))
    assert not within(compact([2, 5, 8]), compact(range(0, 12, 2)))

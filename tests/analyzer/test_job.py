from __future__ import annotations

import pytest

from analyzer.job import roster
from analyzer.summary.model import RankSummary
from parsers.errors import InputError
from tests.analyzer.hand_made import Kernel, labelled, read


def trace(path: str, rank: int | None, world: int | None, **more: object) -> RankSummary:
    return read(labelled([Kernel(0, 1)], rank=rank, world_size=world, path=path, **more))  # type: ignore[arg-type]


def test_missing_and_duplicated_ranks_are_named() -> None:
    found = roster([trace("c", 2, 4), trace("a", 0, 4), trace("d", 2, 4), trace("b", 1, 4)])
    assert found.present == (0, 1, 2)
    assert found.missing == (3,)
    assert found.duplicated == (2,)
    assert found.keep == (1, 3, 0)
    assert any("rank 2 is there 2 times (c, d)" in warning for warning in found.warnings)


def test_files_of_two_world_sizes_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"2 different jobs \(world size 1: old; world size 4: a, b\)"):
        roster([trace("old", 0, 1), trace("a", 1, 4), trace("b", 2, 4)])


def test_a_trace_without_a_rank_is_kept_and_said() -> None:
    found = roster([trace("x", None, None)])
    assert found.keep == (0,)
    assert found.present == ()
    assert found.missing == ()
    assert found.warnings == ("no rank is known for x",)


def test_a_rank_beyond_the_world_is_said() -> None:
    assert "rank 9 does not fit a world of 4" in roster([trace("a", 9, 4)]).warnings


def test_traces_of_the_same_ranks_at_other_times_are_said() -> None:
    base = {"baseTimeNanoseconds": 1}
    early = read(labelled([Kernel(0, 10)], rank=0, path="a", metadata=dict(base)))
    late = read(labelled([Kernel(40_000_000, 10)], rank=1, path="b", metadata=dict(base)))
    (warning,) = roster([early, late]).warnings
    assert warning == "b starts 40.0 s after a has ended: they do not show the same steps"

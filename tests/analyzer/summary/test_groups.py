"""Groups in a summary: evenly spaced ranks as three numbers, all others written out."""

from __future__ import annotations

import pyarrow as pa
import pytest

from analyzer.summary.columns import SPACED, Rows
from analyzer.summary.groups import packed_groups, unpacked_groups
from parsers import tables
from parsers.assemble import table

GROUPS = table(
    tables.GROUPS,
    {
        "name": ["0", "1", "2", "3", "4", "5"],
        "desc": ["default_pg", "tp", "odd", "down", "alone", "unknown"],
        "backend": ["nccl"] * 6,
        "size": [16384, 8, 3, 2, 1, 4],
        "ranks": [list(range(16384)), list(range(8, 16)), [0, 1, 5], [7, 3], [4], None],
        "ranks_source": ["pg_config"] * 5 + ["none"],
        "declared": [True] * 6,
    },
)


def test_spaced_groups_take_three_numbers_and_come_back() -> None:
    columns = packed_groups(GROUPS)
    assert columns[SPACED].to_pylist() == [[[0, 16384, 1], [8, 8, 1], None, None, None, None]]
    assert columns["groups.ranks"].to_pylist() == [[None, None, [0, 1, 5], [7, 3], [4], None]]
    assert unpacked_groups(Rows(pa.table(columns)), 0).equals(GROUPS)


def test_a_group_that_is_not_as_large_as_it_says() -> None:
    columns = packed_groups(GROUPS)
    columns["groups.size"] = pa.array([[16384, 9, 3, 2, 1, 4]], pa.list_(pa.int32()))
    with pytest.raises(ValueError, match="another number of ranks"):
        unpacked_groups(Rows(pa.table(columns)), 0)

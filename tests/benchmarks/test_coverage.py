"""The report of branches that no test took."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.coverage import branches, table


def summary(taken: int, there: int) -> dict[str, int]:
    return {"covered_branches": taken, "num_branches": there}


@pytest.mark.parametrize(("taken", "there", "percent"), [(3, 4, 75.0), (0, 2, 0.0), (0, 0, 100.0)])
def test_the_share_is_of_branches_and_not_of_lines(taken: int, there: int, percent: float) -> None:
    assert branches({**summary(taken, there), "percent_covered": 12.0}) == percent


def test_the_worst_file_comes_first_and_whole_ones_are_left_out() -> None:
    files: dict[str, Any] = {
        "a.py": {"summary": summary(4, 4), "missing_branches": []},
        "b.py": {"summary": summary(3, 4), "missing_branches": [[7, 9]]},
        "c.py": {"summary": summary(1, 2), "missing_branches": [[5, -1]]},
    }
    assert table({"files": files, "totals": summary(8, 10)})[2:] == [
        "| c.py | 2 | 1 | 50.0 | 5→end |",
        "| b.py | 4 | 3 | 75.0 | 7→9 |",
        "| all 3 files | 10 | 8 | 80.0 | |",
    ]

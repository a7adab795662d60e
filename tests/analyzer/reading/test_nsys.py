"""Reports of Nsight Systems, one per rank, through the whole analysis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analyzer.model import to_json
from analyzer.options import Options
from analyzer.pipeline import analyze
from analyzer.reading import read_all
from tests.parsers.nsys.one_job import write_kineto, write_nsys


def analysed(folder: Path, **how: Any) -> dict[str, Any]:
    return dict(json.loads(to_json(analyze(folder, **how))))


@pytest.fixture(scope="module")
def kineto(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("kineto")
    write_kineto(folder)
    return analysed(folder)


def test_reports_tell_each_other_who_is_in_which_group(tmp_path: Path) -> None:
    paths = [str(path) for path in write_nsys(tmp_path / "job")]
    views = [rank.view for rank in read_all(paths, Options()).ranks]
    assert [view.rank for view in views] == [0, 1, 2, 3]
    assert [sorted(tuple(group.ranks or ()) for group in view.groups) for view in views] == [
        [(0, 1), (0, 1, 2, 3), (0, 2)],
        [(0, 1), (0, 1, 2, 3), (1, 3)],
        [(0, 1, 2, 3), (0, 2), (2, 3)],
        [(0, 1, 2, 3), (1, 3), (2, 3)],
    ]


@pytest.mark.parametrize("how", [{}, {"workers": 2}, {"cache": "kept"}], ids=["here", "in processes", "cached"])
def test_the_analysis_is_that_of_the_same_run_as_kineto(
    how: dict[str, Any], kineto: dict[str, Any], tmp_path: Path
) -> None:
    write_nsys(tmp_path / "job")
    options = {name: str(tmp_path / value) if name == "cache" else value for name, value in how.items()}
    found = analysed(tmp_path / "job", **options)
    assert _measured(found) == _measured(kineto)
    if "cache" in options:
        assert analysed(tmp_path / "job", **options) == found


def test_the_environment_of_a_job_stays_where_it_is(tmp_path: Path) -> None:
    write_nsys(tmp_path / "job")
    analysed(tmp_path / "job", cache=str(tmp_path / "kept"))
    assert b"secret-" not in to_json(analyze(tmp_path / "job"))
    assert all(b"secret-" not in path.read_bytes() for path in (tmp_path / "kept").iterdir())


def _measured(found: dict[str, Any]) -> dict[str, Any]:
    """What was measured: without the layout, to which types count, and the formats' own words for calls."""
    by_dimension = ("by_dimension", "by_rank", "causes", "prediction")
    exposure = {name: value for name, value in found["exposure"].items() if name not in by_dimension}
    words = ("dim", "op", "dtype", "classified_by")
    rows = [{name: value for name, value in row.items() if name not in words} for row in found["collectives"]]
    rows.sort(key=str)
    return {"exposure": exposure, "collectives": rows} | {name: found[name] for name in ("world_size", "gpus_per_node")}

"""Ranks that were moved over the mesh are as if they had been simulated; their layout is that of the job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from analyzer.reading.one import Job, summarized
from analyzer.summary.columns import FOR_LAYOUT
from analyzer.summary.file import read_table
from analyzer.summary.table import from_table, views_of
from benchmarks.many_ranks import SHAPES, STAGE, WORST_CLOCK_NS, Shape, make_apart, make_merged, moved, stages
from benchmarks.synthesis.generate import generate
from heuristics.layout import infer_views

SMALL = Shape("megatron", "tp2-pp2", 1, MappingProxyType({"tp": 2, "dp": 0, STAGE: 2}))
RANKS = 16
OTHER = 11  # stage 1 (ranks 8 to 15), replica 1 (of 4), tensor rank 1


def test_a_moved_rank_is_as_if_it_had_been_simulated(tmp_path: Path) -> None:
    second = stages(SMALL, RANKS)[1]
    assert second.ranks == range(8, 16)
    (made,) = from_table(moved(second, np.array([OTHER])))
    spec = replace(SMALL.spec(RANKS), ranks=(OTHER,))
    (real,) = from_table(summarized(Job(str(generate(spec, tmp_path) / f"rank{OTHER}.json.gz"))))
    assert made.identity.rank == real.identity.rank == OTHER
    assert made.groups.column("ranks").to_pylist() == real.groups.column("ranks").to_pylist()
    assert made.collectives.column("peer").to_pylist() == real.collectives.column("peer").to_pylist()
    assert made.collectives.column("device").to_pylist() == [OTHER % 8] * made.collectives.num_rows
    assert made.view.families == real.view.families
    assert [(g.ranks, g.desc) for g in made.view.groups] == [(g.ranks, g.desc) for g in real.view.groups]
    begin, other = made.steps.edges[0, 0], from_table(second.table)[0].steps.edges[0, 0]
    assert 0 <= begin - other < WORST_CLOCK_NS


def test_names_are_equal_for_the_members_of_a_group_and_for_nobody_else(tmp_path: Path) -> None:
    views = views_of(read_table(str(make_merged(SMALL, RANKS, tmp_path / "job.parquet"))))
    members: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for view in views:
        for group in view.groups:
            members.setdefault((group.desc, group.name), set()).add(tuple(group.ranks or ()))
    assert [view.rank for view in views] == list(range(RANKS))
    assert all(len(ranks) == 1 for ranks in members.values())
    pipelines = [ranks for (desc, _), ranks in members.items() if desc == "PIPELINE_MODEL_PARALLEL_GROUP"]
    assert sorted(pipelines) == [{(rank, rank + 8)} for rank in range(8)]


@pytest.mark.parametrize(
    ("kind", "ranks", "degrees"), [("dense", 128, (8, 8, 2, 1)), ("moe", 64, (4, 4, 4, 8)), ("hsdp", 64, (8, 1, 8, 1))]
)
def test_layouts_of_the_jobs(kind: str, ranks: int, degrees: tuple[int, ...], tmp_path: Path) -> None:
    path = make_merged(SHAPES[kind], ranks, tmp_path / "job.parquet")
    layout = infer_views(views_of(read_table(str(path), FOR_LAYOUT))).layout
    assert (layout.tp, layout.pp, layout.dp, layout.ep) == degrees


def test_a_file_per_rank(tmp_path: Path) -> None:
    folder = make_apart(SMALL, RANKS, tmp_path / "ranks")
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"rank{rank}.parquet" for rank in range(RANKS))
    merged = read_table(str(make_merged(SMALL, RANKS, tmp_path / "job.parquet")))
    assert read_table(str(folder / f"rank{OTHER}.parquet")).equals(merged.slice(OTHER, 1))


def test_a_world_that_does_not_fill_the_mesh() -> None:
    with pytest.raises(ValueError, match="100 ranks do not fill"):
        SHAPES["dense"].mesh(100)

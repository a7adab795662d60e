"""`infer_layout` reads of summaries what layout inference needs, and answers as the whole analysis does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import analyzer
from analyzer.options import Options
from analyzer.reading import read_all
from analyzer.reading.views import views
from analyzer.summary.file import write_table
from analyzer.summary.table import merged, to_table
from benchmarks.synthesis.generate import generate
from benchmarks.synthesis.spec import Spec, Writing
from parsers.errors import InputError

SAMPLES = Path(__file__).parents[3] / "sample_traces"
BUNDLED = ["tp2_pp2_dp2", "ep4_dp8", "hsdp_2x4", "ddp4_raw", "cp4_ring", "pp4_interleaved_v2"]


def summaries(name: str, folder: Path, *, apart: bool = True) -> list[str]:
    """Files of summaries of a bundled job: one a rank, or one in all."""
    traces = sorted(map(str, (SAMPLES / name).glob("rank*.json.gz")))
    tables = [to_table([rank]) for rank in read_all(traces, Options()).ranks]
    parts = {f"rank{number}.parquet": table for number, table in enumerate(tables)} if apart else {}
    for file, table in (parts or {"job.parquet": merged(tables)}).items():
        write_table(table, folder / file)
    return sorted(map(str, folder.glob("*.parquet")))


@pytest.mark.parametrize("name", BUNDLED)
@pytest.mark.parametrize("apart", [True, False])
def test_same_layout_as_the_whole_analysis(name: str, apart: bool, tmp_path: Path) -> None:
    paths = summaries(name, tmp_path, apart=apart)
    assert views(paths, Options()) is not None
    assert analyzer.infer_layout(tmp_path) == analyzer.analyze(tmp_path).layout
    assert analyzer.infer_layout(tmp_path, use_names=False) == analyzer.analyze(tmp_path, use_names=False).layout


def test_calls_are_read_where_they_say_no_group_and_left_where_they_do(tmp_path: Path) -> None:
    spec = Spec.parse("megatron", "tp2-dp2", steps=1, writing=Writing(level="c"))
    ranks = read_all(list(map(str, sorted(generate(spec, tmp_path / "job").glob("rank*")))), Options()).ranks
    write_table(to_table(ranks), tmp_path / "sizes_only.parquet")
    (tmp_path / "named").mkdir()
    unnamed = views([str(tmp_path / "sizes_only.parquet")], Options())
    assert [len(view.ends_ns) for view in unnamed or ()] == [rank.collectives.num_rows for rank in ranks]
    named = views(summaries("ep4_dp8", tmp_path / "named"), Options())
    assert [len(view.ends_ns) for view in named or ()] == [0] * 8


def test_in_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzer.reading.views.FILES_AT_A_TIME", 3)
    summaries("tp2_pp2_dp2", tmp_path)
    assert analyzer.infer_layout(tmp_path, workers=2) == analyzer.infer_layout(tmp_path)


def test_traces_are_analysed_whole(tmp_path: Path) -> None:
    assert views([str(SAMPLES / "ddp4" / "rank0.json.gz")], Options()) is None
    assert analyzer.infer_layout(SAMPLES / "ddp4").dp == 4


def test_a_rank_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    paths = summaries("ddp4", tmp_path)
    shutil.copy(paths[0], tmp_path / "again.parquet")
    found = views([*paths, str(tmp_path / "again.parquet")], Options())
    assert [view.rank for view in found or ()] == [0, 1, 2, 3]


def test_summaries_of_different_jobs(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    paths = [*summaries("ddp4", tmp_path / "one"), *summaries("ep4_dp8", tmp_path / "other")]
    with pytest.raises(InputError, match="different jobs"):
        views(paths, Options())

"""Published configurations become jobs with the same degrees."""

from __future__ import annotations

from pathlib import Path

from benchmarks.synthesis.published import BRIDGE, MLPERF, bridge, mlperf

HEAD = "world,tp,pp,vp,cp,mbs,minibs\n"


def test_a_row_becomes_a_job_of_its_degrees(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(HEAD + "1024,4,8,8,2,1,48\n1024,4,8,8,2,1,72\n128,,8,1,1,1,1\n8,4,1,null,1,2,4\n")
    first, second = mlperf(table)
    assert (first.world, first.tp, first.pp, first.virtual, first.cp, first.dp) == (1024, 4, 8, 8, 2, 16)
    assert first.schedule == "interleaved_1f1b"
    assert first.microbatches == 8  # of 48: once around the stages is enough
    assert (second.world, second.tp, second.dp, second.microbatches) == (8, 4, 2, 2)


def test_megatron_bridge_rows_with_experts_and_footnotes(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(
        "#-GPUs,GBS,MBS,TP,PP,CP,VP,EP,FSDP\n"
        "256,2048,1,1,4 (8),1,4 (2),64,\n256,2048,1,1,4,1,4,64,\n64,128,1,2,1,1,n/a,n/a,64\n"
    )
    (only,) = bridge(table)
    assert (only.world, only.pp, only.virtual, only.ep, only.dp) == (256, 4, 4, 64, 64)
    assert only.model.experts == 64


def test_all_published_layouts_are_read(shared: Path) -> None:
    tables = shared / "data" / "tables"
    layouts = list(mlperf(tables / MLPERF))
    assert len(layouts) >= 70
    assert max(spec.world for spec in layouts) == 8192
    assert {spec.tp for spec in layouts} == {1, 2, 4, 8}
    bridged = [spec for name in BRIDGE for spec in bridge(tables / name)]
    assert len(bridged) >= 50
    assert {1, 8, 16, 32, 64} <= {spec.ep for spec in bridged}
    assert all(spec.tp * spec.cp * spec.pp * spec.dp == spec.world for spec in (*layouts, *bridged))

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analyzer.model import to_json
from analyzer.pipeline import analyze
from analyzer.reading.one import Job
from analyzer.reading.one import summarized as table_of
from analyzer.summary.columns import BEHAVIOUR
from analyzer.summary.file import read_table, write_table
from analyzer.summary.make import summarize
from analyzer.summary.model import RankSummary
from analyzer.summary.table import from_table, merged, to_table
from benchmarks.synthesis.generate import simulate
from benchmarks.synthesis.spec import Spec, Writing
from heuristics.label import label
from parsers import read
from parsers.errors import InputError
from parsers.summary import KEY, VERSION, belongs, is_summary
from tests.analyzer.kineto_files import write_job

SAMPLES = (
    "ddp4",
    "ddp4_raw",
    "fsdp2_4",
    "hsdp_2x4",
    "zero1_4",
    "tp4_sp",
    "cp4_ring",
    "ulysses4",
    "pp4_1f1b",
    "ep4_dp8",
)
REAL = ("megatron_tp2_2024", "torchtitan_fsdp4_2026", "vllm_tp8_b200", "lightllm_ep8_decode", "hta/cpu_only_gloo300")


def summarized(path: str) -> list[RankSummary]:
    """The ranks of a trace, before any table."""
    return [summarize(label(trace)) for trace in read(path)]


def stored(paths: list[Path], into: Path) -> list[Path]:
    """A summary file for every trace."""
    out = []
    for number, path in enumerate(paths):
        out.append(into / f"{number}.parquet")
        write_table(table_of(Job(str(path))), out[-1])
    return out


def same(one: object, other: object, where: str = "") -> None:
    """Two values are equal to the last bit and of the same type, field by field."""
    assert type(one) is type(other) or isinstance(one, Mapping), where
    if dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            same(getattr(one, field.name), getattr(other, field.name), f"{where}.{field.name}")
    elif isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray)
        assert one.dtype == other.dtype, where
        assert np.array_equal(one, other), where
    elif isinstance(one, pa.Table):
        assert one.schema == other.schema, where  # type: ignore[attr-defined]
        assert one.to_pydict() == other.to_pydict(), where  # type: ignore[attr-defined]
    else:
        assert one == other, where


def json_of(paths: list[Path], **options: object) -> bytes:
    return to_json(analyze(paths, **options))


@pytest.mark.parametrize("name", SAMPLES)
def test_summaries_give_the_same_document_as_the_traces(sample_traces: Path, tmp_path: Path, name: str) -> None:
    traces = sorted((sample_traces / name).glob("rank*.json.gz"))
    summaries = stored(traces, tmp_path)
    assert json_of(summaries) == json_of(traces)
    assert json_of(summaries, use_names=False) == json_of(traces, use_names=False)


@pytest.mark.parametrize("name", REAL)
def test_summaries_of_real_gpu_traces_give_the_same_document(shared: Path, tmp_path: Path, name: str) -> None:
    from parsers.discover import expand

    traces = [Path(path) for path in expand([shared / "data" / "real" / name]).paths]
    assert json_of(stored(traces, tmp_path)) == json_of(traces)


def test_every_field_survives_the_file(sample_traces: Path, tmp_path: Path) -> None:
    for case in ("tp2_pp2_dp2", "fsdp2_4_bf16"):
        found = [s for path in sorted((sample_traces / case).glob("rank*.json.gz")) for s in summarized(str(path))]
        write_table(to_table(found), tmp_path / "all.parquet")
        back = from_table(read_table(str(tmp_path / "all.parquet")))
        for one, other in zip(found, back, strict=True):
            same(one, other)


def test_every_field_of_a_gpu_rank_survives_the_file(tmp_path: Path) -> None:
    paths = sorted(write_job(tmp_path).glob("*.json*"))
    assert paths
    for path in paths:
        found = summarized(str(path))
        for one, other in zip(found, from_table(to_table(found)), strict=True):
            same(one, other)
            assert one.line.on_gpu
            assert len(one.line.compute.start)


def test_every_field_of_a_rank_without_step_marks_survives_the_file(tmp_path: Path) -> None:
    spec = Spec.parse("megatron", "dp2", writing=Writing(step_marks=False))
    simulate(spec).write(tmp_path, spec.writing)
    for path in sorted(tmp_path.glob("rank*.json.gz")):
        (one,) = summarized(str(path))
        (other,) = from_table(to_table([one]))
        assert one.view.steps_marked is False
        same(one, other)


def test_merged_summaries_are_the_ranks_one_after_the_other(tmp_path: Path) -> None:
    traces = sorted(write_job(tmp_path).glob("*.json*"))
    parts = [to_table(summarized(str(path))) for path in traces]
    write_table(merged(parts), tmp_path / "job.parquet")
    assert json_of([tmp_path / "job.parquet"]) == json_of(traces)


def test_a_summary_is_the_same_file_every_time(tmp_path: Path) -> None:
    trace = sorted(write_job(tmp_path).glob("*.json*"))[0]
    digests = set()
    for name in ("a", "b"):
        write_table(to_table(summarized(str(trace))), tmp_path / name)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_a_summary_is_told_by_its_own_metadata(tmp_path: Path) -> None:
    trace = sorted(write_job(tmp_path).glob("*.json*"))[0]
    write_table(to_table(summarized(str(trace))), tmp_path / "mine")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other")
    assert is_summary(str(tmp_path / "mine"))
    assert belongs(tmp_path / "mine", b"PAR1")
    assert not belongs(tmp_path / "other", b"PAR1")
    with pytest.raises(InputError, match="is a Parquet file, but no summary"):
        read_table(str(tmp_path / "other"))


def test_a_summary_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}).replace_schema_metadata({KEY: "99"}), tmp_path / "new")
    with pytest.raises(
        InputError, match=f"new: is a summary of version 99, this program reads {VERSION}; summarize the trace"
    ):
        analyze(tmp_path / "new")


def test_a_cut_summary_is_one_line_not_a_traceback(tmp_path: Path) -> None:
    trace = sorted(write_job(tmp_path).glob("*.json*"))[0]
    write_table(to_table(summarized(str(trace))), tmp_path / "mine")
    data = (tmp_path / "mine").read_bytes()
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match="is a damaged summary"):
        analyze(tmp_path / "cut")


def test_a_step_with_more_phases_than_calls(sample_traces: Path) -> None:
    table = table_of(Job(str(sample_traces / "ddp4" / "rank0.json.gz")))
    (known,) = table.column(BEHAVIOUR).to_pylist()
    behaviour = json.loads(known)
    behaviour["phases"].append(0)
    place = table.schema.get_field_index(BEHAVIOUR)
    changed = pa.array([json.dumps(behaviour)]).dictionary_encode()
    with pytest.raises(InputError, match="more phases than calls"):
        from_table(table.set_column(place, table.schema.field(place), changed))

"""The interface for notebooks: lazy, complete, and equal to the document."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import analyzer
from analyzer import api
from analyzer.export.tables import NAMES
from analyzer.pipeline import analyze as document_of
from analyzer.plots import PICTURES, NothingToShowError
from tests.analyzer.kineto_files import ddp_trace, write_job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> analyzer.Job:
    return analyzer.analyze(write_job(tmp_path_factory.mktemp("job")))


def test_the_import_loads_nothing() -> None:
    code = "import sys, analyzer; dir(analyzer); print({'numpy', 'pandas', 'matplotlib', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_names_are_there() -> None:
    assert set(analyzer.__all__) <= set(dir(analyzer))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = analyzer.nothing  # type: ignore[attr-defined]


def test_parts_are_those_of_the_document(job: analyzer.Job) -> None:
    document = job.document
    assert (job.layout.dp, job.world_size) == (2, 2)
    assert repr(job) == f"<Job of 2 ranks: tp1 cp1 pp1 dp2 ep1, confidence {document.layout.confidence:.2f}>"
    for name in ("trust", "exposure", "ledger", "pipeline", "experts", "stragglers", "findings"):
        assert getattr(job, name) is getattr(document, name)
    assert job.exposure is not None
    assert job.exposure.exposed_us == 350  # 400 µs on the rank in time, 300 on the late one
    assert job.to_json().startswith(b'{\n "schema_version": 1,')
    assert "Layout  tp1  cp1  pp1  dp2" in job.text()


def test_collectives_are_a_data_frame(job: analyzer.Job) -> None:
    frame = job.collectives
    assert isinstance(frame, pd.DataFrame)
    assert frame["dim"].tolist() == ["dp"]
    assert frame["size_bytes_max"].tolist() == [6_000_000]
    assert str(frame["size_bytes_max"].dtype) == "Int64"
    assert frame["calls_per_step"].tolist() == [4.0]
    assert len(job.calls) == 2 * 3 * 4


def test_every_table_is_a_data_frame(job: analyzer.Job) -> None:
    assert tuple(api.TABLES) == NAMES
    for name in NAMES:
        assert isinstance(job.table(name), pd.DataFrame)
    with pytest.raises(KeyError, match="no table 'colectives'; there are inputs, layout"):
        job.table("colectives")


def test_every_picture_has_a_method(job: analyzer.Job) -> None:
    methods = {name for name in dir(job.plot) if not name.startswith("_")}
    assert methods == set(PICTURES)
    empty = {"pipeline_timeline", "expert_load"}
    for name in methods - empty:
        assert getattr(job.plot, name)().axes
    for name in empty:
        with pytest.raises(NothingToShowError):
            getattr(job.plot, name)()


def test_the_notebook_shows_the_report_and_escapes_names(tmp_path: Path) -> None:
    import json

    hostile = json.dumps(ddp_trace(0)).replace("default_pg", "<script>alert(1)</script>")
    (tmp_path / "rank0.json").write_text(hostile)
    shown = analyzer.analyze(tmp_path)._repr_html_()
    assert shown.startswith('<div class="commlens">')
    assert shown.count("<details") == shown.count("</details>") >= 5
    assert "<script" not in shown
    assert "http" not in shown


def test_a_finding_is_explained(job: analyzer.Job) -> None:
    said = job.explain(job.findings[0].id)
    assert said.startswith(job.findings[0].id)
    assert "What it means" in said


def test_two_jobs_are_compared(job: analyzer.Job, tmp_path: Path) -> None:
    assert job.compare(job).verdict == "pass"
    fewer = analyzer.analyze(write_job(tmp_path / "other", comm=False))
    assert job.compare(fewer).verdict in ("regression", "inconclusive")


def test_options_are_those_of_the_command(job: analyzer.Job) -> None:
    folder = Path(job.document.inputs[0].path).parent
    assert analyzer.analyze([folder / "rank0.json"], strict=False).world_size == 2
    chosen = analyzer.analyze(str(folder), steps=(1, 1), use_names=False)
    assert set(chosen.table("steps")["step"]) == {1}
    with pytest.raises(TypeError, match="unexpected keyword argument 'model_name'"):
        analyzer.analyze(folder, model_name="x")
    with pytest.raises(TypeError, match="float is neither a path nor several, nor a loaded trace"):
        analyzer.analyze(1.5)


def test_a_loaded_trace_of_another_tool_gives_its_files(job: analyzer.Job) -> None:
    folder = Path(job.document.inputs[0].path).parent
    trace = SimpleNamespace(trace_path=str(folder), trace_files={0: "rank0.json", 1: str(folder / "rank1.json")})
    for loaded in (trace, SimpleNamespace(t=trace)):
        assert analyzer.analyze(loaded).document == document_of(folder)

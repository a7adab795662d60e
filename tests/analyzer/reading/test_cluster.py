from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from analyzer.model import to_json
from analyzer.pipeline import analyze
from analyzer.reading.cluster import batch_size, run_on_cluster
from analyzer.reading.one import Job, Loaded, Lost
from parsers.errors import InputError
from tests.analyzer.reading.dying import dying

distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.filterwarnings("default")  # those of Dask's own event loops are not ours


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as made:
        yield made.scheduler_address


@pytest.fixture
def traces(sample_traces: Path) -> list[Path]:
    return sorted((sample_traces / "tp2_pp2_dp2").glob("rank*.json.gz"))


def ranks(results: list[Loaded | Lost]) -> list[int]:
    return [rank for r in results if isinstance(r, Loaded) for rank in r.table.column("rank").to_pylist()]


def test_a_local_cluster_gives_the_same_document_as_one_process(traces: list[Path]) -> None:
    told: list[int] = []
    found = analyze(traces, dask="local:2", progress=lambda now: told.append(now.files))
    assert to_json(found) == to_json(analyze(traces, workers=1))
    assert told == list(range(1, 9))


def test_a_worker_killed_in_the_middle_costs_nothing(cluster: str, traces: list[Path], tmp_path: Path) -> None:
    jobs = [Job(str(path)) for path in traces]
    jobs[3] = dying(jobs[3], tmp_path / "lives", times=1)
    assert ranks(run_on_cluster(jobs, cluster, lambda _job: None)) == list(range(8))
    assert (tmp_path / "lives").read_text() == ""


def test_a_file_that_kills_every_worker_is_left_out_alone(traces: list[Path], tmp_path: Path) -> None:
    jobs = [Job(str(path)) for path in [*traces, *traces]]  # batches of two
    jobs[3] = dying(jobs[3], tmp_path / "lives", times=99)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as made:
        made.scheduler.allowed_failures = 0
        results = run_on_cluster(jobs, made.scheduler_address, lambda _job: None)
    assert [r.path for r in results if isinstance(r, Lost)] == [str(traces[3])]
    assert ranks(results) == [0, 1, 2, 4, 5, 6, 7, *range(8)]


def test_a_file_that_cannot_be_used_is_named(cluster: str, traces: list[Path], tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("nothing of the kind")
    found = analyze([tmp_path / "bad.json", *traces], dask=cluster)
    assert len(found.inputs) == len(traces)
    assert any(f"{tmp_path / 'bad.json'} is left out" in warning for warning in found.trust.warnings)


def test_no_scheduler_is_one_line() -> None:
    with pytest.raises(InputError, match=r"nowhere: no Dask scheduler answers"):
        analyze(Path(__file__), dask="nowhere")


def test_batches_grow_with_the_job_and_leave_no_worker_idle() -> None:
    assert [batch_size(files, 4) for files in (1, 16, 64, 10_000)] == [1, 1, 4, 32]

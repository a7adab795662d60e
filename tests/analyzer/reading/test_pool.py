from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from analyzer import reading
from analyzer.errors import InconclusiveError
from analyzer.model import to_json
from analyzer.pipeline import analyze
from analyzer.reading import pool
from analyzer.reading.one import Job, Loaded, Lost, load
from analyzer.reading.pool import from_bytes, run_in_processes, to_bytes
from parsers.errors import InputError
from tests.analyzer.kineto_files import write_job
from tests.analyzer.reading.dying import dying


@pytest.fixture
def traces(sample_traces: Path) -> list[Path]:
    return sorted((sample_traces / "tp2_pp2_dp2").glob("rank*.json.gz"))


def nobody(_job: Job) -> None:
    """Hears of every file."""


def test_any_number_of_workers_gives_the_same_document(traces: list[Path]) -> None:
    one = to_json(analyze(traces, workers=1))
    assert to_json(analyze(traces, workers=2)) == one
    assert to_json(analyze(traces, workers=5)) == one


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_end_however_they_were_started(
    traces: list[Path], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip("not on this system")
    monkeypatch.setattr(pool, "start_method", lambda: method)
    results = run_in_processes([Job(str(path)) for path in traces], 3, nobody)
    assert all(isinstance(result, Loaded) for result in results)
    assert multiprocessing.active_children() == []


def test_a_process_that_is_killed_takes_only_its_file_with_it(traces: list[Path], tmp_path: Path) -> None:
    jobs = [Job(str(path)) for path in traces]
    jobs[2] = dying(jobs[2], tmp_path / "lives", times=9)
    told: list[str] = []
    results = run_in_processes(jobs, 2, lambda job: told.append(job.path))
    assert [type(result) for result in results] == [Loaded, Loaded, Lost, *[Loaded] * 5]
    assert results[2] == Lost(str(traces[2]), "killed by SIGKILL: was there enough memory?")
    assert sorted(told) == sorted(str(path) for path in traces)


def test_the_rank_of_a_killed_process_is_missing_and_the_rest_is_analysed(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = reading._jobs

    def with_a_death(*args: object) -> list[Job]:
        jobs = plain(*args)  # type: ignore[arg-type]
        return [dying(job, tmp_path / "lives", 9) if "rank3" in job.path else job for job in jobs]

    monkeypatch.setattr(reading, "_jobs", with_a_death)
    found = analyze(traces, workers=2)
    assert found.trust.ranks_missing == [3]
    assert found.trust.ranks_present == [0, 1, 2, 4, 5, 6, 7]
    assert any("rank3.json.gz is left out: the process that read it died" in w for w in found.trust.warnings)
    with pytest.raises(InconclusiveError, match="1 file left out"):
        analyze(traces, workers=2, strict=True)


def test_nothing_left_to_analyse_is_said(traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = reading._jobs
    monkeypatch.setattr(
        reading, "_jobs", lambda *a: [dying(job, tmp_path / Path(job.path).name, 9) for job in plain(*a)]
    )
    with pytest.raises(InconclusiveError, match=r"nothing could be read: .*rank0\.json\.gz is left out"):
        analyze(traces[:2], workers=2)


def test_bad_files_are_lost_and_the_others_are_read(traces: list[Path], tmp_path: Path) -> None:
    for name in ("bad1.json", "bad2.json"):
        (tmp_path / name).write_text("nothing of the kind")
    paths = [traces[0], tmp_path / "bad1.json", tmp_path / "bad2.json", *traces[1:]]
    results = run_in_processes([Job(str(path)) for path in paths], 3, nobody)
    assert [type(result) for result in results] == [Loaded, Lost, Lost, *[Loaded] * 7]
    assert isinstance(results[1], Lost)
    assert isinstance(results[1].error, InputError)
    assert "bad1.json is left out: is not a trace in a known format" in results[1].sentence


def test_a_table_survives_the_pipe(tmp_path: Path) -> None:
    table = load(Job(str(write_job(tmp_path) / "rank0.json"))).table
    assert from_bytes(to_bytes(table)).equals(table)

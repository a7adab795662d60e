from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from analyzer.errors import InconclusiveError
from analyzer.model import Analysis, from_json, to_json
from analyzer.options import Options
from analyzer.pipeline import analyze
from parsers.errors import InputError
from tests.analyzer.kineto_files import BUCKETS, ddp_trace, write_job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def analysis(job: Path) -> Analysis:
    return analyze(job)


def test_the_step_of_a_known_job_is_divided_exactly(analysis: Analysis) -> None:
    exposure = analysis.exposure
    assert exposure is not None
    assert exposure.step_us == 6000
    assert exposure.compute_us == 4000
    # 400 µs after the last GEMM on rank 0, 300 µs on the late rank 1.
    assert exposure.exposed_us == 350
    assert exposure.overlapped_us == (1200 + 900) / 2
    assert exposure.idle_us == 1650
    assert [rank.exposed_us for rank in exposure.by_rank] == [400, 300]
    assert list(exposure.by_dimension) == ["dp"]


def test_calls_bytes_waiting_and_bandwidth_of_a_known_job(analysis: Analysis) -> None:
    (row,) = analysis.collectives
    assert (row.dim, row.primitive, row.group_size, row.dtype) == ("dp", "all_reduce", 2, "bfloat16")
    assert row.calls_per_step == 4
    assert row.sent_bytes_per_step == 2 * sum(BUCKETS)  # 2(n-1)/n is 1 for two ranks
    assert row.time_us_per_step == (1600 + 1200) / 2
    assert row.wait_us_per_step == 200
    assert row.transfer_us_per_step == 1200
    assert row.busbw_gbps == row.algbw_gbps == pytest.approx(2 * sum(BUCKETS) / 1_200_000, abs=0.001)
    assert (row.link, row.link_type) == ("intra_node", "nvlink")
    assert row.classified_by == {"metadata": 24}


def test_the_trust_block_of_a_sound_job(analysis: Analysis) -> None:
    trust = analysis.trust
    assert (trust.ranks_present, trust.ranks_missing, trust.ranks_duplicated) == ([0, 1], [], [])
    assert (trust.steps.source, trust.steps.complete, trust.steps.incomplete) == ("profiler_step", [0, 1, 2], [])
    assert (trust.comm_time_classified, trust.comm_time_with_group, trust.comm_calls_with_bytes) == (1, 1, 1)
    assert trust.clock.aligned
    assert trust.clock.offset_us == {"0": 0, "1": 0}


def test_the_layout_of_a_known_job(analysis: Analysis) -> None:
    layout = analysis.layout
    assert (layout.tp, layout.cp, layout.pp, layout.dp, layout.ep) == (1, 1, 1, 2, 1)
    assert analysis.world_size == analysis.gpus_per_node == 2


def test_the_document_survives_being_written_and_read(analysis: Analysis) -> None:
    assert from_json(to_json(analysis)) == analysis


def test_only_the_steps_asked_for_are_measured(job: Path) -> None:
    found = analyze(job, steps=(1, 1))
    assert found.exposure is not None
    assert found.exposure.step_us == 6000
    assert found.collectives[0].classified_by == {"metadata": 8}
    with pytest.raises(InconclusiveError, match="complete are: 0, 1, 2"):
        analyze(job, steps=(7, 9))


def test_workers_change_nothing(job: Path, analysis: Analysis) -> None:
    assert analyze(job, workers=2) == analysis


def test_progress_is_told_of_every_file(job: Path) -> None:
    told: list[tuple[int, int]] = []
    analyze(job, progress=lambda now: told.append((now.files, now.of_files)))
    assert list(dict.fromkeys(now for now in told if now[0])) == [(1, 2), (2, 2)]


def test_one_rank_of_two_knows_neither_waiting_nor_bandwidth(job: Path) -> None:
    found = analyze(job / "rank0.json")
    (row,) = found.collectives
    assert (row.wait_us_per_step, row.busbw_gbps) == (None, None)
    assert found.trust.ranks_missing == [1]
    assert "ranks.missing" in {f.id for f in found.findings}


def test_strict_refuses_what_is_missing(job: Path) -> None:
    with pytest.raises(InconclusiveError, match="1 rank missing"):
        analyze(job / "rank0.json", strict=True)


def test_a_declared_layout_is_verified(job: Path) -> None:
    assert "layout.declared_holds" in {f.id for f in analyze(job, layout="dp2").findings}
    wrong = next(f for f in analyze(job, layout="tp2").findings if f.id == "layout.declared_differs")
    assert wrong.severity == "error"
    assert wrong.detail == "tp declared 2, observed 1; dp declared 1, observed 2"


def test_a_world_of_one_says_why_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(json.dumps(ddp_trace(0, 1, comm=False)))
    found = analyze(tmp_path)
    assert found.collectives == []
    assert [f.id for f in found.findings if f.id.startswith("comm.")] == ["comm.world_of_one"]
    assert found.exposure is not None
    assert found.exposure.exposed_us == 0


def test_no_communication_in_a_larger_world_is_suspicious(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(ddp_trace(rank, 2, comm=False)))
    (finding,) = (f for f in analyze(tmp_path).findings if f.id == "comm.none")
    assert finding.severity == "warning"
    assert finding.title == "no communication in a job of 2 ranks"


def test_two_jobs_in_one_directory_are_refused(tmp_path: Path) -> None:
    write_job(tmp_path)
    (tmp_path / "rank0.json").write_text(json.dumps(ddp_trace(0, 1)))
    with pytest.raises(InputError, match="2 different jobs"):
        analyze(tmp_path)


def test_impossible_durations_are_counted_and_change_nothing_else(tmp_path: Path) -> None:
    folder = write_job(tmp_path)
    trace = json.loads((folder / "rank0.json").read_text())
    gemms = [e for e in trace["traceEvents"] if e["cat"] == "kernel" and e["tid"] == 7]
    gemms[2]["dur"] = 3.4e6
    (folder / "rank0.json").write_text(json.dumps(trace))
    found = analyze(folder)
    assert found.trust.events_clipped == 1
    assert found.exposure is not None
    assert found.exposure.compute_us == 4000
    assert "events.clipped" in {f.id for f in found.findings}


def test_options_have_no_field_that_the_command_line_lacks() -> None:
    from analyzer.commands.run import command

    given = {p.name for p in command.params}
    names = {"use_names": "ignore_names", "progress": "no_progress"}
    for_programs = {"change"}
    assert {names.get(f.name, f.name) for f in dataclasses.fields(Options)} - for_programs <= given

"""Traces, NCCL's logs and Flight Recorder's dumps of one job on one command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analyzer.cli import main
from benchmarks.synthesis.generate import generate
from benchmarks.synthesis.spec import Spec
from tests.analyzer.witness_files import Run, write_dumps, write_logs
from tests.parsers.nsys import one_job


def _document(*arguments: Path | str) -> dict[str, Any]:
    return json.loads(_stdout(*arguments))


def _stdout(*arguments: Path | str) -> str:
    result = CliRunner().invoke(main, ["run", *map(str, arguments), "--format", "json", "-q"])
    assert result.exit_code == 0, result.output
    return result.stdout


def _findings(document: dict[str, Any], start: str) -> list[dict[str, Any]]:
    return [item for item in document["findings"] if item["id"].startswith(start)]


def _wires(document: dict[str, Any]) -> set[tuple[str, int, str | None, str | None]]:
    return {(row["dim"], row["group_size"], row["link"], row["link_type"]) for row in document["collectives"]}


@pytest.fixture(scope="module")
def traces(sample_traces: Path) -> Path:
    """A captured job of eight processes on one host."""
    return sample_traces / "tp2_pp2_dp2"


@pytest.fixture(scope="module")
def run(traces: Path) -> Run:
    return Run.of(traces)


@pytest.fixture(scope="module")
def job(traces: Path, run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the traces, the logs and the dumps of the captured job, which went on without its rank 3."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "traces").mkdir()
    for path in traces.glob("rank*.json.gz"):
        shutil.copy(path, folder / "traces" / path.name)
    write_logs(run, folder / "nccl_logs")
    write_dumps(run, folder / "fr_dumps", missing=3)
    return folder


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces that do not name their hosts: tp 2 within hosts of two GPUs, dp 2 between them."""
    spec = Spec.parse("megatron", "tp2-pp1-dp2", options=(("gpus_per_node", 2),))
    return generate(spec, tmp_path_factory.mktemp("two_hosts"))


# -- what the witnesses add


def test_logs_say_which_wire_every_group_used(job: Path) -> None:
    alone = _document(job / "traces")
    assert {link_type for *_, link_type in _wires(alone)} == {None}
    mixed = _document(job / "traces", job / "nccl_logs", job / "fr_dumps")
    assert {(link, link_type) for *_, link, link_type in _wires(mixed)} == {("intra_node", "nvlink")}
    assert mixed["layout"] == alone["layout"]
    assert [mixed["layout"][dim] for dim in ("tp", "pp", "dp")] == [2, 2, 2]
    assert mixed["trust"]["ranks_duplicated"] == []
    assert mixed["trust"]["ranks_present"] == list(range(8))
    strip = [[{k: v for k, v in row.items() if k != "link_type"} for row in d["collectives"]] for d in (alone, mixed)]
    assert strip[0] == strip[1]


def test_every_file_is_listed_with_its_format_and_rank(job: Path) -> None:
    inputs = _document(job / "traces", job / "nccl_logs", job / "fr_dumps")["inputs"]
    assert [(i["format"], i["rank"]) for i in inputs] == [
        (form, rank) for form in ("kineto", "nccl_log", "flight_recorder") for rank in range(8)
    ]
    assert {i["host"] for i in inputs} == {"node0"}


def test_a_folder_with_all_of_them_is_the_same(job: Path) -> None:
    apart, whole = _document(job / "traces", job / "nccl_logs", job / "fr_dumps"), _document(job)
    assert sorted(i["path"] for i in whole.pop("inputs")) == sorted(i["path"] for i in apart.pop("inputs"))
    assert whole == apart


def test_dumps_say_what_had_not_finished_and_in_which_step(job: Path) -> None:
    (found,) = _findings(_document(job), "calls.unfinished")
    assert (found["severity"], found["ranks"]) == ("error", [3])
    assert found["title"] == (
        "the job was stuck: look at rank 3: waits in no call: its host thread did not come to the next one"
    )
    # The traces show one all-reduce a step on this group, so its fifth belongs to the fifth step.
    assert "all_reduce #5 of mesh_dp (step 4, call 0 of it): waiting 1, not there 3" in found["detail"]


def test_dumps_of_a_job_that_ended_add_nothing(traces: Path, run: Run, tmp_path: Path) -> None:
    write_dumps(run, tmp_path)
    document = _document(traces, tmp_path)
    assert _findings(document, "calls.") == _findings(document, "sources.") == []


@pytest.mark.parametrize(("network", "wire"), [("IB", "ib"), ("RoCE", "roce"), ("Socket", "tcp")])
def test_logs_name_the_hosts_and_the_network_between_them(
    two_hosts: Path, tmp_path: Path, network: str, wire: str
) -> None:
    assert {link_type for *_, link_type in _wires(_document(two_hosts))} <= {None, "nvlink"}
    write_logs(Run.of(two_hosts, per_host=2), tmp_path / "logs", network=network, calls=False)
    document = _document(two_hosts, tmp_path / "logs")
    assert document["gpus_per_node"] == 2
    found = {(dim, link, link_type) for dim, _, link, link_type in _wires(document) if dim in ("tp", "dp")}
    assert found == {("tp", "intra_node", "nvlink"), ("dp", "inter_node", wire)}
    assert "hosts of kineto files come from the NCCL log" in document["trust"]["warnings"]


def test_one_file_of_all_processes_says_the_same(job: Path, run: Run, tmp_path: Path) -> None:
    write_logs(run, tmp_path, one_file=True)
    assert _wires(_document(job / "traces", tmp_path)) == _wires(_document(job / "traces", job / "nccl_logs"))


def test_communicators_of_a_report_get_their_members_from_the_log(tmp_path: Path) -> None:
    # The capture began after the communicators were made, and two of four ranks were captured.
    reports = one_job.write_nsys(tmp_path / "nsys", from_start=False)[:2]
    lines = []
    for rank in range(one_job.WORLD):
        for number, group in enumerate(one_job.groups_of(rank).values()):
            lines.append(
                f"node-{rank // 2}:{100 + rank}:9 [{rank % 2}] NCCL INFO ncclCommInitRankConfig comm 0x5{number} rank "
                f"{group.ranks.index(rank)} nranks {len(group.ranks)} cudaDev {rank % 2} nvmlDev {rank % 2} "
                f"busId 1000 commId {group.hash:#x} - Init COMPLETE"
            )
    (tmp_path / "nccl.log").write_text("\n".join(lines) + "\n")
    alone, mixed = _document(*reports), _document(*reports, tmp_path / "nccl.log")
    links = [
        {(row["primitive"], row["group_size"], row["link"]) for row in document["collectives"]}
        for document in (alone, mixed)
    ]
    assert ("send_recv", None, None) in {(p, None, link) for p, _, link in links[0]}
    assert ("reduce_scatter", 2, "inter_node") in links[1]
    assert ("all_reduce", 2, "intra_node") in links[1]
    assert ("send_recv", 2, "inter_node") in links[1]
    assert _findings(mixed, "sources.") == []


# -- the same from summaries, and whoever reads


def test_summaries_hold_what_joining_needs(job: Path, tmp_path: Path) -> None:
    sources = [job / "traces", job / "nccl_logs", job / "fr_dumps"]
    wanted = _stdout(*sources)
    every, traces = tmp_path / "every.parquet", tmp_path / "traces"
    for paths, output in ((sources, str(every)), (sources[:1], f"{traces}/"), (sources, f"{tmp_path}/apart/")):
        result = CliRunner().invoke(main, ["summarize", *map(str, paths), "-o", output, "-q"])
        assert result.exit_code == 0, result.output
    assert _stdout(every) == wanted
    assert _stdout(traces, *sources[1:]) == wanted
    apart = json.loads(_stdout(tmp_path / "apart"))
    whole = json.loads(wanted)
    assert sorted(i["path"] for i in apart.pop("inputs")) == sorted(i["path"] for i in whole.pop("inputs"))
    assert apart == whole


def test_workers_and_caches_change_nothing(job: Path, tmp_path: Path) -> None:
    sources = [job / "traces", job / "nccl_logs", job / "fr_dumps"]
    wanted = _stdout(*sources, "--workers", "1")
    assert _stdout(*sources, "--workers", "3") == wanted
    for _ in range(2):
        assert _stdout(*sources, "--cache", tmp_path / "cache") == wanted
    assert len(list((tmp_path / "cache").glob("*.parquet"))) == 24


def test_a_cluster_changes_nothing(job: Path) -> None:
    sources = [job / "traces", job / "nccl_logs", job / "fr_dumps"]
    assert _stdout(*sources, "--dask", "local:2") == _stdout(*sources)


# -- contradictions


def _one(document: dict[str, Any], kind: str) -> dict[str, Any]:
    found = _findings(document, "sources.")
    assert [item["id"] for item in found] == [f"sources.{kind}"], found
    assert found[0]["severity"] == "warning"
    return found[0]


def test_a_log_of_a_larger_job(traces: Path, run: Run, tmp_path: Path) -> None:
    write_logs(run, tmp_path, calls=False, cut_group=8)
    document = _document(traces, tmp_path)
    assert document["world_size"] == 8
    found = _one(document, "world_size")
    assert found["title"] == "sources disagree about the number of ranks"
    assert "the job has 8 ranks in " in found["detail"]
    assert "9 ranks in " in found["detail"]
    assert found["ranks"] == [0]


def test_a_dump_with_other_members_of_a_group(traces: Path, run: Run, tmp_path: Path) -> None:
    write_dumps(run, tmp_path, other_members={0: (0, 5)})
    found = _one(_document(traces, tmp_path), "group")
    assert "to rank 0, group 1 is [0, 4] in " in found["detail"]
    assert f"[0, 5] in {tmp_path}/comm_lib_trace_rank_0 (flight_recorder)" in found["detail"]
    assert found["ranks"] == [0]


def test_a_dump_with_other_counts(traces: Path, run: Run, tmp_path: Path) -> None:
    write_dumps(run, tmp_path, scale=2)
    details = [item["detail"] for item in _findings(_document(traces, tmp_path), "sources.calls")]
    assert any(
        "reduce_scatter of 16,384 elements in" in d and "reduce_scatter of 32,768 elements in" in d for d in details
    )
    assert all("that both list differ) is" in detail for detail in details)


def test_a_log_with_other_counts(traces: Path, run: Run, tmp_path: Path) -> None:
    write_logs(run, tmp_path, scale=4)
    found = _findings(_document(traces, tmp_path), "sources.calls")
    scatters = [item for item in found if "reduce_scatter of 65,536 bytes on ranks 0, 1 is called" in item["detail"]]
    assert len(scatters) == 1
    assert scatters[0]["ranks"] == [0, 1]
    assert "0 times in" in scatters[0]["detail"]


def test_logs_with_ranks_of_other_processes(traces: Path, run: Run, tmp_path: Path) -> None:
    swapped = Run(run.ranks, run.hosts, {**run.pids, 0: run.pids[1], 1: run.pids[0]})
    write_logs(swapped, tmp_path, calls=False)
    found = _findings(_document(traces, tmp_path), "sources.rank")
    assert len(found) == 2
    assert f"process {run.pids[0]} on node0 is rank 0 in " in found[0]["detail"]
    assert found[0]["ranks"] == [0, 1]


# -- what cannot be read


def test_an_unusable_log_beside_traces_is_left_out_and_told(traces: Path, tmp_path: Path) -> None:
    for path in traces.glob("rank*.json.gz"):
        shutil.copy(path, tmp_path / path.name)
    (tmp_path / "train.log").write_text("NCCL version 2.27.5+cuda12.8\nstep 1 loss 3.2\n")
    document = _document(tmp_path)
    warnings = document["trust"]["warnings"]
    assert any("train.log is left out: names no communicator of NCCL or RCCL" in note for note in warnings)
    assert {i["format"] for i in document["inputs"]} == {"kineto"}


def test_an_unusable_log_alone_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("NCCL version 2.27.5+cuda12.8\nstep 1 loss 3.2\n")
    result = CliRunner().invoke(main, ["run", str(tmp_path / "train.log"), "-q"])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "train.log: names no communicator of NCCL or RCCL" in result.stderr


def test_dumps_and_logs_without_traces(job: Path) -> None:
    document = _document(job / "fr_dumps", job / "nccl_logs")
    assert {row["link_type"] for row in document["collectives"]} == {"nvlink"}
    assert len(_findings(document, "calls.unfinished")) == 1

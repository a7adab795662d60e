"""The annotated trace: sound by the format's own rules, and the same job when it is read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec import to_builtins
from msgspec.structs import replace

from analyzer.cli import main
from analyzer.pipeline import analyze
from parsers import read
from parsers.discover import expand
from tests.analyzer.export.trace_schema import check, load
from tests.analyzer.time_files import GEMM, Writer

OFFSETS = (0, -4_000, 700)
"""Clocks of the three ranks, in µs."""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def exported(*arguments: object) -> dict[str, Any]:
    result = run("export", *arguments)
    assert result.exit_code == 0, result.stderr
    document = load(Path(arguments[arguments.index("-o") + 1]))
    check(document, flows_of_others=True)
    return document


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ranks; rank 1 computes 2,500 µs longer, so the others wait that long in an all-reduce of 45 µs."""
    folder = tmp_path_factory.mktemp("job")
    for r, offset in enumerate(OFFSETS):
        rank = Writer(r, 3)
        for n in range(4):
            b = 5_000.0 + n * 20_000 + offset
            rank.step(n, b, 20_000)
            more = 2_500.0 if r == 1 else 0.0
            rank.event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", b + 160, 6_500, 2)
            rank.kernel(GEMM, b + 100, 50)
            rank.kernel(GEMM, b + 200, 3_000 + more)
            rank.collective("allreduce", b + 3_300 + more, 45 + 2_500 - more, 1_000_000)
        (folder / f"rank{r}.json").write_text(rank.text())
    return folder


def of(document: dict[str, Any], **wanted: object) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if all(e.get(key) == value for key, value in wanted.items())]


def track(document: dict[str, Any], rank: int, name: str) -> list[dict[str, Any]]:
    """The slices of an added track."""
    title = f"rank {rank}: communication by dimension"
    (pid,) = (e["pid"] for e in of(document, ph="M", name="process_name") if e["args"]["name"] == title)
    (tid,) = (e["tid"] for e in of(document, ph="M", name="thread_name", pid=pid) if e["args"]["name"] == name)
    return of(document, ph="X", pid=pid, tid=tid)


def test_every_rank_has_its_calls_waiting_and_exposed_time(job: Path, tmp_path: Path) -> None:
    document = exported(job, "-o", tmp_path / "out.json")
    for rank in range(3):
        calls = track(document, rank, "dp")
        waits = [] if rank == 1 else [2_500.0] * 4
        assert [c["dur"] for c in calls] == [45.0 + (0 if rank == 1 else 2_500)] * 4
        assert [c["args"].get("wait_us") for c in calls] == (waits or [0.0] * 4)
        assert [e["dur"] for e in track(document, rank, "dp exposed")] == [c["dur"] for c in calls]
        if waits:
            assert [w["dur"] for w in track(document, rank, "dp waiting")] == waits


def test_kernels_say_what_call_they_belong_to(job: Path, tmp_path: Path) -> None:
    document = exported(job, "-o", tmp_path / "out.json")
    kernels = [e for e in of(document, cat="kernel") if "dim" in e["args"]]
    assert len(kernels) == 12
    said = kernels[0]["args"]
    assert (said["dim"], said["primitive"], said["size_bytes"], said["sent_bytes"]) == (
        "dp", "all_reduce", 2_000_000, 2_666_666,
    )  # fmt: skip
    # 2,000,000 B in 45 µs, and the bus factor 2 (3 - 1) / 3 of nccl-tests
    assert said["algbw"] == pytest.approx(2e6 / 45e3, abs=5e-4)
    assert said["busbw"] == pytest.approx(2e6 / 45e3 * 4 / 3, abs=5e-4)
    assert all("dim" not in e["args"] for e in of(document, cat="kernel", name=GEMM))


def test_clocks_of_the_ranks_are_one(job: Path, tmp_path: Path) -> None:
    document = exported(job, "-o", tmp_path / "out.json")
    assert document["commlens"]["clocks_aligned"] is True
    ends = [[c["ts"] + c["dur"] for c in track(document, rank, "dp")] for rank in range(3)]
    assert ends[1] == pytest.approx(ends[0], abs=2e-3)
    assert ends[2] == pytest.approx(ends[0], abs=2e-3)


def test_arrows_end_at_the_last_to_arrive(job: Path, tmp_path: Path) -> None:
    document = exported(job, "-o", tmp_path / "out.json")
    flows = [e for e in of(document, cat="commlens") if e["ph"] in "stf"]
    assert sorted(e["ph"] for e in flows) == ["f"] * 4 + ["s"] * 4 + ["t"] * 4
    late = {e["pid"] for e in track(document, 1, "dp")}
    assert {e["pid"] for e in flows if e["ph"] == "f"} == late
    assert len({e["id"] for e in flows}) == 4


def test_counters_rise_and_fall_to_nothing(job: Path, tmp_path: Path) -> None:
    document = exported(job, "-o", tmp_path / "out.json")
    for name, top in (("bytes in flight", 2_666_666), ("bandwidth (GB/s)", 59.259)):
        for pid in {e["pid"] for e in of(document, ph="C", name=name)}:
            values = [e["args"]["dp"] for e in of(document, ph="C", name=name, pid=pid)]
            assert values == [pytest.approx(top), 0.0] * 4


def test_identifiers_of_two_ranks_never_meet(job: Path, tmp_path: Path) -> None:
    document = exported(job, "-o", tmp_path / "out.json")
    owners: dict[tuple[str, object], set[int]] = {}
    for event in document["traceEvents"]:
        rank = event.get("args", {}).get("rank")
        if rank is None:
            continue
        for key in ("correlation", "External id"):
            if key in event["args"]:
                owners.setdefault((key, event["args"][key]), set()).add(rank)
        owners.setdefault(("pid", event["pid"]), set()).add(rank)
    assert {kind for kind, _ in owners} == {"correlation", "pid"}
    assert all(len(ranks) == 1 for ranks in owners.values())
    launches = {e["args"]["correlation"] for e in of(document, cat="cuda_runtime")}
    assert launches == {e["args"]["correlation"] for e in of(document, cat="kernel")}
    assert len(launches) == 36


def test_flows_and_external_ids_of_two_ranks_never_meet(job: Path, tmp_path: Path) -> None:
    for rank in range(2):
        own = json.loads((job / f"rank{rank}.json").read_text())
        call = next(e for e in own["traceEvents"] if e.get("cat") == "cpu_op")
        begin, end = call["ts"] + 1, call["ts"] + 2
        call["args"] = {**call.get("args", {}), "External id": 41}
        ends = {"cat": "ac2g", "name": "ac2g", "id": 7, "pid": call["pid"], "tid": call["tid"]}
        own["traceEvents"] += [{"ph": "s", "ts": begin, **ends}, {"ph": "f", "bp": "e", "ts": end, **ends}]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(own))
    document = exported(tmp_path / "rank0.json", tmp_path / "rank1.json", "-o", tmp_path / "out.json")
    flows = of(document, cat="ac2g")
    assert sorted(e["ph"] for e in flows) == ["f", "f", "s", "s"]
    assert len({e["id"] for e in flows}) == 2
    assert len({e["id"] for e in flows if e["ph"] == "s"} & {e["id"] for e in flows if e["ph"] == "f"}) == 2
    outside = [e["args"]["External id"] for e in document["traceEvents"] if "External id" in e.get("args", {})]
    assert len(outside) == len(set(outside)) == 2


def test_the_merged_trace_is_the_same_job(job: Path, tmp_path: Path) -> None:
    exported(job, "-o", tmp_path / "out.json.gz")
    before, after = analyze(job), analyze(tmp_path / "out.json.gz")
    assert after.exposure == before.exposure
    assert after.trust.ranks_present == [0, 1, 2]
    assert after.trust.clock.offset_us == {"0": 0.0, "1": 0.0, "2": 0.0}
    assert before.trust.clock.offset_us == {"0": 0.0, "1": -4000.0, "2": 700.0}
    assert [(r.dim, r.size_bytes, r.busbw_gbps) for r in after.collectives] == [
        (r.dim, r.size_bytes, r.busbw_gbps) for r in before.collectives
    ]


@pytest.mark.parametrize("case", ["cp4_ring", "tp2_pp2_dp2"])
def test_bundled_jobs_come_back_as_they_were(case: str, sample_traces: Path, tmp_path: Path) -> None:
    exported(sample_traces / case, "-o", tmp_path / "out.json.gz")
    before, after = analyze(sample_traces / case), analyze(tmp_path / "out.json.gz")
    assert before.exposure is not None
    assert after.exposure is not None
    assert after.exposure.exposed_us == before.exposure.exposed_us
    assert after.trust.ranks_present == before.trust.ranks_present


@pytest.mark.parametrize("case", ["hta/dlrm_8rank_v100", "torchtitan_fsdp4_2026"])
def test_real_gpu_jobs_come_back_as_they_were(case: str, shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "real" / case
    exported(folder, "-o", tmp_path / "out.json.gz")
    before, after = analyze(folder), analyze(tmp_path / "out.json.gz")
    assert after.exposure is not None
    assert before.exposure is not None
    # Clocks are set in whole nanoseconds, waiting therefore to within those of all calls.
    of_waiting: dict[str, Any] = {"by_dimension": {}, "by_rank": [], "causes": [], "prediction": []}
    assert replace(after.exposure, **of_waiting) == replace(before.exposure, **of_waiting)
    for part in ("causes", "prediction"):
        rows = zip(getattr(after.exposure, part), getattr(before.exposure, part), strict=True)
        for found, wanted in ((to_builtins(a), to_builtins(b)) for a, b in rows):
            numbers = {key for key, value in wanted.items() if isinstance(value, float)}
            assert {k: found[k] for k in numbers} == pytest.approx({k: wanted[k] for k in numbers}, abs=0.1)
            assert {k: v for k, v in found.items() if k not in numbers} == {
                k: v for k, v in wanted.items() if k not in numbers
            }
    for name, time in before.exposure.by_dimension.items():
        again = after.exposure.by_dimension[name]
        assert (again.busy_us, again.exposed_us) == (time.busy_us, time.exposed_us)
        assert again.wait_us == pytest.approx(time.wait_us, abs=0.1)
    assert (after.layout.dp, after.layout.confidence) == (before.layout.dp, before.layout.confidence)


def test_one_rank_keeps_its_flows_and_correlations(job: Path, tmp_path: Path) -> None:
    document = exported(job / "rank1.json", "-o", tmp_path / "out.json")
    own = json.loads((job / "rank1.json").read_text())
    kernels = [e["args"]["correlation"] for e in own["traceEvents"] if e["cat"] == "kernel"]
    assert [e["args"]["correlation"] for e in of(document, cat="kernel")] == kernels
    assert document["distributedInfo"] == own["distributedInfo"]
    assert "algbw" not in track(document, 1, "dp")[0]["args"]  # one rank cannot tell waiting from transfer
    assert track(document, 1, "dp")[0]["args"]["algbw_with_wait"] == pytest.approx(2e6 / 45e3, abs=5e-4)


def test_without_events_only_the_added_tracks_are_written(job: Path, tmp_path: Path) -> None:
    document = exported(job, "-o", tmp_path / "out.json", "--no-events")
    assert {e.get("cat") for e in document["traceEvents"]} == {"commlens", None}


def test_summaries_give_the_added_tracks(job: Path, tmp_path: Path) -> None:
    run("summarize", job, "-o", tmp_path / "job.parquet", "-q")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in job.iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    run("summarize", moved, "-o", tmp_path / "moved.parquet", "-q")
    for path in moved.iterdir():
        path.unlink()
    document = exported(tmp_path / "moved.parquet", "-o", tmp_path / "out.json")
    assert len(track(document, 0, "dp")) == 4
    assert {e.get("cat") for e in document["traceEvents"]} == {"commlens", None}


def test_a_report_of_nsight_systems_becomes_a_trace(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "formats" / "nsys_synthetic"
    document = exported(folder / "one_report_4proc_2026.2_nccl2.28_blob.sqlite", "-o", tmp_path / "out.json")
    assert len(of(document, cat="kernel")) == len(of(document, cat="cuda_runtime")) == 64
    assert sum("dim" in e["args"] for e in of(document, cat="kernel")) > 0


@pytest.mark.parametrize("pain", ["01_invalid_escape", "02_inf_nan", "03_cut_gzip", "08_zero_negative_time"])
def test_damaged_files_become_sound_ones(pain: str, shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "pains" / pain
    document = exported(folder, "-o", tmp_path / "out.json")
    traces = [trace for path in expand([folder]).paths for trace in read(path)]
    read_ones = [row["name"] for trace in traces for row in trace.gpu_events.to_pylist() if row["kind"] == "kernel"]
    # Kernels of no duration are drawn, and counted by nobody.
    drawn = [event["name"] for event in of(document, cat="kernel") if event["dur"] > 0]
    assert sorted(drawn) == sorted(read_ones) != []


def test_stdout_takes_the_trace(job: Path) -> None:
    result = run("export", job / "rank0.json", "-o", "-", "-q")
    assert json.loads(result.stdout)["commlens"]["ranks"] == [0]


def test_a_file_that_exists_is_not_replaced(job: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("mine")
    result = run("export", job, "-o", target)
    assert result.exit_code == 2
    assert result.stderr == f"analyze: {target} exists; --force overwrites it (see analyze export --help)\n"
    assert target.read_text() == "mine"
    assert run("export", job, "-o", target, "--force", "-q").exit_code == 0
    assert json.loads(target.read_text())["schemaVersion"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "say where to: -o FILE or --tables DIR (see analyze export --help)"),
        (("-o", "out.svg"), "out.svg: the ending says what to write"),
        (("-o", "out.csv", "--slice", "steps=1"), "--slice goes with a trace: -o FILE.json.gz"),
        (("-o", "out.json", "--table", "calls"), "--table goes with a file that ends in"),
        (("-o", "/no/such/place/out.json"), "/no/such/place/out.json: there is no directory /no/such/place"),
    ],
)
def test_wrong_requests_are_one_line(job: Path, arguments: tuple[str, ...], said: str) -> None:
    result = run("export", job, *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"analyze: {said}")
    assert len(result.stderr.splitlines()) == 1

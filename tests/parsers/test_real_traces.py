"""The reader on files that others wrote: equal to a full parse, and right about what is known of them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parsers import read
from parsers.discover import expand
from parsers.errors import InputError
from parsers.kineto_events import Decoder
from parsers.kineto_header import has_devices, parse_header
from parsers.kineto_rows import Rows
from parsers.kineto_split import Part
from parsers.kineto_tables import finish, owned, rank_tables
from parsers.settle import Settler
from parsers.tables import RankTrace
from tests.parsers.made import expected, seen

QUIRKS = 48
TABLES = ("gpu_events", "comm_records", "launches", "cpu_marks", "steps")


def _whole(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document by `json`, and its tables by one decode of all events: no cut, no stream."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    rows = Rows()
    header = {key: json.dumps(value).encode() for key, value in document.items() if key != "traceEvents"}
    if has_devices(header):
        rows.forget_operators()
    rows.take(Decoder()(json.dumps(document["traceEvents"]).encode()))
    finish(rows, parse_header(header).base_ns)
    made = rank_tables(rows, owned(rows, Part()), last=True)
    return document, {name: getattr(made, name) for name in TABLES}


def _paths(shared: Path, pattern: str) -> Iterator[Path]:
    found = sorted((shared / "data").glob(pattern))
    assert found
    yield from found


@pytest.mark.parametrize("pattern", ["real/*/*.json.gz", "real/hta/*/*.json.gz", "captures/*/rank0.json.gz"])
def test_streaming_equals_a_full_parse(shared: Path, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: object) -> bool:
        raise AssertionError("the slow path was taken on a sound file")

    monkeypatch.setattr(Settler, "run", never)
    monkeypatch.setattr("parsers.window.BLOCK_BYTES", 100_000)
    for path in _paths(shared, pattern):
        document, whole = _whole(path)
        (trace,) = read(path)
        for name in TABLES:
            table = getattr(trace, name)
            table.validate(full=True)
            assert table.equals(whole[name]) or table.to_pydict() == whole[name].to_pydict(), (path, name)
        assert seen(trace) == expected(document), path
        health = trace.health
        assert health.events == len(document["traceEvents"])
        assert (health.repaired, health.quarantined, health.dropped, health.complete) == (0, 0, 0, True), path


def test_ranks_of_real_jobs(shared: Path) -> None:
    real = shared / "data" / "real"
    worlds = {"megatron_tp8_2024": 8, "torchtitan_fsdp4_2026": 4, "lightllm_ep8_decode": 8, "torchrec_mp4": 4}
    for name, world in worlds.items():
        traces = [read(path)[0] for path in expand([real / name]).paths]
        assert [trace.identity.rank for trace in traces] == list(range(world))
        assert {trace.identity.rank_source for trace in traces} == {"metadata"}
        assert {trace.identity.world_size for trace in traces} == {world}
    (gloo,) = read(real / "hta/cpu_only_gloo300/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz")
    assert (gloo.identity.rank, gloo.identity.world_size, gloo.groups.num_rows) == (34, 300, 11)
    (no_rank,) = read(real / "hta/rank_unavailable/rank_not_found.json.gz")
    assert (no_rank.identity.rank, no_rank.identity.backend) == (None, "nccl")
    (named,) = read(real / "hta/large_integer/rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz")
    assert (named.identity.rank, named.identity.rank_source) == (70, "file_name")


def test_collectives_of_real_jobs(shared: Path) -> None:
    """Counts that the repositories' descriptions or the index of the traces state."""
    real = shared / "data" / "real"

    def kernels(path: str) -> Counter[str]:
        (trace,) = read(real / path)
        found = [row for row in trace.comm_records.to_pylist() if row["layer"] == "kernel"]
        return Counter(row["collective"] for row in found)

    titan = kernels("torchtitan_fsdp4_2026/rank0.json.gz")
    assert (titan["_allgather_base"], titan["_reduce_scatter_base"], titan["allreduce"]) == (15, 8, 5)
    assert kernels("megatron_tp2_2024/rank0.json.gz") == {"allreduce": 13}
    assert kernels("ao_ep2_nccl/rank0.json.gz")["all_to_allv"] == 30
    nccl = kernels("hta/nccl_parser_config/nccl_data.json.gz")
    assert (nccl["allreduce"], nccl["broadcast"]) == (15, 6)
    (megatron,) = read(real / "megatron_tp8_2024/rank0.json.gz")
    names = [name for name in megatron.gpu_events["name"].to_pylist() if name.startswith("nccl")]
    assert len(names) == 84
    (symmetric,) = read(real / "vllm_tp8_b200/rank0.json.gz")
    layers = Counter(symmetric.comm_records["layer"].to_pylist())
    assert (layers["symm_mem"], layers["functional"]) == (73, 74)


def test_every_group_of_a_large_world_is_whole(shared: Path) -> None:
    (path,) = list((shared / "data/captures/f_tp8pp16_w16384").glob("rank0.json.gz"))
    (trace,) = read(path)
    sizes = trace.groups["size"].to_pylist()
    assert max(sizes) == 16384
    assert [len(ranks) for ranks in trace.groups["ranks"].to_pylist()] == sizes
    cut = [row for row in trace.comm_records.to_pylist() if row["group_ranks_cut"]]
    assert cut
    assert all(len(row["group_ranks"]) == 30 for row in cut)


# -- damaged and misleading files, with the right answers


def _pain(shared: Path, name: str) -> list[RankTrace]:
    return [trace for path in expand([shared / "data/pains" / name]).paths for trace in read(path)]


@pytest.fixture
def expect(shared: Path) -> dict[str, Any]:
    """The right answers."""
    answers: dict[str, Any] = json.loads((shared / "data/pains/EXPECT.json").read_text())
    return answers


def test_raw_backslashes_line_feeds_and_quotes(shared: Path, expect: dict[str, Any]) -> None:
    (trace,) = _pain(shared, "01_invalid_escape")
    answer = expect["01_invalid_escape"]
    assert (trace.health.events, trace.health.repaired) == (answer["events"], answer["repaired"])
    names = trace.cpu_marks["name"].to_pylist()
    assert r"C:\Users\x\train.py(12): step" in names
    assert 'line1\nline2 "quoted" \x01' in names


def test_infinities_are_missing_values(shared: Path, expect: dict[str, Any]) -> None:
    (trace,) = _pain(shared, "02_inf_nan")
    assert trace.health.repaired == expect["02_inf_nan"]["missing_values"]
    nccl = [row for row in trace.gpu_events.to_pylist() if row["name"].startswith("nccl")]
    assert sum(row["dur_ns"] for row in nccl) == 3 * expect["02_inf_nan"]["comm_us_per_step"] * 1000


def test_cut_files_keep_what_they_hold(shared: Path, expect: dict[str, Any]) -> None:
    (packed,) = _pain(shared, "03_cut_gzip")
    assert packed.health.complete is expect["03_cut_gzip"]["complete"]
    assert packed.health.events >= expect["03_cut_gzip"]["min_events"]
    (plain,) = _pain(shared, "04_cut_json")
    assert plain.health.complete is expect["04_cut_json"]["complete"]
    ends = [row["ts_ns"] + row["dur_ns"] for row in plain.steps.to_pylist()]
    assert plain.health.last_good_ts_ns is not None
    assert sum(end <= plain.health.last_good_ts_ns for end in ends) == expect["04_cut_json"]["complete_steps"]


def test_two_writers(shared: Path, expect: dict[str, Any]) -> None:
    traces = _pain(shared, "05_two_writers")
    assert len(traces) == 2
    for trace in traces:
        assert any(expect["05_two_writers"]["finding"] in note for note in trace.health.notes)
        assert not trace.health.complete


def test_where_a_rank_comes_from(shared: Path, expect: dict[str, Any]) -> None:
    traces = _pain(shared, "06_rank_identity")
    assert [trace.identity.rank for trace in traces] == expect["06_rank_identity"]["ranks"]
    assert [trace.identity.rank_source for trace in traces] == ["file_name"] * 3 + ["metadata"]


def test_zero_and_negative_times(shared: Path, expect: dict[str, Any]) -> None:
    (trace,) = _pain(shared, "08_zero_negative_time")
    answer = expect["08_zero_negative_time"]
    assert trace.health.quarantined == answer["quarantined"]
    durations = trace.gpu_events["dur_ns"].to_pylist()
    assert sum(0 < dur < 1000 for dur in durations) == answer["kept_sub_us"]
    assert {row["dur_ns"] for row in trace.steps.to_pylist()} == {answer["step_us"] * 1000}


def test_impossible_durations_are_left_for_the_serial_stream_to_show(shared: Path, expect: dict[str, Any]) -> None:
    (trace,) = _pain(shared, "09_impossible_duration")
    too_long = [row for row in trace.gpu_events.to_pylist() if row["dur_ns"] > 10**9]
    assert len(too_long) == expect["09_impossible_duration"]["impossible"]


def test_the_display_unit_changes_nothing(shared: Path, expect: dict[str, Any]) -> None:
    one, other = _pain(shared, "10_display_time_unit")
    assert (
        all(getattr(one, name) == getattr(other, name) for name in TABLES)
        is expect["10_display_time_unit"]["identical"]
    )


def test_colliding_process_ids_of_two_files(shared: Path, expect: dict[str, Any]) -> None:
    one, other = _pain(shared, "12_id_collision")
    assert [one.identity.rank, other.identity.rank] == expect["12_id_collision"]["ranks"]
    assert one.identity.pid == other.identity.pid == 77
    offset = other.steps["ts_ns"][0].as_py() - one.steps["ts_ns"][0].as_py()
    assert offset == expect["12_id_collision"]["base_offset_us"] * 1000


def test_rank_lists_that_are_cut(shared: Path, expect: dict[str, Any]) -> None:
    (trace,) = _pain(shared, "17_truncated_ranks")
    row = next(row for row in trace.comm_records.to_pylist() if row["layer"] == "kernel")
    assert row["group_ranks_cut"]
    assert row["group_ranks"] == expect["17_truncated_ranks"]["ranks"][:30]
    assert row["group_size"] == expect["17_truncated_ranks"]["group_size"]


@pytest.fixture
def quirk(shared: Path) -> Any:
    """Reads the traces of one quirk."""

    def run(name: str) -> list[RankTrace]:
        return [trace for path in expand([shared / "data/quirks" / name]).paths for trace in read(path)]

    return run


def test_every_quirk_reads(shared: Path) -> None:
    """All of them are sound or mended; the control has two kernels of compute and two of communication."""
    folders = sorted((shared / "data/quirks").glob("q*"))
    assert len(folders) == QUIRKS
    for folder in folders:
        for path in expand([folder]).paths:
            (trace,) = read(path)
            assert trace.gpu_events.num_rows >= 2, folder
            assert trace.health.dropped == (1 if folder.name == "q11_truncated" else 0)


def test_quirks_of_identity(quirk: Any) -> None:
    assert [trace.identity.rank for trace in quirk("q05_compact_json")] == [0, 1]
    no_info = quirk("q06_no_distinfo")
    assert [(trace.identity.rank, trace.identity.rank_source) for trace in no_info] == [
        (0, "file_name"),
        (1, "file_name"),
    ]
    (as_text,) = quirk("q29_distinfo_string")
    assert (as_text.identity.rank, as_text.identity.world_size) == (0, 2)
    (elsewhere,) = quirk("q30_rank_elsewhere")
    assert (elsewhere.identity.rank, elsewhere.identity.world_size) == (5, 8)
    assert [trace.identity.rank for trace in quirk("q38_dup_rank_two_files")] == [0, 0]
    base = [trace.steps["ts_ns"][0].as_py() for trace in quirk("q26_base_time_differs")]
    assert base[1] - base[0] == 10**9


def test_quirks_of_damage(quirk: Any) -> None:
    (cut,) = quirk("q11_truncated")
    assert not cut.health.complete
    (nan,) = quirk("q12_nan_inf")
    assert (nan.health.repaired, nan.health.quarantined, nan.steps.num_rows) == (1, 1, 1)
    (control,) = quirk("q13_bad_utf8_ctrl")
    assert control.health.repaired == 1
    assert "sm90\x01gemm" in control.gpu_events["name"].to_pylist()
    (bare,) = quirk("q14_list_root")
    assert (bare.gpu_events.num_rows, bare.steps["ts_ns"].to_pylist()) == (4, [1_000_000, 11_000_000])


def test_quirks_of_events(quirk: Any) -> None:
    (waits,) = quirk("q01_stream_wait_event")
    assert Counter(waits.gpu_events["kind"].to_pylist()) == {"kernel": 4, "sync": 2}
    (triton,) = quirk("q02_triton_cpu_op_stream0")
    assert triton.gpu_events.num_rows == 4
    (copies,) = quirk("q04_p2p_memcpy")
    assert Counter(copies.gpu_events["kind"].to_pylist()) == {"kernel": 2, "memcpy": 2}
    (short,) = quirk("q16_ns_short")
    assert sorted(set(short.gpu_events["dur_ns"].to_pylist())) == [600, 1600]
    (double,) = quirk("q17_dup_correlation")
    assert (double.launches.num_rows, double.gpu_events.num_rows) == (8, 4)
    (graph,) = quirk("q18_cuda_graph")
    assert graph.gpu_events["graph"].null_count == 2  # node 0 is "no node" in Kineto's words
    (devices,) = quirk("q19_two_devices")
    assert Counter(devices.gpu_events["device"].to_pylist()) == {0: 4, 1: 2}
    (text,) = quirk("q20_str_stream")
    assert Counter(text.gpu_events["stream"].to_pylist()) == {7: 2, 20: 2}
    (default,) = quirk("q21_default_stream0")
    assert Counter(default.gpu_events["stream"].to_pylist()) == {0: 2, 20: 2}
    (annotated,) = quirk("q25_gpu_user_annot")
    assert Counter(annotated.gpu_events["kind"].to_pylist()) == {"kernel": 4, "annotation": 4}
    assert Counter(annotated.comm_records["layer"].to_pylist()) == {"gpu_annotation": 2}


def test_other_json_beside_a_trace(shared: Path) -> None:
    found = expand([shared / "data/quirks/q37_extra_json_in_dir"])
    assert [Path(path).name for path in found.paths] == ["rank0.json"]
    note = "1 file of another format beside the profiler's traces was left out: execution_trace_et.json"
    assert found.notes == (note,)


def test_a_real_file_cut_anywhere(shared: Path, tmp_path: Path) -> None:
    """Never a crash, and the events found never decrease as the cut moves right."""
    data = gzip.decompress((shared / "data/captures/ddp4/rank0.json.gz").read_bytes())
    path = tmp_path / "rank0.json"
    start = data.index(b'"traceEvents":[') + 20
    last = 0
    for at in range(start, len(data), len(data) // 60):
        path.write_bytes(data[:at])
        try:
            (trace,) = read(path)
        except InputError:
            assert last == 0
            continue
        assert not trace.health.complete
        assert trace.health.dropped <= 1
        assert trace.health.events >= last
        last = trace.health.events
    assert last > 1000

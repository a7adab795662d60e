"""Who wrote a trace: header, file name, groups, calls; and several ranks in one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parsers import read
from parsers.rank_identity import rank_from_groups, rank_from_label, rank_from_path
from parsers.tables import RankTrace
from tests.parsers.made import LAYOUTS, TraceMaker, three_steps

ReadText = Callable[..., list[RankTrace]]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("rank_3.json.gz", 3),
        ("rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz", 70),
        ("job_global_rank=12.json", 12),
        ("nodeA_rank0.json", 0),
        ("trace-Rank07.json", 7),
        ("worker5_step_12.1694128201545.pt.trace.json", 5),
        ("local_rank_3.json", None),
        ("host0_3090494.1743406976912802812.pt.trace.json", None),
        ("trace_2024_05_22.json", None),
        ("step_100.json", None),
        ("3.json", None),
        ("trace.json", None),
    ],
)
def test_a_name_s_rank_is_a_labelled_number(tmp_path: Path, name: str, rank: int | None) -> None:
    assert rank_from_path(tmp_path / name) == rank


def test_a_folder_s_rank(tmp_path: Path) -> None:
    assert rank_from_path(tmp_path / "rank_4" / "trace.json") == 4


def test_a_bare_number_is_a_rank_beside_files_numbered_from_0(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"megatron_kineto_{number}.json").touch()
        (tmp_path / f"trace_{number:02d}.pt.trace.json").touch()
        (tmp_path / f"step_{number}.json").touch()
    (tmp_path / "host_1754.json").touch()
    assert [rank_from_path(tmp_path / f"megatron_kineto_{number}.json") for number in range(4)] == [0, 1, 2, 3]
    assert rank_from_path(tmp_path / "trace_03.pt.trace.json") == 3
    assert rank_from_path(tmp_path / "step_3.json") is None
    assert rank_from_path(tmp_path / "host_1754.json") is None


def test_the_one_rank_that_all_groups_share() -> None:
    groups = [np.array(ranks, np.int32) for ranks in ([0, 1, 2, 3], [2, 6], [2, 3], [2, 2])]
    assert rank_from_groups(groups) == 2
    assert rank_from_groups(groups[:1]) is None
    assert rank_from_groups([]) is None


def test_a_process_named_after_its_rank() -> None:
    assert [rank_from_label(label) for label in ("rank 3", "Rank: 12 GPU", "python", "myrank 3")] == [3, 12, None, None]


# -- of a file


def test_the_header_comes_first_and_a_contradiction_is_told(read_text: ReadText) -> None:
    (trace,) = read_text(three_steps(rank=2).text(), "rank3.json")
    assert (trace.identity.rank, trace.identity.rank_source, trace.identity.world_size) == (2, "metadata", 4)
    assert trace.health.notes == ("the file's name says rank 3, its header rank 2; the header is believed",)


def test_then_the_file_s_name(read_text: ReadText) -> None:
    job = three_steps()
    del job.header["distributedInfo"]["rank"]
    (trace,) = read_text(job.text(), "rank3.json")
    assert (trace.identity.rank, trace.identity.rank_source) == (3, "file_name")


def test_then_what_its_groups_have_in_common(read_text: ReadText) -> None:
    job = three_steps()
    del job.header["distributedInfo"]["rank"]
    job.header["distributedInfo"]["pg_config"] += [
        {"pg_name": "1", "pg_size": 2, "ranks": [1, 3]},
        {"pg_name": "5", "ranks": [2, 3]},
    ]
    (trace,) = read_text(job.text())
    assert (trace.identity.rank, trace.identity.rank_source) == (3, "group_intersection")


def test_then_its_own_place_in_the_groups_of_its_calls(read_text: ReadText) -> None:
    job = TraceMaker()
    del job.header["distributedInfo"]
    job.collective(100, 5, **{"Process Group Ranks": "[1, 5, 9]"})
    job.events[1]["args"]["Rank"] = 2
    job.x(
        "cpu_op",
        "record_param_comms",
        200,
        5,
        **{"Collective name": "send", "Rank": 0, "Process Group Ranks": "[1, 5, 9]"},
    )
    job.x(
        "cpu_op",
        "record_param_comms",
        300,
        5,
        **{"Collective name": "broadcast", "Rank": 0, "Process Group Ranks": "[1, 5, 9]"},
    )
    (trace,) = read_text(job.text())
    assert (trace.identity.rank, trace.identity.rank_source) == (9, "group_rank")
    job.collective(400, 5, **{"Process Group Ranks": "[0, 1]"})
    (trace,) = read_text(job.text())
    assert (trace.identity.rank, trace.identity.rank_source) == (None, None)


@pytest.mark.parametrize("how", ["object", "python", "json", "pg_config", "text"])
def test_distributed_info_in_all_its_forms(read_text: ReadText, how: str) -> None:
    job = three_steps(rank=3, world=8)
    info = job.header["distributedInfo"]
    forms: dict[str, Any] = {
        "object": info,
        "python": str(info),
        "json": json.dumps(info),
        "pg_config": {**info, "pg_config": json.dumps(info["pg_config"])},
        "text": {
            **info,
            "rank": "3",
            "world_size": "8",
            "pg_config": [{**info["pg_config"][0], "pg_size": "8", "ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"}],
        },
    }
    job.header["distributedInfo"] = forms[how]
    (trace,) = read_text(job.text())
    assert (trace.identity.rank, trace.identity.world_size, trace.identity.backend) == (3, 8, "nccl")
    assert trace.groups.to_pylist() == [
        {
            "name": "0",
            "desc": "default_pg",
            "backend": "cuda:nccl",
            "size": 8,
            "ranks": [0, 1, 2, 3, 4, 5, 6, 7],
            "ranks_source": "pg_config",
            "declared": True,
        }
    ]


@pytest.mark.parametrize("ranks", ["[]", "[0, 8, ..., 248]", None, [0, 1], "[x]"])
def test_a_rank_list_that_is_not_whole_is_not_given(read_text: ReadText, ranks: Any) -> None:
    job = three_steps()
    job.header["distributedInfo"]["pg_config"] = [{"pg_name": 7, "pg_size": 32, "ranks": ranks}]
    (trace,) = read_text(job.text())
    (group,) = trace.groups.to_pylist()
    assert (group["name"], group["size"], group["ranks"], group["ranks_source"]) == ("7", 32, None, "none")


def test_large_groups(read_text: ReadText) -> None:
    job = three_steps()
    job.header["distributedInfo"]["pg_config"] = [{"pg_name": str(i), "ranks": list(range(16384))} for i in range(20)]
    (trace,) = read_text(job.text())
    assert trace.groups["size"].to_pylist() == [16384] * 20
    assert trace.groups["ranks"][19].as_py()[-1] == 16383


def test_metadata_behind_the_events(read_text: ReadText) -> None:
    job = three_steps(rank=2)
    events = {"traceEvents": job.events}
    document = {
        "schemaVersion": 1,
        **events,
        "distributedInfo": job.header["distributedInfo"],
        "baseTimeNanoseconds": 10**18,
    }
    (trace,) = read_text(json.dumps(document))
    assert trace.identity.rank == 2
    assert trace.groups.num_rows == 1
    assert trace.steps["ts_ns"].to_pylist()[0] == 10**18 + 1_000_000


def test_host_process_and_job(read_text: ReadText) -> None:
    job = three_steps(
        traceName="./log/node7_1000.1743406976912802812.pt.trace.json",
        PT_PROFILER_JOB_NAME="llama",
        PT_PROFILER_JOB_VERSION=2,
    )
    (trace,) = read_text(job.text())
    assert (trace.identity.host, trace.identity.pid, trace.identity.run_id) == ("node7", 1000, "llama/2")
    job.header["traceName"] = "./log/worker_3.1743406976912802812.pt.trace.json"  # not the process that wrote it
    (trace,) = read_text(job.text())
    assert trace.identity.host is None
    job.header["host_name"] = "node8"
    assert read_text(job.text())[0].identity.host == "node8"


def test_a_header_key_that_is_damaged_costs_itself(read_text: ReadText) -> None:
    text = three_steps().text().replace('"schemaVersion": 1', '"schemaVersion": 1, "bw": inf, "cuda": {"a" "b"}')
    (trace,) = read_text(text)
    assert trace.identity.rank == 0
    assert "header key 'cuda' cannot be read" in trace.health.notes


# -- several ranks in one file


def merged(make: Callable[[int, TraceMaker], None], ranks: int = 3, **more: Any) -> str:
    events: list[Any] = []
    header: dict[str, Any] = {}
    for rank in range(ranks):
        job = three_steps(rank=rank, pid=1000 + rank, **more)
        make(rank, job)
        header = header or job.header
        events += job.events
    return json.dumps({**header, "traceEvents": events})


def three_steps_of(rank: int, folder: Path) -> RankTrace:
    path = folder / f"rank{rank}.json"
    path.write_text(three_steps(rank=rank, pid=1000 + rank).text())
    return read(path)[0]


def fuse(rank: int, job: TraceMaker) -> None:
    """As TraceLens does: the rank in the arguments, process and correlation ids shifted."""
    for event in job.events:
        event["args"] = {**event.get("args", {}), "rank": rank}
        event["pid"] += rank * 100_000
        if "correlation" in event["args"]:
            event["args"]["correlation"] += rank * 10_000


def label(rank: int, job: TraceMaker) -> None:
    """As SGLang does."""
    for event in job.events:
        event["pid"] = f"[TP{rank:02d}] {event['pid']}"


def leave(rank: int, job: TraceMaker) -> None:
    """One file after the other."""


def name(rank: int, job: TraceMaker) -> None:
    """One after the other, with named processes."""
    args = {"name": f"rank {rank}"}
    job.events.insert(0, {"ph": "M", "name": "process_name", "pid": job.pid, "tid": 0, "args": args})


@pytest.mark.parametrize(
    ("how", "ranks"), [(fuse, [0, 1, 2]), (label, [0, 1, 2]), (leave, [0, 1, 2]), (name, [0, 1, 2])]
)
def test_merged_ranks_are_kept_apart(
    read_text: ReadText, tmp_path: Path, how: Callable[[int, TraceMaker], None], ranks: list[int | None]
) -> None:
    traces = read_text(merged(how))
    assert len(traces) == 3
    assert [trace.identity.rank for trace in traces] == ranks
    for number, trace in enumerate(traces):
        single = three_steps_of(number, tmp_path)
        for table in ("gpu_events", "comm_records", "launches", "cpu_marks", "steps"):
            found, wanted = getattr(trace, table).to_pylist(), getattr(single, table).to_pylist()
            for row in (*found, *wanted):
                row.pop("correlation", None)
            assert found == wanted
        assert any("one file holds the events of 3 processes" in note for note in trace.health.notes)
        assert trace.groups.num_rows == 0  # the header is of one of them, nobody knows of which


def test_merged_ranks_of_cpu_jobs(read_text: ReadText) -> None:
    def cpu_only(rank: int, job: TraceMaker) -> None:
        job.events = [event for event in job.events if event["cat"] in {"cpu_op", "user_annotation"}]

    traces = read_text(merged(cpu_only))
    assert [trace.identity.pid for trace in traces] == [1000, 1001, 1002]
    assert [trace.comm_records.num_rows for trace in traces] == [36, 36, 36]


def test_the_labels_of_several_dimensions_are_no_rank(read_text: ReadText) -> None:
    def both(rank: int, job: TraceMaker) -> None:
        for event in job.events:
            event["pid"] = f"[TP{rank % 2:02d}-DP{rank // 2:02d}] {event['pid']}"
            event.get("args", {}).pop("Rank", None)

    traces = read_text(merged(both, ranks=4))
    assert [trace.identity.rank for trace in traces] == [None] * 4
    assert [trace.metadata["process_label"] for trace in traces] == ["TP00-DP00", "TP01-DP00", "TP00-DP01", "TP01-DP01"]


def test_one_process_with_two_gpus_is_one_rank(read_text: ReadText) -> None:
    job = three_steps()
    job.device = 1
    job.kernel("second", 5000, 100)
    (trace,) = read_text(job.text())
    assert set(trace.gpu_events["device"].to_pylist()) == {0, 1}
    assert (trace.identity.rank, trace.identity.device) == (0, None)
    assert trace.health.notes == ()


def test_two_processes_on_one_gpu_cannot_be_told_apart(read_text: ReadText) -> None:
    traces = read_text(merged(leave, ranks=2, device=0))
    assert len(traces) == 1
    assert traces[0].gpu_events.num_rows == 48


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize(
    "strange",
    [{}, {"pg_desc": 7}],  # a value of another type: every entry is looked at alone
)
def test_declared_groups_in_every_layout(read_text: ReadText, layout: str, strange: dict[str, Any]) -> None:
    made = three_steps()
    made.header["distributedInfo"]["pg_config"] = [
        {"pg_name": "0", "pg_desc": "all", "pg_size": 4, "ranks": [0, 1, 2, 3]},
        {"pg_name": 1, "pg_size": "2", "ranks": "[0, 1]"},
        {"pg_name": "cut", "pg_size": 64, "ranks": "[0, 1, ..., 63]"},
        {"pg_name": "far", "pg_size": 1, "ranks": [2**31]},
        {"pg_name": "short", "pg_size": 3, "ranks": [0, 1]},
        {"pg_name": "unsaid", "ranks": [5, 4]},
        {"pg_name": "none"},
        *([{"pg_name": "odd", **strange}] if strange else []),
    ]
    (trace,) = read_text(LAYOUTS[layout](made.document()))
    said = zip(*(trace.groups[name].to_pylist() for name in ("name", "size", "ranks", "ranks_source")), strict=True)
    assert list(said) == [
        ("0", 4, [0, 1, 2, 3], "pg_config"),
        ("1", 2, [0, 1], "pg_config"),
        ("cut", 64, None, "none"),
        ("far", 1, None, "none"),
        ("short", 3, None, "none"),
        ("unsaid", 2, [5, 4], "pg_config"),
        ("none", None, None, "none"),
    ]
    assert trace.health.notes == (("1 entries of pg_config cannot be read",) if strange else ())


@pytest.mark.parametrize(
    ("config", "names", "notes"),
    [
        ({"0": {"pg_size": 4}, "1": {"pg_size": 2}, "x": 5}, ["0", "1"], ()),  # by name
        ('[{"pg_name": "0"}]', ["0"], ()),  # as text
        (5, [], ()),
        ([{"pg_name": "0"}, 5], ["0"], ("1 entries of pg_config cannot be read",)),
    ],
)
def test_declared_groups_of_another_shape(
    read_text: ReadText, config: Any, names: list[str], notes: tuple[str, ...]
) -> None:
    made = three_steps()
    made.header["distributedInfo"]["pg_config"] = config
    (trace,) = read_text(made.text())
    assert trace.groups["name"].to_pylist() == names
    assert trace.health.notes == notes


@pytest.mark.parametrize(
    ("groups", "rank"),
    [
        ([], None),
        ([[3]], 3),
        ([[0, 1, 2, 3], [1, 5], [1]], 1),
        ([[0, 1], [0, 1]], None),
        ([[0, 1], [2, 3]], None),
        ([[1, 1, 0], [1, 2]], 1),  # named twice in one list
        ([[0], [], [0]], None),
    ],
)
def test_the_rank_that_all_groups_have_in_common(groups: list[list[int]], rank: int | None) -> None:
    assert rank_from_groups([np.array(group, np.int32) for group in groups]) == rank

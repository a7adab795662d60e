"""Flight Recorder dumps of every layout."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parsers import read
from parsers.errors import InputError
from parsers.flight_recorder import Dump, sniff
from parsers.tables import RankTrace
from tests.parsers.flight_dumps import as_json, as_pickle, dump, entry

Read = Callable[..., list[RankTrace]]

GROUPS = {"0": ("default_pg", range(4)), "1": ("TENSOR_MODEL_PARALLEL_GROUP", (2, 3)), "2": ("mesh_pp", (0, 2))}
TP, PP = ("1", "TENSOR_MODEL_PARALLEL_GROUP"), ("2", "mesh_pp")
ENTRIES = [
    entry("_all_gather_base", 7, TP, given=[[8, 4]], taken=[[16, 4]], dtype="BFloat16", frames=[("f", "a.py", 3)]),
    entry("send 1->0", 9, PP, given=[[2, 3]], state="scheduled"),
    entry("recv 1<-0", 10, PP, given=[[2, 3]], state="started"),
]


def _one(read_text: Read, data: bytes, name: str = "dump") -> tuple[RankTrace, Dump]:
    (trace,) = read_text(data, name)
    assert isinstance(trace.witness, Dump)
    return trace, trace.witness


@pytest.mark.parametrize("write", [as_pickle, as_json])
def test_a_dump_gives_calls_groups_and_the_rank_its_groups_share(
    read_text: Read, write: Callable[[Any], bytes]
) -> None:
    trace, said = _one(read_text, write(dump(ENTRIES, GROUPS, status={0: (5, -1, 5), 1: (7, 6, 6)})))
    assert trace.format == "flight_recorder"
    assert (trace.identity.rank, trace.identity.rank_source) == (2, "group_intersection")
    assert (trace.identity.world_size, trace.identity.backend) == (4, "nccl")
    assert said.library_version == "2.27.5"
    assert [(s.pg_id, s.enqueued, s.started, s.completed) for s in said.statuses] == [(0, 5, -1, 5), (1, 7, 6, 6)]
    gather, send, receive = trace.comm_records.to_pylist()
    assert gather["collective"] == "_all_gather_base"
    assert (gather["in_nelems"], gather["out_nelems"], gather["dtype"]) == (32, 64, "BFloat16")
    assert (gather["group_name"], gather["seq"]) == ("1", 7)
    # Ranks in names are those of the group: place 1 of [0, 2] is rank 2, which sends to rank 0.
    assert (send["collective"], send["dst_rank"], send["src_rank"], send["seq"]) == ("send", 0, None, 9)
    assert (receive["collective"], receive["src_rank"], receive["dst_rank"]) == ("recv", 0, None)
    assert said.entries.column("state").to_pylist() == ["completed", "scheduled", "started"]
    groups = {g["name"]: g for g in trace.groups.to_pylist()}
    assert groups["1"]["ranks"] == [2, 3]
    assert groups["1"]["desc"] == "TENSOR_MODEL_PARALLEL_GROUP"


def test_only_pickles_hold_stacks(read_text: Read) -> None:
    document = dump(ENTRIES, GROUPS)
    assert _one(read_text, as_pickle(document))[1].entries.column("stack")[0].as_py() == "f (a.py:3)"
    assert _one(read_text, as_json(document))[1].entries.column("stack")[0].as_py() is None


def test_torch_2_2_writes_a_bare_list(read_text: Read) -> None:
    said = {
        "seq_id": 12,
        "pg_id": 0,
        "profiling_name": "nccl:all_reduce",
        "time_created_us": 1_700_000_000_000_001,
        "input_sizes": [[3, 4]],
        "output_sizes": [[3, 4]],
        "state": "scheduled",
        "frames": [{"name": "main", "filename": "train.py", "line": 9}],
    }
    trace, witness = _one(read_text, as_pickle([said]), "nccl_trace_rank_5")
    assert witness.version is None
    assert trace.identity.rank == 5
    record = trace.comm_records.to_pylist()[0]
    assert (record["ts_ns"], record["seq"], record["in_nelems"], record["group_name"]) == (
        1_700_000_000_000_001_000,
        12,
        12,
        "0",
    )


def test_torch_2_3_keys_groups_by_number_and_lists_ranks(read_text: Read) -> None:
    said = {"record_id": 0, "pg_id": 1, "seq_id": 3, "profiling_name": "nccl:all_reduce", "state": "started"}
    trace, _ = _one(read_text, as_pickle({"version": "1.4", "entries": [said], "pg_config": {0: [0, 1, 2], 1: [1, 2]}}))
    assert [(g["name"], g["ranks"]) for g in trace.groups.to_pylist()] == [("0", [0, 1, 2]), ("1", [1, 2])]
    assert trace.comm_records.column("group_name").to_pylist() == ["1"]
    assert trace.identity.world_size == 3


@pytest.mark.parametrize("version", ["2.1", "2.4", "2.9", "2.10"])
def test_later_layouts_read_alike(read_text: Read, version: str) -> None:
    document = dump(ENTRIES, GROUPS, version=version)
    for said in document["entries"]:
        if version == "2.1":
            del said["timeout_ms"]
    trace, witness = _one(read_text, as_pickle(document))
    assert (witness.version, trace.comm_records.num_rows, trace.health.notes) == (version, 3, ())


def test_an_unknown_version_is_read_with_a_note(read_text: Read) -> None:
    trace, _ = _one(read_text, as_pickle(dump(ENTRIES, GROUPS, version="3.0")))
    assert trace.comm_records.num_rows == 3
    assert trace.health.notes == ("dump version 3.0 is newer than the known ones: read by the names it keeps",)


def test_a_marker_of_a_batch_is_an_entry_but_no_call(read_text: Read) -> None:
    trace, witness = _one(read_text, as_pickle(dump([*ENTRIES, entry("coalesced", 11, PP, given=[])], GROUPS)))
    assert (trace.comm_records.num_rows, witness.entries.num_rows) == (3, 4)


def test_a_file_name_that_contradicts_the_groups_is_said(read_text: Read) -> None:
    trace, _ = _one(read_text, as_pickle(dump(ENTRIES, GROUPS)), "comm_lib_trace_rank_3")
    assert trace.identity.rank == 2
    assert trace.health.notes == ("the file's name says rank 3, the groups in it rank 2; the groups are believed",)


def test_a_default_group_without_ranks_says_nothing_of_the_world(read_text: Read) -> None:
    trace, _ = _one(read_text, as_pickle(dump([entry("all_reduce", 1)], {"0": ("", [])})), "rank_1")
    assert trace.identity.world_size is None
    assert trace.identity.rank_source == "file_name"
    assert trace.groups.column("ranks").to_pylist() == [None]


def test_entries_that_are_none_are_counted(read_text: Read) -> None:
    document = dump([*ENTRIES, {"profiling_name": 7}, {"record_id": 1}], GROUPS)
    trace, _ = _one(read_text, as_pickle(document))
    assert (trace.health.events, trace.health.quarantined) == (3, 2)
    assert trace.health.notes == ("2 of 5 entries cannot be read",)


def test_a_malicious_dump_is_refused_and_not_run(read_text: Read, tmp_path: Path) -> None:
    victim = tmp_path / "victim"

    class Attack:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(victim),)

    document = {**dump(ENTRIES, GROUPS), "nccl_comm_state": Attack()}
    with pytest.raises(InputError, match="refused") as caught:
        read_text(pickle.dumps(document, 2))
    assert "nothing of it was executed" in str(caught.value)
    assert not victim.exists()


def test_lists_that_repeat_themselves_are_refused(read_text: Read) -> None:
    shape = [1] * 1000
    said = {**entry("all_reduce", 1), "input_sizes": [shape] * 100, "output_sizes": [shape] * 100}
    with pytest.raises(InputError, match="more sizes and frames than bytes"):
        read_text(as_pickle(dump([said] * 50, GROUPS)))


def test_damaged_files_are_one_line(read_text: Read) -> None:
    for data in (as_pickle(dump(ENTRIES, GROUPS))[:-40], as_json(dump(ENTRIES, GROUPS))[:-40]):
        with pytest.raises(InputError) as caught:
            read_text(data, "dump_of_rank")
        assert "\n" not in str(caught.value)
        assert "take another rank's dump" in str(caught.value)


def test_content_tells_the_format() -> None:
    document = dump(ENTRIES, GROUPS)
    assert sniff(as_pickle(document))
    assert sniff(pickle.dumps(document, 5))
    assert sniff(as_json(document))
    assert not sniff(pickle.dumps({"weights": [1, 2]}, 2))
    assert not sniff(b'{"traceEvents": [], "distributedInfo": {"pg_config": []}}')


@pytest.mark.parametrize(
    ("job", "rank", "calls"), [("lock_gil_1st", 0, 11), ("lock_gil_1st", 14, 0), ("gpu_error_1st", 14, 43)]
)
def test_real_dumps_of_sixteen_ranks(shared: Path, job: str, rank: int, calls: int) -> None:
    folder = shared / "data/formats/flight_recorder/nvrx_megatron16" / job
    (trace,) = read(folder / f"_dump_{rank}")
    assert isinstance(trace.witness, Dump)
    assert (trace.identity.rank, trace.identity.world_size) == (rank, 16)
    assert (trace.comm_records.num_rows, trace.groups.num_rows, len(trace.witness.statuses)) == (calls, 13, 13)
    assert (trace.witness.version, trace.witness.library_version) == ("2.9", "2.27.3")


def test_every_real_dump_names_its_rank_by_its_groups_alone(shared: Path, tmp_path: Path) -> None:
    for job in ("lock_gil_1st", "gpu_error_1st"):
        folder = shared / "data/formats/flight_recorder/nvrx_megatron16" / job
        for rank in range(16):
            copy = tmp_path / "nameless"
            copy.write_bytes((folder / f"_dump_{rank}").read_bytes())
            assert read(copy)[0].identity.rank == rank

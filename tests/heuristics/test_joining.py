"""Several kinds of sources of one job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from heuristics.account import Account
from heuristics.joining import Joined, join
from parsers import read
from parsers.tables import RankIdentity, RankTrace
from tests.heuristics.traces import TraceMaker
from tests.parsers.flight_dumps import as_pickle, dump, entry


def _log(folder: Path, hosts: str, comm: str = "0xbeef") -> list[RankTrace]:
    """The NCCL log of a job: one communicator of all ranks, pid 100 and up."""
    lines = [
        f"{host}:{100 + rank}:9 [0] NCCL INFO ncclCommInitRank comm 0x5{rank} rank {rank} nranks {len(hosts)} "
        f"cudaDev 0 nvmlDev 0 busId 1000 commId {comm} - Init COMPLETE"
        for rank, host in enumerate(hosts)
    ]
    path = folder / "nccl.log"
    path.write_text("\n".join(lines) + "\n")
    return read(path)


def _trace(rank: int | None, world: int = 2, *, host: str | None = None, pid: int | None = None) -> RankTrace:
    maker = TraceMaker(rank or 0, world)
    maker.metadata("all_reduce", 0, 10, group_name="7", group_size=world)
    trace = maker.done()
    identity = RankIdentity(rank, None if rank is None else "metadata", world, host=host, pid=pid)
    return replace(trace, identity=identity, path=f"rank{rank}.json")


def _dump(folder: Path, rank: int, groups: dict[str, tuple[str, Sequence[int]]]) -> list[RankTrace]:
    path = folder / f"trace_rank_{rank}"
    path.write_bytes(as_pickle(dump([entry("all_reduce", 1)], groups)))
    return read(path)


def _inspector(
    folder: Path, rank: int, ranks: int = 2, comm: str = "0xbeef", host: str = "x", pid: int = 1
) -> list[RankTrace]:
    line = {
        "header": {"id": comm, "rank": rank, "n_ranks": ranks, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "hostname": host,
            "pid": pid,
            "dump_timestamp_us": 1_700_000_000_000_000,
        },
        "coll_perf": {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 1024, "coll_exec_time_us": 5},
    }
    path = folder / f"{host}-pid{pid}.log"
    path.write_text(json.dumps(line) + "\n")
    return read(path)


def _join(traces: Sequence[RankTrace]) -> Joined:
    return join([Account.of(trace) for trace in traces])


def test_traces_are_analysed_and_logs_are_witnesses(tmp_path: Path) -> None:
    joined = _join([*_log(tmp_path, "ab"), _trace(0), _trace(1)])
    assert [trace.format for trace in joined.traces] == ["kineto", "kineto"]
    assert [trace.format for trace in joined.witnesses] == ["nccl_log", "nccl_log"]
    assert dict(joined.hosts) == {0: "a", 1: "b"}
    assert [trace.identity.host for trace in joined.traces] == ["a", "b"]
    links = joined.links([0, 1])
    assert links is not None
    assert links.link == "inter_node"
    assert joined.conflicts == ()


def test_traces_alone_are_left_as_they_are() -> None:
    sources = [Account.of(trace) for trace in (_trace(0), _trace(1))]
    joined = join(sources)
    assert joined.traces == tuple(sources)
    assert (joined.witnesses, joined.wires, joined.links([0, 1]), joined.conflicts) == ((), None, None, ())


def test_a_trace_without_a_rank_gets_it_from_its_process(tmp_path: Path) -> None:
    joined = _join([*_log(tmp_path, "ab"), _trace(None, host="b", pid=101), _trace(None, pid=100)])
    assert [(t.identity.rank, t.identity.rank_source) for t in joined.traces] == [(1, "process"), (0, "process")]
    assert "ranks of kineto files come from their process ids" in joined.notes


def test_a_host_with_its_domain_is_the_same_host(tmp_path: Path) -> None:
    joined = _join([*_log(tmp_path, "ab"), _trace(1, host="B.cluster.local", pid=101)])
    assert joined.conflicts == ()


def test_a_process_with_two_ranks_is_a_conflict(tmp_path: Path) -> None:
    joined = _join([*_log(tmp_path, "ab"), _trace(0, host="b", pid=101)])
    (about_rank, about_host) = joined.conflicts
    assert about_rank.about == "rank"
    assert about_rank.ranks == (0, 1)
    assert about_rank.sentence.startswith("process 101 on b is rank 0 in rank0.json (kineto), rank 1 in ")
    assert about_host.about == "host"


def test_worlds_of_other_sizes_are_a_conflict(tmp_path: Path) -> None:
    joined = _join([*_log(tmp_path, "abc"), _trace(0, 2)])
    assert [conflict.about for conflict in joined.conflicts] == ["world_size"]
    assert "3 ranks in" in joined.conflicts[0].sentence
    assert "2 ranks in rank0.json (kineto)" in joined.conflicts[0].sentence


def test_groups_without_members_get_them_by_name(tmp_path: Path) -> None:
    dumps = _dump(tmp_path, 0, {"0": ("default_pg", (0, 1)), "7": ("mesh_tp", (0, 1)), "9": ("", (0,))})
    joined = _join([_trace(0), *dumps])
    (trace,) = joined.traces
    assert {g["name"]: g["ranks"] for g in trace.groups.to_pylist()}["7"] == [0, 1]
    assert joined.members["7"] == (0, 1)


def test_groups_of_one_name_and_other_members_are_a_conflict(tmp_path: Path) -> None:
    maker = TraceMaker(0, 4, {"7": [0, 2]})
    maker.metadata("all_reduce", 0, 10, group_name="7", group_size=2)
    trace = replace(maker.done(), path="rank0.json")
    dumps = _dump(tmp_path, 0, {"0": ("default_pg", range(4)), "7": ("mesh_tp", (0, 1)), "9": ("", (0,))})
    joined = _join([trace, *dumps])
    (conflict,) = joined.conflicts
    assert conflict.about == "group"
    assert conflict.sentence.startswith("to rank 0, group 7 is [0, 2] in rank0.json (kineto), [0, 1] in ")
    assert "7" not in joined.members
    assert joined.traces[0].groups.to_pylist()[0]["ranks"] == [0, 2]


def test_one_name_for_groups_of_different_ranks_is_no_conflict(tmp_path: Path) -> None:
    dumps = [
        *_dump(tmp_path, 0, {"0": ("default_pg", range(4)), "7": ("mesh_tp", (0, 1)), "8": ("", (0,))}),
        *_dump(tmp_path, 2, {"0": ("default_pg", range(4)), "7": ("mesh_tp", (2, 3)), "9": ("", (2,))}),
    ]
    assert _join(dumps).conflicts == ()


def test_profilers_get_ranks_from_the_logs_communicators(tmp_path: Path) -> None:
    joined = _join([*_log(tmp_path, "ab"), *_inspector(tmp_path, 1)])
    (profiled,) = joined.traces
    assert (profiled.format, profiled.identity.rank, profiled.identity.rank_source) == (
        "nccl_inspector",
        1,
        "communicator",
    )
    assert profiled.groups.to_pylist()[0]["ranks"] == [0, 1]


def test_profilers_alone_get_ranks_from_the_communicator_that_all_share(tmp_path: Path) -> None:
    files = [trace for rank in range(3) for trace in _inspector(tmp_path, rank, 3, pid=10 + rank)]
    assert [trace.identity.rank for trace in _join(files).traces] == [0, 1, 2]
    # Two processes that are both rank 0 of communicators of their own: no rank is known.
    apart = [*_inspector(tmp_path, 0, 1, "0xaa", pid=20), *_inspector(tmp_path, 0, 1, "0xbb", pid=21)]
    assert [trace.identity.rank for trace in _join(apart).traces] == [None, None]


def test_communicators_of_one_id_and_other_size_are_a_conflict(tmp_path: Path) -> None:
    joined = _join([*_log(tmp_path, "ab"), *_inspector(tmp_path, 1, 5, host="b", pid=101)])
    assert [c.about for c in joined.conflicts] == ["communicator"]
    assert joined.conflicts[0].sentence.startswith("communicator 0xbeef has 5 ranks in ")


def test_without_traces_the_format_that_lists_calls_is_analysed(tmp_path: Path) -> None:
    dumps = _dump(tmp_path, 0, {"0": ("default_pg", (0, 1)), "9": ("", (0,))})
    joined = _join([*_log(tmp_path, "ab"), *dumps])
    assert [trace.format for trace in joined.traces] == ["flight_recorder"]
    assert [trace.format for trace in _join(_log(tmp_path, "ab")).traces] == ["nccl_log", "nccl_log"]


def test_logs_of_one_process_each_are_put_together(tmp_path: Path) -> None:
    traces = []
    for rank, host in enumerate("ab"):
        path = tmp_path / f"{host}.{100 + rank}"
        side = ("send", "receive")[rank]
        path.write_text(
            f"{host}:{100 + rank}:9 [0] NCCL INFO ncclCommInitRank comm 0x5{rank} rank {rank} nranks 2 cudaDev 0 "
            "nvmlDev 0 busId 1000 commId 0xbeef - Init START\n"
            f"{host}:{100 + rank}:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB e:1\n"
            f"{host}:{100 + rank}:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [{side}] via NET/IB/0\n"
        )
        traces += read(path)
    joined = _join(traces)
    assert joined.members["0xbeef"] == (0, 1)
    assert dict(joined.hosts) == {0: "a", 1: "b"}
    links = joined.links([0, 1])
    assert links is not None
    assert (links.link, links.link_type, links.direct) == ("inter_node", "roce", False)


def test_members_without_a_log_are_told(tmp_path: Path) -> None:
    joined = _join(_log(tmp_path, "abc")[:2])
    assert joined.notes == ()  # one log of all three, of which two ranks are here
    path = tmp_path / "a.log"
    path.write_text((tmp_path / "nccl.log").read_text().split("\n")[0] + "\n")
    assert _join(read(path)).notes == ("1 of 1 communicators have members whose log is not here",)

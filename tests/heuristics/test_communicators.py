"""Who is in a communicator, from the reports of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from heuristics.arrays import codes
from heuristics.communicators import across, completed, joined
from heuristics.label import label
from parsers import read
from parsers.nsys import places_of
from parsers.nsys.places import Member, Place
from parsers.tables import RankIdentity, RankTrace
from tests.parsers.nsys.export import Export, grouped
from tests.parsers.nsys.one_job import write_kineto, write_nsys

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"


def place(rank: int | None, *members: Member, names: tuple[str, ...] = (), world: int | None = 4) -> Place:
    return Place(RankIdentity(rank, "metadata", world), members, frozenset(names))


def groups(*found: Place) -> dict[str, tuple[int, tuple[int, ...] | None]]:
    return dict(across([(f"{number}.sqlite", one) for number, one in enumerate(found)]).groups)


def test_places_give_the_order() -> None:
    found = groups(place(3, Member("0x5", 0, 2)), place(1, Member("0x5", 1, 2)))
    assert found == {"0x5": (2, (3, 1))}


def test_a_member_that_is_not_there_leaves_the_size() -> None:
    assert groups(place(3, Member("0x5", 0, 3)), place(1, Member("0x5", 1, 3))) == {"0x5": (3, None)}


def test_two_ranks_in_one_place_are_no_group() -> None:
    assert groups(place(3, Member("0x5", 0, 2)), place(1, Member("0x5", 0, 2))) == {"0x5": (2, None)}


def test_children_of_a_split_are_in_order_of_key_and_parent_rank() -> None:
    world = [Member("0x1", rank, 4) for rank in range(4)]
    child = [
        Member(
            f"0x{2 + rank % 2}", None, None, parent="0x1", color=rank % 2, key=-rank, parent_rank=rank, parent_size=4
        )
        for rank in range(4)
    ]
    found = groups(*(place(rank, world[rank], child[rank]) for rank in range(4)))
    assert found == {"0x1": (4, (0, 1, 2, 3)), "0x2": (2, (2, 0)), "0x3": (2, (3, 1))}


def test_children_of_a_parent_that_is_not_whole_stay_open() -> None:
    child = Member("0x2", None, None, parent="0x1", color=0, key=0, parent_rank=0, parent_size=4)
    assert groups(place(0, Member("0x1", 0, 4), child)) == {"0x1": (4, None)}


def test_a_child_may_be_split_again() -> None:
    def chain(rank: int) -> tuple[Member, ...]:
        first = Member("0x2", None, None, parent="0x1", color=0, key=0, parent_rank=rank, parent_size=2)
        second = Member("0x3", None, None, parent="0x2", color=0, key=1 - rank, parent_rank=rank, parent_size=2)
        return second, first, Member("0x1", rank, 2)

    found = groups(place(0, *chain(0)), place(1, *chain(1)))
    assert (found["0x2"], found["0x3"]) == ((2, (0, 1)), (2, (1, 0)))


def test_calls_tell_members_where_all_ranks_are_there() -> None:
    """The capture began after the communicators were made."""
    whole = [place(rank, names=("0x7",) if rank < 2 else ("0x8",)) for rank in range(4)]
    assert groups(*whole) == {"0x7": (2, (0, 1)), "0x8": (2, (2, 3))}
    assert groups(*whole[:3]) == {}


def test_calls_tell_members_where_the_size_is_known() -> None:
    found = groups(place(0, Member("0x7", 0, 2), names=("0x7",)), place(2, names=("0x7",)))
    assert found == {"0x7": (2, (0, 2))}


def test_ranks_guessed_within_reports_are_counted_on() -> None:
    def guessed(host: str, rank: int) -> Place:
        return Place(
            RankIdentity(rank, "gpu_order", None, host=host), (Member("0x5", 2 * (host == "b") + rank, 4),), frozenset()
        )

    found = across([(f"{host}.sqlite", guessed(host, rank)) for host in "ba" for rank in range(2)])
    assert found.first_rank == {"a.sqlite": 0, "b.sqlite": 2}
    assert found.groups == {"0x5": (4, (0, 1, 2, 3))}


def test_known_ranks_are_not_touched() -> None:
    one = place(0, Member("0x5", 0, 2))
    other = Place(RankIdentity(0, "gpu_order", None), (), frozenset())
    assert across([("a", one), ("b", other)]).first_rank == {}


def test_traces_of_other_formats_pass_through(tmp_path: Path) -> None:
    traces = [trace for path in write_kineto(tmp_path, steps=1) for trace in read(path)]
    assert all(one is other for one, other in zip(joined(traces), traces, strict=True))


@pytest.mark.parametrize("per_rank", [True, False])
def test_a_look_at_the_reports_tells_what_reading_them_tells(per_rank: bool, tmp_path: Path) -> None:
    paths = [str(path) for path in write_nsys(tmp_path / "job", steps=1, per_rank=per_rank)]
    found = across([(path, one) for path in paths for one in places_of(path)])
    traces = [trace for path in paths for trace in read(path)]
    looked = [completed(trace, codes(trace.comm_records, "group_name")[1], found) for trace in traces]
    assert [t.groups.to_pylist() for t in looked] == [t.groups.to_pylist() for t in joined(traces)]
    assert [row["ranks"] for row in looked[3].groups.to_pylist()] == [[0, 1, 2, 3], [2, 3], [1, 3]]


def test_a_look_at_other_files_tells_nothing(tmp_path: Path) -> None:
    (kineto, *_) = write_kineto(tmp_path, steps=1)
    assert places_of(str(kineto)) == []
    assert places_of(str(tmp_path)) == []
    assert places_of("s3://bucket/trace.json") == []


def message(tmp_path: Path, rank: int) -> RankTrace:
    """A report of one rank of three, that sends to the next place of its communicator."""
    export = Export()
    owner = export.process(500)
    export.environment(f"RANK={rank};WORLD_SIZE=3")
    # places in the communicator run against the ranks
    export.nccl_range(owner, 500, "ncclCommInitRank", 10, 90, comm=5, nranks=3, rank=2 - rank, device=0)
    call = ("ncclSend", {"comm": 5, "bytes": 64, "peer": (3 - rank) % 3})
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"
    grouped(export, owner, 500, 5000, [call], [{"name": name, "start": 50_000, "end": 51_000}])
    return read(export.sqlite(tmp_path / f"r{rank}.sqlite"))[0]


def test_peers_are_looked_up_in_the_communicators_own_order(tmp_path: Path) -> None:
    traces = joined([message(tmp_path, rank) for rank in range(3)])
    assert [t.groups.column("ranks").to_pylist() for t in traces] == [[[2, 1, 0]]] * 3
    peers = [label(trace).collectives.column("peer").to_pylist() for trace in traces]
    assert peers == [[2], [0], [1]]

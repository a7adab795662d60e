"""Who takes part: ranks of groups from whatever the trace says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import parsers
from heuristics.groups import Mention, group_key, group_keys, members
from heuristics.label import label
from heuristics.labelled import LabelledRank
from parsers.tables import RankIdentity
from tests.heuristics.traces import TraceMaker

IDENTITY = RankIdentity(rank=8, rank_source="metadata", world_size=256)


def _mention(**what: Any) -> Mention:
    blank: dict[str, Any] = {"name": "3", "desc": None, "size": None, "start": None, "stride": None}
    return Mention(**{**blank, "listed": (), "cut": False, **what})


@pytest.mark.parametrize(
    ("mention", "ranks", "source"),
    [
        (_mention(size=4, listed=(0, 2, 4, 6)), (0, 2, 4, 6), "listed"),
        (_mention(listed=(3, 1)), (3, 1), "listed"),
        (_mention(size=4, start=1, stride=8), (1, 9, 17, 25), "start_stride"),
        # 30 entries and an ellipsis (PyTorch 2.4); 29, an ellipsis and the last (newer)
        (_mention(size=32, listed=tuple(range(0, 240, 8)), cut=True), tuple(range(0, 256, 8)), "cut_list"),
        (_mention(size=64, listed=(*range(29), 63), cut=True), tuple(range(64)), "cut_list"),
        # what does not continue as it began is not guessed
        (_mention(size=64, listed=(*range(28), 40, 50), cut=True), None, "none"),
        (_mention(size=40, listed=(*range(0, 58, 2), 100), cut=True), None, "none"),
        # groups that are no arithmetic progression print no ranks
        (_mention(size=3), None, "none"),
        (_mention(size=1), (8,), "members"),
        (_mention(size=256), tuple(range(256)), "members"),
        (_mention(), None, "none"),
    ],
)
def test_ranks_of_a_group_as_a_call_names_it(mention: Mention, ranks: tuple[int, ...] | None, source: str) -> None:
    assert members(mention, IDENTITY) == (ranks, source)


def test_a_truncated_list_is_rebuilt(shared: Path) -> None:
    folder = shared / "data" / "pains"
    expected = json.loads((folder / "EXPECT.json").read_text())["17_truncated_ranks"]
    (trace,) = parsers.read(folder / "17_truncated_ranks" / "trace.json")
    found = label(trace)
    (group,) = found.collectives.column("group").to_pylist()
    row = found.groups.to_pylist()[group]
    assert row["ranks"] == expected["ranks"]
    assert row["size"] == expected["group_size"]
    assert row["ranks_source"] == "cut_list"


def _call(make: TraceMaker, at: float, **more: Any) -> None:
    make.metadata("allreduce", at, 5, **{"in_nelems": 4, "out_nelems": 4, "dtype": "Float", **more})


def _groups_of(found: LabelledRank) -> list[Any]:
    rows = found.groups.to_pylist()
    return [None if g is None else (rows[g]["name"], rows[g]["ranks"]) for g in found.collectives["group"].to_pylist()]


def test_calls_join_declared_groups_by_name() -> None:
    make = TraceMaker(rank=4, groups={"0": list(range(8)), "7": [0, 1, 4, 5]})
    _call(make, 0, group_name="7", group_size=4)  # irregular: the call itself prints no ranks
    _call(make, 10, group_name="0", group_size=8, rank_start=0, rank_stride=1)
    found = label(make.done())
    assert _groups_of(found) == [("7", [0, 1, 4, 5]), ("0", list(range(8)))]
    assert found.groups.column("declared").to_pylist() == [True, True]


def test_one_name_with_two_rank_lists_is_two_groups() -> None:
    """Point-to-point pairs may share the name of their pipeline group."""
    make = TraceMaker(rank=1, world_size=4)
    _call(make, 0, group_name="1", group_size=2, group_ranks=[0, 1])
    _call(make, 10, group_name="1", group_size=2, group_ranks=[1, 2])
    _call(make, 20, group_name="1", group_size=2, group_ranks=[0, 1])
    assert _groups_of(label(make.done())) == [("1", [0, 1]), ("1", [1, 2]), ("1", [0, 1])]


def test_a_name_that_contradicts_the_header_is_not_joined() -> None:
    make = TraceMaker(groups={"1": [0, 4]})
    _call(make, 0, group_name="1", group_size=4, group_ranks=[0, 1, 2, 3])
    assert _groups_of(label(make.done())) == [("1", [0, 1, 2, 3])]


def test_the_header_narrows_unnamed_calls_only_to_what_is_certain() -> None:
    make = TraceMaker(groups={"0": list(range(8)), "1": [0, 1], "5": [0, 4], "9": [0]})
    dims = {"input_types": ["float", "float"]}
    make.record("c10d", "c10d::_allgather_base_", 0, 5, input_dims=[[80], [10]], **dims)  # 80 / 10: all eight
    make.record("c10d", "c10d::_allgather_base_", 10, 5, input_dims=[[20], [10]], **dims)  # two groups of two
    make.record("c10d", "c10d::allreduce_", 20, 5)
    found = label(make.done())
    assert _groups_of(found) == [("0", list(range(8))), None, None]
    assert found.collectives["group_size"].to_pylist() == [8, 2, None]


def test_twins_with_the_same_ranks_are_no_ambiguity() -> None:
    """Megatron makes a gloo twin of each data-parallel group."""
    make = TraceMaker(groups={"1": [0, 4], "2": [0, 4], "9": [0]})
    make.record("c10d", "c10d::send", 0, 5, input_dims=[[4]], input_types=["TensorList"], concrete_inputs=["", "", "1"])
    found = label(make.done())
    assert _groups_of(found) == [("1", [0, 4])]
    assert found.collectives["peer"].to_pylist() == [4]


def test_sizes_alone_make_groups_without_ranks() -> None:
    make = TraceMaker(world_size=16)
    _call(make, 0, group_size=4)
    _call(make, 10, group_size=16)
    _call(make, 20, group_size=4)
    found = label(make.done())
    assert _groups_of(found) == [(None, None), (None, list(range(16))), (None, None)]
    assert found.collectives["group_size"].to_pylist() == [4, 16, 4]


def test_positional_arguments_of_pytorch_2_1_tell_groups_apart() -> None:
    make = TraceMaker(rank=1)
    for at, address, size in ((0, "93825", "8"), (10, "93999", "2"), (20, "93825", "8")):
        make.record("c10d", "c10d::allreduce_", at, 8)
        concrete = ["", "337", address, "1", "", "[]", "[]", size]
        make.record("record_param_comms", "record_param_comms", at + 1, 5, concrete_inputs=concrete)
    found = label(make.done())
    assert found.collectives["group_size"].to_pylist() == [8, 2, 8]
    assert found.collectives["group"].to_pylist() == [0, 1, 0]
    assert found.groups["ranks"].to_pylist() == [list(range(8)), None]


def test_custom_kernels_are_not_put_on_a_group_by_elimination() -> None:
    make = TraceMaker(world_size=64, groups={"0": list(range(64))})
    make.kernel("void deep_ep::intranode::dispatch<8>(int4*)", 0, 10)
    make.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 20, 10)
    assert _groups_of(label(make.done())) == [None, ("0", list(range(64)))]


def test_a_group_has_the_same_key_on_all_of_its_ranks(shared: Path) -> None:
    """Every tensor-, data- and pipeline-parallel pair of TP 2 x PP 2 x DP 2 is named by both of its ranks."""
    pairs: dict[Any, int] = {}
    for path in sorted((shared / "data" / "captures" / "tp2pp2dp2").glob("rank*.json.gz")):
        (trace,) = parsers.read(path)
        found = label(trace)
        for key in {group_keys(found.groups)[g] for g in found.collectives["group"].to_pylist()}:
            pairs[key] = pairs.get(key, 0) + 1
    assert set(pairs.values()) == {2}
    assert set(pairs) == {
        frozenset(pair)
        for pair in [(0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (1, 3), (4, 6), (5, 7), (0, 4), (1, 5), (2, 6), (3, 7)]
    }


def test_keys_of_unknown_ranks_differ_by_name_and_size() -> None:
    assert group_key([3, 1], size=2, name="4") == group_key((1, 3), size=None, name=None)
    assert group_key(None, size=2, name="4") == group_key(None, size=2, name="4")
    assert group_key(None, size=2, name="4") != group_key(None, size=2, name="5")

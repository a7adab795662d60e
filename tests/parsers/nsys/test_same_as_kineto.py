"""The same run, captured with Kineto and with Nsight Systems, is the same table of collectives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from analyzer.model import Analysis
from analyzer.pipeline import analyze
from heuristics.communicators import joined
from heuristics.label import label
from parsers import read
from tests.parsers.nsys.one_job import EPOCH, STEP_NS, write_kineto, write_nsys

SAME = (
    "ts_ns",
    "dur_ns",
    "launch_ts_ns",
    "tid",
    "device",
    "stream",
    "primitive",
    "direction",
    "peer",
    "root",
    "group_size",
    "size_bytes",
    "sent_bytes",
    "step",
)
WHERE_KNOWN = ("dtype", "in_nelems", "out_nelems")
"""NCCL's payloads say bytes; the type is in the names of reducing kernels only."""


def tables(paths: Sequence[Path]) -> dict[int, list[dict[str, Any]]]:
    """The collectives of every rank, with the ranks of their group."""
    traces = [trace for path in paths for trace in read(path)]
    found = {}
    for trace in joined(traces):
        rank = label(trace)
        ranks = rank.groups.column("ranks").to_pylist()
        rows = rank.collectives.to_pylist()
        for row in rows:
            row["ranks"] = None if row["group"] is None else ranks[row["group"]]
        assert trace.identity.rank is not None
        found[trace.identity.rank] = rows
    return found


@pytest.fixture(scope="module")
def kineto(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    return tables(write_kineto(tmp_path_factory.mktemp("kineto")))


def assert_same(found: dict[int, list[dict[str, Any]]], wanted: dict[int, list[dict[str, Any]]]) -> None:
    assert sorted(found) == sorted(wanted)
    for rank, rows in wanted.items():
        mine = found[rank]
        assert len(mine) == len(rows)
        for got, said in zip(mine, rows, strict=True):
            assert {name: got[name] for name in (*SAME, "ranks")} == {name: said[name] for name in (*SAME, "ranks")}
            for name in WHERE_KNOWN:
                assert got[name] in (None, said[name])


def test_the_description_is_what_kineto_shows(kineto: dict[int, list[dict[str, Any]]]) -> None:
    assert [len(rows) for rows in kineto.values()] == [27] * 4
    first = kineto[3][0]
    assert (first["primitive"], first["ranks"], first["size_bytes"]) == ("all_reduce", [2, 3], 2 << 20)
    assert (first["ts_ns"], first["dur_ns"]) == (EPOCH + 153_000, 100_000)
    exchange = kineto[3][6]
    assert (exchange["primitive"], exchange["size_bytes"], exchange["sent_bytes"]) == ("all_to_all", 1 << 17, 3 << 15)
    sent, received = kineto[3][7:9]
    assert (sent["direction"], sent["peer"], sent["sent_bytes"]) == ("send", 1, 8192)
    assert (received["direction"], received["peer"], received["sent_bytes"]) == ("recv", 1, 0)
    assert received["ts_ns"] + received["dur_ns"] == EPOCH + 100_000 + 1_400_000 + 140_000


@pytest.mark.parametrize(
    "how",
    [
        {"payload": "blob"},
        {"payload": "hex", "nccl": (2, 27, 3)},
        {"payload": "json", "number_style": 2},
        {"payload": "dynamic", "nccl": (2, 30, 7)},
        {"payload": "blob", "per_rank": False},
    ],
    ids=lambda how: "-".join(str(value) for value in how.values()),
)
def test_the_same_run_gives_the_same_table(
    how: dict[str, Any], kineto: dict[int, list[dict[str, Any]]], tmp_path: Path
) -> None:
    found = tables(write_nsys(tmp_path / "nsys", torch=True, **how))
    assert_same(found, kineto)


def test_it_does_so_without_pytorchs_ranges(kineto: dict[int, list[dict[str, Any]]], tmp_path: Path) -> None:
    assert_same(tables(write_nsys(tmp_path / "nsys")), kineto)


SAME_ROW = (
    "primitive",
    "group_size",
    "link",
    "phase",
    "calls_per_step",
    "size_bytes",
    "sent_bytes_per_step",
    "time_us_per_step",
    "wait_us_per_step",
    "transfer_us_per_step",
    "exposed_us_per_step",
    "overlapped_us_per_step",
    "algbw_gbps",
    "busbw_gbps",
)


@pytest.mark.parametrize("per_rank", [True, False])
def test_the_analysis_of_both_is_one_table(per_rank: bool, tmp_path: Path) -> None:
    kineto = analyze([str(path) for path in write_kineto(tmp_path / "kineto")])
    nsys = analyze([str(path) for path in write_nsys(tmp_path / "nsys", torch=True, per_rank=per_rank)])

    def rows(of: Analysis) -> list[dict[str, Any]]:
        table = msgspec.to_builtins(of.collectives)
        columns = [name for name in SAME_ROW if per_rank or name != "link"]  # one report is of one host
        return sorted(({name: row[name] for name in columns} for row in table), key=str)

    assert len(kineto.collectives) == 8
    assert rows(nsys) == rows(kineto)
    steps = kineto.trust.steps
    assert (nsys.trust.steps.source, nsys.trust.steps.complete) == (steps.source, steps.complete)
    assert steps.complete == [0, 1, 2]
    assert nsys.exposure is not None
    assert kineto.exposure is not None
    assert nsys.exposure.exposed_us == kineto.exposure.exposed_us
    assert nsys.exposure.step_us == kineto.exposure.step_us == STEP_NS / 1000


def test_reducing_kernels_tell_types_and_elements(tmp_path: Path) -> None:
    found = tables(write_nsys(tmp_path / "nsys", steps=1))[0]
    known = {(row["primitive"], row["dtype"], row["in_nelems"], row["out_nelems"]) for row in found if row["dtype"]}
    assert ("all_reduce", "bfloat16", 1 << 20, 1 << 20) in known
    assert ("reduce_scatter", "float32", 1 << 19, 1 << 18) in known
    assert ("reduce", "float32", 4096, 4096) in known


def test_iterations_marked_by_the_framework_are_steps(tmp_path: Path) -> None:
    trace = read(write_nsys(tmp_path / "nsys")[2])[0]
    assert trace.steps.column("number").to_pylist() == [0, 1, 2]
    assert trace.steps.column("ts_ns").to_pylist() == [EPOCH + step * STEP_NS for step in range(3)]

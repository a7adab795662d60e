"""All-to-alls that NCCL was asked for as messages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from heuristics.label import label
from parsers import read
from tests.parsers.nsys.export import Export, grouped

PID = 500
COMM = 5
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"
Call = tuple[str, dict[str, int]]


def messages(peers: Iterable[int], *, size: int = 100, comm: int = COMM) -> list[Call]:
    """To and from each peer, as PyTorch asks for them."""
    names = ("ncclSend", "ncclRecv")
    return [(name, {"comm": comm, "bytes": size, "peer": peer}) for peer in peers for name in names]


def found(calls: list[Call], tmp_path: Path, *, members: int | None = 4, kernels: int = 1) -> list[dict[str, Any]]:
    """The collectives of a group of calls of rank 1."""
    export = Export()
    owner = export.process(PID)
    for comm in (COMM, COMM + 1) if members else ():
        export.nccl_range(owner, PID, "ncclCommInitRank", 10 * comm, 10 * comm + 5, comm=comm, nranks=members, rank=1)
    ran = [{"name": SEND_RECV, "start": 50_000 + 2000 * n, "end": 51_000 + 2000 * n} for n in range(kernels)]
    end = grouped(export, owner, PID, 5000, calls, ran)
    later = ("ncclSend", {"comm": COMM, "bytes": 7, "peer": 3})
    grouped(export, owner, PID, end + 1000, [later], [{"name": SEND_RECV, "start": 90_000, "end": 91_000}])
    rows = label(read(export.sqlite(tmp_path / "report.sqlite"))[0]).collectives.to_pylist()
    assert (rows[-1]["direction"], rows[-1]["size_bytes"]) == ("send", 7)
    return rows[:-1]


@pytest.mark.parametrize("kernels", [1, 2])
def test_messages_to_all_are_one_call(kernels: int, tmp_path: Path) -> None:
    (row,) = found(messages(range(4)), tmp_path, kernels=kernels)
    assert (row["primitive"], row["op"], row["classified_by"], row["conflict"]) == (
        "all_to_all",
        "ncclAlltoAll",
        "nvtx",
        False,
    )
    assert (row["direction"], row["peer"], row["group_size"]) == (None, None, 4)
    assert (row["size_bytes"], row["sent_bytes"]) == (400, 300)
    assert (row["ts_ns"], row["dur_ns"]) == (50_000, 1000 + 2000 * (kernels - 1))


def test_empty_messages_are_left_out(tmp_path: Path) -> None:
    (row,) = found([*messages([1], size=30), *messages([3], size=50)], tmp_path)
    assert (row["primitive"], row["size_bytes"], row["sent_bytes"]) == ("all_to_all", 80, 50)


@pytest.mark.parametrize(
    "calls",
    [
        messages([0, 2, 3]),  # nothing to itself
        [*messages([0, 2, 3]), *messages([1])[:1]],
        [*messages([0, 1]), *messages([2, 3], comm=COMM + 1)],
        [*messages([1, 3]), *messages([1])],  # twice
        [*messages([0, 1]), ("ncclAllReduce", {"comm": COMM, "bytes": 8, "redop": 0}), *messages([2, 3])],
    ],
    ids=["others", "one way", "two communicators", "twice", "something between"],
)
def test_other_messages_stay_messages(calls: list[Call], tmp_path: Path) -> None:
    assert len(found(calls, tmp_path)) == len(calls)


def test_what_else_was_in_the_group_is_a_call_of_its_own(tmp_path: Path) -> None:
    calls = [*messages(range(4)), ("ncclAllReduce", {"comm": COMM, "bytes": 8, "redop": 0})]
    assert [row["primitive"] for row in found(calls, tmp_path)] == ["all_to_all", "all_reduce"]


def test_of_an_unknown_communicator_nothing_is_claimed(tmp_path: Path) -> None:
    assert [row["primitive"] for row in found(messages(range(4)), tmp_path, members=None)] == ["send_recv"] * 8

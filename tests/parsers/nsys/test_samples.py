"""Real and synthetic files whose answer is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from heuristics.communicators import joined
from heuristics.label import label
from heuristics.labelled import LabelledRank
from parsers import read
from parsers.discover import expand
from parsers.tables import RankTrace

ANY = ("ts_ns", "dur_ns", "launch_ts_ns", "stream", "primitive", "direction", "op", "dtype", "classified_by")
"""What every variant of the synthetic job shows; the rest may be null."""


@pytest.fixture(scope="module")
def formats(shared: Path) -> Path:
    return shared / "data" / "formats"


def traces_of(*paths: Path) -> list[RankTrace]:
    return [trace for path in paths for trace in read(path)]


def labelled(traces: Sequence[RankTrace]) -> list[LabelledRank]:
    return [label(trace) for trace in joined(traces)]


# -- one job of four ranks (TP 2, DP 2) in ten files


@pytest.fixture(scope="module")
def synthetic(formats: Path) -> dict[str, list[list[dict[str, Any]]]]:
    """The collectives of every rank, by variant, times counted from the first kernel."""
    folder = formats / "nsys_synthetic"
    files = {path.stem: [path] for path in folder.glob("one_report_*.sqlite")}
    files["per_rank"] = sorted(folder.glob("per_rank_*.sqlite"))
    found = {}
    for variant, paths in files.items():
        ranks = labelled(traces_of(*paths))
        assert [rank.trace.identity.rank for rank in ranks] == [0, 1, 2, 3]
        tables = []
        for rank in ranks:
            members = rank.groups.column("ranks").to_pylist()
            rows = rank.collectives.to_pylist()
            first = rows[0]["ts_ns"]
            for row in rows:
                row["ts_ns"] -= first
                row["launch_ts_ns"] -= first
                row["ranks"] = None if row["group"] is None else members[row["group"]]
            tables.append(rows)
        found[variant] = tables
    return found


def test_all_variants_are_there(synthetic: dict[str, Any]) -> None:
    assert len(synthetic) == 7


def test_all_variants_give_the_same_table(synthetic: dict[str, list[list[dict[str, Any]]]]) -> None:
    for rank in range(4):
        tables = [variant[rank] for variant in synthetic.values()]
        assert {len(table) for table in tables} == {12}
        for rows in zip(*tables, strict=True):
            for name in ANY:
                assert len({row[name] for row in rows}) == 1, name
            for name in ("group_size", "ranks", "size_bytes", "sent_bytes", "in_nelems", "out_nelems", "peer", "root"):
                assert len({str(row[name]) for row in rows if row[name] is not None}) <= 1, name


def test_variants_with_a_hash_say_everything(synthetic: dict[str, list[list[dict[str, Any]]]]) -> None:
    wanted = [
        ("all_reduce", [2, 3], 8_388_608, 8_388_608),
        ("all_reduce", [2, 3], 8_388_608, 8_388_608),
        ("reduce_scatter", [1, 3], 4_194_304, 2_097_152),
        ("all_gather", [1, 3], 4_194_304, 2_097_152),
        ("send_recv", [0, 1, 2, 3], 524_288, None),
        ("send_recv", [0, 1, 2, 3], 524_288, None),
    ]
    full = [name for name in synthetic if "nopayload" not in name and "nohash" not in name]
    assert len(full) == 4
    for name in full:
        rows = synthetic[name][3][:6]
        assert [(row["primitive"], row["ranks"], row["size_bytes"]) for row in rows] == [row[:3] for row in wanted]
        assert [row["sent_bytes"] for row in rows[:4]] == [row[3] for row in wanted[:4]]
        assert {(row["direction"], row["peer"], row["sent_bytes"]) for row in rows[4:]} == {
            ("send", 0, 524_288),
            ("recv", 0, 0),
        }


def test_without_payloads_sizes_and_groups_are_not_known(synthetic: dict[str, list[list[dict[str, Any]]]]) -> None:
    for name in (name for name in synthetic if "nopayload" in name):
        assert {row["size_bytes"] for rows in synthetic[name] for row in rows} == {None}
        assert {row["group"] for rows in synthetic[name] for row in rows} == {None}


def test_reports_of_several_nodes_are_on_one_clock(formats: Path) -> None:
    ranks = traces_of(*sorted((formats / "nsys_synthetic").glob("per_rank_*.sqlite")))
    assert [trace.identity.host for trace in ranks] == ["node-a", "node-a", "node-b", "node-b"]
    starts = [min(trace.gpu_events.column("ts_ns").to_pylist()) for trace in ranks]
    assert max(starts) - min(starts) < 1_000_000_000
    assert min(starts) > 1_767_225_600_000_000_000


# -- captures on real GPUs


@pytest.mark.parametrize(
    ("name", "kernels", "calls"),
    [("mfu_2gpu_before", [33, 33], 66), ("mfu_2gpu_after", [31, 31], 62)],
)
def test_all_to_alls_of_sequence_parallelism(formats: Path, name: str, kernels: list[int], calls: int) -> None:
    ranks = labelled(read(formats / "nsys_sqlite" / f"{name}.sqlite"))
    assert [(r.trace.identity.rank, r.trace.identity.world_size, r.trace.identity.device) for r in ranks] == [
        (0, 2, 0),
        (1, 2, 1),
    ]
    assert {r.trace.identity.rank_source for r in ranks} == {"gpu_order"}
    found = []
    for rank in ranks:
        names = [n for n in rank.trace.gpu_events.column("name").to_pylist() if n.startswith("ncclDevKernel_SendRecv")]
        found.append(len(names))
        rows = rank.collectives.to_pylist()
        assert {row["primitive"] for row in rows} == {"all_to_all"}
        assert {row["size_bytes"] for row in rows} == {None}  # exported without blobs
        assert len([row for row in rows if row["ts_ns"] is not None]) == len(names)
        assert rank.trace.metadata["nccl_version"] == "2.27"
        assert any("--include-blobs=true" in note for note in rank.trace.health.notes)
    assert sum(found) == calls
    assert found == kernels


def test_a_window_without_communication(formats: Path) -> None:
    ranks = labelled(read(formats / "nsys_sqlite" / "h100_2gpu_1s.sqlite"))
    assert [rank.collectives.num_rows for rank in ranks] == [0, 0]
    assert [rank.trace.gpu_events.num_rows for rank in ranks] == [2184, 2184]


def test_a_job_of_one_gpu(formats: Path) -> None:
    (trace,) = read(formats / "nsys_sqlite" / "mock.sqlite")
    assert (trace.identity.rank, trace.identity.device) == (None, 0)
    assert Counter(trace.gpu_events.column("kind").to_pylist()) == {"kernel": 2, "memcpy": 1}
    assert [str(gpu["name"]) for gpu in trace.devices] == ["NVIDIA GeForce RTX 3080"]


@pytest.mark.parametrize(("name", "kernels"), [("healthy_1pct", 400), ("healthy_judged_1pct", 20)])
def test_files_that_tools_made_up(formats: Path, name: str, kernels: int) -> None:
    (trace,) = read(formats / "nsys_sqlite" / f"{name}.sqlite")
    assert trace.gpu_events.num_rows == kernels


def test_printed_tables_say_what_the_report_says(formats: Path) -> None:
    """`nsys stats` of the same capture, without graphics memory, payloads and process of the copies."""
    wanted = labelled(read(formats / "nsys_sqlite" / "mfu_2gpu_before.sqlite"))
    (folder,) = expand([formats / "nsys_stats_csv"]).paths
    found = labelled(read(folder))
    shift = next(r.trace.metadata["baseTimeNanoseconds"] for r in wanted)
    assert isinstance(shift, int)
    for one, other in zip(found, wanted, strict=True):
        assert one.trace.identity.pid == other.trace.identity.pid
        assert one.trace.gpu_events.num_rows == other.trace.gpu_events.num_rows
        for row, said in zip(one.collectives.to_pylist(), other.collectives.to_pylist(), strict=True):
            for name in ("ts_ns", "launch_ts_ns"):
                assert row[name] == (None if said[name] is None else said[name] - shift)
            for name in ("dur_ns", "stream", "primitive", "op", "classified_by"):
                assert row[name] == said[name]


# -- captures of NCCL's ranges on a CPU


def test_own_capture_with_a_log(formats: Path) -> None:
    traces = read(formats / "nsys_own_capture" / "nsys2023.4_nccl2.28_nvtx.sqlite")
    assert [(t.identity.rank, t.identity.rank_source, t.identity.world_size) for t in traces] == [
        (0, "communicator", 2),
        (1, "communicator", 2),
    ]
    for trace in traces:
        names = Counter(trace.comm_records.column("name").to_pylist())
        assert names == {"ncclAllGather": 3, "ncclReduceScatter": 3, "ncclAllReduce": 3, "ncclSend": 1, "ncclRecv": 1}
        assert trace.groups.column("name").to_pylist() == ["0xdeadbeefcafe0123"]


def test_own_capture_and_its_parquet_twin(formats: Path) -> None:
    folder = formats / "nsys_own_capture"
    one = read(folder / "nsys2023.4_nccl2.21_nvtx.sqlite")
    other = read(folder / "nsys2023.4_nccl2.21_pqtdir")
    base = one[0].metadata["baseTimeNanoseconds"]
    assert isinstance(base, int)
    for mine, theirs in zip(one, other, strict=True):
        rows = mine.comm_records.select(["layer", "name", "ts_ns", "dur_ns", "tid"]).to_pylist()
        for row in rows:
            row["ts_ns"] -= base  # the twin has no row for the beginning of the session
        assert rows == theirs.comm_records.select(["layer", "name", "ts_ns", "dur_ns", "tid"]).to_pylist()
        assert len(rows) == 7


def test_own_capture_as_the_json_of_its_time(formats: Path) -> None:
    traces = read(formats / "nsys_own_capture" / "nsys2023.4_cap_old_json_excerpt.json")
    assert [(t.identity.rank, t.identity.rank_source) for t in traces] == [(0, "communicator"), (1, "communicator")]
    rows = traces[1].comm_records.select(["name", "message_bytes", "rank_arg"]).to_pylist()
    assert rows[0] == {"name": "ncclAllGather", "message_bytes": 1 << 20, "rank_arg": None}
    assert rows[1] == {"name": "ncclAllReduce", "message_bytes": 4096, "rank_arg": None}
    assert rows[-1] == {"name": "ncclSend", "message_bytes": 8192, "rank_arg": 0}


# -- a JAX job as printed tables and recipe outputs


def test_fsdp_of_jax_over_four_ranks(formats: Path) -> None:
    found = expand([formats / "nsys_jax"])
    ranks = labelled(traces_of(*(Path(path) for path in found.paths)))
    assert [(r.trace.identity.rank, r.trace.identity.world_size, r.trace.identity.host) for r in ranks] == [
        (rank, 4, "node01") for rank in range(4)
    ]
    for rank in ranks:
        rows = rank.collectives.to_pylist()
        assert Counter(row["primitive"] for row in rows) == {
            "all_gather": 1260,
            "reduce_scatter": 620,
            "all_reduce": 50,
        }
        assert {row["classified_by"] for row in rows} == {"nvtx"}
        assert all(row["ts_ns"] is not None for row in rows)
        assert rank.steps.table.num_rows == 5
        assert rank.steps.complete.all()
        in_steps = Counter((row["primitive"], row["phase"]) for row in rows if row["step"] is not None)
        assert in_steps["reduce_scatter", "backward"] == 5 * 124
        assert in_steps["all_gather", "forward"] == 5 * 64
        assert in_steps["all_gather", "optimizer"] == 5 * 188

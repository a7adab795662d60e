"""Logs, dumps and lists of calls given without a trace: what they tell is said, and what they do not is not made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analyzer.cli import main
from analyzer.model import Analysis, from_json, to_json
from analyzer.pipeline import analyze
from analyzer.reporters.sections import sections
from analyzer.reporters.text import text
from tests.heuristics.nccl_lines import job, link, said
from tests.heuristics.test_wires import REAL

HOSTS = "aabb"


def _text(found: Analysis) -> list[str]:
    return text(sections(found), width=100).splitlines()


def _block(found: Analysis, title: str) -> list[str]:
    """The lines of a block, words one blank apart."""
    lines = _text(found)
    start = next(i for i, line in enumerate(lines) if line.startswith(f"{title}  "))
    end = next((i for i, line in enumerate(lines) if i > start and not line), len(lines))
    return [" ".join(line.split()) for line in lines[start:end]]


def _ids(found: Analysis) -> set[str]:
    return {item.id for item in found.findings}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Four ranks on two hosts: NVLink inside, InfiniBand between; a second communicator was never connected."""
    lines = ["a:100:200 [0] NCCL INFO NCCL version 2.25.1+cuda12.8", *job(HOSTS)]
    lines += [said(HOSTS, r, "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:1.2.3.4<0>") for r in range(4)]
    lines += [said(HOSTS, 0, "NVLS multicast support is available on dev 0")]
    lines += [said(HOSTS, 0, "NCCL_IB_HCA set by environment to mlx5_0.")]
    lines += [link(HOSTS, 0, 1, "P2P/CUMEM"), link(HOSTS, 2, 3, "P2P/CUMEM")]
    lines += [link(HOSTS, 1, 2, "NET/IB/0/GDRDMA", side) for side in ("send", "receive")]
    lines += [
        f"{HOSTS[rank]}:{100 + rank}:{200 + rank} [0] NCCL INFO ncclCommInitRank comm 0x7{rank} rank {place} nranks 2 "
        f"cudaDev 0 nvmlDev 0 busId {rank}000 commId 0xcafe - Init COMPLETE"
        for place, rank in enumerate((0, 2))
    ]
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_log_alone_names_the_wires_of_every_communicator(log: Path) -> None:
    wires = analyze(log).wires
    assert wires is not None
    assert (wires.sources, wires.libraries) == (["nccl_log"], ["nccl 2.25.1"])
    assert wires.hosts == {"a": [0, 1], "b": [2, 3]}
    assert wires.settings == {"NCCL_IB_HCA": ["mlx5_0"]}
    world, pair = wires.communicators
    assert (world.communicators, world.unlogged, world.size, world.nodes, world.link) == (1, 0, 4, 2, "mixed")
    assert (world.intra, world.inter, world.gpudirect_rdma) == ("nvlink", "ib", True)
    assert (world.transports, world.nics, world.groups) == (["NET/IB/GDRDMA", "P2P/CUMEM"], [0], [[0, 1, 2, 3]])
    # Nobody connected in the second: its two hosts are those of the first, so is the wire between them.
    assert (pair.size, pair.nodes, pair.link, pair.intra, pair.inter) == (2, 2, "inter_node", None, "ib")
    assert (pair.unlogged, pair.groups, pair.transports) == (1, [[0, 2]], [])


def test_the_block_of_wires_reads_as_a_table(log: Path) -> None:
    lines = _block(analyze(log), "Wires")
    assert lines[0] == "Wires NCCL 2.25.1; 4 ranks on 2 hosts in the log"
    assert lines[1].startswith("number ranks hosts inside a host between hosts")
    assert lines[2].startswith("1 4 2 NVLink InfiniBand, GPUDirect RDMA")
    assert lines[3].startswith("1 2 2 InfiniBand")
    assert "hosts a: ranks 0, 1" in lines
    assert "b: ranks 2, 3" in lines
    assert "set NCCL_IB_HCA=mlx5_0" in lines
    assert "note no connection of 1 of 2 communicators is logged: others of the job speak for them" in lines


def test_a_log_alone_is_not_asked_whether_the_gpu_was_profiled(log: Path) -> None:
    found = analyze(log)
    assert "comm.none" not in _ids(found)
    (alone,) = (item for item in found.findings if item.id == "sources.alone")
    assert alone.severity == "info"
    assert "the wires between them" in alone.detail
    assert "Nsight Systems" in alone.action


def test_documents_with_wires_can_be_read_back(log: Path) -> None:
    found = analyze(log)
    assert from_json(to_json(found)) == found


def test_documents_from_before_wires_can_be_read(log: Path) -> None:
    document = json.loads(to_json(analyze(log)))
    del document["wires"], document["logged"]
    older = from_json(json.dumps(document).encode())
    assert (older.wires, older.logged) == (None, [])


def test_the_page_shows_wires(log: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["report", str(log), "-o", str(tmp_path / "page.html"), "-q"])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text()
    assert "InfiniBand, GPUDirect RDMA" in page
    assert "Wires" in page


@pytest.mark.parametrize("name", REAL)
def test_real_logs_alone(shared: Path, name: str) -> None:
    found = analyze(shared / "data/formats/nccl_logs" / name)
    assert found.wires is not None
    widest = found.wires.communicators[0]
    assert (widest.intra, widest.inter) == REAL[name]
    assert widest.size == found.world_size
    assert found.exposure is None
    assert "comm.none" not in _ids(found)
    library, *_ = name.split("_")
    assert f"{library[:4]} {library[4:]}" in found.wires.libraries


def _inspector(tmp_path: Path, **header: Any) -> Path:
    line = {
        "header": {"id": "0xad56", "rank": 1, "n_ranks": 8, **header},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "hostname": "a",
            "pid": 48,
            "dump_timestamp_us": 1_772_585_717_263_338,
        },
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": 5,
            "coll_msg_size_bytes": 2_360_832,
            "coll_exec_time_us": 5663.0,
            "coll_timing_source": "kernel_gpu",
        },
    }
    path = tmp_path / "inspector.jsonl"
    path.write_text(json.dumps(line) + "\n")
    return path


@pytest.mark.parametrize(("nodes", "kind"), [(1, "intra_node"), (2, "mixed"), (8, "inter_node")])
def test_inspector_counts_hosts_and_names_no_wire(tmp_path: Path, nodes: int, kind: str) -> None:
    found = analyze(_inspector(tmp_path, nnodes=nodes))
    assert found.wires is not None
    (row,) = found.wires.communicators
    assert (row.size, row.nodes, row.link, row.intra, row.inter) == (8, nodes, kind, None, None)
    assert row.evidence == ["the profiler counts nodes and names no wire"]


def test_a_profiler_that_saw_the_proxy_thread_says_so(tmp_path: Path) -> None:
    call: dict[str, Any] = {"args": {"size": 1024}, "cat": "COLL", "child_dur": 4, "comm_hash": "0x58ae", "dur": 5}
    call |= {"name": "all_reduce", "ph": "X", "rank": 0, "seq_num": 1, "ts": 10}
    paths = []
    for number, peers in enumerate(((), (16, 8))):
        path = tmp_path / f"comma{number}.json"
        path.write_text(json.dumps({**call, "proxyops": [{"cat": "PROXY", "peer": peer} for peer in peers]}) + "\n")
        paths.append(path)
    without, with_proxy = (analyze(path).wires for path in paths)
    assert without is None  # neither a size, nor hosts, nor a network
    assert with_proxy is not None
    (row,) = with_proxy.communicators
    assert (row.size, row.link, row.intra, row.inter, row.transports) == (None, None, None, None, ["PROXY"])
    assert row.evidence[-1] == "NCCL's proxy thread moved data for 2 ranks, as it does over a network"


def test_calls_alone_are_timed_and_nothing_is_called_exposed(tmp_path: Path) -> None:
    found = analyze(_inspector(tmp_path, nnodes=1))
    (row,) = found.collectives
    assert (row.primitive, row.time_us_per_step) == ("all_reduce", 5663.0)
    assert (row.exposed_us_per_step, row.overlapped_us_per_step, found.exposure) == (None, None, None)
    assert not {name for name in _ids(found) if name.startswith(("cause.", "exposed.", "steps.", "step."))}
    assert "calls alone are recorded, nothing that computes: what hides communication is not known" in (
        found.trust.warnings
    )
    assert "Step not divided: calls alone are recorded" in _block(found, "Step")
    assert not any("exposed" in line for line in _block(found, "Collectives"))


SUMMARY = """\
Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)     tput_avg (Gbps)     busbw_avg (Gbps)
broadcast
                    2.0 KB              146                 11.12               0.08                0.43                0.40
reduce_scatter_tensor
                    678.86 MB           40                  602.29              9.69                1468.06             1376.32
"""  # noqa: E501


def test_the_table_of_deepspeeds_logger(tmp_path: Path) -> None:
    path = tmp_path / "comms.txt"
    path.write_text(SUMMARY)
    found = analyze(path)
    (logged,) = found.logged
    assert (logged.source, logged.rank) == ("deepspeed_log", None)
    first, second = logged.rows
    assert (first.op, first.size_bytes, first.size_error_bytes, first.calls) == ("broadcast", 2048, 6, 146)
    # 678.86 MiB; Gbit/s over 8.
    assert (second.size_bytes, second.calls, second.total_us, second.mean_us) == (711_836_303, 40, 602_290.0, 9690.0)
    assert (second.algbw_gbps, second.busbw_gbps, second.wait_us) == (183.507, 172.04, None)
    assert found.collectives == []
    assert _ids(found) == {"sources.alone"}
    assert "reduce_scatter_tensor 711.84 40 602.29 9690.0 183.5 172.0" in _block(found, "Logged")


def _call(op: str, ms: float) -> str:
    size = "msg size: 6.0 MB | algbw (Gbps): 800.00  | busbw (Gbps): 400.00"
    return f"[2022-06-26 01:39:55,722] [INFO] [Rank 0] rank=0 | comm op: {op} | time (ms): {ms} | {size}"


@pytest.fixture
def verbose(tmp_path: Path) -> Path:
    """Three calls as the logger prints them one by one."""
    path = tmp_path / "verbose.txt"
    calls = (("all_gather_into_tensor", 0.11), ("all_gather_into_tensor", 0.09), ("reduce_scatter_tensor", 1.5))
    path.write_text("\n".join(_call(op, ms) for op, ms in calls) + "\n")
    return path


def test_calls_that_deepspeeds_logger_prints_are_counted(verbose: Path, tmp_path: Path) -> None:
    found = analyze(verbose)
    (logged,) = found.logged
    gather, scatter = logged.rows
    assert (gather.op, gather.calls, gather.total_us, gather.mean_us) == ("all_gather_into_tensor", 2, 200.0, 100.0)
    assert (scatter.calls, scatter.total_us, scatter.algbw_gbps, scatter.busbw_gbps) == (1, 1500.0, 100.0, 50.0)
    result = CliRunner().invoke(main, ["summarize", str(verbose), "-o", str(tmp_path / "s.parquet"), "-q"])
    assert result.exit_code == 0, result.output
    assert analyze(tmp_path / "s.parquet").logged == found.logged


def test_one_rank_without_sizes_groups_or_times_decides_nothing(verbose: Path) -> None:
    found = analyze(verbose)
    layout = found.layout
    assert (layout.tp, layout.cp, layout.pp, layout.dp, layout.ep) == (None,) * 5
    assert {(row.dim, row.primitive, row.time_us_per_step) for row in found.collectives} == {
        ("unknown", "all_gather", None),
        ("unknown", "reduce_scatter", None),
    }
    assert "all ? the traces do not say how many ranks there are" in _block(found, "Layout")


def test_dumps_of_a_hang_are_not_compared_with_whole_steps(shared: Path) -> None:
    found = analyze(shared / "data/formats/flight_recorder/nvrx_megatron16/lock_gil_1st")
    assert found.ledger is None
    assert {"calls.unfinished", "sources.alone", "ledger.no_comparison"} == _ids(found)
    assert all(row.time_us_per_step is None for row in found.collectives)


def test_a_gpu_that_was_recorded_is_not_asked_for(shared: Path) -> None:
    found = analyze(shared / "data/formats/nsys_sqlite/mock.sqlite")
    (silent,) = (item for item in found.findings if item.id == "comm.none")
    assert silent.detail == "GPU work was recorded, and no kernel of it is of a communication library."


def test_no_example_is_asked_for_a_profile_of_the_gpu_that_it_cannot_have(shared: Path) -> None:
    folders = ("nccl_logs", "nccl_inspector", "nccl_profiler_plugin", "deepspeed", "flight_recorder/nvrx_megatron16")
    paths = [path for folder in folders for path in sorted((shared / "data/formats" / folder).iterdir())]
    readable = [path for path in paths if path.suffix != ".prom"]
    assert len(readable) > 15
    for path in readable:
        found = analyze(path)
        assert "sources.alone" in _ids(found), path.name
        assert not {"comm.none", "steps.none"} & _ids(found), path.name
        assert found.exposure is None or found.trust.steps.source != "none", path.name

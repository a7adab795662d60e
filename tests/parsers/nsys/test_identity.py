"""Which rank a process of a report is, in the documented order; and that nothing secret leaves a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parsers import read
from parsers.tables import RankTrace
from tests.parsers.nsys.export import Export, grouped

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"


def process(export: Export, pid: int, device: int, *, inits: tuple[tuple[int, int, int], ...] = ()) -> int:
    """A process that makes the given communicators (hash, size, own rank) and reduces once."""
    owner = export.process(pid)
    for number, (comm, size, rank) in enumerate(inits):
        said = {"comm": comm, "nranks": size, "rank": rank, "device": device}
        export.nccl_range(owner, pid, "ncclCommInitRankConfig", 10 + 100 * number, 90 + 100 * number, **said)
    call = ("ncclAllReduce", {"comm": inits[0][0] if inits else 1, "bytes": 8, "redop": 0})
    grouped(export, owner, pid, 5000, [call], [{"name": ALL_REDUCE, "start": 50_000, "end": 51_000, "device": device}])
    return owner


def who(export: Export, path: Path) -> list[tuple[int | None, str | None, int | None]]:
    return [(t.identity.rank, t.identity.rank_source, t.identity.world_size) for t in read(export.sqlite(path))]


def torchrun(export: Export, *arguments: str) -> None:
    export.add("META_DATA_CAPTURE", name="PROCESS_0:COMMAND", value="/usr/bin/torchrun")
    for number, text in enumerate(arguments):
        export.add("META_DATA_CAPTURE", name=f"PROCESS_0:ARGUMENT_{number}", value=text)


@pytest.fixture
def export() -> Export:
    return Export()


@pytest.mark.parametrize(
    ("text", "rank", "world"),
    [
        ("PATH=/bin;RANK=3;WORLD_SIZE=8;HOME=/root", 3, 8),
        ("SLURM_PROCID=5;SLURM_NTASKS=16", 5, 16),
        ("OMPI_COMM_WORLD_RANK=2;OMPI_COMM_WORLD_SIZE=4", 2, 4),
        ("PMIX_RANK=1", 1, None),
        ("SLURM_PROCID=5;SLURM_NTASKS=1", 5, None),  # of another launcher's step: no rank 5 in a world of 1
        ("RANK=0;WORLD_SIZE=2;SLURM_PROCID=7;SLURM_NTASKS=8", 0, 2),
    ],
)
def test_the_launchers_environment(export: Export, tmp_path: Path, text: str, rank: int, world: int | None) -> None:
    process(export, 500, 0)
    export.environment(text)
    assert who(export, tmp_path / "report_7.sqlite") == [(rank, "metadata", world)]


def test_the_environment_that_nsys_was_given_with_the_command(export: Export, tmp_path: Path) -> None:
    process(export, 500, 0)
    export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value='RANK="6"')
    assert who(export, tmp_path / "report.sqlite") == [(6, "metadata", None)]


def test_mpi_ranks_come_first(export: Export, tmp_path: Path) -> None:
    owner = process(export, 500, 0)
    export.environment("RANK=3;WORLD_SIZE=8")
    export.add("MPI_RANKS", globalTid=owner | 500, rank=1)
    export.add("MPI_COMMUNICATORS", rank=1, size=4)
    assert who(export, tmp_path / "report.sqlite") == [(1, "metadata", 4)]


def test_the_environment_of_a_launcher_of_several_processes_says_nothing(export: Export, tmp_path: Path) -> None:
    for place in range(2):
        process(export, 500 + place, place, inits=((7, 16, 8 + place), (9, 2, place)))
    export.environment("RANK=0;WORLD_SIZE=1;SLURM_PROCID=1;SLURM_NTASKS=2")
    assert who(export, tmp_path / "report.sqlite") == [(8, "communicator", 16), (9, "communicator", 16)]


def test_a_communicator_of_some_ranks_is_not_the_world(export: Export, tmp_path: Path) -> None:
    """Two groups of two: both processes of a pair would be ranks 0 and 1."""
    for place in range(4):
        process(export, 500 + place, place, inits=((7 + place // 2, 2, place % 2),))
    torchrun(export, "--nproc_per_node=4", "train.py")
    found = who(export, tmp_path / "report.sqlite")
    assert found == [(place, "gpu_order", 4) for place in range(4)]


def test_versions_without_a_hash_tell_the_rank_as_well(tmp_path: Path) -> None:
    export = Export(nccl=(2, 21, 5))
    for place in range(2):
        process(export, 500 + place, place, inits=((0, 2, 1 - place),))
    assert who(export, tmp_path / "report.sqlite") == [(0, "communicator", 2), (1, "communicator", 2)]


def test_the_ranks_are_in_the_nccl_log_that_was_captured(tmp_path: Path) -> None:
    export = Export(year=2023, payload=None)
    for place in range(2):
        process(export, 500 + place, place)
    log = "".join(
        f"node-a:{500 + p}:{500 + p} [{p}] NCCL INFO ncclCommInitRankConfig comm 0x55{p} rank {1 - p} nranks 2 "
        f"cudaDev {p} nvmlDev {p} busId {p + 1}000 commId 0xdeadbeefcafe0123 - Init COMPLETE\n"
        for p in range(2)
    )
    export.add(
        "ProcessStreams", globalPid=(1 << 48) | 400 << 24, filenameId=export.string("out"), contentId=export.string(log)
    )
    traces = read(export.sqlite(tmp_path / "report.sqlite"))
    assert [(t.identity.rank, t.identity.pid) for t in traces] == [(0, 501), (1, 500)]
    assert [t.groups.column("name").to_pylist() for t in traces] == [["0xdeadbeefcafe0123"]] * 2
    assert [t.groups.column("size").to_pylist() for t in traces] == [[2]] * 2


def test_the_files_name(export: Export, tmp_path: Path) -> None:
    process(export, 500, 0)
    assert who(export, tmp_path / "profile_rank3.sqlite") == [(3, "file_name", None)]
    for number in range(3):
        export.sqlite(tmp_path / f"job_{number}.sqlite")
    assert who(export, tmp_path / "job_2.sqlite") == [(2, "file_name", None)]
    assert who(export, tmp_path / "run_20260101.sqlite") == [(None, None, None)]


def test_a_name_that_contradicts_a_small_communicator_wins_and_is_told(export: Export, tmp_path: Path) -> None:
    process(export, 500, 0, inits=((7, 2, 0),))
    trace = read(export.sqlite(tmp_path / "rank6.sqlite"))[0]
    assert (trace.identity.rank, trace.identity.rank_source) == (6, "file_name")
    assert "the file's name says rank 6, its largest communicator rank 0 of 2" in trace.health.notes


def test_the_order_of_the_gpus_is_a_guess_and_called_so(export: Export, tmp_path: Path) -> None:
    process(export, 900, 0)
    process(export, 500, 1)
    traces = read(export.sqlite(tmp_path / "report.sqlite"))
    assert [(t.identity.rank, t.identity.pid, t.identity.rank_source) for t in traces] == [
        (0, 900, "gpu_order"),
        (1, 500, "gpu_order"),
    ]
    assert all(any("guessed from the order of the GPUs" in note for note in t.health.notes) for t in traces)


def test_processes_that_all_see_gpu_0_are_told_apart_by_the_bus(export: Export, tmp_path: Path) -> None:
    for place, bus in enumerate(("0000:8f:00.0", "0000:07:00.0")):
        process(export, 500 + place, 0)
        export.add("TARGET_INFO_GPU", id=place, name="NVIDIA H100", busLocation=bus, uuid=f"u{place}", cuDevice=place)
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=place, cudaId=0, pid=500 + place)
    traces = read(export.sqlite(tmp_path / "report.sqlite"))
    assert [t.identity.pid for t in traces] == [501, 500]
    assert [gpu["name"] for gpu in traces[0].devices] == ["NVIDIA H100"] * 2


@pytest.mark.parametrize(("rank", "first"), [(1, 2), (None, None)])
def test_torchrun_on_several_nodes(export: Export, tmp_path: Path, rank: int | None, first: int | None) -> None:
    for place in range(2):
        process(export, 500 + place, place)
    node = [] if rank is None else ["--node-rank", str(rank)]
    torchrun(export, "--nnodes=2", "--nproc-per-node", "2", *node, "train.py", "--token=hunter2")
    ranks = [found[0] for found in who(export, tmp_path / "report.sqlite")]
    assert ranks == ([None, None] if first is None else [first, first + 1])


def test_one_process_with_several_gpus_is_as_many_ranks(export: Export, tmp_path: Path) -> None:
    """JAX, or nccl-tests: a group holds one call per GPU, and their kernels are launched one after the other."""
    owner = export.process(500)
    for device in range(2):
        said = {"comm": 7, "nranks": 2, "rank": device, "device": device}
        export.nccl_range(owner, 500, "ncclCommInitRank", 10 + 100 * device, 90 + 100 * device, **said)
    calls = [("ncclAllReduce", {"comm": 7, "bytes": 64, "redop": 0})] * 2
    kernels = [{"name": ALL_REDUCE, "start": 50_000, "end": 51_000 + d, "device": d} for d in range(2)]
    grouped(export, owner, 500, 5000, calls, kernels)
    traces = read(export.sqlite(tmp_path / "report.sqlite"))
    assert [(t.identity.rank, t.identity.device, t.identity.world_size) for t in traces] == [(0, 0, 2), (1, 1, 2)]
    for device, trace in enumerate(traces):
        assert trace.gpu_events.column("dur_ns").to_pylist() == [1000 + device]
        assert trace.comm_records.column("message_bytes").to_pylist() == [64]
        assert (
            trace.comm_records.column("external_id").to_pylist() == trace.gpu_events.column("external_id").to_pylist()
        )


def test_a_gpu_that_a_process_only_touched_is_no_rank(export: Export, tmp_path: Path) -> None:
    owner = process(export, 500, 3)
    export.copy(owner, 1, 100, 200, 64, deviceId=0)
    traces = read(export.sqlite(tmp_path / "report.sqlite"))
    assert [t.identity.device for t in traces] == [3]
    assert traces[0].gpu_events.num_rows == 1
    assert any("1 rows of other GPUs of process 500 left out" in note for note in traces[0].health.notes)


def everything_in(trace: RankTrace) -> str:
    shown: list[Any] = [trace.identity, trace.health, trace.devices, trace.metadata, trace.witness]
    tables = (trace.gpu_events, trace.comm_records, trace.launches, trace.cpu_marks, trace.steps, trace.groups)
    return repr(shown) + repr([table.to_pylist() for table in tables])


def test_secrets_in_the_environment_stay_there(export: Export, tmp_path: Path) -> None:
    process(export, 500, 0)
    export.environment("RANK=1;AWS_SECRET_ACCESS_KEY=hunter2;WANDB_API_KEY=hunter2;PMI_SIZE=hunter2;SSH_CLIENT=hunter2")
    export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value='HF_TOKEN="hunter2"')
    torchrun(export, "--nproc_per_node=hunter2", "--token=hunter2", "hunter2.py")
    export.add("META_DATA_EXPORT", name="EXPORT_USER", value="hunter2")
    (trace,) = read(export.sqlite(tmp_path / "report.sqlite"))
    assert trace.identity.rank == 1
    assert "hunter2" not in everything_in(trace)

"""Sound files of every format, small enough that thousands of mutants can be read in a minute.

Three sources: the bundled captures, cut to their first events; files that the tests' own writers make; and, where they
are beside the checkout, captures and logs of other people (never copied into the repository).
"""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from benchmarks.traces import LAYOUTS, Job, dump
from tests.parsers import flight_dumps
from tests.parsers.made import LAYOUTS as SMALL_LAYOUTS
from tests.parsers.made import three_steps
from tests.parsers.nsys.export import Export, grouped

ROOT = Path(__file__).resolve().parents[2]
LARGEST_SEED = 32 * 1024
EVENTS = 80
LOG_LINES = 100

_KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"


@dataclass(frozen=True)
class Seed:
    """A sound file, or a directory of them.

    Attributes:
        format: as in `parsers.known_formats`, or ``straggler_parquet``.
        label: where it comes from.
        name: of the file; of the directory where there are several files.
        files: content by name; one entry of the name "" for a single file.
    """

    format: str
    label: str
    name: str
    files: tuple[tuple[str, bytes], ...]


def one(kind: str, label: str, name: str, content: bytes | str) -> Seed:
    """A seed of one file."""
    data = content.encode() if isinstance(content, str) else content
    return Seed(kind, label, name, (("", data),))


def all_seeds(shared: Path | None) -> list[Seed]:
    """Every seed.

    Args:
        shared: the directory with other people's captures; None without them.
    """
    found = [*_bundled(), *_kineto(), *_flight(), *_logs(), *_profilers(), *_traces_of_operators(), *_nsys()]
    found += [*_summaries(), *_straggler()]
    if shared is not None:
        found += _shared(shared)
    return found


def _trimmed(text: bytes) -> bytes:
    document = json.loads(text)
    document["traceEvents"] = document["traceEvents"][:EVENTS]
    return json.dumps(document).encode()


def _bundled() -> Iterator[Seed]:
    for case in sorted((ROOT / "sample_traces").glob("*/rank0.json.gz")):
        yield one(
            "kineto", f"sample_traces/{case.parent.name}", "rank0.json", _trimmed(gzip.decompress(case.read_bytes()))
        )


def _kineto() -> Iterator[Seed]:
    document = three_steps().document()
    for name, write in SMALL_LAYOUTS.items():
        yield one("kineto", f"made: {name}", "rank1.json", write(document))
    text = three_steps().text().encode()
    packers: dict[str, Callable[[bytes], bytes]] = {
        "gz": gzip.compress,
        "xz": lzma.compress,
        "zst": zstandard.ZstdCompressor().compress,
    }
    for end, pack in packers.items():
        yield one("kineto", f"made: {end}", f"rank1.json.{end}", pack(text))
    yield one("kineto", "made: list", "rank1.json", json.dumps(document["traceEvents"]))
    merged = three_steps(rank=0)
    merged.events += three_steps(rank=1, pid=1001).events
    yield one("kineto", "made: two ranks", "merged.json", merged.text())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for layout in sorted(LAYOUTS):
            job = Job(rank=3, steps=1, layers=1)
            with path.open("w") as out:
                dump(out, job.header(), job.events(), layout)
            yield one("kineto", f"made: large job, {layout}", "rank3.json", path.read_bytes())


def _flight() -> Iterator[Seed]:
    frames = [("forward", "/src/model.py", 10), ("main", "/src/train.py", 3)]
    entries = [
        flight_dumps.entry(
            "all_reduce", n, given=((64, n),), frames=frames, state="scheduled" if n > 8 else "completed"
        )
        for n in range(1, 11)
    ]
    entries += [flight_dumps.entry("send 0->1", 1, ("1", "pp"), time_discovered_started_ns=5, duration_ms=0.5)]
    groups = {"0": ("default_pg", range(4)), "1": ("pp", (0, 1))}
    document = flight_dumps.dump(entries, groups, status={0: (10, 9, 8), 1: (1, 1, 0)})
    yield one("flight_recorder", "made: pickle 2", "dump_0", flight_dumps.as_pickle(document))
    yield one("flight_recorder", "made: pickle 0", "dump_0", b"\x80\x02" + pickle.dumps(document, 0))
    yield one("flight_recorder", "made: pickle 5", "dump_0", pickle.dumps(document, 5))
    yield one("flight_recorder", "made: bare list", "dump_0", flight_dumps.as_pickle(document["entries"]))
    yield one("flight_recorder", "made: json", "dump_0.json", flight_dumps.as_json(document))


def _logs() -> Iterator[Seed]:
    lines = ["NCCL version 2.27.5+cuda12.8"]
    for rank in range(4):
        who = f"host{rank // 2}:{100 + rank}:{200 + rank} [{rank % 2}] NCCL INFO "
        comm = f"comm 0x5{rank} rank {rank} nranks 4 cudaDev {rank % 2} nvmlDev {rank % 2} busId {rank + 1}000"
        lines += [
            f"{who}Using network IB",
            f"{who}ncclCommInitRankConfig {comm} commId 0xbeef - Init START",
            f"{who}Channel 00/02 : 0 1 2 3",
            f"{who}Channel 00/0 : {rank}[{rank % 2}] -> {(rank + 1) % 4}[{(rank + 1) % 2}] via P2P/CUMEM/read",
            f"{who}Channel 01/0 : {rank}[{rank % 2}] -> {(rank + 2) % 4}[{rank % 2}] [send] via NET/IB/0(1)/GDRDMA",
            f"{who}Trees [0] {(rank + 1) % 4}/-1/-1->{rank}->-1",
            f"{who}ncclCommInitRankConfig {comm} commId 0xbeef - Init COMPLETE",
            f"{who}AllReduce: opCount 7 sendbuff 0x7f recvbuff 0x7f count 1024 datatype 9 op 0 root 0 comm 0x5{rank} "
            "[nranks=4] stream 0x1",
            f"{who}AllReduce: 4096 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..1}}",
        ]
    yield one("nccl_log", "made", "nccl.log", "\n".join(lines) + "\n")
    columns = ("Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)")
    table = ["".join(cell.ljust(20) for cell in (*columns, "busbw_avg (Gbps)")), "all_reduce"]
    table += [
        "".join(cell.ljust(20) for cell in ("", f"{n}.5 MB", "40", "602.29", "9.69", "1468.06", "1376.31"))
        for n in range(9)
    ]
    calls = [
        f"[2024-01-01 00:00:0{n}] [INFO] [logging.py:96:log_dist] [Rank {n % 2}] comm op: all_gather | "
        f"time (ms): 9.46 | msg size: {n}.0 MB | algbw (Gbps): 9.1 | busbw (Gbps): 8.0"
        for n in range(8)
    ]
    yield one("deepspeed_log", "made: summary", "ds.log", "\n".join(table))
    yield one("deepspeed_log", "made: calls", "ds.log", "\n".join(calls))


def _profilers() -> Iterator[Seed]:
    def line(n: int) -> dict[str, Any]:
        return {
            "header": {"id": "0xbeef", "rank": 2, "n_ranks": 8, "nnodes": 2, "comm_name": "DP Group 0"},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "hostname": "h",
                "pid": 7,
                "dump_timestamp_us": 1700000000000000,
            },
            "coll_perf": {"coll": "AllReduce", "coll_sn": n, "coll_msg_size_bytes": 1024 * n, "coll_exec_time_us": 5.5},
        }

    yield one("nccl_inspector", "made", "h-pid7.log", "".join(json.dumps(line(n)) + "\n" for n in range(12)))
    rows = []
    for n in range(8):
        common = f'"cat": "COLL", "id": {n}, "pid": 77, "tid": 1'
        args = '"args": {"SeqNum": 1, "CommHash": 48879, "Rank": 2, "Count": 1024, "Datatype": "ncclFloat32"}'
        rows.append(f'{{"name": "AllReduce", {common}, "ph": "b", "ts": {10 * n}.5, {args}}}')
        rows.append(f'{{"name": "AllReduce", {common}, "ph": "e", "ts": {10 * n + 5}.5}}')
    yield one("nccl_profiler", "made", "ncclprof-h-77.txt", "[\n" + ",\n".join(rows) + ",\n{}]\n")


def _traces_of_operators() -> Iterator[Seed]:
    said = {"collective_name": "all_to_allv", "dtype": "BFloat16", "in_msg_nelems": 64, "out_msg_nelems": 48}
    said |= {
        "pg_name": "4",
        "pg_desc": "mesh_ep",
        "pg_size": 2,
        "global_rank_start": 0,
        "global_rank_stride": 4,
        "rf_id": 5,
    }
    said |= {"in_split_size": "[32, 32]", "out_split_size": "[16, 32]"}
    attrs = [{"name": name, "type": "", "value": value} for name, value in said.items()]
    groups = json.dumps([{"pg_name": "4", "ranks": [0, 4], "pg_desc": "mesh_ep", "backend_config": "cuda:nccl"}])
    nodes: list[dict[str, Any]] = [
        {"id": 1, "name": "## process_group:init ##", "inputs": {"values": [groups]}, "attrs": []}
    ]
    nodes += [
        {"id": n, "name": "record_param_comms", "inputs": {"values": [], "types": []}, "attrs": attrs}
        for n in range(2, 9)
    ]
    document = {"schema": "1.1.1-chakra.0.0.4", "pid": 77, "nodes": nodes}
    yield one("execution_trace", "made: pytorch", "rank3.json", json.dumps(document))
    yield one("execution_trace", "made: et", "rank3.et", _et())


def _et() -> bytes:
    """Chakra's protobuf: every message after its length."""

    def varint(number: int) -> bytes:
        out = bytearray()
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes([*out, number])

    def told(number: int, value: int | bytes) -> bytes:
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        return varint(number << 3 | 2) + varint(len(value)) + value

    def node(number: int) -> bytes:
        attribute = told(10, told(1, b"comm_type") + told(9, 0)) + told(10, told(1, b"comm_size") + told(9, 4096))
        return told(1, number) + told(2, b"ncclKernel_X") + told(3, 7) + told(6, 1000) + told(7, 28) + attribute

    messages = [told(1, b"0.0.4"), *(node(n) for n in range(1, 12))]
    return b"".join(varint(len(message)) + message for message in messages)


def _report(payload: str) -> Export:
    export = Export(payload=payload)
    for place in range(2):
        pid = 500 + place
        owner = export.process(pid, domain=1 + place)
        said = {"comm": 0xFEDC_0000_0000_0001, "nranks": 2, "rank": place, "device": place}
        export.nccl_range(owner, pid, "ncclCommInitRankConfig", 10, 90, **said)
        export.range(owner, pid, "step 4", 1000, 90_000)
        export.kernel(owner, "gemm", 2000, 3000 + place, device=place, tid=pid, at=1500)
        export.copy(owner, 1, 3500, 3600, 4096, deviceId=place, srcKind=1)
        call = ("ncclAllReduce", {"comm": 0xFEDC_0000_0000_0001, "bytes": 1 << 20, "redop": 0})
        grouped(export, owner, pid, 5000, [call], [{"name": _KERNEL, "start": 50_000, "end": 51_000, "device": place}])
    export.environment("X=1", epoch=1_767_225_600_000_000_000)
    return export


def _nsys() -> Iterator[Seed]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for payload in ("blob", "json"):
            export = _report(payload)
            database = export.sqlite(folder / "report.sqlite").read_bytes()
            yield one("nsys", f"made: sqlite, {payload}", "report.sqlite", database)
        yield one("nsys", "made: sqlite.gz", "report.sqlite.gz", gzip.compress(database))
        yield one(
            "nsys", "made: arrow stream", "report.arrows", export.arrow_stream(folder / "report.arrows").read_bytes()
        )
        yield one("nsys", "made: json lines", "report.jsonl", export.json_lines(folder / "report.jsonl").read_bytes())
        for label, written in (
            ("parquet", export.parquet(folder / "report_pqtdir")),
            ("arrow", export.arrow_directory(folder / "report_arwdir")),
        ):
            yield _directory("nsys", f"made: {label} directory", written)
    rows = ["Start (ns),Duration (ns),CorrId,GrdX,Strm,Device,Ctx,Name"]
    rows += [f"{1000 * n},{900},{n},1,{7 + n % 2},NVIDIA H100 (0),1,{_KERNEL if n % 2 else 'gemm'}" for n in range(20)]
    yield one("nsys", "made: stats table", "report_cuda_gpu_trace.csv", "\n".join(rows) + "\n")


def _directory(kind: str, label: str, folder: Path) -> Seed:
    files = tuple((file.name, file.read_bytes()) for file in sorted(folder.iterdir()) if file.is_file())
    return Seed(kind, label, folder.name, files)


def _summaries() -> Iterator[Seed]:
    from analyzer.reading.one import Job as ReadJob
    from analyzer.reading.one import summarized
    from analyzer.summary.file import write_table

    with tempfile.TemporaryDirectory() as temporary:
        target = Path(temporary) / "rank0.parquet"
        for case in ("ddp4", "tp2_pp2_dp2"):
            write_table(summarized(ReadJob(str(ROOT / "sample_traces" / case / "rank0.json.gz"))), target)
            yield one("summary", f"made from sample_traces/{case}", "rank0.parquet", target.read_bytes())


def _straggler() -> Iterator[Seed]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = range(40)
    columns = {
        "rank": [n % 4 for n in rows],
        "step": [n // 20 for n in rows],
        "optype": [("forward-compute", "backward-send", "grads-reduce-scatter")[n % 3] for n in rows],
        "start_ts": [0.001 * n for n in rows],
        "duration": [0.0005] * len(rows),
        "seq_id": [n // 4 for n in rows],
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    yield one("straggler_parquet", "made", "job.parquet", sink.getvalue().to_pybytes())


# -- other people's files


def _shared(shared: Path) -> Iterator[Seed]:
    data = shared / "data"
    for folder in ("pains", "quirks"):
        for path in sorted((data / folder).glob("*/*.json*")):
            if path.stat().st_size <= LARGEST_SEED:
                yield one("kineto", f"{folder}/{path.parent.name}", path.name, path.read_bytes())
    for path in sorted((data / "real").rglob("*.json.gz"))[:20]:
        yield from _real(path)
    formats = data / "formats"
    for path in sorted((formats / "flight_recorder").rglob("_dump_*"))[::4]:
        yield one("flight_recorder", path.parent.name, path.name, path.read_bytes())
    for path in sorted((formats / "nccl_logs").iterdir()):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        yield one("nccl_log", path.name, path.name.removesuffix(".gz"), b"".join(text.splitlines(True)[:LOG_LINES]))
    kinds = {"deepspeed": "deepspeed_log", "nccl_inspector": "nccl_inspector", "nccl_profiler_plugin": "nccl_profiler"}
    for folder, kind in kinds.items():
        for path in sorted((formats / folder).iterdir()):
            yield one(kind, path.name, path.name, path.read_bytes())
    yield one("execution_trace", "small_chakra", "a.json", (formats / "chakra" / "small_chakra.0.json").read_bytes())
    for path in sorted(formats.glob("nsys_*/*.sqlite")):
        if path.stat().st_size <= LARGEST_SEED:
            yield one("nsys", path.name, path.name, path.read_bytes())
    for path in sorted((formats / "nsys_stats_csv").iterdir()):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        yield one("nsys", path.name, path.name.removesuffix(".gz"), b"".join(text.splitlines(True)[:LOG_LINES]))


def _real(path: Path) -> Iterator[Seed]:
    try:
        text = _trimmed(gzip.decompress(path.read_bytes()))
    except (ValueError, OSError, EOFError, KeyError, TypeError):
        return
    if len(text) <= LARGEST_SEED:
        yield one("kineto", f"real/{path.name}", "rank0.json", text)

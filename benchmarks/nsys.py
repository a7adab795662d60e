"""From a large export of Nsight Systems to the table of collectives: CPU time and memory, beside the same in SQL.

    python -m benchmarks.nsys [--mib 16,32,64,1024] [--times 6] [--keep DIR] [--into docs/performance.md]

For every size, writes an export of one node with eight processes (kernels, launches, PyTorch's and NCCL's ranges with
payloads), reads it in a process of its own, and runs what one would write in SQL: kernels joined with the calls that
launched them and the NVTX ranges around those. CPU seconds are user plus system time. The statement runs to its end
where that takes less than ``--times`` times what the reader took at the largest size; else it is stopped there, and the
ratio is a bound. `--into` puts the table between two marks of a page.
"""

from __future__ import annotations

import argparse
import json
import resource
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.ingest import put

MARK = "<!-- benchmarks.nsys -->"

VM = 1 << 48
PROCESSES = 8
KERNELS = 60
"""Kernels between two collectives."""

BYTES_PER_ROUND = 10_700
"""What a round of one process takes in the file, about."""

NAMES = [f"void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm_{i}x128_32x4_tn>(Params)" for i in range(40)]
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
WORDS = ["cudaLaunchKernel_v7000", "cuLaunchKernelEx", "ncclGroupStart", "ncclAllReduce", "ncclGroupEnd", "NCCL"]
TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId, contextId, greenContextId, streamId, correlationId, "
    "globalPid, demangledName, shortName, mangledName, launchType, cacheConfig, registersPerThread, gridX, gridY, "
    "gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, "
    "localMemoryTotal, gridId, graphNodeId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId",
    "NVTX_EVENTS": "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER, "
    "domainId INTEGER, jsonText TEXT, binaryData TEXT",
}
JOIN = """
SELECT k.start, k.end, k.deviceId, k.streamId, s.value, w.value, n.binaryData
FROM CUPTI_ACTIVITY_KIND_KERNEL k
JOIN StringIds s ON s.id = k.demangledName
JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
  ON r.correlationId = k.correlationId AND (r.globalTid >> 24) = (k.globalPid >> 24)
JOIN NVTX_EVENTS n ON n.globalTid = r.globalTid AND n.start <= r.start AND n.end >= r.end
JOIN StringIds w ON w.id = n.textId
WHERE s.value LIKE 'nccl%' AND w.value LIKE 'nccl%'
"""


def write(path: Path, mib: int) -> dict[str, int]:
    """Write an export of about the given size; returns its rows by table."""
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
    for name, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {name} ({columns})")
    texts = [*WORDS, *NAMES, ALL_REDUCE]
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(texts, 1))
    connection.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2026.2.1.210')")
    for number in range(PROCESSES):
        owner = VM | (5000 + number) << 24
        domain = (0, None, 75, "NCCL", owner | 5000 + number, None, 1, None, None)
        connection.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", domain)
    rounds = mib * 2**20 // (BYTES_PER_ROUND * PROCESSES)
    for name, rows in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", _kernels(rounds)),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", _launches(rounds)),
        ("NVTX_EVENTS", _ranges(rounds)),
    ):
        marks = ", ".join("?" * len(TABLES[name].split(",")))
        connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    connection.commit()
    counts = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in TABLES}
    connection.close()
    return counts


def _rounds(rounds: int) -> Iterator[tuple[int, int, int, int]]:
    """Process, global id, number and beginning of every round."""
    for number in range(rounds):
        for process in range(PROCESSES):
            yield process, VM | (5000 + process) << 24, number, 1_000_000 * number + 1000 * process


def _kernels(rounds: int) -> Iterator[tuple[int | None, ...]]:
    gemm, comm = len(WORDS) + 1, len(WORDS) + len(NAMES) + 1
    for process, owner, number, at in _rounds(rounds):
        first = number * (KERNELS + 1)
        shape = (1, 0, 96, 132, 1, 1, 256, 1, 1, 0, 49152, 0, 0)
        for i in range(KERNELS):
            name = gemm + i % len(NAMES)
            start = at + 50_000 + 12_000 * i
            yield (
                start,
                start + 11_000,
                process,
                1,
                None,
                7,
                first + i,
                owner,
                name,
                name,
                name,
                *shape,
                first + i,
                None,
            )
        start = at + 800_000
        yield (
            start,
            start + 150_000,
            process,
            1,
            None,
            20,
            first + KERNELS,
            owner,
            comm,
            comm,
            comm,
            *shape,
            first,
            None,
        )


def _launches(rounds: int) -> Iterator[tuple[int, ...]]:
    for process, owner, number, at in _rounds(rounds):
        tid, first = owner | 5000 + process, number * (KERNELS + 1)
        for i in range(KERNELS):
            yield (at + 12_000 * i, at + 12_000 * i + 5000, 0, tid, first + i, 1, 0, 0)
        yield (at + 790_000, at + 796_000, 1, tid, first + KERNELS, 2, 0, 0)


def _ranges(rounds: int) -> Iterator[tuple[object, ...]]:
    operation = 0
    for process, owner, _, at in _rounds(rounds):
        tid = owner | 5000 + process
        for i in range(KERNELS):
            operation += 1
            begin = at + 12_000 * i - 1000
            yield (begin, begin + 9000, 59, f"aten::linear, seq = {i}, op_id = {operation}", tid, None, 0, None, None)
        blob = struct.pack("<QQQQQQixxxx", 1, (1 << 24) + 5, 24, 32, 0xD000_0000_0000_0001, 8 << 20, 0)
        yield (at + 780_000, at + 780_500, 59, None, tid, 3, 1, None, None)
        yield (at + 781_000, at + 784_000, 59, None, tid, 4, 1, None, blob)
        yield (at + 785_000, at + 799_000, 59, None, tid, 5, 1, None, None)


def measure(path: Path) -> dict[str, float]:
    """Read and label a report in this process; seconds, rows and peak memory."""
    from heuristics.label import label
    from parsers import read

    begin, cpu = time.perf_counter(), time.process_time()
    traces = read(path)
    half = time.perf_counter()
    calls = kernels = 0
    while traces:
        trace = traces.pop()
        kernels += trace.gpu_events.num_rows
        table = label(trace).collectives
        calls += table.num_rows - table.column("size_bytes").null_count
    return {
        "read_s": half - begin,
        "label_s": time.perf_counter() - half,
        "cpu_s": time.process_time() - cpu,
        "calls": calls,
        "kernels": kernels,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def naive(path: Path, limit_s: float) -> tuple[float, int | None]:
    """CPU seconds of the join in SQL and its rows; null rows where the limit stopped it."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    begin = time.process_time()
    connection.set_progress_handler(lambda: time.process_time() - begin > limit_s, 1_000_000)
    try:
        rows = len(connection.execute(JOIN).fetchall())
    except sqlite3.OperationalError:
        return time.process_time() - begin, None
    return time.process_time() - begin, rows


def _ours(path: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.nsys", "--measure", str(path)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def compared(folder: Path, sizes: Sequence[int], times: float) -> str:
    """The table, as Markdown."""
    lines = [
        "| MiB | kernels | NVTX ranges | calls | read and label, CPU s | peak MiB | join in SQL, CPU s | ratio |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    exports = []
    for mib in sizes:
        path = folder / f"export_{mib}.sqlite"
        path.unlink(missing_ok=True)
        exports.append((path, write(path, mib), _ours(path)))
    limit_s = times * max(ours["cpu_s"] for _, _, ours in exports)
    for path, counts, ours in exports:
        seconds, rows = naive(path, limit_s)
        if rows is not None and rows < ours["calls"]:
            raise RuntimeError(f"the join finds {rows} rows for {ours['calls']} calls")
        bound = "" if rows is not None else "> "
        lines.append(
            f"| {path.stat().st_size / 2**20:,.0f} | {counts['CUPTI_ACTIVITY_KIND_KERNEL']:,} "
            f"| {counts['NVTX_EVENTS']:,} | {ours['calls']:,.0f} | {ours['cpu_s']:.2f} | {ours['peak_mib']:,.0f} "
            f"| {bound}{seconds:.1f} | {bound}{seconds / ours['cpu_s']:.1f} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", default="16,32,64,1024", help="sizes of the exports (default: 16,32,64,1024)")
    parser.add_argument("--times", type=float, default=6, help="when the join in SQL is stopped (default: 6)")
    parser.add_argument("--keep", type=Path, help="write the exports there and keep them")
    parser.add_argument("--into", type=Path, help="a page with two marks, between which the table goes")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    sizes = [int(size) for size in options.mib.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        text = compared(folder, sizes, options.times)
    print(text)
    if options.into is not None:
        put(text, options.into, MARK)


if __name__ == "__main__":
    main()

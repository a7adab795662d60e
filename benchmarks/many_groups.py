"""Time and memory of a trace that declares, or uses, a great many process groups.

    python -m benchmarks.many_groups                            10^4 and 10^5 groups
    python -m benchmarks.many_groups 10000 100000 1000000       a minute
    python -m benchmarks.many_groups --used 10000 100000        every group has a call of its own

Prints one row per number of groups: processor seconds and peak memory of reading and of the whole analysis, each in a
process of its own. What grows faster than the number of groups is a fault.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

CALLS = 1000
"""Calls in a trace whose groups are declared and not used."""

_STEPS = 3
_PROBE = """
import resource, sys, time
from pathlib import Path
from analyzer.pipeline import analyze
from parsers import read
began = time.process_time()
(read if sys.argv[1] == "read" else analyze)(Path(sys.argv[2]))
print(time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("groups", type=int, nargs="*", default=[10_000, 100_000], help="how many, one row each")
    parser.add_argument("--used", action="store_true", help="a call on each of them instead of 1,000 calls in all")
    asked = parser.parse_args()
    print("| groups | calls | MB | read, s | read, MiB | analyze, s | analyze, MiB |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        for groups in asked.groups:
            calls = groups if asked.used else min(CALLS, groups)
            write(path, groups, calls)
            spent = [f"{value:.1f}" for what in ("read", "analyze") for value in _measured(what, path)]
            print(f"| {groups:,} | {calls:,} | {path.stat().st_size / 1e6:.1f} | {' | '.join(spent)} |", flush=True)
    return 0


def write(path: Path, groups: int, calls: int) -> None:
    """Write a trace of rank 0: groups of two ranks, the first of them with one all-reduce each, over three steps."""
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],')
        file.write(f'"distributedInfo": {{"backend": "nccl", "rank": 0, "world_size": {groups + 1}, "pg_config": [')
        for number in range(groups):
            said = {"pg_name": str(number), "pg_desc": f"g{number}", "backend_config": "cuda:nccl"}
            file.write("," * bool(number) + json.dumps({**said, "pg_size": 2, "ranks": [0, number + 1]}))
        file.write(']}, "traceEvents": [\n')
        file.write(",\n".join(map(json.dumps, _events(calls))))
        file.write("\n]}")


def _events(calls: int) -> Iterator[dict[str, object]]:
    kernel = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    per_step = -(-calls // _STEPS)
    for step in range(_STEPS):
        begin = 1000 + step * 20 * (per_step + 1)
        yield _event("user_annotation", f"ProfilerStep#{step}", begin, 20 * per_step + 10, {})
        for number in range(step * per_step, min((step + 1) * per_step, calls)):
            at = begin + 5 + 20 * (number - step * per_step)
            said = {
                "Collective name": "allreduce",
                "In msg nelems": 1024,
                "Out msg nelems": 1024,
                "Group size": 2,
                "dtype": "BFloat16",
                "Process Group Name": str(number),
                "Process Group Description": f"g{number}",
                "Process Group Ranks": f"[0, {number + 1}]",
                "External id": number + 1,
            }
            link = {"correlation": number + 1, "External id": number + 1}
            yield _event("cpu_op", "record_param_comms", at, 3, said)
            yield _event("cuda_runtime", "cudaLaunchKernel", at + 1, 1, link)
            yield {**_event("kernel", kernel, at + 4, 8, {**said, **link, "device": 0, "stream": 20}), "tid": 20}


def _event(cat: str, name: str, ts: int, dur: int, args: dict[str, object]) -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def _measured(what: str, path: Path) -> tuple[float, float]:
    """Processor seconds and peak MiB."""
    command = [sys.executable, "-c", _PROBE, what, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(said[0]), float(said[1])


if __name__ == "__main__":
    raise SystemExit(main())

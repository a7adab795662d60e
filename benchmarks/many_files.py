"""Many rank files in one command beside as many processes that know nothing of each other: what the pool costs.

`python -m benchmarks.many_files --files 1000 --megabytes 5 --rounds 3` makes a few distinct ranks and links them under
as many names, then reads them in turn: `analyze summarize` with N workers on all of them, and N times
`analyze summarize --workers 1` on a share of them each, at the same time. Both reduce every file to its summary.
CPU seconds are user plus system time of all processes; start-up is included.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.ingest import put
from benchmarks.traces import write

MARK = "<!-- benchmarks.many_files -->"
DISTINCT = 4


def make(folder: Path, files: int, megabytes: float) -> list[Path]:
    """The rank files, linked from a few distinct ones."""
    folder.mkdir(parents=True, exist_ok=True)
    distinct = [folder / f"made_{megabytes:g}_{rank}.json" for rank in range(DISTINCT)]
    for rank, path in enumerate(distinct):
        if not path.exists():
            write(path, megabytes, rank=rank, world=files)
    ranks = folder / f"ranks_{files}_{megabytes:g}"
    ranks.mkdir(exist_ok=True)
    linked = [ranks / f"rank{number}.json" for number in range(files)]
    for number, path in enumerate(linked):
        if not path.exists():
            path.hardlink_to(distinct[number % DISTINCT])
    return linked


def cost(shares: list[list[Path]], workers: int, out: Path) -> tuple[float, float]:
    """CPU and wall seconds of one process per share, all at the same time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "analyzer.cli", "summarize", "--force", "-q", "--workers", str(workers)]
    running = [
        subprocess.Popen([*command, *map(str, share), "-o", str(out / f"{place}.parquet")], stdout=subprocess.DEVNULL)
        for place, share in enumerate(shares)
    ]
    for process in running:
        if process.wait():
            raise SystemExit(f"a run failed with exit code {process.returncode}")
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--megabytes", type=float, default=5)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--into", type=Path, help="a page with two marks, between which the table goes")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "commlens_files")
    args = parser.parse_args()
    paths = make(args.folder, args.files, args.megabytes)
    shares = [paths[start :: args.workers] for start in range(args.workers)]
    pool, apart = [], []
    for _ in range(args.rounds):
        apart.append(cost(shares, 1, args.folder))
        pool.append(cost([paths], args.workers, args.folder))
    size = sum(path.stat().st_size for path in paths) / 1e6
    lines = ["| | CPU s | MB/s per core | wall s |", "|---|---:|---:|---:|"]
    medians = {}
    for name, runs in ((f"{args.workers} processes apart", apart), (f"one command, {args.workers} workers", pool)):
        cpu, wall = (statistics.median(column) for column in zip(*runs, strict=True))
        medians[name] = cpu
        lines.append(f"| {name} | {cpu:.1f} | {size / cpu:,.0f} | {wall:.1f} |")
    first, second = medians.values()
    said = f"{args.files:,} files, {size:,.0f} MB, medians of {args.rounds} rounds in turn"
    lines.append(f"\n{said}: the pool has {first / second:.0%} of the throughput by CPU time.")
    print("\n".join(lines))
    if args.into is not None:
        put("\n".join(lines), args.into, MARK)


if __name__ == "__main__":
    main()

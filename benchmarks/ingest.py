"""How fast traces are read: this package, its peers, and the floor, in turn, by CPU time and peak memory.

`python -m benchmarks.ingest --megabytes 50 300 --rounds 3` generates the traces, runs every candidate in a process of
its own, A B C A B C, and prints a Markdown table with medians and ratios; `--into docs/performance.md` puts it there.
CPU seconds are user plus system time of the whole process, start-up included; memory is the peak resident set.
The peers are installed into an environment of their own, made on first use.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.traces import write

PEERS = ("orjson>=3.10", "traceinsight>=0.6.1", "pandas<3")  # traceinsight 0.6.1 fails on the types of pandas 3
MARK = "<!-- benchmarks.ingest -->"


@dataclass(frozen=True)
class Candidate:
    """One way to read a trace.

    Attributes:
        name: in the table.
        program: Python source; the trace's path is ``sys.argv[1]``.
        peer: whether it runs in the peers' environment.
        compressed: whether it reads gzip by itself.
        largest: megabytes beyond which it is left out (memory).
    """

    name: str
    program: str
    peer: bool = False
    compressed: bool = False
    largest: float = float("inf")


CANDIDATES = (
    Candidate(
        "raw read, newlines counted (the floor)",
        "import sys\nf=open(sys.argv[1],'rb',buffering=0)\nb=bytearray(1<<20)\n"
        "n=sum(b[:k].count(10) for k in iter(lambda: f.readinto(b), 0))",
    ),
    Candidate("commlens: read to tables", "import sys\nfrom parsers import read\nread(sys.argv[1])", compressed=True),
    Candidate(
        "commlens: analyze --format json",
        "import sys\nfrom analyzer.cli import main\n"
        "main([sys.argv[1], '--format', 'json', '-o', sys.argv[1] + '.out', '-q', '--workers', '1'])",
        compressed=True,
    ),
    Candidate("json.load", "import sys, json\njson.load(open(sys.argv[1]))", largest=2000),
    Candidate(
        "orjson.loads", "import sys, orjson\norjson.loads(open(sys.argv[1],'rb').read())", peer=True, largest=800
    ),
    Candidate(
        "HTA (traceinsight)",
        "import sys\nfrom hta.common.trace import parse_trace_file\nparse_trace_file(sys.argv[1])",
        peer=True,
        compressed=True,
    ),
)


@dataclass(frozen=True)
class Cost:
    """CPU seconds and peak MB of one process."""

    cpu_s: float
    peak_mb: float


def environment(folder: Path) -> Path:
    """The interpreter of the peers' environment, made if it is not there."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS], check=True)
    return python


def run(candidate: Candidate, trace: Path, peers: Path) -> Cost:
    """One run in a process of its own.

    Raises:
        RuntimeError: it failed, with its last words.
    """
    python = str(peers) if candidate.peer else sys.executable
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [python, "-c", candidate.program, str(trace)], stdout=subprocess.DEVNULL, stderr=said, close_fds=True
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise RuntimeError(f"{candidate.name}: exit code {process.returncode} {' '.join(last)}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def in_turn(candidates: Sequence[Candidate], trace: Path, rounds: int, peers: Path) -> dict[str, Cost | str]:
    """Median cost of each candidate over the rounds, or why it has none."""
    costs: dict[str, list[Cost]] = {candidate.name: [] for candidate in candidates}
    failed: dict[str, str] = {}
    for _ in range(rounds):
        for candidate in candidates:
            if candidate.name in failed:
                continue
            try:
                costs[candidate.name].append(run(candidate, trace, peers))
            except RuntimeError as error:
                failed[candidate.name] = str(error)
            print(f"{trace.name}: {candidate.name}: {costs[candidate.name][-1:]}", file=sys.stderr)
    medians: dict[str, Cost | str] = dict(failed)
    for name, found in costs.items():
        if found and name not in failed:
            medians[name] = Cost(statistics.median(c.cpu_s for c in found), statistics.median(c.peak_mb for c in found))
    return medians


def table(trace: Path, megabytes: float, medians: dict[str, Cost | str]) -> str:
    """A Markdown table; ratios are CPU time over that of this package's reader."""
    own = medians.get("commlens: read to tables")
    lines = [f"**{trace.name}**, {megabytes:,.0f} MB of JSON, {trace.stat().st_size / 1e6:,.0f} MB stored", ""]
    lines += ["| candidate | CPU s | MB/s per core | × reader | peak MB |", "|---|---:|---:|---:|---:|"]
    for name, cost in medians.items():
        if isinstance(cost, str):
            lines.append(f"| {name} | failed | | | |")
            continue
        ratio = f"{cost.cpu_s / own.cpu_s:.1f}" if isinstance(own, Cost) else ""
        lines.append(f"| {name} | {cost.cpu_s:.2f} | {megabytes / cost.cpu_s:,.0f} | {ratio} | {cost.peak_mb:,.0f} |")
    return "\n".join(lines)


def measured(folder: Path, sizes: Sequence[float], rounds: int, variants: Sequence[str], peers: Path) -> str:
    """All tables."""
    out = []
    for size in sizes:
        for variant in variants:
            layout, _, packed = variant.partition(".")
            trace = folder / f"{layout}_{size:.0f}.json{'.gz' if packed else ''}"
            if not trace.exists():
                write(trace, size, layout)
            fitting = [c for c in CANDIDATES if size <= c.largest and (c.compressed or not packed)]
            out.append(table(trace, size, in_turn(fitting, trace, rounds if size < 1000 else 1, peers)))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"
    return f"Measured on {machine}; medians of {rounds} rounds in turn (one for files over 1 GB).\n\n" + "\n\n".join(
        out
    )


def put(text: str, page: Path, mark: str = MARK) -> None:
    """Replace what is between the marks of a page."""
    parts = page.read_text(encoding="utf-8").split(mark)
    if len(parts) != 3:
        raise SystemExit(f"{page}: needs two lines {mark}")
    page.write_text(mark.join((parts[0], f"\n{text}\n", parts[2])), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[50, 300, 1500])
    parser.add_argument("--variants", nargs="+", default=["kineto", "compact", "kineto.gz"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "commlens_ingest")
    parser.add_argument("--into", type=Path, help="a page with two marks, between which the tables go")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    peers = environment(args.folder / "peers")
    text = measured(args.folder, args.megabytes, args.rounds, args.variants, peers)
    print(text)
    if args.into is not None:
        put(text, args.into)


if __name__ == "__main__":
    main()

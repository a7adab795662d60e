"""How fast traces are read: this package, its peers, and the floor, in turn, by CPU time and peak memory.

`python -m benchmarks.ingest --megabytes 50 300 --rounds 3` generates the traces, runs every candidate in a process of
its own, A B C A B C, and prints Markdown tables with medians and ratios; `--into docs/performance.md` puts them there.
CPU seconds are user plus system time of the whole process, start-up included; memory is the peak resident set.
The peers are installed into an environment of their own, made on first use. Every run is noted in the folder, so that a
long series can be made in parts: `--add` keeps what earlier calls measured, `--rounds 0` only prints.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
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
        variants: of the traces that it is run on; all where empty.
        largest: megabytes beyond which it is left out (memory).
        rounds: most rounds on files over 100 MB and over 1 GB: what takes minutes is not repeated often.
    """

    name: str
    program: str
    peer: bool = False
    variants: tuple[str, ...] = ()
    largest: float = float("inf")
    rounds: tuple[int, int] = (1000, 1000)

    def wanted(self, megabytes: float, variant: str) -> bool:
        """Whether it is run on such a file."""
        return megabytes <= self.largest and (not self.variants or variant in self.variants)

    def most(self, megabytes: float) -> int:
        """Most rounds on a file of this size."""
        return self.rounds[1] if megabytes > 1000 else self.rounds[0] if megabytes > 100 else 1000


READ = "commlens: read to tables"
ANALYZE = "commlens: analyze --format json"
LOAD = "json.load"
HTA = "HTA (traceinsight): parse"
FLOOR = "raw read, newlines counted (the floor)"
PLAIN = ("kineto", "indent", "compact")

CANDIDATES = (
    Candidate(
        FLOOR,
        "import sys\nf=open(sys.argv[1],'rb',buffering=0)\nb=bytearray(1<<20)\n"
        "n=sum(b[:k].count(10) for k in iter(lambda: f.readinto(b), 0))",
        variants=PLAIN,
    ),
    Candidate(READ, "import sys\nfrom parsers import read\nread(sys.argv[1])"),
    Candidate(
        ANALYZE,
        "import sys\nfrom analyzer.cli import main\nmain([sys.argv[1], '--format', 'json', '-q', '--workers', '1'])",
    ),
    Candidate(LOAD, "import sys, json\njson.load(open(sys.argv[1]))", variants=PLAIN, rounds=(1000, 1)),
    Candidate(
        "orjson.loads",
        "import sys, orjson\norjson.loads(open(sys.argv[1],'rb').read())",
        peer=True,
        variants=PLAIN,
        largest=800,
    ),
    Candidate(
        HTA,
        "import sys\nfrom hta.common.trace import parse_trace_file\nparse_trace_file(sys.argv[1])",
        peer=True,
        variants=("kineto",),
        rounds=(2, 1),
    ),
)

START = (
    Candidate("analyze --version", "from analyzer.cli import main\nmain(['--version'])"),
    Candidate("analyze --help", "from analyzer.cli import main\nmain(['--help'])"),
    Candidate(
        "analyze 1 MB --format json",
        "import sys\nfrom analyzer.cli import main\nmain([sys.argv[1], '--format', 'json', '-q', '--workers', '1'])",
    ),
)
"""What is done before a file is large enough to matter."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds and peak MB of one process; of one that was stopped, what it had taken by then."""

    cpu_s: float
    peak_mb: float
    stopped: bool = False


def environment(folder: Path) -> Path:
    """The interpreter of the peers' environment, made if it is not there."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS], check=True)
    return python


def run(candidate: Candidate, trace: Path, peers: Path, limit_s: int | None = None) -> Cost:
    """One run in a process of its own, stopped after so many CPU seconds.

    Raises:
        RuntimeError: it failed, with its last words.
    """
    python = str(peers) if candidate.peer else sys.executable
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPYCACHEPREFIX"] = str(trace.parent / "pycache")  # bytecode as an installed package has it
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [python, "-c", candidate.program, str(trace)],
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=environ,
            preexec_fn=None if limit_s is None else lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s)),
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        stopped = limit_s is not None and process.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
        if process.returncode and not stopped:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise RuntimeError(f"{candidate.name}: exit code {process.returncode} {' '.join(last)}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, stopped)


def in_turn(
    candidates: Sequence[Candidate],
    trace: Path,
    megabytes: float,
    rounds: int,
    peers: Path,
    limit_s: int | None = None,
) -> None:
    """Run every candidate once a round, and note each run beside the trace."""
    failed: set[str] = set()
    for done in range(rounds):
        for candidate in candidates:
            if candidate.name in failed or done >= candidate.most(megabytes):
                continue
            try:
                cost = run(candidate, trace, peers, limit_s)
            except RuntimeError as error:
                failed.add(candidate.name)
                print(error, file=sys.stderr)
                continue
            with _noted(trace).open("a", encoding="utf-8") as out:
                out.write(json.dumps([candidate.name, cost.cpu_s, cost.peak_mb, cost.stopped]) + "\n")
            print(f"{trace.name}: {candidate.name}: {cost.cpu_s:.2f} s, {cost.peak_mb:.0f} MB", file=sys.stderr)


def _noted(trace: Path) -> Path:
    return trace.with_name(trace.name + ".runs")


def costs_of(trace: Path) -> dict[str, list[Cost]]:
    """All noted runs on a trace, by candidate in the order of `CANDIDATES` and `START`."""
    found: dict[str, list[Cost]] = {candidate.name: [] for candidate in (*CANDIDATES, *START)}
    if _noted(trace).exists():
        for line in _noted(trace).read_text(encoding="utf-8").splitlines():
            name, *cost = json.loads(line)
            found[name].append(Cost(*cost))
    return {name: costs for name, costs in found.items() if costs}


def median(costs: Sequence[Cost]) -> Cost:
    """Median time and memory; of runs that were stopped as well, a lower bound."""
    return Cost(
        statistics.median(c.cpu_s for c in costs),
        statistics.median(c.peak_mb for c in costs),
        any(c.stopped for c in costs),
    )


def table(trace: Path, megabytes: float) -> str:
    """A Markdown table; ratios are CPU time over that of this package's whole command."""
    costs = costs_of(trace)
    own = median(costs[ANALYZE]).cpu_s if ANALYZE in costs else None
    lines = [f"**{trace.name}**, {megabytes:,.0f} MB of JSON, {trace.stat().st_size / 1e6:,.0f} MB stored", ""]
    lines += ["| candidate | runs | CPU s | MB/s per core | × analyze | peak MB |", "|---|---:|---:|---:|---:|---:|"]
    for name, runs in costs.items():
        cost = median(runs)
        more, less = ("> ", "< ") if cost.stopped else ("", "")
        ratio = f"{more}{cost.cpu_s / own:.1f}" if own else ""
        speed = f"{less}{megabytes / cost.cpu_s:,.0f}"
        peak = f"{more}{cost.peak_mb:,.0f}"
        lines.append(f"| {name} | {len(runs)} | {more}{cost.cpu_s:.2f} | {speed} | {ratio} | {peak} |")
    return "\n".join(lines)


def start_up(trace: Path) -> str:
    """What the command takes where there is next to nothing to read."""
    lines = ["Start-up:", "", "| command | runs | CPU s | peak MB |", "|---|---:|---:|---:|"]
    for name, runs in costs_of(trace).items():
        cost = median(runs)
        lines.append(f"| {name} | {len(runs)} | {cost.cpu_s:.2f} | {cost.peak_mb:,.0f} |")
    return "\n".join(lines)


def kept_memory(traces: Sequence[tuple[Path, float]]) -> str:
    """Peak memory of the reader over that of a bare import, beside the bytes of the tables that it keeps."""
    lines = ["| trace | peak of the reader, MB | imports alone, MB | tables kept, MB | rest, MB |"]
    lines.append("|---|---:|---:|---:|---:|")
    for trace, _ in traces:
        found = _measured_in_process(trace)
        rest = found["peak"] - found["bare"] - found["kept"]
        lines.append(
            f"| {trace.name} | {found['peak']:,.0f} | {found['bare']:,.0f} | {found['kept']:,.1f} | {rest:,.0f} |"
        )
    return "\n".join(lines)


_MEMORY = """
import json, resource, sys
import numpy, pyarrow, msgspec
import parsers.kineto
from parsers import read
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
bare = peak()
trace = read(sys.argv[1])[0]
tables = (trace.gpu_events, trace.comm_records, trace.launches, trace.cpu_marks, trace.steps, trace.groups)
print(json.dumps({"bare": bare, "peak": peak(), "kept": sum(table.nbytes for table in tables) / 1e6}))
"""


def _measured_in_process(trace: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", _MEMORY, str(trace)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measured(
    candidates: Sequence[Candidate],
    folder: Path,
    sizes: Sequence[float],
    rounds: int,
    variants: Sequence[str],
    peers: Path,
    *,
    add: bool,
    limit_s: int | None = None,
) -> str:
    """All tables."""
    out, traces = [], []
    small = folder / "warm.json"
    if rounds:
        write(small, 1)
        for candidate in (*candidates, *START):
            run(candidate, small, peers)  # not counted: it fills the cache of bytecode
        if not add:
            _noted(small).unlink(missing_ok=True)
        in_turn(START, small, 1, rounds, peers)
    for size in sizes:
        for variant in variants:
            layout, _, packed = variant.partition(".")
            trace = folder / f"{layout}_{size:.0f}.json{'.gz' if packed else ''}"
            if not trace.exists() and rounds:
                write(trace, size, layout)
            if not add:
                _noted(trace).unlink(missing_ok=True)
            in_turn([c for c in candidates if c.wanted(size, variant)], trace, size, rounds, peers, limit_s)
            if trace.exists() and costs_of(trace):
                traces.append((trace, size))
                out.append(table(trace, size))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"
    plain = [(trace, size) for trace, size in traces if trace.name.startswith("kineto") and size >= 100]
    memory = f"Memory of the reader alone:\n\n{kept_memory(plain)}" if plain else ""
    said = f"Measured on {machine}; medians, candidates in turn."
    start = start_up(small) if _noted(small).exists() else ""
    return "\n\n".join(text for text in (said, *out, memory, start) if text)


def put(text: str, page: Path, mark: str = MARK) -> None:
    """Replace what is between the marks of a page."""
    parts = page.read_text(encoding="utf-8").split(mark)
    if len(parts) != 3:
        raise SystemExit(f"{page}: needs two lines {mark}")
    page.write_text(mark.join((parts[0], f"\n{text}\n", parts[2])), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[50, 300, 1500])
    parser.add_argument("--variants", nargs="+", default=["kineto", "indent", "compact", "kineto.gz"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="parts of the names of the candidates that are run")
    parser.add_argument("--add", action="store_true", help="keep what earlier calls measured")
    parser.add_argument(
        "--limit", type=int, help="CPU seconds after which a run is stopped; the tables then say more than"
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "commlens_ingest")
    parser.add_argument("--into", type=Path, help="a page with two marks, between which the tables go")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    peers = environment(args.folder / "peers")
    chosen = [c for c in CANDIDATES if args.only is None or any(part in c.name for part in args.only)]
    text = measured(
        chosen,
        args.folder,
        args.megabytes,
        args.rounds,
        args.variants,
        peers,
        add=args.add or not args.rounds,
        limit_s=args.limit,
    )
    print(text)
    if args.into is not None:
        put(text, args.into)


if __name__ == "__main__":
    main()

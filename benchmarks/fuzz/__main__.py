"""Reads mutated files of every format until one breaks a parser, and writes down what came of them.

    python -m benchmarks.fuzz                           100,000 files
    python -m benchmarks.fuzz --minutes 5               the slow lane of CI
    python -m benchmarks.fuzz --minutes 600 --seed 7    a night
    python -m benchmarks.fuzz --seed 1 --only 4711      one mutant again, kept in --keep

The exit code is 1 where anything broke; every file that did is kept. Ctrl-C or SIGTERM ends a run with its report.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

from benchmarks.fuzz.case import FAULTS, MAX_MORE_BYTES, MAX_SECONDS, MAX_TIMES, READ, REFUSED, Outcome, write
from benchmarks.fuzz.seeds import ROOT, Seed, all_seeds
from benchmarks.fuzz.workers import Plan, mutant, run_all, schedule

CHUNK = 100_000
TELL_EVERY = 10_000


class Tally:
    """What came of the files so far."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.seconds: dict[str, float] = defaultdict(float)
        self.slowest: dict[str, float] = {}
        self.most_bytes: dict[str, int] = {}
        self.faults: list[str] = []
        self.mutations: Counter[str] = Counter()

    def add(self, number: int, kind: str, how: str, outcome: Outcome) -> None:
        """Count one file."""
        self.counts.setdefault(kind, Counter())[outcome.kind] += 1
        self.seconds[kind] += outcome.seconds
        self.slowest[kind] = max(self.slowest.get(kind, 0.0), outcome.seconds)
        self.most_bytes[kind] = max(self.most_bytes.get(kind, 0), outcome.more_bytes)
        self.mutations.update(how.split("+"))
        if outcome.kind in FAULTS:
            self.faults.append(f"{number} | {kind} | {how} | {outcome.kind}: {outcome.detail}")

    @property
    def files(self) -> int:
        """How many were read."""
        return sum(sum(counts.values()) for counts in self.counts.values())


def main() -> int:
    """Run; 1 where a parser broke."""
    asked = _arguments()
    shared = Path(os.environ.get("COMMLENS_SHARED", ROOT.parent / "shared"))
    seeds = all_seeds(shared if (shared / "data").is_dir() and not asked.own else None)
    home = Path(tempfile.mkdtemp(prefix="commlens-fuzz-"))
    plan = Plan(seeds, schedule(seeds), asked.seed, asked.whole_every, home)
    if asked.only is not None:
        return _again(plan, asked)
    started = time.monotonic()
    tally = Tally()
    ended = threading.Event()
    for wanted in (signal.SIGINT, signal.SIGTERM):  # a job in the background ignores the first
        signal.signal(wanted, lambda *_: ended.set())
    print(f"{len(seeds)} seeds", flush=True)
    try:
        _run(plan, tally, asked, started, ended)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    text = report(tally, seeds, asked, time.monotonic() - started)
    if asked.report:
        Path(asked.report).write_text(text)
    print(text)
    return 1 if tally.faults else 0


def _run(plan: Plan, tally: Tally, asked: argparse.Namespace, started: float, ended: threading.Event) -> None:
    """Chunk by chunk, until there are enough, the time is over, or the user ends it."""
    at, end = asked.first, asked.first + asked.files
    until = started + 60 * asked.minutes if asked.minutes else None
    while until or at < end:
        numbers = range(at, at + CHUNK if until else min(at + CHUNK, end))
        for number, kind, how, outcome in run_all(plan, numbers, asked.processes):
            tally.add(number, kind, how, outcome)
            if outcome.kind in FAULTS:
                print(tally.faults[-1], flush=True)
                write(mutant(plan.seeds, plan.kinds, plan.run_seed, number)[0], _kept(asked, number))
            if tally.files % TELL_EVERY == 0:
                print(
                    f"{tally.files} files, {len(tally.faults)} faults, {time.monotonic() - started:.0f} s", flush=True
                )
            if ended.is_set() or (until and time.monotonic() > until):
                return
        at += CHUNK


def _kept(asked: argparse.Namespace, number: int) -> Path:
    return Path(asked.keep) / f"{asked.seed}-{number}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000, help="how many mutants")
    parser.add_argument("--minutes", type=float, help="as many as this time allows instead")
    parser.add_argument("--seed", type=int, default=1, help="of the random generator")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--processes", type=int, default=1, help="at a time")
    parser.add_argument("--whole-every", type=int, default=25, help="one in how many is analysed whole; 0: none")
    parser.add_argument("--own", action="store_true", help="only seeds of this repository")
    parser.add_argument("--only", type=int, help="make and read this mutant alone")
    parser.add_argument("--keep", default="fuzz-faults", help="directory for files that broke something")
    parser.add_argument("--report", help="write the report to this file")
    return parser.parse_args()


def _again(plan: Plan, asked: argparse.Namespace) -> int:
    from benchmarks.fuzz.case import run

    seed, how = mutant(plan.seeds, plan.kinds, plan.run_seed, asked.only)
    path = write(seed, _kept(asked, asked.only))
    print(f"{path} ({seed.label}; {how})\n{run(seed, path, whole=True)}")
    return 0


def report(tally: Tally, seeds: list[Seed], asked: argparse.Namespace, wall: float) -> str:
    """What came of the files, as markdown."""
    spent = sum(tally.seconds.values()) / 60
    lines = [
        "# Mutated files",
        "",
        f"`python -m benchmarks.fuzz --seed {asked.seed} --first {asked.first}` at commit {_commit()}: "
        f"{tally.files:,} files from {len(seeds)} seeds, {len(tally.faults)} faults, {spent:.1f} processor minutes in "
        f"the parsers, {wall / 60:.1f} minutes by the clock. One file in {asked.whole_every or '–'} was also analysed "
        "whole and reported as text, markdown and JSON.",
        "",
        "*read*: tables came of it, and they are valid. *refused*: one line for the user. Faults are a traceback, a "
        f"table that is not valid, more than {MAX_SECONDS} s, more memory than {MAX_TIMES} times the file and "
        f"{MAX_MORE_BYTES >> 20} MiB, a dead process.",
        "",
        *_table(tally, seeds),
        "",
        "Mutations: " + ", ".join(f"{how} {count:,}" for how, count in tally.mutations.most_common()) + ".",
    ]
    if tally.faults:
        lines += ["", "Faults:", "", *(f"* {fault}".replace("`", "'") for fault in tally.faults[:200])]
    return "\n".join(lines) + "\n"


def _table(tally: Tally, seeds: list[Seed]) -> list[str]:
    head = ("format", "seeds", "files", READ, REFUSED, *FAULTS, "ms a file", "slowest s", "most MiB")
    rows = []
    for kind, counts in sorted(tally.counts.items()):
        files = sum(counts.values())
        sown = sum(seed.format == kind for seed in seeds)
        numbers = [f"{counts[outcome]:,}" for outcome in (READ, REFUSED, *FAULTS)]
        mean, slowest = f"{1000 * tally.seconds[kind] / files:.1f}", f"{tally.slowest[kind]:.2f}"
        rows.append((kind, str(sown), f"{files:,}", *numbers, mean, slowest, f"{tally.most_bytes[kind] / 2**20:.0f}"))
    rule = "|".join(["---", *["---:"] * (len(head) - 1)])
    return [f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]


def _commit() -> str:
    def git(*words: str) -> str:
        said = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return said.stdout.strip()

    changed = git("status", "--porcelain", "parsers", "heuristics", "analyzer", "benchmarks/fuzz")
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{' with changes' if changed else ''}"


if __name__ == "__main__":
    raise SystemExit(main())

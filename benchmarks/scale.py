"""Thousands of ranks from their summaries: how long they take to load, and the layout to infer; limits are checked.

`python -m benchmarks.scale --ranks 2048 16384` makes the summaries of jobs with several dimensions
(`benchmarks.many_ranks`) as one merged file, and prints CPU seconds of each stage, wall time and peak memory, measured
in processes of their own without their imports: of five runs the one in the middle. `--apart` measures a directory
with a file per rank as well, read by `analyzer.infer_layout` from its start to its end. Exits with 1 where a limit is
missed or a layout is wrong.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.ingest import put

MARK = "<!-- benchmarks.scale -->"

DEGREES = {"dense": "tp8-cp1-pp8-dp{}-ep1", "moe": "tp4-cp1-pp4-dp{}-ep8", "hsdp": "tp8-cp1-pp1-dp{}-ep1"}
"""The layouts of `many_ranks.SHAPES`, written down again: what inference has to find."""

SPLIT = {"dense": 64, "moe": 16, "hsdp": 8}
"""Ranks that hold one copy of the model."""


@dataclass(frozen=True)
class Limit:
    """What a job of so many ranks may take: seconds on an idle machine, and peak memory of all processes in MB.

    Seconds are the CPU time of this process and that of its workers over their number: the wall clock of a busy machine
    tells of the others.
    """

    seconds: float
    peak_mb: float


MERGED = {2048: Limit(0.5, 1000), 16384: Limit(2, 1000)}
APART = {16384: Limit(10, 4000)}


def measure(kind: str, ranks: int, place: Path, workers: int) -> str:
    """A row of the table, and what is wrong with it; to be called in a fresh process."""
    import pyarrow.parquet  # noqa: F401  (not counted: it is imported once, however many ranks there are)

    from analyzer import layout_alone as _layout_alone  # noqa: F401

    marks = [_now()]
    if place.is_dir():
        from analyzer import infer_layout

        layout = infer_layout(place, workers=workers)
        marks += [_now()]
        stages = ["", "", f"{marks[1].cpu - marks[0].cpu:.2f}"]
        size = sum(file.stat().st_size for file in place.iterdir())
    else:
        from analyzer.summary.columns import FOR_LAYOUT
        from analyzer.summary.file import read_table
        from analyzer.summary.table import views_of
        from heuristics.layout import infer_views

        table = read_table(str(place), FOR_LAYOUT)
        marks += [_now()]
        views = views_of(table)
        marks += [_now()]
        layout = infer_views(views).layout
        marks += [_now()]
        stages = [f"{after.cpu - before.cpu:.2f}" for before, after in pairwise(marks)]
        size = place.stat().st_size
    wall, peak = marks[-1].wall - marks[0].wall, _peak_mb()
    found = f"tp{layout.tp}-cp{layout.cp}-pp{layout.pp}-dp{layout.dp}-ep{layout.ep}"
    limit = (APART if place.is_dir() else MERGED).get(ranks)
    spent = marks[-1].own - marks[0].own + (marks[-1].children - marks[0].children) / workers
    missed = limit is not None and (spent > limit.seconds or peak > limit.peak_mb)
    wrong = found != DEGREES[kind].format(ranks // SPLIT[kind])
    verdict = "wrong" if wrong else "missed" if missed else "kept" if limit is not None else ""
    said = f"{limit.seconds:g} s, {limit.peak_mb:,.0f} MB: {verdict}" if limit is not None else verdict
    form = "a file each" if place.is_dir() else "one file"
    row = [f"{ranks:,}", kind, form, f"{size / ranks / 1e3:.1f}", *stages, f"{wall:.2f}", f"{peak:,.0f}"]
    return f"| {' | '.join([*row, f'{found}, {layout.confidence:.2f}', said])} |"


@dataclass(frozen=True)
class Moment:
    """CPU seconds of this process, of those of its children that have ended, and the wall clock."""

    own: float
    children: float
    wall: float

    @property
    def cpu(self) -> float:
        """CPU seconds of all of them."""
        return self.own + self.children


def _now() -> Moment:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return Moment(own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime, time.perf_counter())


def _peak_mb() -> float:
    """Peak resident memory of this process; with children, of the largest of them on top.

    ``ru_maxrss`` of a new process begins with that of its parent on Linux (`execve` keeps it), so the parent must be
    small: this module imports nothing large.
    """
    own, child = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return (own + child * (os.cpu_count() or 1)) / 1024


def _fresh(function: str, *arguments: object) -> str:
    """What a function of this module returns in a process of its own."""
    words = ", ".join(repr(str(a)) if isinstance(a, Path) else repr(a) for a in arguments)
    program = f"from pathlib import Path\nfrom benchmarks import scale\nprint(scale.{function}({words}))"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def make_one(kind: str, ranks: int, place: str, apart: bool) -> str:
    """Make the summaries of a job; to be called in a process of its own, for it takes memory."""
    from benchmarks.many_ranks import SHAPES, make_apart, make_merged

    (make_apart if apart else make_merged)(SHAPES[kind], ranks, Path(place))
    return place


def measure_one(kind: str, ranks: int, place: str, workers: int) -> str:
    """`measure`, of a place given as text."""
    return measure(kind, ranks, Path(place), workers)


def _median(rows: list[str]) -> str:
    """Of the rows of several runs the one whose seconds are in the middle."""

    def seconds(row: str) -> float:
        return sum(float(cell) for cell in row.split("|")[5:8] if cell.strip())

    return sorted(rows, key=seconds)[len(rows) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2048, 16384])
    parser.add_argument("--job", nargs="+", choices=sorted(DEGREES), default=list(DEGREES), help="kinds of jobs")
    parser.add_argument("--apart", action="store_true", help="a directory with a file per rank, of the first kind, too")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that read that directory")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each, of which the median is shown")
    parser.add_argument("--into", type=Path, help="a page with two marks, between which the table goes")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "commlens_scale")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    lines = ["| ranks | job | summaries | kB a rank | read CPU s | decode CPU s | infer CPU s | wall s | peak MB |"]
    lines[0] += " layout | limit |"
    lines.append("|---:|---|---|---:|---:|---:|---:|---:|---:|---|---|")
    wanted = [(kind, ranks, False) for ranks in args.ranks for kind in args.job]
    wanted += [(args.job[0], ranks, True) for ranks in args.ranks if args.apart]
    for kind, ranks, apart in wanted:
        place = args.folder / f"{kind}{ranks}{'' if apart else '.parquet'}"
        if not place.exists():
            _fresh("make_one", kind, ranks, place, apart)
        lines.append(_median([_fresh("measure_one", kind, ranks, place, args.workers) for _ in range(args.rounds)]))
        print(lines[-1], flush=True)
    print("\n".join(lines))
    if args.into is not None:
        put("\n".join(lines), args.into, MARK)
    sys.exit(any(line.endswith((": missed |", "wrong |")) for line in lines))


if __name__ == "__main__":
    main()

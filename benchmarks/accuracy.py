"""How often the inferred layout is right, by source and by what the traces say, and how sure it is.

    python -m benchmarks.accuracy                       # everything that is there; an hour and more on two cores
    python -m benchmarks.accuracy --source bundled
    python -m benchmarks.accuracy --source generated --scope quick --case 'megatron-tp*'
    python -m benchmarks.accuracy --write               # docs/accuracy.md, and the table in the README
    python -m benchmarks.accuracy --every 4             # every fourth of the simulated jobs; the documents say so
    python -m benchmarks.accuracy --results run.jsonl   # keeps what is done: a run that was ended goes on from there

Captured and published traces beside the checkout are found with ``--shared`` or ``COMMLENS_SHARED``. Exits with 1 where
a wrong degree is stated with confidence 0.9 or more.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path

from benchmarks.scoring import cases, report, tables
from benchmarks.scoring.cases import ROOT, Case
from benchmarks.scoring.run import Result, results
from benchmarks.scoring.store import append, load
from benchmarks.synthesis.matrix import entries

SOURCES = ("bundled", "captured", "ablated", "published", "generated", "layouts")
MARKS = re.compile(r"(<!-- accuracy:begin -->\n).*?(<!-- accuracy:end -->)", re.DOTALL)


def chosen(sources: list[str], scope: str, shared: Path | None, pattern: str) -> Iterator[Case]:
    """The cases of some sources whose names match."""
    ways: dict[str, Callable[[], Iterator[Case]]] = {
        "bundled": cases.bundled,
        "captured": lambda: cases.captured(shared),
        "ablated": lambda: cases.ablated(shared),
        "published": lambda: cases.published(shared),
        "generated": lambda: cases.generated(entries(scope)),
        "layouts": lambda: cases.layouts(shared),
    }
    for case in chain.from_iterable(ways[source]() for source in sources):
        if fnmatch.fnmatch(case.name, pattern):
            yield case


def sampled(found: Iterator[Case], every: int) -> Iterator[Case]:
    """All cases that were not simulated, and every n-th of those that were, of each source."""
    number: Counter[str] = Counter()
    for case in found:
        if case.entry is None or number[case.source] % every == 0:
            yield case
        number[case.source] += 1


def measure(case: Case) -> list[Result]:
    """All answers to one case; a separate function so that processes can be given it."""
    return list(results(case))


def run(wanted: list[Case], jobs: int) -> Iterator[list[Result]]:
    """All answers to one case after another, in their order."""
    if jobs <= 1:
        yield from map(measure, wanted)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(measure, wanted)


def write(found: list[Result], every: int = 1) -> None:
    """Write docs/accuracy.md and the part of the README between its marks."""
    (ROOT / "docs" / "accuracy.md").write_text(report.document(found, every), encoding="utf-8")
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(MARKS.sub(lambda m: f"{m[1]}{report.excerpt(found, every)}\n{m[2]}", text), encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--source", action="append", choices=SOURCES, help="only this one; may be repeated")
    parser.add_argument("--scope", choices=("quick", "full"), default="full", help="how many jobs to generate")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th of the simulated jobs")
    parser.add_argument("--case", default="*", help="a pattern for names")
    parser.add_argument("--shared", type=Path, default=os.environ.get("COMMLENS_SHARED", ROOT.parent / "shared"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=Path, help="a file to keep results in, and to take them from")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    shared = args.shared if args.shared.is_dir() else None
    wanted = list(sampled(chosen(args.source or list(SOURCES), args.scope, shared, args.case), args.every))
    found = list(load(args.results)) if args.results else []
    names = {(case.source, case.name) for case in wanted}
    found = [result for result in found if (result.source, result.name) in names]
    done = {(result.source, result.name) for result in found}
    for results_of_one in run([case for case in wanted if (case.source, case.name) not in done], args.jobs):
        found += results_of_one
        if args.results:
            append(args.results, results_of_one)
        for result in (r for r in results_of_one if r.ranks == "all"):
            told = f"{result.name:48s} {result.given:14s} {report.inferred(result):24s} {report.outcome(result)}"
            print(told, flush=True)
    if not found:
        sys.exit("no case of that name")
    for table in (tables.summary(found), tables.against_baselines(found), tables.reliability(found)):
        print("\n" + report.aligned(table))
    if args.write:
        write(found, args.every)
    sys.exit(any(result.broken_promise for result in found))


if __name__ == "__main__":
    main()

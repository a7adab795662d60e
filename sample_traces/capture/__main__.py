"""Command line: ``python -m sample_traces.capture [CASE...] [--out DIR]``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from sample_traces.capture import truth
from sample_traces.capture.cases import CASES
from sample_traces.capture.job import Case, run
from sample_traces.capture.trim import trim, write


def capture(case: Case, out: Path, *, full: bool) -> int:
    """Run one case and write its folder; returns the bytes written."""
    folder = out / case.name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as raw:
        facts = run(case, Path(raw))
        for rank in range(case.world):
            trace = json.loads(Path(raw, f"rank{rank}.json").read_text())
            write(trace if full else trim(trace, rank), folder / f"rank{rank}.json.gz")
    (folder / "truth.json").write_text(truth.dump(facts))
    return sum(file.stat().st_size for file in folder.iterdir())


def main() -> None:
    """Parse the arguments and capture."""
    parser = argparse.ArgumentParser(prog="python -m sample_traces.capture", description=__doc__)
    parser.add_argument("case", nargs="*", help="cases to capture; all by default")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1], help="where to (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="keep the traces as the profiler wrote them")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--readme", action="store_true", help="write README.md from the truth files and stop")
    args = parser.parse_args()
    if args.list:
        for case in CASES.values():
            print(f"{case.name:20s} {case.world} processes  {case.about}")
        return
    if args.readme:
        (args.out / "README.md").write_text(truth.readme(args.out))
        return
    if unknown := [name for name in args.case if name not in CASES]:
        parser.error(f"unknown case {', '.join(unknown)}; --list shows the cases")
    for name in args.case or CASES:
        size = capture(CASES[name], args.out, full=args.full)
        print(f"{name}: {size / 1000:.0f} kB", file=sys.stderr)


if __name__ == "__main__":
    main()

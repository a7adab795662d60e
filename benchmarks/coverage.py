"""Runs tests and says which branches of a package they take; fails below the share that CONTRIBUTING.md promises.

    python -m benchmarks.coverage                              parsers, by the tests that mirror it
    python -m benchmarks.coverage --tests tests                by all of them
    python -m benchmarks.coverage --package ledger --tests tests/ledger

The exit code is 1 where a test failed, or where fewer than ``--least`` per cent of the branches were taken.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.docs import ROOT

LEAST_PERCENT = 95.0


def main() -> int:
    """Run; 0 where all tests passed and enough branches were taken."""
    asked = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", asked.processes, *asked.tests]
        command += [f"--cov={asked.package}", "--cov-branch", f"--cov-report=json:{report}"]
        failed = subprocess.run(command, cwd=ROOT, check=False).returncode
        if not report.exists():
            return failed or 1
        document = json.loads(report.read_text())
    print("\n".join(table(document)))
    return failed or int(branches(document["totals"]) < asked.least)


def branches(summary: Mapping[str, Any]) -> float:
    """Per cent of the branches that were taken; 100 where there are none."""
    return 100.0 * summary["covered_branches"] / summary["num_branches"] if summary["num_branches"] else 100.0


def table(document: Mapping[str, Any]) -> list[str]:
    """The files in which a branch was not taken, fewest first, and the sum, as markdown."""
    lines = ["| file | branches | taken | % | not taken: from line to line |", "|---|---:|---:|---:|---|"]
    files = sorted(document["files"].items(), key=lambda item: (branches(item[1]["summary"]), item[0]))
    for name, said in files:
        if said["missing_branches"]:
            missing = ", ".join(f"{a}→{b if b > 0 else 'end'}" for a, b in said["missing_branches"])
            lines.append(f"| {name} | {_numbers(said['summary'])} | {missing} |")
    return [*lines, f"| all {len(files)} files | {_numbers(document['totals'])} | |"]


def _numbers(summary: Mapping[str, Any]) -> str:
    return f"{summary['num_branches']} | {summary['covered_branches']} | {branches(summary):.1f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--package", default="parsers", help="whose branches")
    parser.add_argument("--tests", nargs="+", default=["tests/parsers"], help="which tests")
    parser.add_argument("--processes", default="auto", help="at a time, as pytest-xdist counts them")
    parser.add_argument("--least", type=float, default=LEAST_PERCENT, help="per cent of branches")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())

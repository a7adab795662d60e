"""Command line: ``python -m examples.parallel_toys [EXPERIMENT...] [--trace DIR]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.parallel_toys.launch import run

EXPERIMENTS = ("zero", "tp", "cp", "pp", "ep")


def main() -> None:
    """Run the experiments asked for, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m examples.parallel_toys", description=__doc__)
    parser.add_argument("experiment", nargs="*", help=f"{', '.join(EXPERIMENTS)}; all of them by default")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="write DIR/EXPERIMENT/rank{0..3}.json.gz")
    args = parser.parse_args()
    if unknown := [name for name in args.experiment if name not in EXPERIMENTS]:
        parser.error(f"unknown experiment {', '.join(unknown)}")
    for name in args.experiment or EXPERIMENTS:
        print(f"== {name}")
        print(run(name, args.trace / name if args.trace else None), end="\n\n")


if __name__ == "__main__":
    main()

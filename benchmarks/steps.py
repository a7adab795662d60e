"""How well steps are found where nobody marked them: marks hidden, what is found compared with them.

    python -m benchmarks.steps [NAME=]DIRECTORY...            # one line per trace, then the totals
    python -m benchmarks.steps [NAME=]DIRECTORY... --write    # and puts the totals into docs/time.md

Every trace with three marked steps or more counts. What is compared:

* boundary: the largest distance of an inner boundary from the nearest mark, in per cent of the mean marked step. The
  begin of the first step and the end of the last are left out: nothing that is in the file shows them.
* length: the mean distance of the inner boundaries, against that of the marks nearest to them, in per cent.
* calls: how many collective calls are in another step than by the marks.
* certain: whether the product says that it knows the boundaries to 0.3 % of a step; if not, a pause of the host around
  one of them is so long that the record does not tell, and the product warns.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heuristics.arrays import ints
from heuristics.label import label
from heuristics.labelled import CERTAIN
from parsers import read
from parsers import tables as schemas
from parsers.errors import InputError
from parsers.tables import RankTrace

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "time.md"
BEGIN, END = "<!-- steps: begin -->\n", "<!-- steps: end -->\n"
FEWEST = 3
"""Marked steps a trace must have: of two, one may be cut at either end."""


@dataclass(frozen=True)
class Found:
    """What was found in one trace; shares of a step, not per cent."""

    marked: int
    found: int
    boundary: float | None
    length: float | None
    calls_elsewhere: int
    certain: bool

    @property
    def right(self) -> bool:
        """Whether every boundary is where a mark is."""
        return self.boundary is not None and self.boundary <= CERTAIN and self.found == self.marked


def hidden(trace: RankTrace) -> RankTrace:
    """The trace without its step marks."""
    import pyarrow as pa

    marks = trace.cpu_marks
    keep = [kind != "step" for kind in marks.column("kind").to_pylist()]
    return dataclasses.replace(
        trace, steps=schemas.empty(schemas.STEPS), cpu_marks=marks.filter(pa.array(keep, type=pa.bool_()))
    )


def compare(trace: RankTrace) -> Found:
    """Find the steps of a trace whose marks are hidden, and compare."""
    marks = ints(trace.steps, "ts_ns")
    known, told = label(hidden(trace)), label(trace)
    begin = ints(known.steps.table, "ts_ns")
    if len(begin) < 2:
        return Found(len(marks), len(begin), None, None, 0, known.steps.certain)
    inner = begin[1:]
    nearest = marks[np.abs(marks[None, :] - inner[:, None]).argmin(axis=1)]
    boundary = float(np.abs(inner - nearest).max() / np.mean(np.diff(marks)))
    span = float(nearest[-1] - nearest[0])
    length = abs(float(inner[-1] - inner[0]) / span - 1) if span else None
    elsewhere = int(np.count_nonzero(ints(known.collectives, "step") != ints(told.collectives, "step")))
    return Found(len(marks), len(begin), boundary, length, elsewhere, known.steps.certain)


def traces(given: list[str]) -> Iterator[tuple[str, str, RankTrace]]:
    """Name of the directory given, name of the file, and every trace with marks enough."""
    for text in given:
        named, _, folder = text.rpartition("=")
        for file in sorted(Path(folder).rglob("*.json*")):
            try:
                read_traces = list(read(str(file)))
            except InputError:
                continue
            for trace in read_traces:
                if trace.steps.num_rows >= FEWEST:
                    yield named or Path(folder).name, f"{file.parent.name}/{file.name}", trace


def line(name: str, found: Found) -> str:
    """One trace."""
    if found.boundary is None:
        return f"{name}: {found.marked} marked, nothing found"
    length = "" if found.length is None else f", length {found.length:.2%}"
    sure = "" if found.certain else ", said to be uncertain"
    return (
        f"{name}: {found.marked} marked, {found.found} found, boundary {found.boundary:.2%}{length}, "
        f"{found.calls_elsewhere} calls in another step{sure}"
    )


def totals(kinds: dict[str, list[Found]]) -> str:
    """A Markdown table with one row per directory."""
    head = (
        "| traces | with 3 marked steps or more | boundaries within 0.3 % | of those called certain | "
        "right number of steps | length within 0.3 % | every call in its step | nothing found |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(_row(kind, found) for kind, found in kinds.items())


def _row(kind: str, found: list[Found]) -> str:
    there = [f for f in found if f.boundary is not None]
    certain = [f for f in there if f.certain]
    lengths = [f.length for f in there if f.length is not None]
    cells = (
        str(len(found)),
        str(sum(f.right for f in found)),
        f"{sum(f.right for f in certain)} of {len(certain)}",
        str(sum(f.found == f.marked for f in found)),
        f"{sum(length <= CERTAIN for length in lengths)} of {len(lengths)}",
        str(sum(not f.calls_elsewhere for f in there)),
        str(len(found) - len(there)),
    )
    return f"| {kind} | " + " | ".join(cells) + " |\n"


def main() -> None:
    """Print one line per trace, then the totals; write them with ``--write``."""
    parser = argparse.ArgumentParser(description="Steps found without marks, against the marks.")
    parser.add_argument("paths", nargs="+", metavar="[NAME=]DIRECTORY")
    parser.add_argument("--write", action="store_true", help="put the totals into docs/time.md")
    args = parser.parse_args()
    kinds: dict[str, list[Found]] = {}
    for kind, name, trace in traces(args.paths):
        found = compare(trace)
        kinds.setdefault(kind, []).append(found)
        print(line(name, found), flush=True)
    table = totals(kinds)
    print("\n" + table)
    if args.write:
        before, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        DOCUMENT.write_text(f"{before}{BEGIN}{table}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

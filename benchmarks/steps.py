"""How well steps are found where nobody marked them: marks hidden, boundaries compared with the marked ones.

    python benchmarks/steps.py TRACE_OR_DIRECTORY...

One line per trace with three marked steps or more: how many steps there are and were found, and how far the boundaries
between them are from the marked ones. A trace on which nothing is found counts as abstained, not as wrong.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np

from heuristics.arrays import ints
from heuristics.label import label
from parsers import read
from parsers import tables as schemas
from parsers.errors import InputError
from parsers.tables import RankTrace

CLOSE = 0.003
"""Share of a step up to which a boundary is right: what a profiler's own bookkeeping takes between two steps."""

FEWEST = 3
"""Marked steps a trace must have: of two, one may be cut at either end."""


def hidden(trace: RankTrace) -> RankTrace:
    """The trace without its step marks."""
    import pyarrow as pa

    marks = trace.cpu_marks
    keep = [kind != "step" for kind in marks.column("kind").to_pylist()]
    return dataclasses.replace(
        trace, steps=schemas.empty(schemas.STEPS), cpu_marks=marks.filter(pa.array(keep, type=pa.bool_()))
    )


def compare(trace: RankTrace) -> tuple[int, int, float | None]:
    """Marked steps, found steps, and the largest difference of an inner boundary over the mean step length.

    The begin of the first step and the end of the last are left out: nothing that is in the file shows them.
    """
    begin = ints(trace.steps, "ts_ns")
    mean = float(np.mean(np.diff(begin)))
    found = label(hidden(trace)).steps
    at = ints(found.table, "ts_ns")
    if not len(at):
        return len(begin), 0, None
    inner = at[1:]
    off = inner - begin[np.abs(begin[None, :] - inner[:, None]).argmin(axis=1)] if len(inner) else np.full(1, mean)
    return len(begin), len(at), float(np.abs(off).max()) / mean


def main(paths: list[str]) -> None:
    """Print one line per trace, and the totals."""
    files = [f for p in paths for f in (sorted(Path(p).rglob("*.json*")) if Path(p).is_dir() else [Path(p)])]
    right = wrong = nothing = 0
    for file in files:
        try:
            traces = read(str(file))
        except InputError:
            continue
        for trace in traces:
            if trace.steps.num_rows < FEWEST or not trace.comm_records.num_rows:
                continue
            marked, found, off = compare(trace)
            good = off is not None and off <= CLOSE and abs(found - marked) <= 1
            right, wrong, nothing = right + good, wrong + (off is not None and not good), nothing + (off is None)
            said = "nothing found" if off is None else f"{off * 100:.2f} %"
            print(f"{file.parent.name}/{file.name}: {marked} marked, {found} found, {said}")
    print(f"right {right}, wrong {wrong}, abstained {nothing}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""How well steps are found where nobody marked them: marks hidden, what is found compared with them.

    python -m benchmarks.steps [NAME=]DIRECTORY...            # one line per trace, then the totals and the misses
    python -m benchmarks.steps [NAME=]DIRECTORY... --write    # and puts both tables into docs/time.md

Every trace with three marked steps or more counts, of any format. What is compared:

* boundary: the largest distance of an inner boundary from the begin of the nearest mark, in per cent of the mean marked
  step. This is the strictest reading of "within 0.3 %": one boundary that is off makes the trace a miss, and the time
  that a profiler needs between two marks is not forgiven. The begin of the first step and the end of the last are left
  out: nothing that is in the file shows them.
* length: the mean distance of the inner boundaries, against that of the marks nearest to them, in per cent.
* calls: how many collective calls are in another step than by the marks.
* certain: whether the product says that it knows the boundaries to 0.3 % of a step; if not, a pause of the host around
  one of them is so long that the record does not tell, and the product warns.
* misses: by what is recorded last before the mark and first after it, and for how long nothing is.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heuristics.arrays import codes, ints
from heuristics.columns import Ints
from heuristics.label import label
from heuristics.labelled import CERTAIN
from parsers import read
from parsers import tables as schemas
from parsers.errors import InputError
from parsers.tables import RankTrace

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "time.md"
FEWEST = 3
"""Marked steps a trace must have: of two, one may be cut at either end."""

SEVERAL = 2 * CERTAIN
"""Where nothing is recorded for less than this share of a step, its middle is within `CERTAIN` of all of it."""


@dataclass(frozen=True)
class Around:
    """What lies around a mark between two steps.

    Attributes:
        last: name of what ended last before the marked step ends.
        first: name of what begins first after the next begins.
        before: for what share of a step nothing is recorded before the next begins.
        after: for what share of a step nothing is recorded once it has begun.
        error: how far the nearest boundary found is from the mark, as a share of a step.
    """

    last: str
    first: str
    before: float
    after: float
    error: float


@dataclass(frozen=True)
class Found:
    """What was found in one trace; shares of a step, not per cent."""

    marked: int
    found: int
    boundary: float | None
    length: float | None
    calls_elsewhere: int
    certain: bool
    around: tuple[Around, ...] = ()

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
    bare = hidden(trace)
    known, told = label(bare), label(trace)
    begin = ints(known.steps.table, "ts_ns")
    if len(begin) < 2:
        return Found(len(marks), len(begin), None, None, 0, known.steps.certain)
    inner = begin[1:]
    nearest = marks[np.abs(marks[None, :] - inner[:, None]).argmin(axis=1)]
    boundary = float(np.abs(inner - nearest).max() / np.mean(np.diff(marks)))
    span = float(nearest[-1] - nearest[0])
    length = abs(float(inner[-1] - inner[0]) / span - 1) if span else None
    elsewhere = int(np.count_nonzero(ints(known.collectives, "step") != ints(told.collectives, "step")))
    around = surroundings(trace, bare, inner)
    return Found(len(marks), len(begin), boundary, length, elsewhere, known.steps.certain, around)


def surroundings(trace: RankTrace, bare: RankTrace, found: Ints) -> tuple[Around, ...]:
    """What lies around every inner mark of a trace.

    Args:
        trace: with its marks.
        bare: without.
        found: the inner boundaries found, ns.
    """
    marks = ints(trace.steps, "ts_ns")
    ended = (marks + ints(trace.steps, "dur_ns", 0))[:-1]
    step = float(np.mean(np.diff(marks)))
    begin, end, names = recorded(bare)
    out = []
    for last, mark in zip(ended.tolist(), marks[1:].tolist(), strict=True):
        past, next_ = np.flatnonzero(end <= last), np.flatnonzero(begin >= mark)
        if not len(past) or not len(next_):
            continue
        a, b = past[end[past].argmax()], next_[begin[next_].argmin()]
        error = float(np.abs(found - mark).min()) / step
        out.append(Around(names[a], names[b], (mark - end[a]) / step, (begin[b] - mark) / step, error))
    return tuple(out)


def recorded(trace: RankTrace) -> tuple[Ints, Ints, list[str]]:
    """Begin, end (ns) and name of all that the host did; of what ran on the GPU where nothing of the host is known."""
    import pyarrow as pa

    kind, kinds = codes(trace.comm_records, "layer")
    of_host = np.array([layer not in {"kernel", "gpu_annotation", "gpu_nvtx"} for layer in [*kinds, ""]])[kind]
    host = [trace.cpu_marks, trace.comm_records.filter(pa.array(of_host)), trace.launches]
    tables = host if trace.launches.num_rows or of_host.any() else [trace.gpu_events]
    begin = np.concatenate([ints(table, "ts_ns") for table in tables])
    dur = np.concatenate([np.maximum(ints(table, "dur_ns", 0), 0) for table in tables])
    names = [
        name
        for table in tables
        for name in (table.column("name").to_pylist() if "name" in table.column_names else ["launch"] * table.num_rows)
    ]
    return begin, begin + dur, [re.split(r"[#(]", name)[0] for name in names]


def traces(given: list[str]) -> Iterator[tuple[str, str, RankTrace]]:
    """Name of the directory given, name of job and rank, and every trace with marks enough."""
    for text in given:
        named, _, folder = text.rpartition("=")
        for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            try:
                read_traces = list(read(str(file)))
            except InputError:
                continue
            for trace in read_traces:
                job, own = (file.parent.name, file.name) if len(read_traces) == 1 else (file.name, trace.identity.rank)
                if trace.steps.num_rows >= FEWEST:
                    yield named or Path(folder).name, f"{job}/{own}", trace


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


def misses(kinds: dict[str, dict[str, list[Found]]]) -> str:
    """A Markdown table of the boundaries that are off, by what lies around the mark.

    Args:
        kinds: per name of a directory, per job, its traces.
    """
    titles = (
        "traces",
        "between",
        "boundaries off by more than 0.3 %",
        "by at most",
        "nothing recorded for, per cent of a step",
        "of that after the mark",
        "usual in these jobs",
        "why",
    )
    head = f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}\n"
    rows: dict[tuple[str, str, str], list[tuple[Around, float]]] = {}
    for kind, jobs in kinds.items():
        for found in jobs.values():
            around = [each for trace in found for each in trace.around]
            usual = float(np.median([each.before + each.after for each in around])) if around else 0.0
            why = EVERY_STEP if usual > SEVERAL else THIS_STEP
            for each in around:
                if each.error > CERTAIN:
                    rows.setdefault((kind, f"`{each.last}` and `{each.first}`", why), []).append((each, usual))
    return head + "".join(_miss(*key, rows[key]) for key in sorted(rows))


EVERY_STEP = "silent in every step"
THIS_STEP = "the host stood still in this step"


def _miss(kind: str, between: str, why: str, rows: list[tuple[Around, float]]) -> str:
    silent = [each.before + each.after for each, _ in rows]
    cells = (
        str(len(rows)),
        f"{max(each.error for each, _ in rows):.2%}",
        _range(silent),
        _range([each.after for each, _ in rows]),
        _range([usual for _, usual in rows]),
    )
    return f"| {kind} | {between} | " + " | ".join(cells) + f" | {why} |\n"


def _range(shares: list[float]) -> str:
    low, high = (f"{100 * share:.1f}" for share in (min(shares), max(shares)))
    return low if low == high else f"{low} to {high}"


def _put(text: str, name: str, table: str) -> str:
    """A document with the table of that name replaced."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, rest = text.split(begin)
    return f"{before}{begin}{table}{end}{rest.split(end)[1]}"


def main() -> None:
    """Print one line per trace, then the totals and the misses; write these with ``--write``."""
    parser = argparse.ArgumentParser(description="Steps found without marks, against the marks.")
    parser.add_argument("paths", nargs="+", metavar="[NAME=]DIRECTORY")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/time.md")
    args = parser.parse_args()
    kinds: dict[str, dict[str, list[Found]]] = {}
    for kind, name, trace in traces(args.paths):
        found = compare(trace)
        kinds.setdefault(kind, {}).setdefault(name.split("/")[0], []).append(found)
        print(line(name, found), flush=True)
    made = {
        "steps": totals({kind: [found for job in jobs.values() for found in job] for kind, jobs in kinds.items()}),
        "steps off": misses(kinds),
    }
    for name, table in made.items():
        print(f"\n{table}")
        if args.write:
            DOCUMENT.write_text(_put(DOCUMENT.read_text(encoding="utf-8"), name, table), encoding="utf-8")


if __name__ == "__main__":
    main()

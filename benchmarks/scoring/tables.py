"""Results counted: shares, confusion, reliability."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.scoring.answers import DEGREES, NULL, RIGHT, WRONG, judge
from benchmarks.scoring.baselines import BASELINES
from benchmarks.scoring.run import GIVEN, Result

Row = Sequence[Any]
BINS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Table:
    """A table: what its columns are called, and its rows."""

    head: Sequence[str]
    rows: Sequence[Row]


def percent(part: int, whole: int) -> str:
    """A share for a reader: full marks only where nothing is missing."""
    if not whole:
        return "–"
    value = 100.0 * part / whole
    return f"{value:.0f} %" if part in (0, whole) else f"{min(value, 99.9):.1f} %"


def groups(results: Iterable[Result], key: Callable[[Result], Any]) -> dict[Any, list[Result]]:
    """Results by a key, in the order met."""
    found: dict[Any, list[Result]] = defaultdict(list)
    for result in results:
        found[key(result)].append(result)
    return found


def summary(results: Sequence[Result]) -> Table:
    """By source, what was given, and how many ranks."""
    rows = []
    for (source, given, ranks), some in groups(results, lambda r: (r.source, r.given, r.ranks)).items():
        counts = Counter(verdict for r in some for verdict in r.verdicts.values())
        degrees = Counter(v for r in some for field, v in r.verdicts.items() if field in DEGREES)
        total, of_degrees = sum(counts.values()), sum(degrees.values())
        rows.append(
            (
                source,
                GIVEN[given],
                ranks,
                len(some),
                percent(sum(r.exact for r in some), len(some)),
                percent(degrees[RIGHT], of_degrees),
                percent(degrees[NULL], of_degrees),
                degrees[WRONG],
                percent(counts[RIGHT], total),
                counts[WRONG],
                sum(r.broken_promise for r in some),
            )
        )
    head = ("source", "given", "ranks", "answers", "exact layout", "degrees right", "null", "wrong")
    return Table((*head, "all fields right", "wrong", "wrong at ≥ 0.9"), rows)


def against_baselines(results: Sequence[Result]) -> Table:
    """Degrees right and wrong, and whole layouts, of the product and of each baseline on the same traces."""
    whole = [r for r in results if r.ranks == "all"]
    rows: list[Row] = []
    for (source, given), some in groups(whole, lambda r: (r.source, r.given)).items():
        for name in ("commlens", *BASELINES):
            verdicts = []
            for result in some:
                found = result.verdicts if name == "commlens" else judge(result.truth, result.guesses[name])
                verdicts.append([v for field, v in found.items() if field in DEGREES])
            flat = Counter(v for row in verdicts for v in row)
            exact = sum(all(v == RIGHT for v in row) for row in verdicts)
            total = sum(flat.values())
            shares = (percent(flat[v], total) for v in (RIGHT, NULL, WRONG))
            rows.append((source, GIVEN[given], name, percent(exact, len(some)), *shares))
    return Table(("source", "given", "who", "exact layout", "degrees right", "null", "wrong"), rows)


def by_hand(results: Sequence[Result], given: str = "a") -> Table:
    """Whole layouts right, and degrees wrong, of the product and of each baseline: a column for every source."""
    some = groups((r for r in results if r.ranks == "all" and r.given == given), lambda r: r.source)
    rows = []
    for name in ("commlens", *BASELINES):
        cells = []
        for source in some.values():
            found = [r.verdicts if name == "commlens" else judge(r.truth, r.guesses[name]) for r in source]
            degrees = [[v for field, v in verdicts.items() if field in DEGREES] for verdicts in found]
            exact = sum(all(v == RIGHT for v in row) for row in degrees)
            wrong = sum(row.count(WRONG) for row in degrees)
            cells.append(f"{percent(exact, len(degrees))} · {percent(wrong, sum(map(len, degrees)))}")
        rows.append((name, *cells))
    return Table(("exact layout · degrees wrong", *some), rows)


def confusion(results: Sequence[Result]) -> Table:
    """Per dimension: where it is 1 and where it is larger, what was answered."""
    rows = []
    for dim in DEGREES:
        for larger in (False, True):
            some = [r for r in results if len(r.truth.get(dim, ())) == 1 and (r.truth[dim] != {1}) == larger]
            given = Counter(
                "null"
                if (value := r.answer.fields.get(dim)) is None
                else "right"
                if value in r.truth[dim]
                else "1"
                if value == 1
                else "larger"
                for r in some
            )
            if some:
                counts = [given["right"], given["null"], given["1"] if larger else "–", given["larger"]]
                rows.append((dim, "> 1" if larger else "1", len(some), *counts))
    return Table(("dimension", "truth", "answers", "right", "null", "said 1", "said another size"), rows)


def stages(results: Sequence[Result]) -> Table:
    """ZeRO: the stage against the answer; an answer that the traffic cannot tell from the stage counts as the stage."""
    rows = []
    for stage in (0, 1, 2, 3):
        some = [r for r in results if r.truth.get("zero") and _stage(r) == stage]
        given = Counter(stage if (v := r.answer.fields["zero"]) in r.truth["zero"] else v for r in some)
        if some:
            rows.append((f"stage {stage}", len(some), *(given[v] for v in (0, 1, 2, 3, None))))
    return Table(("truth", "answers", "0", "1", "2", "3", "null"), rows)


def _stage(result: Result) -> int | None:
    """One stage to stand for those that are right: the largest that is configured."""
    known = [v for v in result.truth["zero"] if v is not None]
    return max(known) if known else None


def reliability(results: Sequence[Result]) -> Table:
    """How often a degree stated with some confidence is right, and the five together."""
    single: dict[int, list[bool]] = defaultdict(list)
    whole: dict[int, list[bool]] = defaultdict(list)
    for result in results:
        for dim, verdict in result.verdicts.items():
            if dim in DEGREES and verdict != NULL and result.answer.fields[dim] is not None:
                single[_bin(result.answer.per_degree.get(dim, 0.0))].append(verdict == RIGHT)
        if not any(field in DEGREES for field in result.null):
            whole[_bin(result.answer.confidence)].append(result.exact)
    rows = []
    for place in range(len(BINS) - 1):
        of_one, of_all = single[place], whole[place]
        if of_one or of_all:
            label = f"{BINS[place]:.2f} – {BINS[place + 1]:.2f}"
            shares = (len(of_one), percent(sum(of_one), len(of_one)), len(of_all), percent(sum(of_all), len(of_all)))
            rows.append((label, *shares))
    return Table(("confidence", "degrees stated", "right", "layouts stated", "right"), rows)


def _bin(confidence: float) -> int:
    return max(place for place, low in enumerate(BINS[:-1]) if confidence >= low)

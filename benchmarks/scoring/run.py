"""Inference and the baselines on one case, in every way it can be given."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from benchmarks.scoring import cases
from benchmarks.scoring.ablation import WITHOUT, without
from benchmarks.scoring.answers import DEGREES, NULL, WRONG, Answer, Truth, answer_of, judge
from benchmarks.scoring.baselines import BASELINES
from benchmarks.scoring.cases import Case
from benchmarks.synthesis.generate import simulate
from heuristics.label import label
from heuristics.labelled import LabelledRank
from heuristics.layout import infer
from parsers import read

GIVEN = {
    "a": "a full metadata",
    "names ignored": "b names ignored",
    "b": "b no descriptions",
    "c": "c sizes only",
    "d": "d kernels only",
    **{what: what for what in WITHOUT},
}
"""What is left in the traces, as it is called in tables."""
PROMISE = 0.9


@dataclass(frozen=True)
class Result:
    """One answer: the case, what was given, the truth, what was inferred and what the baselines say."""

    name: str
    source: str
    family: str
    given: str  # a key of `GIVEN`
    ranks: str  # all | one
    truth: Truth
    answer: Answer
    guesses: Mapping[str, Answer]

    @cached_property
    def verdicts(self) -> dict[str, str]:
        """Per known field: right, null or wrong."""
        return judge(self.truth, self.answer)

    @property
    def wrong(self) -> list[str]:
        """Fields answered wrongly."""
        return [field for field, verdict in self.verdicts.items() if verdict == WRONG]

    @property
    def null(self) -> list[str]:
        """Fields left open that are not right so."""
        return [field for field, verdict in self.verdicts.items() if verdict == NULL]

    @property
    def exact(self) -> bool:
        """Whether every known degree is right."""
        return not any(field in DEGREES for field in (*self.wrong, *self.null))

    @property
    def broken_promise(self) -> bool:
        """A wrong degree stated with confidence."""
        return self.answer.confidence >= PROMISE and any(field in DEGREES for field in self.wrong)


def results(case: Case) -> Iterator[Result]:
    """Every way of giving a case: with and without names, or at each metadata level; all ranks and single ones."""
    if case.source == "ablated":
        yield from _ablated(case)
        return
    if case.entry is None:
        assert case.folder is not None
        yield from _given(case, case.folder, "a", use_names=True)
        yield from _given(case, case.folder, "names ignored", use_names=False)
        return
    job = simulate(case.entry.spec)
    for level in case.entry.levels:
        folder = Path(tempfile.mkdtemp(prefix="commlens-accuracy-"))
        try:
            job.write(folder, replace(case.entry.spec.writing, level=level))
            yield from _given(case, folder, level, use_names=True)
        finally:
            shutil.rmtree(folder)


def files(folder: Path) -> list[Path]:
    """The traces of a folder, in the order of the ranks."""
    found = [p for p in folder.glob("*.json*") if p.name not in ("truth.json", "EXPECT.json")]
    return sorted(found, key=lambda path: ([int(n) for n in re.findall(r"\d+", path.name)] or [0], path.name))


def _ablated(case: Case) -> Iterator[Result]:
    """Without names, and without something else."""
    assert case.folder is not None
    for what in WITHOUT:
        with tempfile.TemporaryDirectory(prefix="commlens-accuracy-") as name:
            written = list(without(what, files(case.folder), Path(name)))
            yield from _answers(case, written, cases.truth(case, case.folder), what, use_names=False)


def _given(case: Case, folder: Path, given: str, *, use_names: bool) -> Iterator[Result]:
    yield from _answers(case, files(folder), cases.truth(case, folder), given, use_names=use_names)


def _answers(case: Case, traces: Sequence[Path], truth: Truth, given: str, *, use_names: bool) -> Iterator[Result]:
    ranks = [label(trace, use_names=use_names) for file in traces for trace in read(file)]
    guesses = {name: guess(ranks) for name, guess in BASELINES.items()}
    yield _result(case, given, "all", truth, ranks, guesses, use_names)
    if len(ranks) > 1:
        for rank in (ranks[0], ranks[-1]):
            yield _result(case, given, "one", truth, [rank], {}, use_names)


def _result(
    case: Case,
    given: str,
    which: str,
    truth: Truth,
    ranks: Sequence[LabelledRank],
    guesses: Mapping[str, Answer],
    use_names: bool,
) -> Result:
    layout = infer(ranks, use_names=use_names).layout
    family = case.entry.family if case.entry is not None else case.source
    return Result(case.name, case.source, family, given, which, truth, answer_of(layout), guesses)

"""Results on disk, a line each, so that a long run can be taken up again and its tables made from the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.scoring.answers import Answer
from benchmarks.scoring.run import Result


def append(path: Path, results: list[Result]) -> None:
    """Add the results of one case."""
    with path.open("a", encoding="utf-8") as out:
        out.writelines(json.dumps(_plain(result)) + "\n" for result in results)


def load(path: Path) -> Iterator[Result]:
    """All results of a file; none where there is no file."""
    if path.is_file():
        with path.open(encoding="utf-8") as lines:
            yield from (_result(json.loads(line)) for line in lines)


def _plain(result: Result) -> dict[str, Any]:
    return {
        **{key: getattr(result, key) for key in ("name", "source", "family", "given", "ranks")},
        "truth": {field: list(values) for field, values in result.truth.items()},
        "answer": _answer(result.answer),
        "guesses": {name: _answer(guess) for name, guess in result.guesses.items()},
    }


def _answer(answer: Answer) -> list[Any]:
    return [dict(answer.fields), answer.confidence, dict(answer.per_degree)]


def _result(row: dict[str, Any]) -> Result:
    return Result(
        **{key: row[key] for key in ("name", "source", "family", "given", "ranks")},
        truth={field: frozenset(values) for field, values in row["truth"].items()},
        answer=Answer(*row["answer"]),
        guesses={name: Answer(*guess) for name, guess in row["guesses"].items()},
    )

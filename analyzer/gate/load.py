"""A run from whatever was given: traces, a saved result, or a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from analyzer.errors import InconclusiveError
from analyzer.gate.baseline import decode, is_record
from analyzer.gate.record import Record
from parsers.errors import InputError

if TYPE_CHECKING:
    from analyzer.model import Analysis
    from analyzer.options import Options

_HEAD = 4096


def load_run(
    paths: Sequence[str], options: Options, tokens_per_step: int | None = None, *, whole: bool = False
) -> Record:
    """One run.

    Args:
        paths: traces, a directory or globs; or one JSON file: a baseline, or a document of ``analyze run``.
        options: how traces are analysed.
        tokens_per_step: of the whole job, where the traffic does not tell.
        whole: refuse files that are cut: a gate must not pass because the evidence is missing.

    Raises:
        InputError: nothing can be read.
        InconclusiveError: a file is cut, or see `analyzer.pipeline.analyze`.
    """
    if len(paths) == 1 and Path(paths[0]).is_file():
        with Path(paths[0]).open("rb") as file:
            head = file.read(_HEAD)
        if is_record(head):
            return _with_tokens(decode(Path(paths[0]).read_bytes(), paths[0]), tokens_per_step)
        if _is_document(head):
            return _from_document(paths[0], tokens_per_step)
    from analyzer.gate.metrics import record_of
    from analyzer.pipeline import examine

    examined = examine(list(paths), options)
    if whole:
        _insist(examined.analysis, examined.lost)
    return record_of(examined.analysis, examined.ranks, tokens_per_step)


def _insist(analysis: Analysis, lost: Sequence[str]) -> None:
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise InconclusiveError(f"{lost[0]}{more}: the file cannot be read, what it lacks cannot be checked")
    cut = [item.path for item in analysis.inputs if not item.complete]
    if cut:
        more = f" and {len(cut) - 1} more" if len(cut) > 1 else ""
        raise InconclusiveError(f"{cut[0]}{more}: the file is cut, what it lacks cannot be checked")
    if analysis.trust.ranks_duplicated:
        raise InconclusiveError(f"ranks {analysis.trust.ranks_duplicated} are there more than once: which one counts?")


def _with_tokens(record: Record, tokens: int | None) -> Record:
    if tokens is None:
        return record
    return msgspec.structs.replace(record, facts=msgspec.structs.replace(record.facts, tokens_per_step=tokens))


def _is_document(head: bytes) -> bool:
    return b'"schema_version"' in head and b'"commlens"' in head and b'"traceEvents"' not in head


def _from_document(path: str, tokens: int | None) -> Record:
    from analyzer.gate.metrics import record_of
    from analyzer.model import from_json

    try:
        analysis = from_json(Path(path).read_bytes())
    except msgspec.DecodeError as error:
        raise InputError(f"not a result of analyze: {error}", path=path) from error
    return record_of(analysis, None, tokens)

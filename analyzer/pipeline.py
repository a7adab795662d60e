"""From files to an `Analysis`: read, label, infer, measure, reconcile, find."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from analyzer.job import roster
from analyzer.matching import match
from analyzer.model import Analysis
from analyzer.options import Options
from analyzer.reading import read_all

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def analyze(paths: Paths, **options: Any) -> Analysis:
    """Analyse the traces of one job.

    Args:
        paths: a file, a directory with all ranks of one job, a glob, or several of these.
        **options: the fields of `Options`.

    Raises:
        InputError: nothing can be read, or the files come from different jobs.
        InconclusiveError: the input is incomplete and ``strict`` was asked for.
    """
    return analyze_with(paths, Options(**options))


def analyze_with(paths: Paths, options: Options) -> Analysis:
    """As `analyze`, with the options as one object."""
    from heuristics.layout import infer
    from parsers.discover import expand

    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    everything = read_all(expand(given), options)
    traces = [r.labelled.trace for r in everything]
    who = roster(traces)
    ranks = [everything[i] for i in who.keep]
    inference = infer(
        [r.labelled for r in ranks],
        use_names=options.use_names,
        gpus_per_node=options.gpus_per_node,
        declared=options.layout,
    )
    matching = match(ranks)
    measured = [
        _measure(r, dims, w, options) for r, dims, w in zip(ranks, inference.dims, matching.wait_ns, strict=True)
    ]
    return _document(traces, who, ranks, measured, inference, matching, options)

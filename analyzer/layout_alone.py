"""The layout and nothing else: of a job of thousands of ranks, without the rest of the analysis."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from analyzer.layout_doc import layout_document
from analyzer.reading.views import views
from heuristics.layout import infer_views
from parsers.discover import expand

if TYPE_CHECKING:
    from analyzer.model import LayoutDoc
    from analyzer.options import Options
    from analyzer.pipeline import Paths


def layout_alone(paths: Paths, options: Options) -> LayoutDoc:
    """The layout that `analyze` gives, read from summaries where these decide it; else with the whole analysis.

    Raises:
        InputError, InconclusiveError: as `analyze`.
    """
    found = expand([paths] if isinstance(paths, (str, os.PathLike)) else list(paths))
    ranks = views(found.paths, options)
    layout = infer_views(ranks).layout if ranks is not None else None
    if layout is None or layout.pp is None:  # a pipeline may still show in the times of all calls
        from analyzer.pipeline import analyze_with

        return analyze_with(paths, options).layout
    return layout_document(layout)

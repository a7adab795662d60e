"""What ranks did when: the stages of a pipeline, and the worst collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analyzer.details import Details
from analyzer.details.model import Lane, Turn, WorstCall
from analyzer.intervals import Floats
from analyzer.plots.theme import (
    COLOURS,
    DIMENSIONS,
    HATCH,
    INK,
    ON_DARK,
    ON_LIGHT,
    PAPER,
    QUIET,
    TIMES,
    WIDTH,
    canvas,
    inside,
    style,
    there,
)
from analyzer.plots.ticks import time_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WRITTEN = 0.012
"""Share of the width from which a pass has its microbatch written on it."""


def pipeline_timeline(job: Details, ax: Axes | None = None) -> Figure:
    """Stages over time: passes in the colour of their microbatch (backward darker, below), bubble hatched.

    Raises:
        NothingToShowError: there is no pipeline, or not all of one was read.
    """
    found = there(job.pipeline)
    with style():
        figure, ax = canvas(ax, 1.2 + 0.62 * len(found.lanes))
        scale = time_axis(ax, found.span_us, f"step {found.step},")
        for row, lane in enumerate(found.lanes):
            if lane.extent is not None:
                first, last = lane.extent
                _bars(ax, row, 0.78, np.array([[first, last]]), scale, TIMES["bubble"], hatch=HATCH["bubble"])
            if not lane.turns:
                _bars(ax, row, 0.78, lane.compute, scale, TIMES["compute"])
            for turn in lane.turns:
                _turn(ax, row, turn, found.microbatches, scale, found.span_us)
            last_turn = max((turn.end_us for turn in lane.turns), default=0.0)
            for dim, spans in lane.communication.items():
                if dim != "pp":
                    _bars(ax, row, 0.78, spans[spans[:, 0] >= last_turn], scale, DIMENSIONS[dim])
            _bars(ax, row, 0.4, lane.compute[lane.compute[:, 0] >= last_turn], scale, TIMES["compute"])
        _rows(ax, [f"{lane.label}\nrank {lane.rank}" for lane in found.lanes])
        ax.set_xlim(0, found.span_us / scale)
        _pipeline_legend(figure, found.lanes, found.microbatches)
    return figure


def worst_collectives(job: Details, ax: Axes | None = None, which: int | None = None) -> Figure:
    """The costliest collectives, two lanes each: the rank that came first and the one that came last, waiting hatched.

    Args:
        job: what was found out.
        ax: draw one of them here; else all, one below the other.
        which: of those, by cost; by default the first.

    Raises:
        NothingToShowError: no collective has a time of its own.
    """
    found = there(job.worst)
    with style():
        if ax is not None:
            figure, ax = canvas(ax, 0)
            _worst(ax, found[which or 0])
            return figure
        from matplotlib.figure import Figure

        lanes = [len(one.lanes) for one in found]
        figure = Figure(figsize=(WIDTH, 0.5 + sum(0.62 * n + 0.75 for n in lanes)), layout="constrained")
        axes = figure.subplots(len(found), 1, squeeze=False, gridspec_kw={"height_ratios": lanes}).ravel()
        for one, call in zip(axes, found, strict=True):
            _worst(one, call)
        dims = sorted({d for call in found for lane in call.lanes for d in lane.communication})
        _legend(figure, [(d, DIMENSIONS[d], None) for d in dims], waits=any(call.waits_known for call in found))
        return figure


def _worst(ax: Axes, call: WorstCall) -> None:
    scale = time_axis(ax, call.span_us)
    for row, lane in enumerate(call.lanes):
        _bars(ax, row + 0.2, 0.34, lane.compute, scale, TIMES["compute"])
        for dim, spans in lane.communication.items():
            _bars(ax, row - 0.18, 0.38, spans, scale, DIMENSIONS[dim])
        _bars(ax, row - 0.18, 0.38, lane.waiting, scale, TIMES["wait"], hatch=HATCH["wait"])
    _rows(ax, [lane.label for lane in call.lanes])
    ax.set_xlim(0, call.span_us / scale)
    ax.set_title(call.title)


def _bars(
    ax: Axes, row: float, height: float, spans: Floats, scale: float, colour: str, hatch: str | None = None
) -> None:
    if len(spans):
        ax.barh(
            np.full(len(spans), row),
            (spans[:, 1] - spans[:, 0]) / scale,
            left=spans[:, 0] / scale,
            height=height,
            color=colour,
            linewidth=0,
            hatch=hatch,
            edgecolor=INK if hatch else colour,
        )


def _turn(ax: Axes, row: int, turn: Turn, batches: int | None, scale: float, span: float) -> None:
    back = turn.phase == "backward"
    colour = batch_colour(turn.microbatch, batches, back=back) if turn.microbatch is not None else TIMES["compute"]
    ax.barh(
        row,
        (turn.end_us - turn.start_us) / scale,
        left=turn.start_us / scale,
        height=0.78,
        color=colour,
        edgecolor=PAPER,
        linewidth=0.6,
    )
    if turn.microbatch is not None and turn.end_us - turn.start_us >= WRITTEN * span:
        said = f"{'B' if back else 'F'}{turn.microbatch}" + (f"·{turn.chunk}" if turn.chunk else "")
        middle = (turn.start_us + turn.end_us) / 2 / scale
        inside(ax, middle, row, said, size=7, colour=ON_DARK if back else ON_LIGHT)


def batch_colour(batch: int, batches: int | None, *, back: bool) -> tuple[float, float, float]:
    """Light for forward, dark for backward; hues go from blue to green with the number of the microbatch."""
    from colorsys import hls_to_rgb

    hue = 0.61 - 0.25 * (batch / max((batches or 1) - 1, 1))
    light = (0.36, 0.30) if back else (0.76, 0.66)
    return hls_to_rgb(hue, light[batch % 2], 0.38)


def _rows(ax: Axes, names: Sequence[str]) -> None:
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0, labelcolor=QUIET)
    ax.grid(axis="x")


def _pipeline_legend(figure: Figure, lanes: Sequence[Lane], batches: int | None) -> None:
    after = [(lane, max((turn.end_us for turn in lane.turns), default=0.0)) for lane in lanes]
    none = np.empty((0, 2))
    dims = [
        d
        for d in DIMENSIONS
        if d != "pp" and any((lane.communication.get(d, none)[:, 0] >= end).any() for lane, end in after)
    ]
    entries: list[tuple[str, Any, str | None]] = []
    if batches:
        entries += [
            ("forward", batch_colour(0, batches, back=False), None),
            ("backward", batch_colour(0, batches, back=True), None),
        ]
    entries += [("bubble", TIMES["bubble"], HATCH["bubble"]), ("compute", TIMES["compute"], None)]
    _legend(figure, entries + [(d, DIMENSIONS[d], None) for d in dims], compute=False)


def _legend(
    figure: Figure, entries: Sequence[tuple[str, Any, str | None]], *, waits: bool = False, compute: bool = True
) -> None:
    from matplotlib.patches import Patch

    more = [("compute", COLOURS["compute"], None)] if compute else []
    every = [*more, *entries, *([("waiting", TIMES["wait"], HATCH["wait"])] if waits else [])]
    handles = [Patch(facecolor=c, label=n, hatch=h, edgecolor=INK if h else c, linewidth=0) for n, c, h in every]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(8, len(handles)))

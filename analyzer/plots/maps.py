"""Matrices as pictures: traffic between ranks, slowness, load of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analyzer.details import Details
from analyzer.intervals import Floats
from analyzer.plots.theme import ON_DARK, ON_LIGHT, PAPER, WIDTH, NothingToShowError, canvas, inside, style, there
from analyzer.plots.ticks import bytes_said, named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

SLOWEST = 1.5
"""Upper end of the scale of slowness; the same in every report, so that two can be compared."""

RANGE = 1e5
"""Largest over smallest of the traffic that has a colour of its own: flags and norms are not told apart."""

NUMBERS = 200
"""Cells up to which each has its number written in it."""

_SIDE = 0.32


def traffic_matrix(job: Details, ax: Axes | None = None) -> Figure:
    """Bytes that each rank sends to each other per step, on a logarithmic scale.

    Raises:
        NothingToShowError: bytes or peers are not known.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import FuncFormatter, NullFormatter

    found = there(job.traffic)
    high = float(found.sent_bytes.max())
    low = max(float(found.sent_bytes[found.sent_bytes > 0].min()), high / RANGE)
    cut = bool((found.sent_bytes[found.sent_bytes > 0] < low).any())
    shown = np.where(found.sent_bytes > 0, found.sent_bytes, np.nan)
    with style():
        side = min(max(len(found.ranks) * _SIDE, 2.6), 6.4)
        figure, ax = canvas(ax, side + 0.7, min(side + 2.2, WIDTH))
        image = _image(ax, shown, "cividis", LogNorm(low, high if high > low else low * 1.001))
        named(ax, "x", found.ranks, "to rank")
        named(ax, "y", found.ranks, "from rank")
        bar = _bar(figure, ax, image, "sent per step", extend="min" if cut else "neither")
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: bytes_said(v)))
        bar.ax.yaxis.set_minor_formatter(NullFormatter())
    return figure


def rank_step_heatmap(job: Details, ax: Axes | None = None) -> Figure:
    """Compute time of each rank in each step over the median of all, from 1.0 to 1.5.

    Raises:
        NothingToShowError: there is nothing to compare.
    """
    found = there(job.ratios)
    with style():
        rows, columns = found.ratio.shape
        height = min(max(rows * (_SIDE if rows <= 16 else 0.12), 0.8), 7.0) + 0.9
        figure, ax = canvas(ax, height, min(max(columns * 0.7, 2.4) + 2.6, WIDTH))
        _slow(figure, ax, found.ratio)
        named(ax, "x", found.steps or ["whole trace"], "step" if found.steps else "")
        named(ax, "y", found.ranks, "rank")
    return figure


def stage_replica_heatmap(job: Details, ax: Axes | None = None) -> Figure:
    """Compute time by pipeline stage and replica over the median of all ranks, from 1.0 to 1.5.

    Raises:
        NothingToShowError: stages and replicas are not known, or there is one of each.
    """
    found = there(job.ratios)
    if found.grid is None:
        raise NothingToShowError("there is one pipeline stage and one replica, or they are not known")
    with style():
        rows, columns = found.grid.shape
        figure, ax = canvas(ax, min(rows * 0.42, 6.0) + 1.0, min(max(columns * 0.7, 2.4) + 2.6, WIDTH))
        _slow(figure, ax, found.grid)
        named(ax, "x", list(range(columns)), "replica (DP)")
        named(ax, "y", list(range(rows)), "stage (PP)")
    return figure


def expert_load(job: Details, ax: Axes | None = None) -> Figure:
    """Tokens that each rank's experts get, layer by layer, over the mean of the group.

    Raises:
        NothingToShowError: no dispatch tells its split sizes.
    """
    from matplotlib.colors import TwoSlopeNorm

    found = there(job.experts)
    with style():
        rows, columns = found.load.shape
        figure, ax = canvas(ax, min(max(rows * _SIDE, 0.8), 6.0) + 1.0, min(max(columns * 0.62, 3.2) + 2.0, WIDTH))
        most = max(2.0, float(np.nanmax(found.load)))
        image = _image(ax, found.load, "PuOr_r", TwoSlopeNorm(1.0, 0.0, most))
        _write(ax, found.load, lambda v: v > 1 + (most - 1) * 0.6 or v < 0.3)
        named(ax, "x", found.ranks, "place in the expert group" if found.of_group else "rank")
        named(ax, "y", found.layers, "layer")
        _bar(figure, ax, image, "× mean")
    return figure


def _slow(figure: Figure, ax: Axes, ratio: Floats) -> None:
    from matplotlib.colors import Normalize

    image = _image(ax, ratio, "YlOrBr", Normalize(1.0, SLOWEST))
    _write(ax, ratio, lambda v: v > 1.3)
    _bar(figure, ax, image, "× median", ticks=(1.0, 1.1, 1.2, 1.3, 1.4, 1.5), extend="both")


def _image(ax: Axes, values: Floats, colours: str, norm: Normalize) -> Any:
    image = ax.imshow(values, cmap=colours, norm=norm, aspect="auto", interpolation="none")
    for spine in ax.spines.values():
        spine.set_visible(False)
    rows, columns = values.shape
    if rows * columns <= NUMBERS * 3:
        ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        ax.grid(which="minor", color=PAPER, linewidth=0.8)
        ax.tick_params(which="minor", length=0)
    return image


def _write(ax: Axes, values: Floats, dark: Any) -> None:
    """The numbers themselves, where there is room."""
    if values.size > NUMBERS or values.shape[1] > 16 or values.shape[0] > 24:
        return
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = ON_DARK if dark(value) else ON_LIGHT
            inside(ax, column, row, f"{value:.2f}", size=8, colour=colour)


def _bar(
    figure: Figure, ax: Axes, image: Any, title: str, ticks: Sequence[float] | None = None, **more: Any
) -> Colorbar:
    bar = figure.colorbar(image, ax=ax, label=title, ticks=ticks, shrink=0.95, pad=0.02, aspect=24, **more)
    bar.outline.set_visible(False)
    return bar

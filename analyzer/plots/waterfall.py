"""From the step of one run to that of another, part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analyzer.gate.attribution import Attribution
from analyzer.plots.theme import INK, LESS, MORE, QUIET, RULE, canvas, style
from analyzer.plots.ticks import time_axis
from analyzer.reporters import format as fmt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN = 0.18
"""Of the range in which the step moves, on each side: room for the figures."""


def waterfall(found: Attribution, ax: Axes | None = None) -> Figure:
    """A dot for the step before and after, between them a bar for each part that differs, where the last one ended.

    The axis holds the range in which the step moves, not zero: a change of a percent has to be seen.
    """
    parts = [part for part in found.parts if part.difference_ns]
    level_us = np.cumsum([found.step.baseline_ns, *(part.difference_ns for part in parts)]) / 1e3
    unit = fmt.time_unit([float(level_us.max())])
    names = ["before", *(part.name for part in parts), "after"]
    with style():
        figure, ax = canvas(ax, 0.9 + 0.3 * len(names))
        scale = time_axis(ax, float(level_us.max()), "mean step,")
        levels = level_us / scale
        span = float(np.ptp(levels)) or float(levels[0]) or 1.0
        for row, part in enumerate(parts, start=1):
            begin, end = levels[row - 1], levels[row]
            colour = MORE if end > begin else LESS
            ax.barh(row, end - begin, left=begin, height=0.62, color=colour)
            ax.plot([begin, begin], [row - 1, row], color=QUIET, linewidth=0.8, zorder=1)
            sign = "+" if part.difference_ns > 0 else ""
            _figure(ax, max(begin, end), row, f"{sign}{fmt.number(part.difference_ns / 1e3, unit)} {unit.name}", span)
        ax.plot([levels[-1]] * 2, [len(parts), len(parts) + 1], color=QUIET, linewidth=0.8, zorder=1)
        for row, level, step_ns in (
            (0, levels[0], found.step.baseline_ns),
            (len(names) - 1, levels[-1], found.step.current_ns),
        ):
            ax.scatter([level], [row], s=46, color=INK, zorder=3)
            _figure(ax, level, row, f"{fmt.number(step_ns / 1e3, unit)} {unit.name}", span)
        ax.set_yticks(range(len(names)), names)
        ax.tick_params(axis="y", length=0)
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.set_xlim(float(levels.min()) - MARGIN * span, float(levels.max()) + MARGIN * span)
        ax.grid(axis="x", color=RULE)
    return figure


def _figure(ax: Axes, x: float, row: int, words: str, span: float) -> None:
    """The value right of its mark."""
    ax.text(x + 0.012 * span, row, words, va="center_baseline", fontsize=9, color=INK)

"""The step of every rank as a stacked bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analyzer.details import Details
from analyzer.plots.theme import COLOURS, HATCH, INK, PAPER, canvas, label, legend_below, style, there
from analyzer.plots.ticks import named, time_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BARS = 128
"""Ranks beyond which evenly spaced ones stand for all."""


def step_anatomy(job: Details, ax: Axes | None = None) -> Figure:
    """A bar per rank: compute, exposed transfer of each dimension, waiting, bubble, copies, idle; they sum to the step.

    Raises:
        NothingToShowError: there is no time to divide.
    """
    found = there(job.anatomy)
    shown = np.unique(np.linspace(0, len(found.ranks) - 1, min(len(found.ranks), MOST_BARS)).round().astype(int))
    us = found.us[shown]
    with style():
        figure, ax = canvas(ax, 1.3 + max(0.24 if len(shown) <= 16 else 0.13, 0.0) * len(shown))
        scale = time_axis(ax, float(us.sum(axis=1).max()), "per step,")
        left = np.zeros(len(shown))
        for i, part in enumerate(found.parts):
            width = us[:, i] / scale
            ax.barh(
                np.arange(len(shown)),
                width,
                left=left,
                height=0.78,
                color=COLOURS[part],
                hatch=HATCH.get(part),
                edgecolor=INK if part in HATCH else PAPER,
                linewidth=0 if part in HATCH else 0.3,
                label=label(part),
            )
            left += width
        named(ax, "y", ["?" if found.ranks[i] is None else found.ranks[i] for i in shown], "rank")
        ax.set_ylim(len(shown) - 0.4, -0.6)
        ax.set_xlim(0, float(left.max()) * 1.005)
        ax.grid(axis="x")
        legend_below(ax)
    return figure

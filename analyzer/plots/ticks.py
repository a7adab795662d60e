"""Axes that people can read: units, ranks, steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analyzer.reporters import format as fmt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 32
"""Labels along an axis."""


def time_axis(ax: Axes, longest_us: float, what: str = "") -> float:
    """Label the x axis with a unit of time that fits; returns the µs of one unit."""
    unit = fmt.time_unit([longest_us])
    ax.set_xlabel(f"{what} {unit.name}".strip())
    return unit.scale


def bytes_said(value: float) -> str:
    """A round number of bytes."""
    units = (fmt.GIGABYTES, fmt.MEGABYTES, fmt.KILOBYTES)
    unit = next((unit for unit in units if value >= unit.scale), fmt.BYTES)
    return f"{value / unit.scale:g} {unit.name}"


def named(ax: Axes, axis: str, names: Sequence[object], title: str) -> None:
    """Names along an axis of whole numbers; of many, evenly spaced ones."""
    every = max(1, -(-len(names) // MOST))
    places = list(range(0, len(names), every))
    put = (ax.set_xticks, ax.set_xlabel) if axis == "x" else (ax.set_yticks, ax.set_ylabel)
    put[0](places, [str(names[i]) for i in places])
    put[1](title)
    ax.tick_params(axis="x" if axis == "x" else "y", length=0)

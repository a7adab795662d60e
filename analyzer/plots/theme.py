"""Colours and type of all pictures. One colour per dimension and per kind of time, everywhere the same.

Hues are those of Okabe and Ito (2008), told apart with every kind of colour blindness; what they mean is always written
beside them as well, and waiting and bubble are hatched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from analyzer.details import Missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")

DIMENSIONS = {
    "tp": "#0072b2",
    "cp": "#3fa3d8",
    "pp": "#d98200",
    "dp": "#00946b",
    "ep": "#b8578f",
    "control": "#7d7468",
    "unknown": "#a39a8f",
}
TIMES = {
    "compute": "#8c9db0",
    "wait": "#d55e00",
    "bubble": "#f0d060",
    "memcpy": "#8a5a33",
    "idle": "#e4e7eb",
}
COLOURS = DIMENSIONS | TIMES

INK, QUIET, RULE, PAPER = "#1c2430", "#5a6572", "#c9d1d9", "#fefefe"
"""Text, lesser text, lines and background; a page may swap them for its own."""

ON_DARK, ON_LIGHT = "#ffffff", "#101010"
"""Text inside coloured areas, which no page swaps."""

MORE, LESS = "#c0392b", "#2e8b57"
"""What a comparison found worse and better; the sign is always written beside them."""

HATCH = {"wait": "////", "bubble": "\\\\"}

LABELS = {
    "compute": "compute",
    "wait": "exposed waiting",
    "bubble": "pipeline bubble",
    "memcpy": "memory copies",
    "idle": "idle",
    "unknown": "exposed unassigned",
}

WIDTH = 9.6
"""Inches: pictures are as wide as the text of a page."""

_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "axes.grid": False,
    "axes.labelcolor": QUIET,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.8,
    "image.interpolation": "none",
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # names from a trace may hold a dollar sign
    "xtick.color": RULE,
    "xtick.labelcolor": QUIET,
    "xtick.labelsize": 9,
    "ytick.color": RULE,
    "ytick.labelcolor": QUIET,
    "ytick.labelsize": 9,
}


class NothingToShowError(Exception):
    """This input does not show what the picture is of; the message says why."""


def there(found: T | Missing) -> T:
    """What there is to draw.

    Raises:
        NothingToShowError: there is nothing, for this reason.
    """
    if isinstance(found, Missing):
        raise NothingToShowError(found.reason)
    return found


@contextmanager
def style() -> Iterator[None]:
    """The type and lines of our pictures, and nobody else's, inside the block."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def canvas(ax: Axes | None, height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """The axes that were given and their figure, or new ones; inches."""
    if ax is not None:
        figure = ax.get_figure(root=True)
        if figure is None:
            raise ValueError("these axes belong to no figure")
        return figure, ax
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def inside(ax: Axes, x: float, y: float, words: str, *, size: float, colour: str, zorder: float = 4) -> None:
    """Words in the middle of a mark or a cell; they take no part in the layout, which would measure each of them."""
    text = ax.text(x, y, words, ha="center", va="center_baseline", fontsize=size, color=colour, zorder=zorder)
    text.set_in_layout(False)


def label(part: str) -> str:
    """What a part of the step or a dimension is called in a legend."""
    return LABELS.get(part, f"exposed {part}")


def legend_below(ax: Axes, columns: int = 6) -> None:
    """The legend under the axes, outside of what is drawn."""
    handles, _ = ax.get_legend_handles_labels()
    if handles:
        figure = ax.get_figure(root=True)
        if figure is not None:
            figure.legend(loc="outside lower center", ncols=min(columns, len(handles)))

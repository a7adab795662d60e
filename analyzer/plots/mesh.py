"""The layout: ranks in their nodes, and each dimension's groups as links in its colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from analyzer.details import Details
from analyzer.details.model import Mesh
from analyzer.plots.theme import DIMENSIONS, INK, PAPER, QUIET, RULE, WIDTH, NothingToShowError, inside, style, there

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path

MOST_RANKS = 128
"""Ranks drawn; the first nodes stand for the rest."""

LARGEST_SIDE = 0.62
"""Inches between two ranks."""

ACROSS = 8
"""Ranks side by side."""


def layout_mesh(job: Details, ax: Axes | None = None, dim: str | None = None) -> Figure:
    """A panel per dimension: nodes as boxes, ranks in them, members of a group joined; dashed where nodes are crossed.

    Args:
        job: what was found out.
        ax: draw one dimension here; else all of them, side by side.
        dim: which one; by default the first.

    Raises:
        NothingToShowError: there are no groups to draw.
    """
    found = there(job.mesh)
    dims = list(found.dims) if ax is None else [dim or next(iter(found.dims), "")]
    if not dims or any(d not in found.dims for d in dims):
        raise NothingToShowError("no group of ranks is known for any dimension")
    with style():
        if ax is not None:
            _panel(ax, found, dims[0])
            figure = ax.get_figure(root=True)
            if figure is None:
                raise ValueError("these axes belong to no figure")
            return figure
        return _panels(found, dims)


def _panels(found: Mesh, dims: Sequence[str]) -> Figure:
    from matplotlib.figure import Figure

    at, _ = places(found)
    wide = max(x for x, _ in at.values()) + 2.4
    high = max(y for _, y in at.values()) + 1.5
    across = min(len(dims), 3 if wide < 6 or len(dims) == 3 else 2)
    side = min(WIDTH / across / wide, LARGEST_SIDE)
    down = -(-len(dims) // across)
    figure = Figure(figsize=(WIDTH, down * (side * high + 0.35)), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for one, dim in zip(axes, dims, strict=False):
        _panel(one, found, dim)
    for one in axes[len(dims) :]:
        one.set_axis_off()
    return figure


def places(found: Mesh) -> tuple[dict[int, tuple[float, float]], list[tuple[Sequence[int], str]]]:
    """Where each rank is drawn, and the boxes: the ranks of each node and its name."""
    nodes: Iterable[Sequence[int]] = found.nodes or [range(found.world)]
    at: dict[int, tuple[float, float]] = {}
    boxes: list[tuple[Sequence[int], str]] = []
    y = 0.0
    for number, node in enumerate(nodes):
        if len(at) + len(node) > MOST_RANKS and at:
            break
        shown = node[:MOST_RANKS]
        for i, rank in enumerate(shown):
            at[rank] = (i % ACROSS, y + i // ACROSS)
        boxes.append((shown, f"node {number}" if found.nodes else ""))
        y += (len(shown) - 1) // ACROSS + 1.45
    return at, boxes


def _panel(ax: Axes, found: Mesh, dim: str) -> None:
    from matplotlib.patches import FancyBboxPatch, PathPatch

    at, boxes = places(found)
    colour = DIMENSIONS[dim]
    for ranks, name in boxes:
        if not name:
            continue
        xs, ys = [at[r][0] for r in ranks], [at[r][1] for r in ranks]
        box = (min(xs) - 0.42, min(ys) - 0.42), max(xs) - min(xs) + 0.84, max(ys) - min(ys) + 0.84
        ax.add_patch(FancyBboxPatch(*box, "round,pad=0.06", facecolor="none", edgecolor=RULE, linewidth=1))
        ax.text(min(xs) - 0.62, min(ys), name, ha="right", va="center", fontsize=7.5, color=QUIET)
    node_of = {rank: i for i, (ranks, _) in enumerate(boxes) for rank in ranks}
    for group in found.dims[dim]:
        for a, b in pairwise([rank for rank in group if rank in at]):
            crosses = node_of[a] != node_of[b]
            ax.add_patch(
                PathPatch(
                    _link(at[a], at[b]),
                    facecolor="none",
                    edgecolor=colour,
                    linewidth=1.1 if crosses else 2.2,
                    linestyle=(0, (4, 2)) if crosses else "-",
                    zorder=2,
                )
            )
    small = len(at) > 32
    members = {rank for group in found.dims[dim] for rank in group}
    ax.scatter(
        [x for x, _ in at.values()],
        [y for _, y in at.values()],
        s=95 if small else 190,
        facecolor=PAPER,
        edgecolor=[colour if rank in members else RULE for rank in at],
        linewidth=1.3,
        zorder=3,
    )
    for rank, (x, y) in at.items():
        inside(ax, x, y, str(rank), size=6 if small else 8, colour=INK)
    _frame(ax, at, boxes)
    size = len(found.dims[dim][0])
    ax.set_title(f"{dim} {size}", color=INK)


def _link(a: tuple[float, float], b: tuple[float, float]) -> Path:
    """A line between neighbours; else a bow around the ranks between them."""
    from matplotlib.path import Path

    (ax, ay), (bx, by) = a, b
    if ay == by and abs(ax - bx) > 1:
        bow = (ax + bx) / 2, ay - 0.3 - 0.12 * abs(ax - bx)
    elif ax == bx and abs(ay - by) > 1.6:
        bow = ax + 0.25 + 0.06 * abs(ay - by), (ay + by) / 2
    else:
        return Path([a, b])
    return Path([a, bow, b], [Path.MOVETO, Path.CURVE3, Path.CURVE3])


def _frame(ax: Axes, at: Mapping[int, tuple[float, float]], boxes: Sequence[tuple[Sequence[int], str]]) -> None:
    xs, ys = [x for x, _ in at.values()], [y for _, y in at.values()]
    named = any(name for _, name in boxes)
    ax.set_xlim(min(xs) - (1.7 if named else 0.7), max(xs) + 0.7)
    ax.set_ylim(max(ys) + 0.7, min(ys) - 0.8)
    ax.set_aspect("equal")
    ax.set_axis_off()

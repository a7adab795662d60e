"""How far each rank of a hung job came, group by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analyzer.plots.theme import DIMENSIONS, INK, QUIET, RULE, TIMES, canvas, style
from analyzer.plots.ticks import named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from heuristics.hang import Divergence, HangReport

STANDINGS = {
    "waiting": ("o", TIMES["wait"]),
    "done": ("s", DIMENSIONS["dp"]),
    "not there": ("X", INK),
    "no dump": ("_", QUIET),
}
MOST_GROUPS = 24


def divergence(report: HangReport, ax: Axes | None = None) -> Figure:
    """A row per group that is not done, those out of step first; a mark per rank: waiting, done, not there, no dump."""
    shown = groups(report)
    ranks = sorted({rank for one in shown for rank in (*(one.ranks or ()), *one.waiting, *one.missing)})
    column = {rank: i for i, rank in enumerate(ranks)}
    suspects = {s.rank for s in report.suspects}
    with style():
        figure, ax = canvas(ax, 1.2 + 0.3 * len(shown))
        for rank in suspects & set(column):
            ax.axvspan(column[rank] - 0.5, column[rank] + 0.5, color=TIMES["bubble"], alpha=0.35, linewidth=0)
        for row, one in enumerate(shown):
            ax.axhline(row, color=RULE, linewidth=0.6, zorder=1)
            standing = {"waiting": one.waiting, "done": one.finished, "not there": one.missing, "no dump": one.unknown}
            for name, who in standing.items():
                mark, colour = STANDINGS[name]
                places = [column[rank] for rank in who if rank in column]
                ax.scatter(places, [row] * len(places), marker=mark, color=colour, s=42, zorder=3)
        named(ax, "x", ranks, "rank")
        ax.set_yticks(range(len(shown)), [_label(one) for one in shown])
        ax.tick_params(axis="y", length=0)
        ax.set_xlim(-0.6, len(ranks) - 0.4)
        ax.set_ylim(len(shown) - 0.5, -0.5)
        for name, (mark, colour) in STANDINGS.items():
            ax.scatter([], [], marker=mark, color=colour, s=42, label=name)
        figure.legend(loc="outside lower center", ncols=len(STANDINGS))
    return figure


def groups(report: HangReport) -> Sequence[Divergence]:
    """Those that are drawn: out of step first, then held up, the largest first."""
    return sorted(report.divergences, key=lambda d: (d.held, -len(d.ranks or ())))[:MOST_GROUPS]


def _label(one: Divergence) -> str:
    name = one.desc or one.group
    name = name if len(name) <= 34 else f"{name[:33]}…"
    return f"{name}  {one.op} #{one.seq:,}"

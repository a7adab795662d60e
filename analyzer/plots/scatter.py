"""Bandwidth by payload, against what the link can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analyzer.details import Details
from analyzer.plots.theme import DIMENSIONS, INK, PAPER, QUIET, canvas, style, there
from analyzer.plots.ticks import bytes_said

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = {
    "all_reduce": "o",
    "all_gather": "^",
    "reduce_scatter": "v",
    "all_to_all": "D",
    "send_recv": ">",
    "broadcast": "s",
    "reduce": "p",
    "gather": "<",
    "scatter": "h",
    "barrier": "x",
}
MOST_KINDS = 14
"""Entries of the legend; the kinds with the most calls have one."""


def bandwidth_scatter(job: Details, ax: Axes | None = None) -> Figure:
    """Bus bandwidth over whole-array size, a mark per primitive, a colour per dimension; open marks are lower bounds.

    Raises:
        NothingToShowError: no call has both a size and a time.
    """
    found = there(job.bandwidths)
    with style():
        figure, ax = canvas(ax, 4.2)
        ordered = sorted(found, key=lambda one: -sum(one.calls))
        for place, one in enumerate(ordered):
            link = {"intra_node": "in node", "inter_node": "between nodes", "mixed": "mixed"}.get(one.link or "", "")
            text = " ".join(
                p for p in (one.dim, one.primitive, f"×{one.group_size}" if one.group_size else "", link) if p
            )
            ax.scatter(
                one.size_bytes,
                one.busbw_gbps,
                s=14 + 16 * np.log10(np.array(one.calls)),
                marker=MARKS.get(one.primitive, "*"),
                facecolor=DIMENSIONS[one.dim] if one.waits_known else PAPER,
                edgecolor=DIMENSIONS[one.dim],
                linewidth=1.1,
                label=text if place < MOST_KINDS else None,
                zorder=3,
            )
        for peak in sorted({one.peak_gbps for one in found if one.peak_gbps is not None}):
            ax.axhline(peak, color=INK, linewidth=0.9, linestyle=(0, (5, 3)))
            where = (0.005, peak)
            ax.annotate(f"link {peak:,.0f} GB/s", where, xycoords=("axes fraction", "data"), xytext=(0, 3),
                        textcoords="offset points", fontsize=8.5, color=QUIET)  # fmt: skip
        _log_axes(ax)
        figure.legend(loc="outside right center", fontsize=8)
    return figure


def _log_axes(ax: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("size of the whole array")
    ax.set_ylabel("bus bandwidth, GB/s")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: bytes_said(v)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.grid(visible=True)
    ax.margins(0.08, 0.12)

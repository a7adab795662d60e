"""What stands beside each picture: what it shows in words, how to read it, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from analyzer.details import Details, Missing
from analyzer.details.model import Anatomy, Bandwidth, ComputeRatios, ExpertLoads, Mesh, RankTraffic, WorstCall
from analyzer.plots import PICTURES
from analyzer.plots.hang import divergence, groups
from analyzer.plots.theme import label
from analyzer.reporters import format as fmt
from analyzer.reporters.blocks import Cell, Column, Picture, Table
from analyzer.reporters.sections import LINKS
from analyzer.words import plural

if TYPE_CHECKING:
    from analyzer.details.model import PipelineView
    from heuristics.hang import HangReport

MOST_ROWS = 64
"""Rows of the numbers behind a picture."""

Found = Picture | Missing


def picture(job: Details, name: str, alt: str, caption: str, numbers: Table | None = None) -> Picture:
    """One of `analyzer.plots.PICTURES`."""
    return Picture(name.replace("_", "-"), partial(PICTURES[name], job), alt, caption, numbers)


def layout_picture(job: Details) -> Found:
    """Ranks in their nodes, groups as links."""
    found = job.mesh
    if isinstance(found, Missing) or not found.dims:
        return found if isinstance(found, Missing) else Missing("no group of ranks is known for any dimension")
    sizes = ", ".join(f"{dim} in groups of {len(groups[0])}" for dim, groups in found.dims.items())
    nodes = f" in {plural(len(found.nodes), 'node')}" if found.nodes else "; which ranks share a node is not known"
    caption = (
        "A panel per dimension: circles are ranks, boxes nodes; lines join the members of a group, thick inside a "
        "node, dashed between nodes."
    )
    shown = min(found.world, 128)
    cut = f" The first {shown} of {found.world:,} ranks are drawn." if found.world > shown else ""
    alt = f"{plural(found.world, 'rank')}{nodes}: {sizes}."
    return picture(job, "layout_mesh", alt, caption + cut, _groups(found))


def _groups(found: Mesh) -> Table:
    rows = [
        [dim, str(len(groups[0])), str(len(groups)), "; ".join(fmt.ranks(g) for g in groups[:8])
         + (f"; and {len(groups) - 8} more" if len(groups) > 8 else "")]
        for dim, groups in found.dims.items()
    ]  # fmt: skip
    return Table([Column("dim"), Column("size", right=True), Column("groups", right=True), Column("ranks")], rows)


def anatomy_picture(job: Details) -> Found:
    """The step of every rank as a stacked bar."""
    found = job.anatomy
    if isinstance(found, Missing):
        return found
    mean, total = found.us.mean(axis=0), float(found.us.sum(axis=1).mean())
    ordered = sorted(zip(found.parts, mean.tolist(), strict=True), key=lambda item: -item[1])
    shares = ", ".join(f"{label(part)} {fmt.percent(us / total)}" for part, us in ordered)
    told = (
        "Waiting for other ranks is a part of its own; a dimension's part is transfer only."
        if found.waits_known
        else "Waiting cannot be told from transfer here: a dimension's part holds both."
    )
    caption = (
        f"One bar per rank; the parts sum to its step. Only communication that no compute covers is shown. {told} The "
        "bubble is waiting inside the pipeline's receives, and idle time between its first and last work."
    )
    return picture(job, "step_anatomy", f"Mean over ranks: {shares}.", caption, _anatomy(found))


def _anatomy(found: Anatomy) -> Table:
    unit = fmt.time_unit(found.us.sum(axis=1).tolist())
    columns = [Column("rank", right=True), *(Column(f"{label(p)} {unit.name}", right=True) for p in found.parts)]
    columns.append(Column(f"step {unit.name}", right=True))
    rows = [
        ["?" if rank is None else str(rank), *(fmt.number(v, unit) for v in us), fmt.number(sum(us), unit)]
        for rank, us in zip(found.ranks, found.us.tolist(), strict=True)
    ]
    return Table(columns, rows[:MOST_ROWS])


def bandwidth_picture(job: Details) -> Found:
    """Bandwidth by size."""
    found = job.bandwidths
    if isinstance(found, Missing):
        return found
    best = max(found, key=lambda one: float(one.busbw_gbps.max()))
    alt = (
        f"{plural(len(found), 'kind')} of collective; the fastest, {best.dim} {best.primitive}, reaches "
        f"{float(best.busbw_gbps.max()):,.3g} GB/s."
    )
    peaks = sorted({one.peak_gbps for one in found if one.peak_gbps is not None})
    line = (
        "The dashed line is the link's own rate in one direction; reductions inside a switch can pass it."
        if peaks
        else "The links' peak is not known: name the cluster with --cluster to have it drawn."
    )
    lower = "" if all(one.waits_known for one in found) else " Open marks include waiting: they are lower bounds."
    caption = (
        "A mark per kind of collective and size (whole array, as nccl-tests counts it), at the median bus bandwidth; "
        f"large marks are many calls.{lower} {line}"
    )
    return picture(job, "bandwidth_scatter", alt, caption, _bandwidths(found))


def _bandwidths(found: Sequence[Bandwidth]) -> Table:
    columns = [
        Column("dim"),
        Column("primitive"),
        Column("n", right=True),
        Column("link"),
        Column("size", right=True),
        Column("calls", right=True),
        Column("busbw GB/s", right=True),
        Column("of link", right=True),
    ]
    rows: list[list[str | Cell]] = []
    for one in found:
        for size, rate, calls in zip(one.size_bytes.tolist(), one.busbw_gbps.tolist(), one.calls, strict=True):
            rows.append([
                one.dim,
                one.primitive,
                fmt.DASH if one.group_size is None else str(one.group_size),
                LINKS.get(one.link or "", fmt.DASH),
                fmt.size(size),
                f"{calls:,}",
                ("" if one.waits_known else "≥ ") + fmt.number(rate, fmt.Unit("GB/s", 1, 3)),
                fmt.percent(None if one.peak_gbps is None else rate / one.peak_gbps),
            ])  # fmt: skip
    return Table(columns, rows[:MOST_ROWS])


def traffic_picture(job: Details) -> Found:
    """Who sends to whom."""
    found = job.traffic
    if isinstance(found, Missing):
        return found
    source, target = np.unravel_index(int(np.argmax(found.sent_bytes)), found.sent_bytes.shape)
    alt = (
        f"{plural(len(found.ranks), 'rank')}; the most goes from rank {found.ranks[source]} to rank "
        f"{found.ranks[target]}, {fmt.size(float(found.sent_bytes.max()))} per step."
    )
    unread = "" if all(found.read) else " Rows of ranks without a trace are empty."
    caption = (
        "Bytes per step from the rank of the row to that of the column, logarithmic; empty is nothing. Messages go to "
        "their peer; what a rank sends in a collective is spread evenly over its group, because the way it takes is "
        f"the library's choice.{unread}"
    )
    return picture(job, "traffic_matrix", alt, caption, _traffic(found))


def _traffic(found: RankTraffic) -> Table:
    order = np.argsort(-found.sent_bytes, axis=None, kind="stable")[:16]
    pairs = [np.unravel_index(int(i), found.sent_bytes.shape) for i in order]
    rows = [
        [str(found.ranks[a]), str(found.ranks[b]), fmt.size(float(found.sent_bytes[a, b]))]
        for a, b in pairs
        if found.sent_bytes[a, b] > 0
    ]
    return Table([Column("from", right=True), Column("to", right=True), Column("sent per step", right=True)], rows)


def slowness_pictures(job: Details) -> Iterator[Found]:
    """Rank by step, and stage by replica."""
    found = job.ratios
    if isinstance(found, Missing):
        yield found
        return
    means = found.ratio.mean(axis=1)
    slowest = int(np.argmax(means))
    alt = (
        f"{plural(len(found.ranks), 'rank')}, {plural(found.ratio.shape[1], 'step')}; rank {found.ranks[slowest]} "
        f"computes longest, {means[slowest]:.2f} times the median."
    )
    caption = (
        "Compute time of each rank in each step over the median of all of them. A row that is dark is a slow rank (or "
        "a stage with more to do), a dark column a slow step. The scale is the same in every report, 1.0 to 1.5."
    )
    yield picture(job, "rank_step_heatmap", alt, caption, _slowness(found))
    if found.grid is None:
        yield Missing("there is one pipeline stage and one replica, or they are not known")
        return
    stage, replica = np.unravel_index(int(np.nanargmax(found.grid)), found.grid.shape)
    alt = (
        f"{plural(found.grid.shape[0], 'stage')}, {plural(found.grid.shape[1], 'replica')}; stage {stage} of replica "
        f"{replica} computes longest, {float(np.nanmax(found.grid)):.2f} times the median."
    )
    caption = (
        "The same, mean over the steps, by pipeline stage and data-parallel replica; the slowest rank stands for its "
        "cell. A dark row is a stage with too much to do, a single dark cell a slow worker."
    )
    yield picture(job, "stage_replica_heatmap", alt, caption)


def _slowness(found: ComputeRatios) -> Table:
    rows = [
        [str(rank), f"{ratios.mean():.3f}", f"{ratios.min():.3f}", f"{ratios.max():.3f}"]
        for rank, ratios in zip(found.ranks, found.ratio, strict=True)
    ]
    rows.sort(key=lambda row: -float(row[1]))
    columns = [Column("rank", right=True), *(Column(n, right=True) for n in ("mean", "least", "most"))]
    return Table(columns, rows[:MOST_ROWS])


def pipeline_picture(job: Details) -> Found:
    """Stages over time."""
    found = job.pipeline
    if isinstance(found, Missing):
        return found
    bubble = job.analysis.pipeline.bubble_fraction if job.analysis.pipeline is not None else None
    said = ""
    if bubble is not None and (bubble.observed is not None or bubble.predicted is not None):
        seen = "not measured" if bubble.observed is None else f"{fmt.percent(bubble.observed)} observed"
        said = f" The bubble is {seen}" + (
            f", {fmt.percent(bubble.predicted)} by schedule." if bubble.predicted is not None else "."
        )
    alt = f"{plural(len(found.lanes), 'stage')} of one pipeline in step {found.step}, {fmt.time(found.span_us)}.{said}"
    marked = (
        "F and B are forward and backward with the number of the microbatch (and, after a dot, of the virtual stage); "
        if found.microbatches is not None
        else "The passes could not be matched with microbatches one by one, so they have no number; "
    )
    clock = "" if found.aligned else " The clocks are not aligned: every lane begins with its own step."
    caption = (
        f"The pipeline of the lowest rank, a lane per stage. {marked}the hatched ground is the bubble: nothing to do "
        f"between the pipeline's first and last work.{clock}"
    )
    return picture(job, "pipeline_timeline", alt, caption, _turns(found))


def _turns(found: PipelineView) -> Table:
    rows = []
    for lane in found.lanes:
        by_phase = {
            p: [t.end_us - t.start_us for t in lane.turns if t.phase == p] for p in ("forward", "backward", "unknown")
        }
        busy = [fmt.time(float(np.median(v))) if v else fmt.DASH for v in by_phase.values()]
        rows.append([lane.label, str(lane.rank), str(len(lane.turns)), *busy])
    columns = [Column("stage"), *(Column(n, right=True) for n in ("rank", "passes", "forward", "backward", "other"))]
    return Table(columns, rows)


def expert_picture(job: Details) -> Found:
    """Load of the experts."""
    found = job.experts
    if isinstance(found, Missing):
        return found
    layer, rank = np.unravel_index(int(np.nanargmax(found.load)), found.load.shape)
    who = "place" if found.of_group else "rank"
    alt = (
        f"{plural(len(found.layers), 'layer')}, {plural(len(found.ranks), who)}; the most loaded is {who} "
        f"{found.ranks[rank]} in layer {found.layers[layer]}, {float(np.nanmax(found.load)):.2f} times the mean."
    )
    source = (
        "From one rank's own sends: how its tokens spread over the expert group."
        if found.of_group
        else "Rows that each rank receives in the dispatches of its layers."
    )
    caption = f"{source} 1 is the mean of its group; orange is more, purple less. Everybody waits for the orange ones."
    return picture(job, "expert_load", alt, caption, _loads(found))


def _loads(found: ExpertLoads) -> Table:
    rows = [
        [str(layer), f"{np.nanmax(load):.3f}", str(found.ranks[int(np.nanargmax(load))]), f"{np.nanmin(load):.3f}"]
        for layer, load in zip(found.layers, found.load, strict=True)
    ]
    columns = [Column(n, right=True) for n in ("layer", "largest over mean", "where", "least over mean")]
    return Table(columns, rows[:MOST_ROWS])


def worst_picture(job: Details) -> Found:
    """The costliest collectives."""
    found = job.worst
    if isinstance(found, Missing):
        return found
    first = found[0]
    cost = f"{fmt.time(first.cost_us)} of waiting over all its ranks" if first.waits_known else fmt.time(first.cost_us)
    alt = f"The worst is {first.title}: {cost}."
    how = (
        "Two lanes each: the rank that came first and the one that came last, on one clock; the call fills the middle "
        "half. Hatched is waiting for the last to come, solid is transfer."
        if first.waits_known
        else "The longest call of each kind on one rank; waiting cannot be told from transfer here."
    )
    caption = f"{how} Communication above, compute below it (where it lies within a gap between calls is not kept)."
    return picture(job, "worst_collectives", alt, caption, _worst(found))


def _worst(found: Sequence[WorstCall]) -> Table:
    what = "waiting of all ranks" if found[0].waits_known else "length"
    rows = [[one.title, ", ".join(lane.label for lane in one.lanes), fmt.time(one.cost_us)] for one in found]
    return Table([Column("collective"), Column("lanes"), Column(what, right=True)], rows)


def divergence_picture(found: HangReport) -> Picture:
    """How far each rank of a hung job came."""
    shown = groups(found)
    out = sum(not one.held for one in shown)
    named = ", ".join(str(s.rank) for s in found.suspects)
    whom = f"look at rank {named}" if named else "no single suspect"
    alt = f"{plural(len(found.divergences), 'group')} not done, {out} of them out of step; {whom}."
    cut = f" {len(shown)} of {len(found.divergences)} groups are drawn." if len(shown) < len(found.divergences) else ""
    caption = (
        "A row per process group that is not done, those out of step first, with the call it is in; a mark per rank: "
        "waiting in that call, done with it, not there (it never issued the call), or without a dump. Yellow columns "
        f"are the ranks to look at.{cut}"
    )
    return Picture("divergence", partial(divergence, found), alt, caption)


SIMPLE: dict[str, Callable[[Details], Any]] = {
    "Bandwidth": bandwidth_picture,
    "Traffic": traffic_picture,
    "Pipeline": pipeline_picture,
    "Experts": expert_picture,
    "Worst collectives": worst_picture,
}
"""Sections of one picture, in the order of the report."""

"""From files to an `Analysis`: read, label, infer, measure, reconcile, find."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analyzer import __version__
from analyzer.bubble import with_bubble
from analyzer.capture_edge import with_edge
from analyzer.errors import InconclusiveError
from analyzer.exposure import measure
from analyzer.findings import Facts, findings
from analyzer.intervals import Ints
from analyzer.job import Roster, roster
from analyzer.layout_doc import layout_document, pipeline_document
from analyzer.logged import logged_documents
from analyzer.matching import Matching, match
from analyzer.measured import Measured
from analyzer.model import SCHEMA_VERSION, Analysis, Exposure, Input, Tool, Trust
from analyzer.options import Options
from analyzer.outlook import explained
from analyzer.reading import read_all
from analyzer.reconcile import check, declared_degrees, reconcile
from analyzer.replay import of_job
from analyzer.rows import collect, counted_calls
from analyzer.stages import with_stage_times
from analyzer.stagger import with_stages
from analyzer.step_marks import window_of
from analyzer.step_time import exposure
from analyzer.stragglers import document as stragglers
from analyzer.summary.model import RankSummary
from analyzer.timing import Timing, timing
from analyzer.trust import trust
from analyzer.wires_doc import wires_document
from analyzer.witnesses import Links, Sources, join_sources
from analyzer.words import plural
from heuristics.links import Nodes, find_nodes
from heuristics.verdict import Inference
from ledger.clusters import Cluster, load_cluster

if TYPE_CHECKING:
    from heuristics.hang import HangReport

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def analyze(paths: Paths, **options: Any) -> Analysis:
    """Analyse the traces of one job.

    Args:
        paths: a file, a directory with all ranks of one job, a glob, or several of these.
        **options: the fields of `Options`.

    Raises:
        InputError: nothing can be read, or the files come from different jobs.
        LedgerError: an unknown model, layout or profile.
        InconclusiveError: the input is incomplete and ``strict`` was asked for.
    """
    return analyze_with(paths, Options(**options))


def analyze_with(paths: Paths, options: Options) -> Analysis:
    """As `analyze`, with the options as one object."""
    return analyze_measured(paths, options)[0]


def analyze_measured(paths: Paths, options: Options) -> tuple[Analysis, Sequence[Measured]]:
    """As `analyze_with`, and the ranks behind the document: what needs single steps finds them there."""
    examined = examine(paths, options)
    return examined.analysis, examined.ranks


@dataclass(frozen=True, eq=False)
class Examined:
    """A document with all that it was made from.

    Attributes:
        analysis: the document.
        ranks: the measured ranks, in the order of `Exposure.by_rank` (without those that have no time).
        matching: what the ranks say about each other.
        timing: all that is said about time beyond how it divides.
        nodes: which ranks share a node.
        options: what was asked for.
        lost: files that nothing came of.
        hang: what Flight Recorder dumps among the sources show; None without any.
    """

    analysis: Analysis
    ranks: Sequence[Measured]
    matching: Matching
    timing: Timing
    nodes: Nodes
    options: Options
    lost: tuple[str, ...] = ()
    hang: HangReport | None = None


def examine(paths: Paths, options: Options) -> Examined:
    """As `analyze_with`, and everything that the document was made from: what is drawn or exported finds it there."""
    from heuristics.layout import infer_views
    from parsers.discover import expand

    check(options)
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = expand(given)
    read = read_all(found.paths, options)
    sources = join_sources(read.ranks if options.change is None else [options.change(rank) for rank in read.ranks])
    everything = sources.ranks
    who = roster(everything)
    ranks = [everything[i] for i in who.keep]
    inference = with_stages(infer_views([r.view for r in ranks]), ranks)
    matching = match(ranks)
    cluster = load_cluster(options.cluster) if options.cluster else None
    nodes = find_nodes(ranks, options.gpus_per_node)
    if nodes.gpus_per_node is None and cluster is not None:
        nodes = Nodes(cluster.gpus_per_node, nodes.hosts, "cluster")
    links = Links(nodes, sources.wires)
    measured = [
        _measure(r, d, w, links, options) for r, d, w in zip(ranks, inference.dims, matching.wait_ns, strict=True)
    ]
    measured = with_edge(measured, matching.meetings)
    notes = (*found.notes, *read.notes, *sources.notes)
    if options.change is not None and notes:
        notes = (f"{plural(len(notes), 'sentence')} about the files left out",)
    quality = trust(sources.files, ranks, who, matching.clock, (*notes, *inference.layout.notes))
    if options.strict:
        _insist(quality, sources.files, read.lost)
    times = exposure(measured)
    said = timing(measured, matching, times, inference.layout.stage_of_rank)
    document = _document(sources, who, quality, measured, inference, nodes, options, cluster, times, said)
    return Examined(document, measured, matching, said, nodes, options, read.lost, sources.hang)


def _measure(rank: RankSummary, dims: Sequence[str], wait_ns: Ints, links: Links, options: Options) -> Measured:
    """Give a rank its dimensions, links, window and time.

    Raises:
        InconclusiveError: none of the steps that were asked for is complete.
    """
    window = window_of(rank, options.steps)
    if options.steps is not None and not window.count:
        steps = ", ".join(str(n) for n in rank.steps.number[rank.steps.complete].tolist()) or "none"
        raise InconclusiveError(f"{rank.path}: no such complete step; complete are: {steps}")
    return Measured(
        source=rank,
        dims=dims,
        links_of_group=links.of(rank),
        window=window,
        counted=counted_calls(rank.collectives, window.steps),
        time=measure(rank.line, dims, window),
        wait_ns=wait_ns,
    )


def _insist(quality: Trust, traces: Sequence[RankSummary], lost: Sequence[str]) -> None:
    """``--strict``: nothing may be missing or repaired."""
    faults = (
        (len(quality.ranks_missing), "rank", "missing"),
        (len(quality.ranks_duplicated), "rank", "there more than once"),
        (quality.events_repaired, "event", "repaired"),
        (quality.events_quarantined, "event", "set aside"),
        (quality.events_clipped, "event", "clipped"),
        (sum(not t.health.complete for t in traces), "file", "cut"),
        (len(lost), "file", "left out"),
    )
    found = [f"{plural(count, noun)} {what}" for count, noun, what in faults if count]
    if found:
        raise InconclusiveError(f"the input is not sound (--strict): {', '.join(found)}")


def _document(
    sources: Sources,
    who: Roster,
    quality: Trust,
    ranks: Sequence[Measured],
    inference: Inference,
    nodes: Nodes,
    options: Options,
    cluster: Cluster | None,
    measured: Exposure | None,
    said: Timing,
) -> Analysis:
    layout = layout_document(inference.layout)
    rows = collect(ranks)
    ledger = reconcile(ranks, inference.layout, rows, measured, options)
    pipeline = with_bubble(pipeline_document(inference.layout), said.bubble)
    pipeline = with_stage_times(pipeline, ranks, said.charged, said.bubble)
    ideal = None if pipeline is None else pipeline.bubble_fraction.predicted
    times = explained(measured, ranks, said, ledger.hideable, cluster, nodes, ideal)
    slowdown = of_job([rank.source for rank in ranks])
    facts = Facts(
        ranks=ranks,
        trust=quality,
        world_size=who.world_size,
        layout=layout,
        declared=declared_degrees(options.layout),
        rows=rows,
        exposure=times,
        ledger=ledger.ledger,
        ledger_refused=ledger.refused,
        timing=said,
        slowdown=slowdown,
        sources=sources,
    )
    return Analysis(
        schema_version=SCHEMA_VERSION,
        tool=Tool(name="commlens", version=__version__),
        inputs=[_input(trace) for trace in sources.given],
        trust=quality,
        world_size=who.world_size,
        gpus_per_node=nodes.gpus_per_node,
        layout=layout,
        collectives=rows,
        exposure=times,
        pipeline=pipeline,
        experts=said.experts,
        ledger=ledger.ledger,
        stragglers=stragglers(said.late),
        findings=findings(facts),
        slowdown=slowdown,
        wires=wires_document(sources),
        logged=logged_documents(sources.given),
    )


def _input(trace: RankSummary) -> Input:
    return Input(
        path=trace.path,
        format=trace.format,
        rank=trace.identity.rank,
        host=trace.identity.host,
        bytes=trace.health.file_bytes,
        events=trace.health.events,
        complete=trace.health.complete,
    )

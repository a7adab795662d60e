"""Link speeds of clusters as sections of a report."""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.reporters.blocks import Cell, Column, Facts, Section, Table
from analyzer.reporters.prediction import link_words
from ledger.clusters import Cluster, aliases_of


def cluster_sections(clusters: Sequence[Cluster], *, single: bool) -> list[Section]:
    """A table of several, or one with its sources."""
    if single:
        return [_one(cluster) for cluster in clusters]
    columns = [
        Column("name"),
        Column("also", spare=1),
        Column("GPUs", right=True),
        Column("inside"),
        Column("GB/s", right=True),
        Column("reached", right=True),
        Column("between"),
        Column("GB/s", right=True),
    ]
    rows: list[list[str | Cell]] = [
        [
            c.name,
            " ".join(aliases_of(c.name)),
            str(c.domain),
            c.intra_node.kind,
            f"{c.intra_node.gbps:g}",
            f"{c.intra_node.reached_gbps:g}",
            c.inter_node.kind,
            f"{c.inter_node.gbps:g}",
        ]
        for c in clusters
    ]
    lead = "what one GPU sends in one direction; GPUs are those that the fast link joins"
    return [Section("Clusters", lead, [Table(columns, rows)])]


def _one(cluster: Cluster) -> Section:
    inside, between = cluster.intra_node, cluster.inter_node
    rows = [
        ("host", f"{cluster.gpus_per_node} GPUs"),
        ("fast domain", f"{cluster.domain} GPUs"),
        ("inside", link_words(inside) + ("; switches reduce" if inside.in_network else "")),
        ("source", inside.source or "not given"),
        ("between", link_words(between) + ("; switches reduce" if between.in_network else "")),
        ("source", between.source or "not given"),
    ]
    return Section(cluster.name, "one GPU, one direction", [Facts(rows)])

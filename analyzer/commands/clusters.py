"""``analyze clusters``: the presets of ``--cluster``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from analyzer.commands import options

if TYPE_CHECKING:
    from ledger.clusters import Cluster

EPILOG = """\b
Examples:
  analyze clusters                    a table
  analyze clusters h100-ndr           one of them, with the sources of its figures
  analyze clusters --format json      as a document
"""


@click.command("clusters", epilog=EPILOG)
@click.argument("name", required=False, metavar="[PRESET|FILE]")
@options.output("text", "json", "md")
@options.debug
def command(name: str | None, form: str, output: str) -> None:
    """List the link speeds that --cluster knows, or show those of one preset or file.

    Speeds are those of one GPU in one direction, in decimal GB/s.
    """
    from analyzer.render import write
    from ledger.clusters import CLUSTERS, load_cluster

    chosen = tuple(CLUSTERS.values()) if name is None else (load_cluster(name),)
    write(_rendered(chosen, name is not None, form, output), output)


def _rendered(chosen: tuple[Cluster, ...], single: bool, form: str, output: str) -> bytes:
    if form == "json":
        import msgspec

        document = {"schema_version": 1, "clusters": chosen}
        return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    from analyzer.render import render
    from analyzer.reporters.clusters import cluster_sections

    return render(cluster_sections(chosen, single=single), "Clusters", form, output)

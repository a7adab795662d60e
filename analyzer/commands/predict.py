"""``analyze predict``: the ledger alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from analyzer.commands import options

if TYPE_CHECKING:
    from ledger.clusters import Cluster
    from ledger.report import Prediction

EPILOG = """\b
Examples:
  analyze predict --model llama3-405b --layout tp8-pp16-dp128 --zero-stage 1
  analyze predict --model config.json --layout dp64 --zero-stage 3 --ledger-profile torchtitan
  analyze predict --model mixtral-8x7b --layout tp2-pp4-dp8-ep8 --microbatches 32 --format json
  analyze predict --model llama3-70b --layout tp8-dp8 --zero-stage 3 --cluster h100-ndr
"""


@click.command("predict", epilog=EPILOG)
@options.model(required=True)
@click.option(
    "--layout", required=True, metavar="LAYOUT", help="Degrees, tp8-cp1-pp16-dp128[-ep1]; those left out are 1."
)
@options.ledger_profile("textbook")
@click.option(
    "--zero-stage", type=click.IntRange(0, 3), default=0, show_default=True, help="What data parallelism shards."
)
@click.option(
    "--hsdp-shard", type=click.IntRange(min=1), metavar="N", help="Ranks that share one sharded copy [default: all]."
)
@click.option(
    "--sequence-parallel/--no-sequence-parallel",
    default=None,
    help="Split activations over tp [default: as the profile does].",
)
@click.option("--cp-kind", default="ring", show_default=True, help="ring, all_gather, ulysses or hierarchical.")
@click.option("--schedule", default="1f1b", show_default=True, help="Pipeline schedule.")
@click.option(
    "--virtual-stages", type=click.IntRange(min=1), default=1, show_default=True, help="Chunks per pipeline rank."
)
@click.option("--microbatches", type=click.IntRange(min=1), default=1, show_default=True, help="Per replica and step.")
@click.option("--micro-batch-size", type=click.IntRange(min=1), default=1, show_default=True, help="Sequences.")
@click.option("--seq-len", type=click.IntRange(min=1), default=8192, show_default=True, help="Tokens of a sequence.")
@click.option("--recompute", default="none", show_default=True, help="none, selective or full.")
@click.option(
    "--gpus-per-node",
    type=click.IntRange(min=1),
    metavar="N",
    help="GPUs that share the fast link [default: the cluster's, else 8].",
)
@options.cluster
@click.option("--grad-dtype", metavar="DTYPE", help="Of gradients as reduced [default: the profile's].")
@click.option("--optimizer", default="adam", show_default=True, help="Whose state is counted.")
@options.output("text", "json", "md")
@options.debug
def command(
    model: str,
    layout: str,
    ledger_profile: str,
    optimizer: str,
    gpus_per_node: int | None,
    cluster: str | None,
    form: str,
    output: str,
    **fields: Any,
) -> None:
    """Predict what a model in a layout sends, holds and waits for: no trace needed.

    Bytes are exact under the profile's rules; --ledger-profile says whose rules. With --cluster, the least and the
    expected time of each dimension's transfers.
    """
    from analyzer.render import write
    from ledger.clusters import load_cluster
    from ledger.config import ParallelConfig
    from ledger.load import load_model
    from ledger.report import prediction

    links = load_cluster(cluster) if cluster is not None else None
    per_node = gpus_per_node or (8 if links is None else links.domain)
    config = ParallelConfig.parse(layout, gpus_per_node=per_node, **fields)
    result = prediction(load_model(model), config, ledger_profile, optimizer=optimizer)
    write(_rendered(result, links, form, output), output)


def _rendered(result: Prediction, links: Cluster | None, form: str, output: str) -> bytes:
    from ledger.times import dimension_times

    times = () if links is None else dimension_times(result, links)
    if form == "json":
        import msgspec

        document = {"schema_version": 1, "prediction": result, "cluster": links, "times": times}
        return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    from analyzer.render import render
    from analyzer.reporters.prediction import prediction_sections

    return render(prediction_sections(result, links, times), "Ledger", form, output)

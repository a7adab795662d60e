"""``analyze hang``: why a job hangs, from the Flight Recorder dumps of its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from analyzer.commands import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heuristics.hang import HangReport
    from parsers.tables import RankTrace

EPILOG = """\b
Examples:
  analyze hang dumps/                    the dumps of all ranks
  analyze hang /tmp/nccl_trace_rank_*    a glob
  analyze hang dumps/ --format json      as a document
  analyze hang dumps/ --format html -o hang.html
  analyze hang dumps/ --model llama3-8b --layout tp4-dp2 --ledger-profile megatron
"""


@click.command("hang", epilog=EPILOG)
@click.argument("dumps", nargs=-1, required=True, metavar="DUMP...")
@options.model()
@click.option("--layout", metavar="LAYOUT", help="With --model: degrees, tp8-cp1-pp16-dp128[-ep1], for the ledger.")
@click.option(
    "--ledger-profile", default="textbook", show_default=True, metavar="NAME", help="Whose traffic the ledger predicts."
)
@click.option(
    "--zero-stage", type=click.IntRange(0, 3), default=0, show_default=True, help="What data parallelism shards."
)
@click.option(
    "--sequence-parallel/--no-sequence-parallel",
    default=None,
    help="Split activations over tp [default: as the profile does].",
)
@click.option("--microbatches", type=click.IntRange(min=1), default=1, show_default=True, help="Per replica and step.")
@options.output("text", "json", "md", "html")
@options.debug
def command(
    dumps: tuple[str, ...], model: str | None, layout: str | None, form: str, output: str, **ledger: Any
) -> None:
    """Read the Flight Recorder dumps of a job that hangs: which ranks to look at, and who waits for whom.

    Dumps are pickles or JSON; nothing in them is executed. Give those of all ranks. With --model and --layout the
    ledger's number of collectives per step says in which step each group stands.
    """
    from analyzer.render import write
    from heuristics.hang import hang_report
    from parsers import read
    from parsers.discover import expand

    if (model is None) != (layout is None):
        raise click.UsageError("--model and --layout go together: the ledger needs both")
    traces = [trace for path in expand(dumps).paths for trace in read(path)]
    report = hang_report(traces, _expected(traces, model, layout, ledger) if model and layout else None)
    write(_rendered(report, form, output), output)


def _expected(traces: Sequence[RankTrace], model: str, layout: str, ledger: dict[str, Any]) -> dict[str, int]:
    """Collectives per step by process group, as the ledger has them."""
    from heuristics.hang_expected import expected_calls
    from ledger.config import ParallelConfig
    from ledger.load import load_model
    from ledger.report import prediction

    profile = ledger.pop("ledger_profile")
    return expected_calls(traces, prediction(load_model(model), ParallelConfig.parse(layout, **ledger), profile))


def _rendered(report: HangReport, form: str, output: str) -> bytes:
    if form == "json":
        import msgspec

        document = {"schema_version": 1, "hang": report}
        return msgspec.json.format(msgspec.json.encode(document, enc_hook=dict), indent=1) + b"\n"
    if form == "html":
        from analyzer.reporters.html import page
        from analyzer.reporters.report import hang_page

        return page(hang_page(report)).encode()
    from analyzer.render import render
    from analyzer.reporters.hang import hang_sections

    return render(hang_sections(report), "Hang", form, output)

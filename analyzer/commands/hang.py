"""``analyze hang``: why a job hangs, from the Flight Recorder dumps of its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from analyzer.commands import options

if TYPE_CHECKING:
    from heuristics.hang import HangReport

EPILOG = """\b
Examples:
  analyze hang dumps/                    the dumps of all ranks
  analyze hang /tmp/nccl_trace_rank_*    a glob
  analyze hang dumps/ --format json      as a document
  analyze hang dumps/ --format html -o hang.html
"""


@click.command("hang", epilog=EPILOG)
@click.argument("dumps", nargs=-1, required=True, metavar="DUMP...")
@options.output("text", "json", "md", "html")
@options.debug
def command(dumps: tuple[str, ...], form: str, output: str) -> None:
    """Read the Flight Recorder dumps of a job that hangs: which ranks to look at, and who waits for whom.

    Dumps are pickles or JSON; nothing in them is executed. Give those of all ranks.
    """
    from analyzer.render import write
    from heuristics.hang import hang_report
    from parsers import read
    from parsers.discover import expand

    report = hang_report(trace for path in expand(dumps).paths for trace in read(path))
    write(_rendered(report, form, output), output)


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

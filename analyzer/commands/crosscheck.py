"""``analyze crosscheck``: beside HolisticTraceAnalysis."""

from __future__ import annotations

import click

from analyzer.commands import completing, options

EPILOG = """\b
Examples:
  analyze crosscheck traces/                                  with 'commlens[hta]' installed
  analyze crosscheck traces/ --hta-python ~/hta/bin/python    in an environment of its own
  analyze crosscheck rank0.json.gz --include-last-step --format json
"""


@click.command("crosscheck", epilog=EPILOG)
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...", shell_complete=completing.files)
@click.option("--hta-python", metavar="PATH", help="An interpreter that has HolisticTraceAnalysis [default: this one].")
@click.option("--include-last-step", is_flag=True, help="Its option of that name: do not drop the last profiler step.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=1), default=900, show_default=True, help="Seconds it may take."
)
@options.output("text", "json", "md")
@options.debug
def command(
    traces: tuple[str, ...], hta_python: str | None, include_last_step: bool, timeout_s: float, form: str, output: str
) -> None:
    """Print the overlap and breakdown of HolisticTraceAnalysis beside ours, and what each difference comes of.

    The same events are measured its way one step at a time; what is left after the last step is not explained.
    """
    from analyzer.crosscheck.check import crosscheck
    from analyzer.crosscheck.theirs import interpreter
    from analyzer.render import render, write
    from analyzer.reporters.crosscheck import crosscheck_sections
    from parsers.discover import expand

    python = interpreter(hta_python)
    found = crosscheck(expand(traces).paths, python, include_last_step=include_last_step, timeout_s=timeout_s)
    if form == "json":
        import msgspec

        write(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n", output)
        return
    write(render(crosscheck_sections(found), "Crosscheck", form, output), output)

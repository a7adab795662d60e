"""``analyze baseline``: make, show and move baselines."""

from __future__ import annotations

from typing import Any

import click

from analyzer.commands import gating, options

EPILOG = """\b
Examples:
  analyze baseline write traces/ -o base.json
  analyze baseline show base.json
  analyze baseline accept traces/ --baseline base.json --metric 'bytes.dp.*' --reason "gradients in bf16, #812"
"""


@click.group("baseline", epilog=EPILOG)
def command() -> None:
    """Make, show and move baselines: small JSON files with the metrics of a run, step by step."""


@command.command("write")
@options.reading
@options.model()
@click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="Tokens of one step of the whole job.")
@options.target(what="The baseline; - is stdout.")
@options.debug
def write(traces: tuple[str, ...], tokens: int | None, output: str, **given: Any) -> None:
    """Write the metrics of a run to a baseline. The same run gives the same bytes; the history of a file is kept."""
    from analyzer.gate import baseline as baselines
    from analyzer.gate.load import load_run

    record = load_run(traces, gating.reading_options(given), tokens, whole=True)
    changed = baselines.save(baselines.with_history(record, output), output)
    if output != "-" and not given["quiet"]:
        what = "written" if changed else "unchanged"
        click.echo(f"{output}: {what}, {len(record.steps)} steps, fingerprint {record.fingerprint}", err=True)


@command.command("show")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))
@options.output("text", "md")
@options.debug
def show(path: str, form: str, output: str) -> None:
    """Show what a baseline holds and who changed it when and why."""
    from analyzer.gate import baseline as baselines
    from analyzer.render import render
    from analyzer.render import write as write_out
    from analyzer.reporters.baseline import baseline_sections

    write_out(render(baseline_sections(path, baselines.load(path)), "Baseline", form, output), output)


@command.command("accept")
@options.reading
@options.model()
@click.option("--baseline", required=True, type=click.Path(dir_okay=False), metavar="FILE", help="The file to change.")
@click.option("--metric", "metrics", required=True, multiple=True, metavar="PATTERN", help="May be repeated.")
@click.option("--reason", required=True, metavar="TEXT", help="Why the new value is right.")
@click.option("--who", metavar="NAME", help="By whom [default: the CI job's actor, else the user].")
@options.debug
def accept(
    traces: tuple[str, ...], baseline: str, metrics: tuple[str, ...], reason: str, who: str | None, **given: Any
) -> None:
    """Take metrics of a run into a baseline, with a reason; everything else in it stays."""
    from analyzer.gate import baseline as baselines
    from analyzer.gate.load import load_run
    from analyzer.reporters.comparison import said

    if not reason.strip():
        raise click.UsageError("--reason is empty")
    old = baselines.load(baseline)
    current = load_run(traces, gating.reading_options(given), whole=True)
    new, history = baselines.accept(
        old, current, metrics, reason=reason.strip(), who=who or baselines.whoever(), when=baselines.now()
    )
    if history:
        baselines.save(new, baseline)
    for entry in history:
        click.echo(f"{entry.metric}: {said(entry.before, '')} → {said(entry.after, '')}")
    if not history:
        click.echo(f"{baseline}: nothing to accept, these metrics are equal")

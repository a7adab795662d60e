"""``analyze check``: the CI gate."""

from __future__ import annotations

from typing import Any

import click

from analyzer.commands import gating, options

EPILOG = """\b
Examples:
  analyze check traces/ --baseline base.json                   against a baseline
  analyze check traces/ --budget budget.toml                   against limits alone
  analyze check traces/ --baseline base.json --report junit=gate.xml --report md=pull-request.md
"""


@click.command("check", epilog=EPILOG)
@options.reading
@options.model()
@click.option("--baseline", type=click.Path(dir_okay=False), metavar="FILE", help="From `analyze baseline write`.")
@gating.judging
@options.debug
def command(
    traces: tuple[str, ...], baseline: str | None, form: str, output: str, tokens: int | None, **given: Any
) -> int:
    """Check a run against a baseline, a budget, or both.

    Exit code 0: nothing is worse than allowed. 1: something is. 3: the question cannot be answered (the runs cannot be
    compared, there are too few steps, a file is cut).
    """
    from analyzer.gate import baseline as baselines
    from analyzer.gate.load import load_run
    from analyzer.gate.verdict import compare

    if baseline is None and given["budget"] is None:
        raise click.UsageError("nothing to check against: give --baseline, --budget or both")
    location = str(given["budget"] or baseline)
    names = ("budget", "tolerance", "floor", "allow", "inconclusive")
    policy = gating.policy(**{name: given.pop(name) for name in names}, cluster=given["cluster"])
    reports = given.pop("reports")
    before = baselines.load(baseline) if baseline is not None else None
    current = load_run(traces, gating.reading_options(given), tokens, whole=True)
    return gating.deliver(
        compare(before, current, policy),
        form,
        output,
        reports,
        location=location,
        verbose=given["verbose"],
        quiet=given["quiet"],
        inconclusive=policy.inconclusive,
    )

"""``analyze compare``: two runs side by side."""

from __future__ import annotations

from typing import Any

import click

from analyzer.commands import gating, options

EPILOG = """\b
Examples:
  analyze compare before/ after/                 two directories of traces
  analyze compare base.json after/               a baseline and traces
  analyze compare before.json after.json         two saved results (means: no statistics)
  analyze compare tp8/ tp4/ --allow layout       two layouts, per token
"""


@click.command("compare", epilog=EPILOG)
@options.reading
@options.model()
@gating.judging
@options.debug
def command(traces: tuple[str, ...], form: str, output: str, tokens: int | None, **given: Any) -> int:
    """Compare two runs, A and B: what changed, by how much, and where the difference of the step comes from.

    Each is a trace, a directory with all ranks of a job, a quoted glob, a saved result of `analyze run --format json`,
    or a baseline. Exit code 1 if B is worse, 3 if the two cannot be compared.
    """
    from analyzer.gate.load import load_run
    from analyzer.gate.verdict import compare

    if len(traces) != 2:
        raise click.UsageError(f"compare takes two runs, not {len(traces)}; quote a glob, or give directories")
    names = ("budget", "tolerance", "floor", "allow", "inconclusive")
    policy = gating.policy(**{name: given.pop(name) for name in names}, cluster=given["cluster"])
    reports = given.pop("reports")
    how = gating.reading_options(given)
    before, after = (load_run([run], how, tokens) for run in traces)
    return gating.deliver(
        compare(before, after, policy),
        form,
        output,
        reports,
        location=traces[1],
        verbose=given["verbose"],
        quiet=given["quiet"],
        inconclusive=policy.inconclusive,
    )

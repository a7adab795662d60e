"""What `compare` and `check` share: how strict they are, and where their verdict goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from analyzer.commands import options

if TYPE_CHECKING:
    from analyzer.gate.policy import Policy
    from analyzer.gate.verdict import Comparison
    from analyzer.options import Options

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("text", "json", "md", "html", "junit", "github", "sarif")
ALLOWED = ("world", "ranks", "layout", "model", "gpu", "libraries", "graphs", "profiler")
"""`analyzer.gate.comparable.KINDS`, here without importing it; a test holds the two together."""


class Share(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic only in newer versions of click
    """``3%``, ``3 %`` or ``0.03``."""

    name = "SHARE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Text to a share of one."""
        from analyzer.gate.budget import parse_share
        from parsers.errors import InputError

        if isinstance(value, float):
            return value
        try:
            return parse_share(value, param.name or "share" if param is not None else "share")
        except InputError as error:
            self.fail(str(error), param, ctx)


class Report(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """``FORMAT=PATH``."""

    name = "FORMAT=PATH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Text to (format, path)."""
        if isinstance(value, tuple):
            return value
        form, _, path = str(value).partition("=")
        if form not in FORMATS or not path or path == "-":
            self.fail(f"{value!r} is not FORMAT=PATH with a format of {', '.join(FORMATS)}", param, ctx)
        options.may_write(path, force=ctx is not None and options.forced(ctx))
        return form, path


_JUDGING = (
    click.option(
        "--budget", type=click.Path(dir_okay=False), metavar="FILE", help="Limits, levels and tolerances, in TOML."
    ),
    click.option(
        "--tolerance",
        type=Share(),
        default="3%",
        show_default=True,
        help="By how much a time may be worse than the baseline.",
    ),
    click.option(
        "--floor", type=Share(), default="0.5%", show_default=True, help="Share of the step a change must be worth."
    ),
    click.option(
        "--allow",
        type=click.Choice(ALLOWED),
        multiple=True,
        help="Compare although this differs; may be repeated. Different layouts are compared per token.",
    ),
    click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="Tokens of one step of the whole job."),
    click.option(
        "--inconclusive",
        type=click.Choice(("fail", "warn", "pass")),
        default="fail",
        show_default=True,
        help="What no answer means: exit code 3, 0 with a warning, or 0.",
    ),
    click.option("--report", "reports", type=Report(), multiple=True, help="A further output; may be repeated."),
)


def judging(command: F) -> F:
    """The options of both commands beyond those that read traces."""
    for option in reversed(_JUDGING):
        command = option(command)
    return options.output(*FORMATS)(command)


def policy(
    budget: str | None,
    tolerance: float,
    floor: float,
    allow: Sequence[str],
    inconclusive: str,
    cluster: str | None = None,
) -> Policy:
    """The options as one object; link speeds that the budget does not give are the cluster's.

    Raises:
        InputError: the budget cannot be used.
        LedgerError: the cluster is not known.
    """
    from dataclasses import replace

    from analyzer.gate.budget import Budget, load_budget
    from analyzer.gate.policy import Policy
    from ledger.clusters import load_cluster
    from ledger.transfer import line_rates

    limits = load_budget(budget) if budget else Budget()
    if cluster is not None:
        limits = replace(limits, links={**line_rates(load_cluster(cluster)), **limits.links})
    return Policy(
        budget=limits,
        tolerance=tolerance,
        floor=floor,
        allow=tuple(allow),
        inconclusive=inconclusive,
    )


def reading_options(given: dict[str, Any]) -> Options:
    """Command-line names to those of `analyzer.options.Options`; what only concerns the terminal is left out."""
    from analyzer.options import Options

    fields = {k: v for k, v in given.items() if k not in ("quiet", "verbose", "no_progress", "ignore_names")}
    return Options(**fields | {"use_names": not given["ignore_names"], "workers": given["workers"] or options.cores()})


def deliver(
    comparison: Comparison,
    form: str,
    output: str,
    reports: Sequence[tuple[str, str]],
    *,
    location: str,
    verbose: bool,
    quiet: bool,
    inconclusive: str,
) -> int:
    """Write the verdict wherever it is wanted.

    Args:
        comparison: the verdict.
        form: format of the main output.
        output: where that goes.
        reports: further formats and files.
        location: the file that code-scanning results are shown at.
        verbose: whether text also lists what did not change.
        quiet: nothing on stderr.
        inconclusive: fail | warn | pass.

    Returns:
        The exit code.
    """
    from analyzer.render import write
    from analyzer.reporters.github import publish, workflow_commands

    for further, path in reports:
        write(rendered(comparison, further, path, location, verbose=verbose), path)
    write(rendered(comparison, form, output, location, verbose=verbose), output)
    publish(comparison, os.environ)
    if os.environ.get("GITHUB_ACTIONS") == "true" and form != "github":
        # The runner reads workflow commands from both streams; stdout belongs to the result.
        click.echo(workflow_commands(comparison), err=True, nl=False)
    elif comparison.verdict == "inconclusive" and inconclusive == "warn" and not quiet:
        click.echo(f"warning: {comparison.reason}", err=True)
    return comparison.exit_code


def rendered(c: Comparison, form: str, output: str, location: str, *, verbose: bool = False) -> bytes:
    """A comparison in a format."""
    if form == "json":
        from analyzer.gate.verdict import to_json

        return to_json(c)
    if form == "junit":
        from analyzer.gate.baseline import now
        from analyzer.reporters.junit import junit

        return junit(c, now())
    if form == "sarif":
        from analyzer.reporters.sarif import sarif

        return sarif(c, location)
    if form == "github":
        from analyzer.reporters.github import workflow_commands

        return workflow_commands(c).encode()
    if form == "html":
        from analyzer.reporters.comparison_page import comparison_report
        from analyzer.reporters.html import page

        return page(comparison_report(c)).encode()
    from analyzer.reporters.comparison import comparison_markdown, comparison_sections

    if form == "md":
        return comparison_markdown(c).encode()
    from analyzer.render import render

    return render(comparison_sections(c, everything=verbose), "", "text", output)

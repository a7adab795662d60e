"""A comparison for GitHub Actions: annotations, the step's summary, and its outputs.

Formats: GitHub Docs, "Workflow commands for GitHub Actions". A step shows ten annotations of a kind; the summary of a
step may hold 1 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from analyzer.escaping import printable
from analyzer.gate.verdict import Comparison
from analyzer.reporters.comparison import comparison_markdown

MOST_ANNOTATIONS = 10


def workflow_commands(c: Comparison) -> str:
    """At most ten workflow commands, worst first: failures, what could not be decided, warnings."""
    lines = []
    if c.verdict == "inconclusive":
        lines.append(_command("error" if c.exit_code else "warning", "not comparable", c.reason))
    for row in c.rows:
        if row.failed:
            lines.append(
                _command("error" if row.level == "error" else "warning", row.metric, f"{row.metric}: {row.why}")
            )
        elif row.status == "inconclusive" and row.level == "error" and c.verdict != "inconclusive":
            lines.append(_command("warning", row.metric, f"{row.metric}: {row.why}"))
    return "".join(line + "\n" for line in lines[:MOST_ANNOTATIONS])


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_property(f'commlens: {title}')}::{_data(message)}"


def _data(text: str) -> str:
    kept = "\n".join(printable(line) for line in text.splitlines())
    return kept.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def publish(c: Comparison, environment: Mapping[str, str]) -> None:
    """Append the summary and the outputs to the files that the runner names, where it names them.

    Raises:
        OSError: a file cannot be written.
    """
    summary = environment.get("GITHUB_STEP_SUMMARY")
    if summary:
        _append(summary, comparison_markdown(c))
    outputs = environment.get("GITHUB_OUTPUT")
    if outputs:
        _append(outputs, f"verdict={c.verdict}\nexit-code={c.exit_code}\n")


def _append(path: str, text: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(text)

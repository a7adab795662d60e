"""The manual page, made from the help of every command.

`python -m benchmarks.docs --write` renews it.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

from analyzer.cli import COMMANDS, main

PAGE = Path(__file__).resolve().parents[1] / "docs" / "man" / "analyze.1"

EXIT_CODES = (
    ("0", "Done; of check and compare: pass."),
    ("1", "check and compare: regression."),
    ("2", "A wrong option, or an input that cannot be used; one line on stderr says what and how to mend it."),
    ("3", "Inconclusive: not comparable, too few steps, or incomplete input under --strict or in check."),
)
ENVIRONMENT = (
    ("NO_COLOR", "No colour on a terminal."),
    ("COLUMNS", "Width of text."),
    ("COMMLENS_SALT", "The salt of export --anonymize."),
    ("COMMLENS_DEBUG", "Show the traceback of an internal error, as --debug does."),
)


def roff(text: str) -> str:
    """A text in which nothing is a request or an escape."""
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in safe.splitlines())


def page() -> str:
    """The whole manual."""
    context = click.Context(main, info_name="analyze", **main.context_settings)
    out = [
        '.\\" Made by python -m benchmarks.docs from the help of the commands.',
        '.TH ANALYZE 1 "" "commlens" "User Commands"',
        ".SH NAME",
        "analyze \\- " + roff("communication of distributed training and inference jobs, from their profiler traces"),
        ".SH SYNOPSIS",
        ".B analyze",
        roff("[COMMAND] [OPTIONS] TRACE..."),
        ".SH DESCRIPTION",
        roff(_plain(main.help or "")),
        *_examples(main.epilog),
    ]
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        out += _command(name, command, context)
    out += [".SH EXIT STATUS", *(line for code, said in EXIT_CODES for line in (".TP", f".B {code}", roff(said)))]
    out += [".SH ENVIRONMENT", *(line for name, said in ENVIRONMENT for line in (".TP", f".B {name}", roff(said)))]
    return "\n".join(line for line in out if line) + "\n"


def _command(name: str, command: click.Command, parent: click.Context, level: str = ".SH") -> list[str]:
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    title = context.command_path.removeprefix("analyze ")
    out = [f'{level} "analyze {title}"', ".B " + roff(context.command_path), roff(usage), ".PP"]
    out.append(roff(_plain(command.help or "")))
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None and isinstance(param, click.Option):
            # Click keeps the help option that a command was first asked for, with the names of that time.
            names = ", ".join(context.help_option_names) if "--help" in param.opts else record[0]
            out += [".TP", ".B " + roff(names), roff(_plain(record[1]))]
    out += _examples(command.epilog)
    if isinstance(command, click.Group):
        for inner, sub in command.commands.items():
            out += _command(inner, sub, context, ".SS")
    return out


def _examples(epilog: str | None) -> list[str]:
    lines = (epilog or "").replace("\b", "").strip().splitlines()
    return [".PP", ".nf", *(roff(line) for line in lines), ".fi"] if lines else []


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("\b", "").replace("`", "")).strip()


def stale_manual() -> bool:
    """Whether the page says something else than the commands."""
    return not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()

"""Options that several commands share, and what they need: one definition each."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from analyzer.commands import completing
from parsers.source import Limits

_FORCE = "commlens.force"

F = TypeVar("F", bound=Callable[..., Any])


class StepRange(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic only in newer versions of click
    """``3:6`` (both ends included), ``3:``, ``:6`` or ``3``."""

    name = "FIRST:LAST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Text to (first, last)."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d*)(:?)(\d*)", str(value))
        if match is None or not (match[1] or match[3]):
            self.fail(f"{value!r} is not a range of steps such as 3:6", param, ctx)
        first = int(match[1] or 0)
        last = int(match[3]) if match[3] else 2**62 if match[2] else first
        if last < first:
            self.fail(f"{value!r} ends before it begins", param, ctx)
        return first, last


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """``8GB``, ``512MiB``, ``1e9``: bytes, with a decimal or a binary unit."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Text to bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", str(value), re.IGNORECASE)
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is not a size such as 8GB or 512MiB", param, ctx)
        power = "kmgt".find(match[2].lower()) + 1 if match[2] else 0
        return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def debug(command: F) -> F:
    """``--debug``, which `analyzer.cli` looks for itself."""
    return click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an internal error.")(
        command
    )


def target(
    *,
    required: bool = False,
    folder: bool = False,
    otherwise: str | None = "-",
    what: str = "Write the result to this file; - is stdout.",
) -> Callable[[F], F]:
    """``--output`` and ``--force``: what is there is not overwritten, and the command says so before it works.

    Args:
        required: whether it must be named.
        otherwise: what it is where it is not named.
        folder: whether it may be a directory that exists.
        what: what is written, for the help.
    """

    def decorate(command: F) -> F:
        def check(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
            if value is not None:
                may_write(value, force=forced(ctx), folder=folder)
            return value

        default = None if required else otherwise
        option = click.option(
            *("-o", "--output", "output"), metavar="PATH", default=default, required=required, callback=check, help=what
        )
        return option(_force(command))

    return decorate


def _force(command: F) -> F:
    def keep(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        ctx.meta[_FORCE] = value

    return click.option(
        "--force", is_flag=True, is_eager=True, expose_value=False, callback=keep, help="Overwrite what is there."
    )(command)


def forced(ctx: click.Context) -> bool:
    """Whether ``--force`` was given."""
    return bool(ctx.meta.get(_FORCE))


def may_write(path: str, *, force: bool, folder: bool = False) -> None:
    """Whether a result may go to a path, before any work is done for it.

    Args:
        path: a file; ``-`` is stdout.
        force: whether a file that is there may be overwritten.
        folder: whether it may be a directory that exists.

    Raises:
        UsageError: it exists, or cannot be written.
    """
    place = Path(path)
    if path == "-" or (place.exists() and not place.is_file() and not place.is_dir()):
        return
    if place.is_dir():
        if not folder:
            raise click.UsageError(f"{path} is a directory; name a file in it")
        return
    if place.exists() and not force:
        raise click.UsageError(f"{path} exists; --force overwrites it")
    parent = place.resolve().parent
    if folder and path.endswith("/"):
        return
    if not parent.is_dir():
        raise click.UsageError(f"{path}: there is no directory {parent}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise click.UsageError(f"{path}: no permission to write in {parent}")


def output(*formats: str) -> Callable[[F], F]:
    """``--format`` and ``--output``."""

    def decorate(command: F) -> F:
        command = target()(command)
        return click.option(
            "--format", "form", type=click.Choice(formats), default=formats[0], show_default=True, help="Result format."
        )(command)

    return decorate


def ledger_profile(default: str) -> Callable[[F], F]:
    """``--ledger-profile``."""
    return click.option(
        "--ledger-profile",
        default=default,
        show_default=True,
        metavar="NAME",
        shell_complete=completing.profiles,
        help="Whose traffic to predict.",
    )


def model(*, required: bool = False) -> Callable[[F], F]:
    """``--model``."""
    return click.option(
        "--model",
        required=required,
        metavar="PRESET|FILE",
        shell_complete=completing.models,
        help="The model: a preset such as llama3-70b, a Hugging Face config.json, or a YAML file.",
    )


cluster = click.option(
    "--cluster",
    metavar="PRESET|FILE",
    shell_complete=completing.clusters,
    help="Link speeds: a preset such as h100-ndr (`analyze clusters` lists them), or a YAML, JSON or TOML file.",
)
"""``--cluster``."""

_LOADING = (
    click.option(
        "--kernel-table",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="A TOML file with further communication kernels and operators.",
    ),
    click.option(
        "--workers", type=click.IntRange(min=1), metavar="N", help="Processes that read files [default: cores]."
    ),
    click.option(
        "--dask", metavar="ADDRESS", help="Read on a Dask cluster: tcp://HOST:PORT, or local:N for N processes here."
    ),
    click.option("--cache", metavar="DIR", help="Keep summaries of traces in this directory for the next time."),
    click.option(
        "--memory-limit",
        "memory_limit_bytes",
        type=Size(),
        metavar="SIZE",
        help="What the processes that read files may take together, such as 8GB: fewer of them run at a time.",
    ),
    click.option(
        "--max-expansion",
        type=click.FloatRange(min=1),
        metavar="TIMES",
        default=Limits.max_ratio,
        show_default=True,
        help="Refuse a compressed file that grows by more than this (and beyond 256 MiB) as a decompression bomb.",
    ),
    click.option(
        "--max-unpacked",
        "max_unpacked_bytes",
        type=Size(),
        metavar="SIZE",
        default="1TiB",
        show_default=True,
        help="Refuse a compressed file that becomes larger than this.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="No progress and no warnings on stderr."),
    click.option("-v", "--verbose", is_flag=True, help="Say on stderr what was read from where, and how fast."),
    click.option("--no-progress", is_flag=True, help="No progress bar."),
)
"""How traces are read."""

_READING = (
    click.option(
        "--layout", metavar="LAYOUT", help="The layout you believe in, tp8-cp1-pp16-dp128[-ep1]: it is verified."
    ),
    click.option("--gpus-per-node", type=click.IntRange(min=1), metavar="N", help="GPUs of one host."),
    cluster,
    click.option("--steps", type=StepRange(), help="Measure these steps only, both ends included."),
    click.option("--ignore-names", is_flag=True, help="Infer from behaviour alone: group names are not read."),
    ledger_profile("auto"),
    click.option("--strict", is_flag=True, help="Any repair, cut file or missing rank is an error (exit code 3)."),
    *_LOADING,
)


def summarizing(command: F) -> F:
    """The options of a command that reads traces and analyses nothing, and the traces themselves."""
    return _with(command, _LOADING)


def reading(command: F) -> F:
    """The options of every command that analyses traces, and the traces themselves."""
    return _with(command, _READING)


def reading_optional(command: F) -> F:
    """As `reading`, for a command that has something to say without traces."""
    return _with(command, _READING, required=False)


def _with(command: F, given: tuple[Callable[[F], F], ...], *, required: bool = True) -> F:
    for option in reversed(given):
        command = option(command)
    metavar = "TRACE..." if required else "[TRACE...]"
    return click.argument("traces", nargs=-1, required=required, metavar=metavar, shell_complete=completing.files)(
        command
    )

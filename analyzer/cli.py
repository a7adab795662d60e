"""The ``analyze`` command: finds the command that was meant, and turns every failure into one line and an exit code."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

from analyzer import __version__

COMMANDS = {
    "run": "Layout, collectives, exposed communication, ledger comparison and findings of one job.",
    "predict": "The ledger alone: bytes a layout sends, state bytes, pipeline bubble.",
    "compare": "Two runs side by side: what changed, and where the difference comes from.",
    "check": "The CI gate: a run against a baseline, a budget, or both.",
    "baseline": "Make, show and move baselines.",
    "report": "The postmortem: one self-contained HTML page, or Markdown.",
    "export": "For Perfetto, spreadsheets and notebooks: an annotated trace, or tables.",
    "explain": "What a term means, and what is behind a finding.",
    "summarize": "Traces reduced to small files that every command takes in their place.",
    "hang": "Why a job hangs, from the Flight Recorder dumps of its ranks.",
    "clusters": "The link speeds that --cluster knows, with their sources.",
    "crosscheck": "Overlap and breakdown beside HolisticTraceAnalysis, each difference explained.",
    "completion": "Completion of commands, options and files for a shell.",
    "formats": "The formats that are read, and what each can prove.",
}
"""Each lives in ``analyzer.commands`` under its own name and is imported only when it is called."""

DEFAULT = "run"

USAGE, INCONCLUSIVE, INTERRUPTED = 2, 3, 130


class Commands(click.Group):
    """Commands that are loaded when called; the name of the default one may be left out."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        """The names, in the order of the contract."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"analyzer.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default command where none is named; without any argument, show the help."""
        if not args:
            args = ["--help"]
        if args[0] not in COMMANDS and args[0] not in ("-h", "--help", "--version"):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Commands, or files: the default command may be left out."""
        from click.shell_completion import CompletionItem

        commands = [CompletionItem(name, help=said) for name, said in COMMANDS.items() if name.startswith(incomplete)]
        return [*commands, CompletionItem(incomplete, type="file")]

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Run; failures become one line on stderr and an exit code, a traceback only where it was asked for."""
        # The matrices here are small: threads for them cost more than they do, most of all with a process per core.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        extra |= {"standalone_mode": False, "prog_name": "analyze"}
        argv = list(sys.argv[1:] if args is None else args)
        _end_like_interrupted(signal.SIGTERM)
        atexit.register(gc.freeze)  # looking for cycles when all memory goes at once is a tenth of a short run
        try:
            code = super().main(argv, **extra)
        except KeyboardInterrupt:
            code = _explain(click.exceptions.Abort())
        except Exception as error:
            code = _explain(error)
            if code is None:
                if "--debug" in argv or os.environ.get("COMMLENS_DEBUG"):
                    raise
                _say(f"internal error: {type(error).__name__}: {error}; --debug shows where, please report it")
                code = USAGE
        sys.exit(code if isinstance(code, int) else 0)


def _end_like_interrupted(number: signal.Signals) -> None:
    """A cancelled CI job gets SIGTERM: clean up as after Ctrl-C, and end with the code that shells give it."""

    def end(*_: object) -> None:
        raise SystemExit(128 + number)

    with suppress(ValueError):  # another thread than the main one (an embedding program) may set no handlers
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)


def _explain(error: Exception) -> int | None:
    """Say in one line what went wrong and return the exit code; None for what nobody foresaw."""
    from analyzer.errors import InconclusiveError
    from ledger.errors import LedgerError
    from parsers.errors import InputError

    if isinstance(error, click.exceptions.Abort):
        _say("interrupted")
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        _say(_usage(error))
        return USAGE
    if isinstance(error, BrokenPipeError):
        from analyzer.render import drop_stdout

        # The reader of stdout has gone, as in `analyze ... | head`; Python must not try to flush to it again.
        drop_stdout()
        return 0
    if isinstance(error, InconclusiveError):
        _say(str(error))
        return INCONCLUSIVE
    if isinstance(error, (InputError, LedgerError)):
        _say(str(error))
        return USAGE
    if isinstance(error, OSError) and error.filename is not None:
        _say(f"{error.filename}: {error.strerror}")
        return USAGE
    if isinstance(error, MemoryError):
        _say("out of memory; read fewer files at a time (--workers, --memory-limit), or summarize them one by one")
        return USAGE
    return None


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    where = f" (see {context.command_path} --help)" if context is not None else ""
    return f"{error.format_message().rstrip('.')}{where}"


def _say(text: str) -> None:
    """One line on stderr, without control characters from a file name or a trace."""
    from analyzer.escaping import printable

    with suppress(OSError):  # where stderr is full or gone, the exit code is all that can be said
        click.echo(f"analyze: {printable(' '.join(text.split()))}", err=True)


EPILOG = """\b
Examples:
  analyze traces/                              all ranks of one job
  analyze rank0.json.gz                        what one rank can tell
  analyze traces/ --model llama3-70b --layout tp8-dp8
  analyze traces/ --format json -o result.json
"""


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
    help="Which collective each byte of a distributed job belongs to, how much of it was exposed, and the parallel "
    "layout that explains it. `analyze TRACE...` is short for `analyze run TRACE...`.",
)
@click.version_option(__version__, prog_name="analyze")
def main() -> None:
    """The group has nothing to do itself."""


if __name__ == "__main__":
    main()

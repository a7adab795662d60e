"""``analyze completion``: for the shell."""

from __future__ import annotations

import click

from analyzer.commands import options

EPILOG = """\b
Examples:
  analyze completion bash > ~/.local/share/bash-completion/completions/analyze
  analyze completion zsh > ~/.zfunc/_analyze        (with fpath+=~/.zfunc before compinit in ~/.zshrc)
  analyze completion fish > ~/.config/fish/completions/analyze.fish
  eval "$(analyze completion bash)"                 only in this shell
"""

VARIABLE = "_ANALYZE_COMPLETE"
"""By which the shell asks for completions (click's convention)."""


@click.command("completion", epilog=EPILOG)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@options.debug
def command(shell: str) -> None:
    """Print a script that completes commands, options, presets and files in a shell."""
    from click.shell_completion import get_completion_class

    from analyzer.cli import main

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    made = kind(main, {}, "analyze", VARIABLE)
    # Not `source()`, which starts the shell to look at its version: the script may be for another machine.
    click.echo(made.source_template % made.source_vars())

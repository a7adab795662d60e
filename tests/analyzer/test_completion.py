"""What a shell is offered."""

from __future__ import annotations

import subprocess

import pytest
from click.testing import CliRunner

from analyzer.cli import COMMANDS, main


def offered(line: str) -> list[tuple[str, str]]:
    """(kind, text) of what bash would be offered at the end of a line."""
    words = line.split(" ")
    env = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_ANALYZE_COMPLETE": "bash_complete"}
    shown = CliRunner().invoke(main, [], env=env).stdout
    return [(kind, text) for kind, _, text in (row.partition(",") for row in shown.splitlines())]


def test_the_first_word_is_a_command_or_a_file() -> None:
    assert [text for kind, text in offered("analyze ") if kind == "plain"] == list(COMMANDS)
    assert offered("analyze exp") == [("plain", "export"), ("plain", "explain"), ("file", "exp")]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("analyze run --ignore", [("plain", "--ignore-names")]),
        ("analyze traces/ --ignore", [("plain", "--ignore-names")]),
        ("analyze export traces/ --table-format p", [("plain", "parquet")]),
        ("analyze run --model llama3-7", [("plain", "llama3-70b"), ("file", "llama3-7")]),
        ("analyze predict --ledger-profile mega", [("plain", "megatron"), ("plain", "megatron_fp8")]),
        ("analyze run --cluster h100-nd", [("plain", "h100-ndr"), ("file", "h100-nd")]),
        ("analyze explain cause.last", [("plain", "cause.last_bucket")]),
        ("analyze compare before/ aft", [("file", "aft")]),
        ("analyze completion z", [("plain", "zsh")]),
    ],
)
def test_options_presets_terms_and_files_are_completed(line: str, expected: list[tuple[str, str]]) -> None:
    assert offered(line) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_the_command(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"_ANALYZE_COMPLETE={shell}_complete" in result.stdout


def test_bash_takes_the_script() -> None:
    script = CliRunner().invoke(main, ["completion", "bash"]).stdout
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_misspelled_shell_is_refused() -> None:
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2

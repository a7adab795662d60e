"""Keeps the outputs shown in README and docs true: runs the commands that stand there and compares or writes.

    python -m benchmarks.docs            # exit 1 and name the documents that are out of date
    python -m benchmarks.docs --write

A block is a comment ``<!-- run: COMMAND -->``, the output in a fence, and ``<!-- end -->``; with ``paste:`` in place of
``run:`` the output is Markdown and stands without a fence. Commands run in the root of the repository, 100 columns
wide, without colour; the program must be `analyze` or `python`. The manual page (`benchmarks.manual`) is renewed too.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

from benchmarks.manual import PAGE, page, stale_manual

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"<!-- (?P<kind>run|paste): (?P<command>[^>]+?) -->\n(?P<shown>.*?)<!-- end -->\n", re.DOTALL)


def documents() -> list[Path]:
    """Every document that may show output."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]


def output(command: str) -> str:
    """What a command prints, standard error after standard output, as a reader at 100 columns sees it."""
    program, *rest = shlex.split(command)
    if program == "python":
        words = [sys.executable, *rest]
    elif program == "analyze":
        words = [str(Path(sysconfig.get_path("scripts")) / "analyze"), *rest]
    else:
        raise ValueError(f"documents may run analyze and python, not {program}")
    env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    return "\n".join(line.rstrip() for line in (done.stdout + done.stderr).splitlines()) + "\n"


def renewed(text: str) -> str:
    """A document with the output of its commands in place."""

    def block(match: re.Match[str]) -> str:
        command, kind = match["command"], match["kind"]
        shown = f"```text\n{output(command)}```\n" if kind == "run" else f"\n{output(command)}\n"
        return f"<!-- {kind}: {command} -->\n{shown}<!-- end -->\n"

    return BLOCK.sub(block, text)


def stale(path: Path) -> bool:
    """Whether a document shows something else than its commands print."""
    text = path.read_text(encoding="utf-8")
    return renewed(text) != text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the current output in place")
    write = parser.parse_args().write
    outdated = [path for path in documents() if stale(path)]
    for path in outdated:
        print(f"{path.relative_to(ROOT)}: {'renewed' if write else 'out of date'}")
        if write:
            path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
    if stale_manual():
        print(f"{PAGE.relative_to(ROOT)}: {'renewed' if write else 'out of date'}")
        outdated.append(PAGE)
        if write:
            PAGE.write_text(page(), encoding="utf-8")
    sys.exit(1 if outdated and not write else 0)


if __name__ == "__main__":
    main()

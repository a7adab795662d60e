"""The documentation builds as a site without a warning, and has a page for every command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from analyzer.cli import COMMANDS
from benchmarks.docs import ROOT
from benchmarks.manual import PAGE, page

COMMANDS_DIR = ROOT / "docs" / "commands"


def test_the_site_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "busbw" in (tmp_path / "site" / "glossary" / "index.html").read_text()
    html = (tmp_path / "site" / "index.html").read_text()
    assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?://(?!www\.mkdocs|squidfunk)', html)


def test_every_command_has_a_page_with_its_help() -> None:
    assert {path.stem for path in COMMANDS_DIR.glob("*.md")} == set(COMMANDS)
    for name in COMMANDS:
        text = (COMMANDS_DIR / f"{name}.md").read_text()
        assert f"<!-- run: analyze {name} --help -->" in text
        assert f"Usage: analyze {name}" in text


def test_the_navigation_names_every_page() -> None:
    text = yaml.safe_dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    for path in (ROOT / "docs").rglob("*.md"):
        assert str(path.relative_to(ROOT / "docs")) in text


def test_the_manual_page_is_the_help() -> None:
    made = page()
    assert PAGE.read_text(encoding="utf-8") == made
    for name in COMMANDS:
        assert f'.SH "analyze {name}"' in made
    assert not re.search(r"^[.'](?!\\\"|TH|SH|SS|B |PP|TP|nf|fi)", made, re.MULTILINE)

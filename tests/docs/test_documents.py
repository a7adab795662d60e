"""Every command shown in README and docs prints what is shown, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.docs import ROOT, documents, renewed

LINK = re.compile(r"\[[^\]]+\]\((?!https?://|mailto:|#)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_shown_output_is_what_the_commands_print(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert renewed(text) == text


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(path: Path) -> None:
    missing = [
        target for target in LINK.findall(path.read_text(encoding="utf-8")) if not (path.parent / target).exists()
    ]
    assert missing == []

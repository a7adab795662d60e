"""What the reader's tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from parsers.tables import RankTrace


@pytest.fixture(scope="session")
def read_text(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[RankTrace]]:
    """Read a file with the given content."""
    from parsers import read

    folder = tmp_path_factory.mktemp("texts")

    def run(text: str | bytes, name: str = "trace.json") -> list[RankTrace]:
        path = folder / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read(path)

    return run


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few events, so that a small trace is cut many times."""
    monkeypatch.setattr("parsers.window.BLOCK_BYTES", 700)

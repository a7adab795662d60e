"""What every test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.examples import load_profile

ROOT = Path(__file__).resolve().parents[1]

os.environ["COLUMNS"] = "100"  # the width of the terminal decides where lines wrap
os.environ.pop("FORCE_COLOR", None)

load_profile()


@pytest.fixture(scope="session")
def sample_traces() -> Path:
    """The bundled captures."""
    return ROOT / "sample_traces"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Third-party and large captures beside the checkout; tests that need them skip where they are absent."""
    path = Path(os.environ.get("COMMLENS_SHARED", ROOT.parent / "shared"))
    if not (path / "data").is_dir():
        pytest.skip("no shared data beside this checkout")
    return path

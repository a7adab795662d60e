"""The property tests try fixed examples unless asked to explore."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.examples import times

_SAYS = (
    "from hypothesis import settings; from tests.examples import examples, load_profile; load_profile(); "
    "print(examples(30).max_examples, examples(30).derandomize, settings().max_examples, settings().deadline)"
)


@pytest.mark.parametrize("ci", ["true", ""])
@pytest.mark.parametrize(("asked", "said"), [("", "30 True 100 None"), ("50", "1500 False 5000 None")])
def test_the_examples_are_fixed_unless_more_are_asked_for(asked: str, said: str, ci: str) -> None:
    told = {name: value for name, value in os.environ.items() if name != "CI"} | {"COMMLENS_EXPLORE": asked}
    if ci:  # Hypothesis takes other defaults there
        told["CI"] = ci
    done = subprocess.run([sys.executable, "-c", _SAYS], cwd=ROOT, env=told, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said


@pytest.mark.parametrize("asked", ["0", "-1", "many", "1.5"])
def test_a_number_that_is_none_is_refused(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMLENS_EXPLORE", asked)
    with pytest.raises(ValueError, match="give how many times as many examples"):
        times()

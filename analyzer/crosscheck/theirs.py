"""The other tool's figures, from an interpreter that has it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from parsers.errors import InputError

VARIABLE = "COMMLENS_HTA_PYTHON"
"""Names the interpreter where the command line does not."""

_WAY_OUT = (
    "pip install 'commlens[hta]', or give an interpreter that has the traceinsight package with --hta-python "
    f"or {VARIABLE}"
)


def interpreter(named: str | None) -> str:
    """The interpreter to ask: the one named, that of the environment variable, or this one if it has the package.

    Raises:
        InputError: none has it.
    """
    chosen = named or os.environ.get(VARIABLE)
    if chosen:
        return chosen
    if importlib.util.find_spec("hta") is None:
        raise InputError("HolisticTraceAnalysis is not installed here", hint=_WAY_OUT)
    return sys.executable


def figures_of(paths: Mapping[int, str], python: str, *, include_last_step: bool, timeout_s: float) -> dict[str, Any]:
    """Its figures of each rank.

    Args:
        paths: files by rank.
        python: the interpreter.
        include_last_step: its option of that name; by default it drops the last profiler step.
        timeout_s: how long it may take.

    Raises:
        InputError: it cannot be run, has no such package, or took too long.
    """
    script = files("analyzer.crosscheck").joinpath("worker.py").read_text(encoding="utf-8")
    asked = json.dumps({"files": dict(paths), "include_last_step": include_last_step})
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            [python, "-c", script],
            input=asked,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env=environment,
        )
    except OSError as error:
        raise InputError(f"cannot be run ({error.strerror})", path=python, hint=_WAY_OUT) from error
    except subprocess.TimeoutExpired:
        raise InputError(f"HolisticTraceAnalysis took longer than {timeout_s:.0f} s", hint="give fewer ranks") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        missing = "No module named 'hta'" in last
        what = "does not have HolisticTraceAnalysis" if missing else f"failed: {last[:300]}"
        raise InputError(what, path=python, hint=_WAY_OUT)
    found: dict[str, Any] = json.loads(done.stdout)
    return found

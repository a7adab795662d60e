"""Captured traces without what some writers do not write: shapes, sizes, marks of steps, the header's groups."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

SHAPES = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
"""Arguments of operators that ``record_shapes`` adds (torch/csrc/profiler/kineto_shim.cpp)."""

SIZES = (*SHAPES, "In msg nelems", "Out msg nelems", "In split size", "Out split size")
"""... and those of ``record_param_comms`` that tell what a collective moves."""


def _drop(trace: dict[str, Any], names: tuple[str, ...]) -> None:
    trace.pop("record_shapes", None)
    for event in trace["traceEvents"]:
        for name in names:
            event.get("args", {}).pop(name, None)


def _without_steps(trace: dict[str, Any]) -> None:
    trace["traceEvents"] = [e for e in trace["traceEvents"] if not e.get("name", "").startswith("ProfilerStep")]


def _without_sizes_and_steps(trace: dict[str, Any]) -> None:
    _drop(trace, SIZES)
    _without_steps(trace)


WITHOUT: MappingProxyType[str, Callable[[dict[str, Any]], None]] = MappingProxyType(
    {
        "no shapes": lambda trace: _drop(trace, SHAPES),
        "no sizes": lambda trace: _drop(trace, SIZES),
        "no steps": _without_steps,
        "no sizes, no steps": _without_sizes_and_steps,
        "no header": lambda trace: trace.pop("distributedInfo", None),
    }
)
"""What is taken from a trace, and how."""


def without(what: str, files: list[Path], folder: Path) -> Iterator[Path]:
    """Write traces again, without something.

    Args:
        what: a key of `WITHOUT`.
        files: Kineto traces, plain or gzip.
        folder: where to write them, under their names.
    """
    for file in files:
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding="utf-8") as text:
            trace = json.load(text)
        WITHOUT[what](trace)
        path = folder / file.name.removesuffix(".gz")
        path.write_text(json.dumps(trace), encoding="utf-8")
        yield path

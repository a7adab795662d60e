"""What the ranges of frameworks and users say: operators of communication, marks of steps and phases.

PyTorch's ranges (`emit_nvtx`, `--pytorch=autograd-nvtx`) carry the names that Kineto records, so the choices are those
of `parsers.kineto_select`. Frameworks and users mark iterations in their own words: what is called a step or iteration
and has a number is one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from parsers.columns import NULL, Ints, Names
from parsers.kineto_comm import COMM_LAYERS
from parsers.kineto_select import (
    AUTOGRAD,
    BACKEND_RANGE,
    COMM_BASE,
    DROP,
    MARK_KINDS,
    NOTE,
    OPERATOR,
    OPTIMIZER,
    STEP,
    choose_operator,
)
from parsers.nsys.nvtx import Ranges

# megatron/training (``iteration``), NeMo and Lightning (``train_batch``), users' own: nvtx.range_push(f"step {i}").
_STEP = re.compile(
    r"(?:ProfilerStep#|(?:(?:global|train(?:ing)?)[ _-]?)?(?:step|iter(?:ation)?|batch)[ _:#=-]{0,3})"
    r"(?P<number>\d{1,18})\Z",
    re.IGNORECASE,
)
_WHOLE_STEP = re.compile(r"(?:train(?:ing)?[ _-]?(?:step|iteration|batch)|step|iteration)\Z", re.IGNORECASE)
_OPTIMIZER = re.compile(r"optim(?:izer)?(?:[ _.-]?step)?\Z|optimizer[ _.-]", re.IGNORECASE)
_XLA_MODULE = re.compile(r"(?:TSL:)?XlaModule:#(?:prefix=[^#,]*,)?hlo_module=(?P<module>[^#,]{1,200})")


@dataclass(frozen=True)
class Sorted:
    """Ranges told apart.

    Attributes:
        layer: per range, its place in `kineto_comm.COMM_LAYERS` where it is communication, else -1.
        mark: per range, its place in `kineto_select.MARK_KINDS` where it is a mark, else -1.
    """

    layer: npt.NDArray[np.int64]
    mark: npt.NDArray[np.int64]


def sort_out(ranges: Ranges, *, operators: bool) -> Sorted:
    """Tell communication from marks.

    Args:
        ranges: of the report.
        operators: whether operators that compute are kept, as Kineto's are where no GPU ran.
    """
    choices = np.array([*(_choose(name) for name in ranges.names), DROP], np.int64)
    chosen = choices[ranges.name]
    layer = np.where(chosen >= COMM_BASE, chosen - COMM_BASE, -1)
    mark = np.where((chosen >= 0) & (chosen < COMM_BASE), chosen, -1)
    return Sorted(layer, mark if operators else np.where(mark == OPERATOR, -1, mark))


def _choose(name: str) -> int:
    if BACKEND_RANGE.match(name):
        return COMM_BASE + COMM_LAYERS.index("annotation")
    if "::" in name or name == "record_param_comms":
        choice = choose_operator(name)
        return NOTE if choice == DROP and not name.startswith(("aten::", "autograd::")) else choice
    if _STEP.match(name):
        return STEP
    if _OPTIMIZER.match(name):
        return OPTIMIZER
    return NOTE if name else DROP


def steps(ranges: Ranges, rows: Ints, calls: Ints) -> tuple[Ints, Ints, Ints]:
    """The steps of a rank: number, start, duration, in order of time.

    Numbered ranges win, of the word under which most time is spent; then ranges that are called a step and repeat; then
    executions of an XLA module that ran more than once: of the one in which most of NCCL is called, else of the one
    that takes the most time. Of each, those of the thread that has most of them; ranges inside another one of the same
    kind are no steps.

    Args:
        ranges: of the report.
        rows: those of the rank.
        calls: when it called NCCL, ns.
    """
    matches = [_STEP.match(name) for name in ranges.names]
    numbers = np.array([*(int(match["number"]) if match else NULL for match in matches), NULL], np.int64)
    numbered = rows[numbers[ranges.name[rows]] != NULL]
    if len(numbered):
        called = Names()
        word = called.codes([match.string[: match.start("number")].lower() if match else None for match in matches])
        time = np.bincount(word[ranges.name[numbered]], weights=ranges.end[numbered] - ranges.start[numbered])
        longest = numbered[word[ranges.name[numbered]] == int(np.argmax(time))]
        chosen = _outermost(ranges, _busiest_thread(ranges, longest))
        return numbers[ranges.name[chosen]], ranges.start[chosen], ranges.end[chosen] - ranges.start[chosen]
    for chosen in (_repeated(ranges, rows, calls, _WHOLE_STEP), _repeated(ranges, rows, calls, _XLA_MODULE)):
        if len(chosen) > 1:
            return np.arange(len(chosen)), ranges.start[chosen], ranges.end[chosen] - ranges.start[chosen]
    empty = np.empty(0, np.int64)
    return empty, empty, empty


def _repeated(ranges: Ranges, rows: Ints, calls: Ints, called: re.Pattern[str]) -> Ints:
    """The ranges of one name among those that are called so and repeat: that with most calls, then most time."""
    rows = rows[np.array([*(called.match(name) is not None for name in ranges.names), False])[ranges.name[rows]]]
    if not len(rows):
        return rows
    names, place, count = np.unique(ranges.name[rows], return_inverse=True, return_counts=True)
    moments = np.sort(calls)
    inside = np.searchsorted(moments, ranges.end[rows]) - np.searchsorted(moments, ranges.start[rows])
    held = np.bincount(place, weights=inside)
    time = np.bincount(place, weights=(ranges.end[rows] - ranges.start[rows]).astype(np.float64))
    best = max(range(len(names)), key=lambda index: (count[index] > 1, held[index], time[index]))
    return _outermost(ranges, _busiest_thread(ranges, rows[ranges.name[rows] == names[best]]))


def _busiest_thread(ranges: Ranges, rows: Ints) -> Ints:
    threads, count = np.unique(ranges.tid[rows], return_counts=True)
    busiest: Ints = rows[ranges.tid[rows] == threads[int(np.argmax(count))]]
    return busiest


def _outermost(ranges: Ranges, rows: Ints) -> Ints:
    """Of ranges of one thread those that lie in no other, in order of time."""
    rows = rows[np.lexsort((-ranges.end[rows], ranges.start[rows]))]
    reached = np.maximum.accumulate(ranges.end[rows])
    return rows[np.concatenate([[True], ranges.start[rows][1:] >= reached[:-1]])] if len(rows) else rows


def sizes_of(texts: Sequence[str]) -> list[list[list[int]] | None]:
    """The sizes that `emit_nvtx(record_shapes=True)` writes after an operator, as lists; None for what is none."""
    return [_sizes(text) for text in texts]


def _sizes(text: str) -> list[list[int]] | None:
    try:
        said: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(said, list):
        return None
    return [[n for n in item if isinstance(n, int)] if isinstance(item, list) else [] for item in said]


__all__ = ["AUTOGRAD", "MARK_KINDS", "STEP", "Sorted", "sizes_of", "sort_out", "steps"]

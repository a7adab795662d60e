"""Which part of a job to export: ``steps=3:5``, ``ms=120:180``, or where a finding shows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import numpy as np

from analyzer.export.axis import Axis
from analyzer.export.cut import Window
from analyzer.intervals import Ints
from analyzer.measured import Measured
from analyzer.model import Finding
from analyzer.moments import Moment, moment
from parsers.errors import InputError

_RANGE = re.compile(r"(steps?|ms|us|s)\s*=\s*([\d.]*)(:?)([\d.]*)\Z")
_NS = {"us": 1e3, "ms": 1e6, "s": 1e9}
_HINT = "give steps=FIRST:LAST, ms=FROM:TO (since the first event), or the identifier of a finding"


def find_window(
    asked: str, findings: Sequence[Finding], ranks: Sequence[Measured], axis: Axis, context_ms: float | None
) -> tuple[Window, str]:
    """The window on the common axis (absolute ns), and what it is.

    Args:
        asked: as on the command line.
        findings: of the analysis.
        ranks: measured ranks.
        axis: their common axis.
        context_ms: what to add on both sides; by default nothing to a range, and its own length to a moment.

    Raises:
        InputError: the text means nothing, or names a step, time or finding that is not there.
    """
    match = _RANGE.match(asked.strip())
    if match is None:
        return _of_finding(asked, findings, ranks, axis, context_ms)
    unit, first, colon, last = match.groups()
    if not first and not last:
        raise InputError(f"--slice {asked}: an empty range", hint=_HINT)
    try:
        low = float(first or 0)
        high = float(last) if last else np.inf if colon else low
    except ValueError:
        raise InputError(f"--slice {asked}: not a number", hint=_HINT) from None
    if high < low:
        raise InputError(f"--slice {asked}: ends before it begins", hint=_HINT)
    if unit.startswith("step"):
        return _padded(_of_steps(low, high, asked, ranks, axis), context_ms or 0.0), f"steps {first}{colon}{last}"
    return _padded(_of_times(low * _NS[unit], high * _NS[unit], asked, ranks, axis), context_ms or 0.0), asked


def _of_steps(low: float, high: float, asked: str, ranks: Sequence[Measured], axis: Axis) -> Window:
    edges = []
    known: set[int] = set()
    for place, rank in enumerate(ranks):
        steps = rank.source.steps
        known |= set(steps.number.tolist())
        chosen = (steps.number >= low) & (steps.number <= high)
        edges.append(_on(axis, steps.edges[chosen].ravel(), place))
    every = np.concatenate(edges) if edges else np.empty(0, dtype=np.int64)
    if not len(every):
        there = f"there are {min(known)} to {max(known)}" if known else "the traces have no steps"
        raise InputError(f"--slice {asked}: no such step; {there}")
    return Window(int(every.min()), int(every.max()))


def _of_times(low: float, high: float, asked: str, ranks: Sequence[Measured], axis: Axis) -> Window:
    first = min(int(_on(axis, np.array([rank.source.line.first]), p)[0]) for p, rank in enumerate(ranks))
    last = max(int(_on(axis, np.array([rank.source.line.last]), p)[0]) for p, rank in enumerate(ranks))
    start, end = first + int(low), last if np.isinf(high) else first + int(high)
    if start >= last or end <= start:
        raise InputError(f"--slice {asked}: the trace is {(last - first) / 1e6:,.3f} ms long", hint=_HINT)
    return Window(start, end)


def _of_finding(
    asked: str, findings: Sequence[Finding], ranks: Sequence[Measured], axis: Axis, context_ms: float | None
) -> tuple[Window, str]:
    chosen = pick(asked, findings)
    found = moment(chosen, ranks)
    if found is None:
        raise InputError(f"--slice {asked}: this finding is not about a moment in time", hint=_HINT)
    start, end = meeting(found, axis)
    window = Window(start, end)
    pad = context_ms if context_ms is not None else (window.length_ns / 1e6 if found.rows else 0.0)
    return _padded(window, pad), f"{chosen.id}: {found.what}"


def pick(asked: str, findings: Sequence[Finding]) -> Finding:
    """The finding with an identifier; the costliest where several have it, the n-th for ``ID#n``.

    Raises:
        InputError: there is none.
    """
    name, _, number = asked.partition("#")
    same = [finding for finding in findings if finding.id == name]
    if not same or (number and not (number.isdigit() and 1 <= int(number) <= len(same))):
        ids = list(dict.fromkeys(finding.id for finding in findings))
        close = difflib.get_close_matches(name, ids, n=1)
        meant = f"; did you mean {close[0]}?" if close and close[0] != name else ""
        count = "1 finding has" if len(same) == 1 else f"{len(same)} findings have"
        there = f"{count} that identifier" if same else f"the findings are {', '.join(ids) or 'none'}"
        raise InputError(f"no finding {asked!r}{meant or f'; {there}'}")
    return same[int(number) - 1 if number else 0]


def meeting(found: Moment, axis: Axis) -> tuple[int, int]:
    """Begin and end of a moment on the common axis, with the calls of the other ranks that meet in it."""
    start, end = _on(axis, np.array([found.start_ns, found.end_ns]), found.rank).tolist()
    for meetings in (axis.collectives, axis.messages):
        mine = (meetings.rank == found.rank) & np.isin(meetings.row, found.rows[:1])
        if not mine.any():
            continue
        together = np.isin(meetings.key, meetings.key[mine])
        for rank in np.unique(meetings.rank[together]).tolist():
            own = together & (meetings.rank == rank)
            begins = _on(axis, meetings.start[own] + meetings.base, rank)
            ends = _on(axis, meetings.end[own] + meetings.base, rank)
            start, end = min(start, int(begins.min())), max(end, int(ends.max()))
    return start, end


def _on(axis: Axis, times: Ints, rank: int) -> Ints:
    return axis.on(np.asarray(times, dtype=np.int64), rank)


def _padded(window: Window, pad_ms: float) -> Window:
    pad = int(pad_ms * 1e6)
    return Window(window.start_ns - pad, window.end_ns + pad)

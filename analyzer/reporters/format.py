"""Numbers, ranks and units as people read them; shared by the reporters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Unit:
    """A unit for a whole column: its name and how much of the base unit it is."""

    name: str
    scale: float


MICROSECONDS, MILLISECONDS, SECONDS = Unit("µs", 1), Unit("ms", 1e3), Unit("s", 1e6)
BYTES, KILOBYTES, MEGABYTES, GIGABYTES = Unit("B", 1), Unit("kB", 1e3), Unit("MB", 1e6), Unit("GB", 1e9)

DASH = "–"
"""Stands for null: not determined from this input."""


def time_unit(values: Iterable[float | None]) -> Unit:
    """The unit in which the largest of these microseconds has at most four digits before the point."""
    return _unit(values, (MICROSECONDS, MILLISECONDS, SECONDS))


def byte_unit(values: Iterable[float | None]) -> Unit:
    """The unit in which the largest of these bytes has at most four digits before the point."""
    return _unit(values, (BYTES, KILOBYTES, MEGABYTES, GIGABYTES))


def _unit(values: Iterable[float | None], units: Sequence[Unit]) -> Unit:
    largest = max((abs(v) for v in values if v is not None), default=0.0)
    return next((u for u in units if largest < 1e4 * u.scale), units[-1])


def number(value: float | None, unit: Unit | None = None) -> str:
    """A value in a unit with three significant digits at least; what would round to nothing says so."""
    if value is None:
        return DASH
    scaled = value / unit.scale if unit else value
    if scaled == 0:
        return "0"
    if float(value).is_integer() and (unit is None or unit.scale == 1):
        return f"{int(value)}"
    size = abs(scaled)
    if size < 0.0005:
        return "<0.001"
    return f"{scaled:.{0 if size >= 999.5 else 1 if size >= 99.95 else 2 if size >= 9.995 else 3}f}"


def count(value: float) -> str:
    """A mean count: whole where it is whole."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.2f}"


def percent(share: float | None) -> str:
    """A share of 1 as a percentage; never rounded up to 100 or down to 0."""
    if share is None:
        return DASH
    value = share * 100
    if 0 < value < 0.05:
        return "<0.1 %"
    if 99.95 <= value < 100:
        return ">99.9 %"
    return f"{value:.1f} %" if value % 1 else f"{value:.0f} %"


def time(us: float | None) -> str:
    """One time with its own unit."""
    unit = time_unit([us])
    return DASH if us is None else f"{number(us, unit)} {unit.name}"


def size(value: float | None) -> str:
    """One number of bytes with its own unit."""
    unit = byte_unit([value])
    return DASH if value is None else f"{number(value, unit)} {unit.name}"


def ranks(values: Sequence[int], limit: int = 12) -> str:
    """Rank numbers as runs: ``0-3, 8, 12-15``; evenly spaced ones as ``0, 8, .. 56``; the rest is counted."""
    if not values:
        return "none"
    ordered = sorted(values)
    steps = {b - a for a, b in pairwise(ordered)}
    if len(ordered) > 3 and len(steps) == 1 and (step := steps.pop()) > 1:
        return f"{ordered[0]}, {ordered[0] + step}, .. {ordered[-1]}"
    runs: list[list[int]] = []
    for value in ordered:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    parts = [f"{a}" if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs]
    if len(parts) <= limit:
        return ", ".join(parts)
    rest = sum(b - a + 1 for a, b in runs[limit:])
    return f"{', '.join(parts[:limit])} and {rest} more"

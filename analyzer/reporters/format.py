"""Numbers, ranks and units as people read them; shared by the reporters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Unit:
    """A unit for a whole column: its name, how much of the base unit it is, and the decimals shown."""

    name: str
    scale: float
    decimals: int = 2


MICROSECONDS, MILLISECONDS, SECONDS = Unit("µs", 1, 1), Unit("ms", 1e3), Unit("s", 1e6)
BYTES, KILOBYTES, MEGABYTES, GIGABYTES = Unit("B", 1, 0), Unit("kB", 1e3), Unit("MB", 1e6), Unit("GB", 1e9)
GB_PER_S = Unit("GB/s", 1, 1)

DASH = "–"
"""Stands for null: not determined from this input."""


def time_unit(values: Iterable[float | None]) -> Unit:
    """The unit in which the largest of these microseconds has at most four digits before the point."""
    return _unit(values, (MICROSECONDS, MILLISECONDS, SECONDS))


def byte_unit(values: Iterable[float | None]) -> Unit:
    """The unit in which the largest of these bytes has at most four digits before the point."""
    return _unit(values, (BYTES, KILOBYTES, MEGABYTES, GIGABYTES))


def _unit(values: Iterable[float | None], units: Sequence[Unit], below: float = 1e4) -> Unit:
    largest = max((abs(v) for v in values if v is not None), default=0.0)
    return next((u for u in units if largest < below * u.scale), units[-1])


def number(value: float | None, unit: Unit) -> str:
    """A value in a unit with the unit's decimals; what would round to nothing says so, and nothing is 0."""
    if value is None:
        return DASH
    scaled = value / unit.scale
    if scaled == 0:
        return "0"
    smallest = 10.0**-unit.decimals
    if abs(scaled) < smallest / 2:
        return f"<{smallest:.{unit.decimals}f}" if scaled > 0 else f"-{smallest:.{unit.decimals}f}"
    return f"{scaled:.{unit.decimals}f}"


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
    return f"{value:.0f} %" if value in (0, 100) else f"{value:.1f} %"


def time(us: float | None) -> str:
    """One time with its own unit."""
    unit = _unit([us], (MICROSECONDS, MILLISECONDS, SECONDS), below=1e3)
    return DASH if us is None else f"{number(us, unit)} {unit.name}"


def size(value: float | None) -> str:
    """One number of bytes with its own unit."""
    unit = _unit([value], (BYTES, KILOBYTES, MEGABYTES, GIGABYTES), below=1e3)
    return DASH if value is None else f"{number(value, unit)} {unit.name}"


def ranks(values: Sequence[int], limit: int = 12) -> str:
    """Numbers as runs: ``0-3, 8, 12-15``; evenly spaced ones as ``0, 8, .. 56``; what is too long is counted."""
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

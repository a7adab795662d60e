"""Whether the columns of a summary fit together: what damage, or another program, may have left readable."""

from __future__ import annotations

import numpy as np

from analyzer.summary.columns import FAMILY_OF_CALL, SCHEMA, SPACED, Rows
from parsers import tables

_TOGETHER: tuple[tuple[str, ...], ...] = (
    ("steps.begin", "steps.end", "steps.number", "steps.complete"),
    ("line.compute_start", "line.compute_length"),
    ("line.memcpy_start", "line.memcpy_length"),
    ("line.comm_call", "line.comm_start", "line.comm_length"),
    ("line.call_start", "line.call_length", "collectives.ts_ns"),
    ("turns.start", "turns.length", "turns.phase"),
    (*(f"groups.{name}" for name in tables.GROUPS.names), SPACED),
    (*(f"collectives.{name}" for name in tables.COLLECTIVES.names), FAMILY_OF_CALL),
    ("view.landmark", "view.landmark_start", "view.landmark_length"),
)
"""Columns that hold one value for each of the same things, so that their lists are equally long in every row."""

_EMPTY_OR_ALL = (
    ("steps.begin", "steps.launch_gap"),
    ("line.call_start", "host.dry"),
    ("line.call_start", "host.ready"),
    ("collectives.ts_ns", "view.call_phase"),
)
"""Columns that may be empty, and else go together with others."""

_PLACES = (("line.comm_call", "line.call_start"),)
"""Columns that hold positions in others, -1 for none."""


def check(rows: Rows) -> None:
    """Look at the columns that are there.

    Raises:
        ValueError: a column has another type than `SCHEMA` says, or columns do not fit together.
    """
    for name in rows.schema.names:
        kind = rows.schema.field(name).type
        if name in SCHEMA.names and kind != SCHEMA.field(name).type:
            raise ValueError(f"{name} holds {kind} in place of {SCHEMA.field(name).type}")
    there = frozenset(rows.schema.names)
    for names in _TOGETHER:
        present = [name for name in names if name in there]
        for name in present[1:]:
            if not np.array_equal(rows.lengths(name), rows.lengths(present[0])):
                raise ValueError(f"{name} is not as long as {present[0]}")
    for whole, part in _EMPTY_OR_ALL:
        if {whole, part} <= there:
            length = rows.lengths(part)
            if not ((length == 0) | (length == rows.lengths(whole))).all():
                raise ValueError(f"{part} is not as long as {whole}")
    for place, of in _PLACES:
        if {place, of} <= there:
            _check_places(rows, place, of)


def _check_places(rows: Rows, place: str, of: str) -> None:
    for row, count in enumerate(rows.lengths(of).tolist()):
        values = rows.ints(place, row)
        if len(values) and (int(values.min()) < -1 or int(values.max()) >= count):
            raise ValueError(f"{place} points outside of {of}")

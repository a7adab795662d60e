"""Fields of Kineto's events between the text of a block and the arrays of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from parsers.columns import Ints, integers, nanoseconds


class Pending:
    """Fields of events of one category that are not arrays yet. Nothing in it refers to the text of the block."""

    def __init__(self) -> None:
        self.rows = 0
        self._lists: dict[str, list[Any]] = {}
        self._ts: list[bytes] = []
        self._dur: list[bytes] = []

    def add(self, events: Sequence[Any], fields: Mapping[str, list[Any]]) -> None:
        """Add events with the given fields besides those that all events have."""
        self._ts.append(_joined([event.ts for event in events]))
        self._dur.append(_joined([event.dur for event in events]))
        common = {
            "tid": [event.tid for event in events],
            "pid": [event.pid for event in events],
            "name": [event.name for event in events],
        }
        for name, values in chain(common.items(), fields.items()):
            self._lists.setdefault(name, []).extend(values)
        self.rows += len(events)

    def __getitem__(self, name: str) -> list[Any]:
        return self._lists[name]

    def integers(self, name: str) -> Ints:
        """A field as numbers."""
        return integers(self._lists[name])

    def times(self) -> tuple[Ints, Ints]:
        """Starts and durations in nanoseconds."""
        return nanoseconds(b",".join(self._ts), self.rows), nanoseconds(b",".join(self._dur), self.rows)

    def clear(self) -> None:
        """Forget all rows."""
        self.rows = 0
        for values in (*self._lists.values(), self._ts, self._dur):
            values.clear()


def _joined(raws: list[Any]) -> bytes:
    text = b",".join(raws)
    if text.count(b",") != len(raws) - 1:  # a comma in a time: no number, but it must not shift its neighbours
        text = b",".join([bytes(raw).replace(b",", b"?") for raw in raws])
    return text

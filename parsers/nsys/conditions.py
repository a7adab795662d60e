"""Conditions on the rows of a table, decided by the database where there is one, else on Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa


class Condition(Protocol):
    """Which rows of a table are wanted. A null makes a comparison false, as in a ``WHERE`` clause."""

    def sql(self) -> tuple[str, list[Any]]:
        """The condition in SQL, and the values of its parameters."""

    def mask(self, column: Callable[[str], pa.ChunkedArray]) -> pa.ChunkedArray:
        """The same as a boolean column without nulls; ``column`` gives a column by name."""

    def uses(self) -> frozenset[str]:
        """The columns that it looks at."""


@dataclass(frozen=True)
class OneOf:
    """An integer column has one of the given values."""

    column: str
    values: Sequence[int]

    def sql(self) -> tuple[str, list[Any]]:
        """See `Condition`. The values are written out: their number may exceed the limit on parameters."""
        listed = ", ".join(str(int(value)) for value in self.values)
        return f'"{self.column}" IS NOT NULL AND "{self.column}" IN ({listed})', []

    def mask(self, column: Callable[[str], pa.ChunkedArray]) -> pa.ChunkedArray:
        """See `Condition`."""
        import pyarrow.compute as pc

        values = column(self.column)
        return pc.fill_null(pc.is_in(values.cast(pa.int64(), safe=False), pa.array(self.values, pa.int64())), False)

    def uses(self) -> frozenset[str]:
        """See `Condition`."""
        return frozenset({self.column})


@dataclass(frozen=True)
class Begins:
    """A text column begins with one of the given texts, which hold none of ``*?[``."""

    column: str
    texts: Sequence[str]

    def sql(self) -> tuple[str, list[Any]]:
        """See `Condition`."""
        # No null reaches GLOB, so that the tests need no wrapping: SQLite stops at the first that decides.
        tests = " OR ".join([f"""ifnull("{self.column}", '') GLOB ?"""] * len(self.texts))
        return tests, [text + "*" for text in self.texts]

    def mask(self, column: Callable[[str], pa.ChunkedArray]) -> pa.ChunkedArray:
        """See `Condition`."""
        import pyarrow.compute as pc

        values = column(self.column)
        found = pc.starts_with(values, self.texts[0])
        for text in self.texts[1:]:
            found = pc.or_(found, pc.starts_with(values, text))
        return pc.fill_null(found, False)

    def uses(self) -> frozenset[str]:
        """See `Condition`."""
        return frozenset({self.column})


@dataclass(frozen=True)
class Contains:
    """A text column contains one of the given texts."""

    column: str
    texts: Sequence[str]

    def sql(self) -> tuple[str, list[Any]]:
        """See `Condition`."""
        tests = " OR ".join([f"""instr(ifnull("{self.column}", ''), ?) > 0"""] * len(self.texts))
        return tests, list(self.texts)

    def mask(self, column: Callable[[str], pa.ChunkedArray]) -> pa.ChunkedArray:
        """See `Condition`."""
        import pyarrow.compute as pc

        values = column(self.column)
        found = pc.match_substring(values, self.texts[0])
        for text in self.texts[1:]:
            found = pc.or_(found, pc.match_substring(values, text))
        return pc.fill_null(found, False)

    def uses(self) -> frozenset[str]:
        """See `Condition`."""
        return frozenset({self.column})


@dataclass(frozen=True)
class Not:
    """The opposite."""

    of: Condition

    def sql(self) -> tuple[str, list[Any]]:
        """See `Condition`."""
        text, values = self.of.sql()
        return f"NOT ({text})", values

    def mask(self, column: Callable[[str], pa.ChunkedArray]) -> pa.ChunkedArray:
        """See `Condition`."""
        import pyarrow.compute as pc

        return pc.invert(self.of.mask(column))

    def uses(self) -> frozenset[str]:
        """See `Condition`."""
        return self.of.uses()


@dataclass(frozen=True)
class AllOf:
    """All of several conditions hold."""

    parts: Sequence[Condition]

    def sql(self) -> tuple[str, list[Any]]:
        """See `Condition`."""
        return _joined(self.parts, " AND ")

    def mask(self, column: Callable[[str], pa.ChunkedArray]) -> pa.ChunkedArray:
        """See `Condition`."""
        import pyarrow.compute as pc

        found = self.parts[0].mask(column)
        for part in self.parts[1:]:
            found = pc.and_(found, part.mask(column))
        return found

    def uses(self) -> frozenset[str]:
        """See `Condition`."""
        return frozenset().union(*(part.uses() for part in self.parts))


@dataclass(frozen=True)
class AnyOf:
    """At least one of several conditions holds."""

    parts: Sequence[Condition]

    def sql(self) -> tuple[str, list[Any]]:
        """See `Condition`."""
        return _joined(self.parts, " OR ")

    def mask(self, column: Callable[[str], pa.ChunkedArray]) -> pa.ChunkedArray:
        """See `Condition`."""
        import pyarrow.compute as pc

        found = self.parts[0].mask(column)
        for part in self.parts[1:]:
            found = pc.or_(found, part.mask(column))
        return found

    def uses(self) -> frozenset[str]:
        """See `Condition`."""
        return frozenset().union(*(part.uses() for part in self.parts))


def _joined(parts: Sequence[Condition], word: str) -> tuple[str, list[Any]]:
    texts = [part.sql() for part in parts]
    return word.join(f"({text})" for text, _ in texts), [value for _, values in texts for value in values]

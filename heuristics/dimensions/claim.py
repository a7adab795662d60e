"""A claim: these calls of this rank serve that dimension, because of this.

Weights are decimal logarithms of odds: a test that separates its two readings in all but one case of a hundred weighs
2. They add up only over tests that look at different things (position, size, dtype, shape).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heuristics.verdict import Dim
    from heuristics.view import Family

WEAK, FAIR, STRONG, SURE = 0.3, 1.0, 2.0, 3.0
"""A tendency (2:1); a good test (10:1); one with rare exceptions (100:1); one that follows from the definition."""


@dataclass(frozen=True)
class Test:
    """One observation that speaks for a claim (positive weight) or against it (negative), in a sentence."""

    weight: float
    sentence: str


@dataclass(frozen=True)
class Claim:
    """That some families of one rank serve a dimension.

    Attributes:
        dim: the dimension.
        kind: what the calls are to it, such as ``activation_reduce`` or ``gradient_reduce``.
        group: the group's position in `RankView.groups`.
        families: the families claimed, by index.
        tests: what speaks for and against.
        facts: what follows for the layout if the claim holds, such as ``sequence_parallel``.
    """

    dim: Dim
    kind: str
    group: int
    families: frozenset[int]
    tests: tuple[Test, ...]
    facts: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def weight(self) -> float:
        """Log odds of the whole claim."""
        return sum(test.weight for test in self.tests)

    @property
    def evidence(self) -> tuple[str, ...]:
        """Sentences that speak for it."""
        return tuple(test.sentence for test in self.tests if test.weight > 0)

    @property
    def against(self) -> tuple[str, ...]:
        """Sentences that speak against it."""
        return tuple(test.sentence for test in self.tests if test.weight < 0)


def indices(families: Iterable[Family]) -> frozenset[int]:
    """The indices of some families."""
    return frozenset(family.index for family in families)


def of(families: Iterable[Family], *primitives: str) -> list[Family]:
    """The families with one of the given primitives."""
    return [family for family in families if family.primitive in primitives]


def per_step(families: Iterable[Family]) -> float:
    """Calls per step of some families together."""
    return sum(family.calls_per_step for family in families)


def elements(families: Iterable[Family]) -> float:
    """Payload elements per step of some families together."""
    return sum(family.elements_per_step for family in families)


def count(number: float) -> str:
    """A count for a sentence: 24, 1.5."""
    return f"{number:.0f}" if abs(number - round(number)) < 0.05 else f"{number:.1f}"

"""How strict a comparison is."""

from __future__ import annotations

from dataclasses import dataclass, field

from analyzer.gate.budget import Budget


@dataclass(frozen=True)
class Policy:
    """How strict a comparison is.

    Attributes:
        budget: limits, levels and tolerances of the user.
        tolerance: by how much a noisy metric may be worse: 3 %, below which half of real 5 % regressions would be lost
            by chance (see `benchmarks/gate.py`).
        floor: share of the step that a change must be worth.
        allow: kinds of `analyzer.gate.comparable` that do not stand in the way.
        inconclusive: fail | warn | pass.
    """

    budget: Budget = field(default_factory=Budget)
    tolerance: float = 0.03
    floor: float = 0.005
    allow: tuple[str, ...] = ()
    inconclusive: str = "fail"

"""How many examples the property tests try, and whether they are the same every time.

By default they are: a run of the tests fails for what changed, never by the luck of the draw. ``COMMLENS_EXPLORE=50``
makes the examples random and fifty times as many. What that finds becomes a test with the example written out.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

DEFAULT_EXAMPLES = 100
"""What a property test tries that does not say otherwise: Hypothesis' own default."""


def times() -> int:
    """How many times as many examples are asked for; 0 where the examples are the fixed ones."""
    asked = os.environ.get("COMMLENS_EXPLORE", "")
    if not asked:
        return 0
    if not asked.isdecimal() or int(asked) < 1:
        raise ValueError(f"COMMLENS_EXPLORE is {asked!r}; give how many times as many examples to try, as 50")
    return int(asked)


def load_profile() -> None:
    """Make Hypothesis use the fixed examples, or the many random ones where they are asked for.

    Neither looks at the clock: a busy machine fails no test. Each says whether it is random, since Hypothesis takes
    other defaults where it sees a CI.
    """
    untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
    settings.register_profile("fixed", untimed, derandomize=True, max_examples=DEFAULT_EXAMPLES)
    settings.register_profile(
        "explore", untimed, derandomize=False, max_examples=DEFAULT_EXAMPLES * max(1, times()), print_blob=True
    )
    settings.load_profile("explore" if times() else "fixed")


def examples(count: int) -> settings:
    """Settings for a property test: so many examples, or ``COMMLENS_EXPLORE`` times as many."""
    return settings(max_examples=count * max(1, times()))

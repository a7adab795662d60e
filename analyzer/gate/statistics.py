"""The statistics of noisy metrics: which number stands for a run, and whether two runs differ beyond chance.

Step times have one-sided noise: a step is late for many reasons and early for none. In short windows the best step is
therefore steadier than the middle one; in long windows the median is, because the best of many is an outlier of its
own. `benchmarks/gate.py` measures this on repeated real runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, erfc, sqrt

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FEWEST = 3
"""Steps below which nothing is said."""

SHORT = 5
"""Steps from which the best one stands for the run; below, a single lucky step would."""

LONG = 20
"""Steps from which the median stands for the run, and from which chance is tested."""

TAIL = 10
"""Steps from which the 90th percentile is another number than the largest."""

ALPHA = 0.002
"""One-sided level of the test, as in asv (asv/commands/compare.py)."""

EXACT_UP_TO = 2_500
"""Pairs (product of the sample sizes) up to which the distribution of U is counted out rather than approximated."""


def statistic_of(steps: int) -> str | None:
    """Which number stands for a window of so many steps: ``best``, ``median``, or None for too few."""
    if steps < FEWEST:
        return None
    return "best" if SHORT <= steps < LONG else "median"


def estimates(samples: Sequence[float], steps: int, *, lower_is_better: bool = True) -> tuple[float, ...]:
    """The numbers that stand for a run; two runs differ only where all of them do.

    Args:
        samples: one per step.
        steps: of the shorter of the two runs that are compared. The best of many steps is better than the best of few,
            so the longer run gets the mean over all choices of that many of its steps.
        lower_is_better: whether the best step is the smallest.

    Returns:
        The median; or in short windows the best step, and the mean of the two best, because one lucky step is no
        evidence; or nothing where there are too few steps.
    """
    values = np.asarray(samples, dtype=np.float64)
    kind = statistic_of(min(steps, len(values)))
    if kind is None:
        return ()
    if kind == "median":
        return (float(np.median(values)),)
    sign = 1 if lower_is_better else -1
    best, second = mean_best(sign * values, steps)
    return sign * best, sign * (best + second) / 2


def mean_best(values: Floats, chosen: int) -> tuple[float, float]:
    """Mean of the smallest and of the second smallest of ``chosen`` values, over all choices from ``values``.

    Of the C(n, k) choices of k from n, the i-th smallest value is the smallest in C(n-i, k-1), and the second smallest
    in (i-1)·C(n-i, k-2).
    """
    ordered = np.sort(values)
    n, k = len(ordered), min(chosen, len(ordered))
    first = np.array([comb(n - i, k - 1) / comb(n, k) for i in range(1, n + 1)])
    second = np.array([(i - 1) * comb(n - i, k - 2) / comb(n, k) for i in range(1, n + 1)])
    return float(first @ ordered), float(second @ ordered)


def p90(samples: Sequence[float], *, lower_is_better: bool = True) -> float | None:
    """The level that one step in ten is worse than; None where a tenth is less than a step."""
    if len(samples) < TAIL:
        return None
    return float(np.percentile(np.asarray(samples, dtype=np.float64), 90 if lower_is_better else 10))


def mann_whitney(low: Sequence[float], high: Sequence[float]) -> float:
    """One-sided p-value that ``high`` is only by chance above ``low`` (Mann and Whitney 1947).

    Counted out where there are no ties and few pairs; else the normal approximation with the corrections for ties and
    continuity.

    Raises:
        ValueError: a sample is empty.
    """
    x, y = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    n, m = len(x), len(y)
    if not n or not m:
        raise ValueError("a sample is empty")
    pooled = np.concatenate((x, y))
    _, place, counts = np.unique(pooled, return_inverse=True, return_counts=True)
    rank_of = np.cumsum(counts) - (counts - 1) / 2
    ranks = rank_of[place.ravel()]
    below = float(ranks[n:].sum()) - m * (m + 1) / 2  # pairs in which `high` is above, ties one half
    against = n * m - below
    if len(counts) == n + m and n * m <= EXACT_UP_TO:
        return float(distribution(n, m)[: round(against) + 1].sum())
    total = n + m
    ties = float((counts.astype(np.float64) ** 3 - counts).sum())
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    z = (n * m / 2 - against - 0.5) / sqrt(variance)
    return 0.5 * erfc(z / sqrt(2))


def distribution(n: int, m: int) -> Floats:
    """Probability of each value of U, 0 to n·m, for samples of n and m without ties.

    The counts are the coefficients of the Gaussian binomial: product over i of (1 - q^(m+i)) / (1 - q^i).
    """
    counts = [0] * (n * m + 1)
    counts[0] = 1
    for i in range(1, n + 1):
        for k in range(n * m, m + i - 1, -1):
            counts[k] -= counts[k - m - i]
        for k in range(i, n * m + 1):
            counts[k] += counts[k - i]
    whole = comb(n + m, n)
    return np.array([c / whole for c in counts])

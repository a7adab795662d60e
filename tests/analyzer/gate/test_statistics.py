"""Statistics of the gate against published tables and hand arithmetic."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from analyzer.gate.statistics import distribution, estimates, mann_whitney, mean_best, p90, statistic_of

# One-sided critical values of U: the largest U with P(U <= u) <= alpha.
# Mann and Whitney (1947) as tabulated by Siegel (1956), tables J and K.
CRITICAL = [
    (5, 5, 0.05, 4),
    (5, 5, 0.025, 2),
    (8, 8, 0.05, 15),
    (10, 10, 0.05, 27),
    (10, 10, 0.025, 23),
    (10, 10, 0.01, 19),
    (12, 15, 0.025, 49),
    (20, 20, 0.05, 138),
    (20, 20, 0.025, 127),
    (20, 20, 0.01, 114),
]


@pytest.mark.parametrize(("n", "m", "alpha", "u"), CRITICAL)
def test_critical_values_of_the_published_tables(n: int, m: int, alpha: float, u: int) -> None:
    tail = np.cumsum(distribution(n, m))
    assert tail[u] <= alpha < tail[u + 1]


def test_distribution_of_three_and_three_is_counted_by_hand() -> None:
    # 20 arrangements: 1 1 2 3 3 3 3 2 1 1 with U = 0..9
    assert (distribution(3, 3) * 20).round(9).tolist() == [1, 1, 2, 3, 3, 3, 3, 2, 1, 1]


def test_disjoint_samples_have_one_arrangement() -> None:
    assert mann_whitney([1, 2, 3], [4, 5, 6]) == pytest.approx(1 / 20)
    assert mann_whitney([4, 5, 6], [1, 2, 3]) == pytest.approx(1.0)


def test_normal_approximation_agrees_with_the_count() -> None:
    low = [float(i) for i in range(0, 102, 2)]
    high = [float(i) for i in range(15, 113, 2)]  # 51 x 49 pairs: counted
    longer = [*low, -1.0]  # 52 x 49: approximated, and one value further off
    assert 0.001 < mann_whitney(longer, high) < mann_whitney(low, high) < 0.02
    assert mann_whitney(low, high) == pytest.approx(mann_whitney([*low, 200.0], [*high, 200.0]), abs=0.004)


def test_equal_samples_are_no_evidence() -> None:
    assert mann_whitney([5.0] * 20, [5.0] * 20) == 1.0
    assert mann_whitney([1, 2, 3, 4] * 5, [1, 2, 3, 4] * 5) > 0.4


def test_empty_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        mann_whitney([], [1.0])


@pytest.mark.parametrize(
    ("steps", "kind"), [(2, None), (3, "median"), (4, "median"), (5, "best"), (19, "best"), (20, "median")]
)
def test_statistic_by_length_of_the_window(steps: int, kind: str | None) -> None:
    assert statistic_of(steps) == kind


def test_mean_best_is_the_mean_over_all_choices() -> None:
    values = [7.0, 1.0, 4.0, 9.0, 2.0, 6.0]
    choices = [sorted(choice) for choice in combinations(values, 4)]
    by_hand = (np.mean([c[0] for c in choices]), np.mean([c[1] for c in choices]))
    assert mean_best(np.array(values), 4) == pytest.approx(by_hand)
    assert mean_best(np.array(values), 6) == (1.0, 2.0)


def test_longer_run_gets_no_better_best_by_being_longer() -> None:
    short, long = [10.0, 11, 12, 13, 14], [10.0, 11, 12, 13, 14] * 3
    assert estimates(short, 5) == (10.0, 10.5)
    assert estimates(long, 5)[0] == pytest.approx(np.mean([min(c) for c in combinations(long, 5)]))


def test_best_is_the_largest_where_more_is_better() -> None:
    assert estimates([1.0, 2, 3, 4, 5], 5, lower_is_better=False) == (5.0, 4.5)
    assert estimates([1.0, 2, 9], 3, lower_is_better=False) == (2.0,)
    assert estimates([1.0, 2], 2) == ()


def test_p90_needs_ten_steps() -> None:
    assert p90(list(range(9))) is None
    assert p90([float(i) for i in range(11)]) == 9.0
    assert p90([float(i) for i in range(11)], lower_is_better=False) == 1.0

"""The rank test, its corrections and the interval, against enumeration, hand calculation and chance itself."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xprof_py.postprocess.rules.significance import (
    FEWEST,
    adjusted,
    least_p,
    median_difference_interval,
    rank_sum_p,
)


def values(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float64)


def enumerated_p(a: np.ndarray, b: np.ndarray) -> float:
    """Two-sided p by trying every way to split the pooled values."""
    pooled = np.concatenate((a, b))
    ranks = np.argsort(np.argsort(pooled))
    middle = len(a) * (len(pooled) - 1) / 2
    seen = abs(ranks[: len(a)].sum() - middle)
    ways = [abs(ranks[list(chosen)].sum() - middle) for chosen in itertools.combinations(range(len(pooled)), len(a))]
    return sum(way >= seen for way in ways) / len(ways)


def independent(rng: np.random.Generator, count: int) -> np.ndarray:
    """``count`` (even) distinct values whose neighbours are not alike: low and high in turn."""
    low, high = np.sort(rng.normal(size=count)).reshape(2, -1)
    return np.stack([low, high], axis=1).reshape(-1)


@pytest.mark.parametrize("seed", range(12))
def test_small_samples_are_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = independent(rng, 6), independent(rng, 6) + rng.normal()
    assert rank_sum_p(a, b) == pytest.approx(enumerated_p(a, b))


def test_all_below_is_the_least_p() -> None:
    assert rank_sum_p(values(1, 3, 2, 5, 4), values(11, 13, 12, 15, 14)) == pytest.approx(2 / 252)
    assert least_p(5, 5) == pytest.approx(2 / 252)


def test_too_few_steps_say_nothing() -> None:
    few = values(*range(FEWEST - 1))
    assert rank_sum_p(few, few + 100) == 1.0
    assert least_p(FEWEST - 1, 100) == 1.0


def test_equal_samples_and_constants_do_not_differ() -> None:
    sample = values(3, 1, 4, 1, 5, 9, 2, 6)
    assert rank_sum_p(sample, sample) == pytest.approx(1.0)
    assert rank_sum_p(np.full(20, 7.0), np.full(30, 7.0)) == 1.0


def test_the_normal_distribution_takes_over_smoothly() -> None:
    """25 and 25 values are exact, 25 and 26 are not: with the same shift p must not jump."""
    a = independent(np.random.default_rng(1), 26)[:25]
    b = independent(np.random.default_rng(2), 26) + 0.7
    exact, normal = rank_sum_p(a, b[:25]), rank_sum_p(a, b)
    assert exact == pytest.approx(normal, rel=0.5)


def test_ties_share_their_rank() -> None:
    """Ranks 2.5 (four zeros) and 5 to 10: U = 2.5 * 4 + 5 - 15 = 0, with the spread of Kendall's correction."""
    a, b = values(0, 0, 0, 0, 1), values(2, 3, 4, 5, 6)
    spread = 25 / 12 * (11 - (4**3 - 4) / 90)
    assert rank_sum_p(a, b) == pytest.approx(math.erfc((12.5 - 0.5) / math.sqrt(2 * spread)))


def test_a_drift_is_not_taken_for_a_difference() -> None:
    """Two halves of one slow drift overlap by a third: independent steps would be told apart, these are not."""
    drift = np.arange(60.0) + np.tile([0.3, -0.3], 30)
    a, b = drift[:40], drift[20:]
    shuffled = np.random.default_rng(0)
    assert rank_sum_p(shuffled.permutation(a), shuffled.permutation(b)) < 1e-6
    assert rank_sum_p(a, b) > 0.01


def test_a_gap_wider_than_both_drifts_is_a_difference() -> None:
    drift = np.arange(8.0)
    assert rank_sum_p(drift, drift + 100) == pytest.approx(least_p(8, 8))


@given(st.lists(st.floats(0, 1e12), min_size=5, max_size=40), st.lists(st.floats(0, 1e12), min_size=5, max_size=40))
@settings(max_examples=60, deadline=None)
def test_p_is_a_probability_and_knows_no_direction(a: list[float], b: list[float]) -> None:
    left, right = rank_sum_p(values(*a), values(*b)), rank_sum_p(values(*b), values(*a))
    assert 0 < left <= 1
    assert left == pytest.approx(right)


def test_equal_distributions_are_told_apart_as_rarely_as_promised() -> None:
    rng = np.random.default_rng(3)
    p = [rank_sum_p(rng.lognormal(size=12), rng.lognormal(size=15)) for _ in range(1000)]
    assert np.mean(np.array(p) <= 0.05) <= 0.07
    assert np.mean(np.array(p) <= 0.01) <= 0.02


def test_many_tests_are_corrected_as_benjamini_and_hochberg_do() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.5: times 4/1, 4/2, 4/3, 4/4 = 0.04, 0.04, 0.04, 0.5.
    assert adjusted(values(0.5, 0.02, 0.01, 0.03)) == pytest.approx([0.5, 0.04, 0.04, 0.04])
    assert adjusted(values(0.9, 0.8)) == pytest.approx([0.9, 0.9])
    assert len(adjusted(values())) == 0


def test_the_interval_holds_the_difference_and_never_changes() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(100, 2, 50), rng.normal(105, 2, 50)
    low, high = median_difference_interval(a, b)
    assert low < np.median(b) - np.median(a) < high
    assert low > 0
    assert (low, high) == median_difference_interval(a, b)

"""Changes of level: no more false alarms than stated, planted ones found where they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xprof_py.postprocess.rules.change_points import ALPHA, FEWEST, change_points


@pytest.mark.parametrize("draw", ["normal", "heavy", "ties"])
def test_series_without_a_change_raise_no_more_alarms_than_stated(draw: str) -> None:
    rng = np.random.default_rng(7)
    series = {
        "normal": lambda: rng.normal(100, 2, 24),
        "heavy": lambda: 100 + rng.standard_cauchy(24),
        "ties": lambda: rng.integers(0, 4, 24).astype(float),
    }[draw]
    count = 600
    alarms = sum(bool(change_points(series())) for _ in range(count))
    # Three standard deviations of a binomial of ALPHA above its mean: 6 + 7.3.
    assert alarms <= count * ALPHA + 3 * (count * ALPHA * (1 - ALPHA)) ** 0.5


def test_a_planted_step_of_two_deviations_is_found_in_forty_runs() -> None:
    rng = np.random.default_rng(3)
    found = [change_points(np.r_[rng.normal(100, 2, 20), rng.normal(104, 2, 20)]) for _ in range(60)]
    assert sum(bool(changes) for changes in found) >= 57
    assert sum(any(abs(change.at - 20) <= 2 for change in changes) for changes in found) >= 48


def test_every_change_of_several_is_found_at_its_place() -> None:
    levels = np.repeat([100.0, 110.0, 104.0], 15) + np.tile([0.0, 0.3, -0.2, 0.1, -0.1], 9)
    assert [change.at for change in change_points(levels)] == [15, 30]


def test_one_slow_run_is_no_change() -> None:
    values = 100 + np.tile([0.0, 0.3, -0.2, 0.1, -0.1], 5)
    values[12] = 400
    assert change_points(values) == []


@pytest.mark.parametrize("count", [0, 1, FEWEST - 1])
def test_too_few_runs_say_nothing(count: int) -> None:
    values = np.r_[np.zeros(count // 2), np.ones(count - count // 2)]
    assert change_points(values) == []


def test_the_fewest_runs_are_enough_for_the_clearest_change() -> None:
    half = FEWEST // 2
    assert [c.at for c in change_points(np.r_[np.arange(half) + 0.0, 100 + np.arange(half)])] == [half]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=FEWEST, max_size=30))
def test_only_the_order_of_values_counts(values: list[int]) -> None:
    series = np.array(values, np.float64)
    assert change_points(series) == change_points(np.exp(series / 4)) == change_points(series * 1e9)

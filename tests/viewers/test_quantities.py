"""Numbers as people read them."""

from __future__ import annotations

import pytest

from xprof_py.viewers import quantities


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (0, "0 s"),
        (3e-10, "0.30 ns"),
        (4.8e-7, "480 ns"),
        (0.00019994, "200 µs"),
        (0.0009996, "1.00 ms"),
        (0.0123, "12.3 ms"),
        (0.9999, "1.00 s"),
        (1.254, "1.25 s"),
        (99.96, "100 s"),
        (119.4, "119 s"),
        (119.6, "2 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
        (-0.0921, "−92.1 ms"),
    ],
)
def test_a_duration_has_three_digits_and_the_unit_that_fits(seconds: float | None, shown: str) -> None:
    assert quantities.duration(seconds) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (None, "–"),
        (0, "0%"),
        (0.0002, "<0.1%"),
        (0.0006, "0.1%"),
        (0.604, "60.4%"),
        (0.9999, ">99.9%"),
        (1, "100%"),
    ],
)
def test_a_share_that_is_not_quite_nothing_or_everything_says_so(share: float | None, shown: str) -> None:
    assert quantities.percent(share) == shown


def test_a_column_has_one_unit_and_one_number_of_decimals() -> None:
    unit, shown = quantities.column([0.0305, 0.0152, 0.00000001, 0, None])
    assert (unit, shown) == ("ms", ["30.50", "15.20", "<0.01", "0", "–"])


def test_a_column_of_nothing_has_a_unit_too() -> None:
    assert quantities.column([]) == ("s", [])
    assert quantities.column([None, 0.0]) == ("s", ["–", "0"])


def test_counts_sizes_and_factors() -> None:
    assert quantities.plural(1, "step") == "1 step"
    assert quantities.plural(12345, "step") == "12,345 steps"
    assert quantities.factor(2.639) == "2.6×"
    assert quantities.size(1536) == "1.50 KiB"
    assert quantities.size(12) == "12 B"

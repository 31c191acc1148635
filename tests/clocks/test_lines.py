"""The line of largest margin and the certified extremes against every pair of bounds, and curves against themselves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from xprof_py.postprocess.clocks.bounds import Bounds, make_bounds
from xprof_py.postprocess.clocks.curve import Curve, Jump, Piece, fit_curve
from xprof_py.postprocess.clocks.joined_curves import apart, flat_curve, seen_through, widened
from xprof_py.postprocess.clocks.margin import fit_line
from xprof_py.postprocess.clocks.points import lines_through
from xprof_py.postprocess.clocks.windows import polyline

STEEPEST = 100.0
values = st.integers(-20, 20).map(float)
points = st.lists(st.tuples(st.integers(0, 12).map(float), values), min_size=1, max_size=7).map(sorted)


def bounds_of(upper: list[tuple[float, float]], lower: list[tuple[float, float]]) -> Bounds:
    columns = [np.array(column) for side in (upper, lower) for column in zip(*side, strict=True)]
    return Bounds(0, 0, *columns)


def corners(upper: list[tuple[float, float]], lower: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """(slope, intercept) of the corners of all possible lines: where two bounds hold at once, or one does, steepest."""
    every = [*upper, *lower]
    found = [((y1 - y0) / (t1 - t0), t0, y0) for (t0, y0), (t1, y1) in itertools.combinations(every, 2) if t0 != t1] + [
        (slope, t, y) for slope in (-STEEPEST, STEEPEST) for t, y in every
    ]
    lines = [(slope, y - slope * t) for slope, t, y in found if abs(slope) <= STEEPEST]
    return [
        (slope, at)
        for slope, at in lines
        if all(slope * t + at <= y + 1e-7 for t, y in upper) and all(slope * t + at >= y - 1e-7 for t, y in lower)
    ]


@given(upper=points, lower=points, at=st.lists(st.floats(-5, 20), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_extremes_are_those_of_the_corners(
    upper: list[tuple[float, float]], lower: list[tuple[float, float]], at: list[float]
) -> None:
    at_s = np.array(at)
    line = fit_line(bounds_of(upper, lower), at_s, (-STEEPEST, STEEPEST))
    assert line is not None
    possible = corners(upper, lower)
    assume(abs(line.margin_ns) > 1e-6)
    assert (line.margin_ns > 0) == bool(possible)
    if not possible:
        assert np.isnan(line.low_ns).all()
        assert np.isnan(line.high_ns).all()
        return
    every = np.array([[slope * t + at for t in at_s] for slope, at in possible])
    np.testing.assert_allclose(line.low_ns, every.min(axis=0), atol=1e-4)
    np.testing.assert_allclose(line.high_ns, every.max(axis=0), atol=1e-4)
    assert line.slopes == pytest.approx((min(possible)[0], max(possible)[0]), abs=1e-6)
    assert (line(at_s) >= line.low_ns - 1e-6).all()
    assert (line(at_s) <= line.high_ns + 1e-6).all()


@given(upper=points, lower=points, shift=values, slope=values)
@settings(max_examples=100, deadline=None)
def test_a_line_added_to_all_bounds_is_added_to_the_line(
    upper: list[tuple[float, float]], lower: list[tuple[float, float]], shift: float, slope: float
) -> None:
    tilted = [[(t, y + shift + slope * t) for t, y in side] for side in (upper, lower)]
    plain, moved = fit_line(bounds_of(upper, lower)), fit_line(bounds_of(*tilted))
    assert plain is not None
    assert moved is not None
    first, last = max(upper[0][0], lower[0][0]), min(upper[-1][0], lower[-1][0])
    # Without a stretch in common every margin can be had, and the flattest line is taken: that one does not tilt along.
    assume(first <= last)
    assert moved.margin_ns == pytest.approx(plain.margin_ns, abs=1e-3)


@given(
    offset_ns=st.integers(-(10**9), 10**9),
    rate_ppb=st.integers(-30_000, 30_000),
    least_us=st.tuples(st.integers(1, 500), st.integers(1, 500)),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_the_interval_of_probes_holds_every_line_that_made_them(
    offset_ns: int, rate_ppb: int, least_us: tuple[int, int], seed: int
) -> None:
    """Whatever the delays, however unlike the two ways: they only ever come on top."""
    random = np.random.default_rng(seed)
    sent = np.sort(random.integers(0, 10**10, 60))
    there, back = (least * 1000 + random.exponential(1e5, 60).astype(np.int64) for least in least_us)

    def client(real_ns: np.ndarray) -> np.ndarray:
        return 10**18 + real_ns + offset_ns + real_ns * rate_ppb // 10**9

    t2 = 10**18 + sent + there
    t1, t3, t4 = client(sent), t2 + 5000, client(sent + there + 5000 + back)
    bounds = make_bounds(t4, t4 - t3, t1, t1 - t2, origin_ns=10**18 + offset_ns, base_ns=offset_ns)
    curve = fit_curve(bounds, begin_s=0.0, end_s=10.0)
    assert curve is not None
    assert not curve.jumps
    at_s = np.linspace(0, 10, 21)
    true = offset_ns + at_s * rate_ppb - curve.base_ns
    low, high = curve.extremes(at_s)
    assert (true >= low - 2).all()
    assert (true <= high + 2).all()


def line_curve(value_ns: float, rate: float, half_ns: float, jumps: tuple[Jump, ...] = ()) -> Curve:
    """value_ns + rate * t over [0, 100] s, +-half_ns; 1000 ns more after each jump."""
    cuts = [0.0, *(jump.at_s for jump in jumps), 100.0]
    pieces = []
    for place, (begin, end) in enumerate(itertools.pairwise(cuts)):
        at = np.array([begin, end])
        value = value_ns + rate * at + 1000.0 * place
        pieces.append(Piece(begin, end, at, value, value - half_ns, value + half_ns, 1, 50.0))
    return Curve(0, 0, tuple(pieces), jumps)


def test_a_clock_over_another_is_the_sum_at_the_other_ones_time() -> None:
    """+2 s and 10 ppm over a clock that is -1 s and 20 ppm off: +1 s; the rates add but for their product."""
    near = line_curve(2e9, 10_000.0, 5.0)
    far = line_curve(-1e9, 20_000.0, 7.0)
    found = seen_through(near, far)
    at_s = np.array([10.0, 50.0, 90.0])
    other_s = at_s - 2 - 1e-5 * at_s
    np.testing.assert_allclose(found.values(at_s), 2e9 + 1e4 * at_s - 1e9 + 2e4 * other_s, atol=1e-3)
    np.testing.assert_allclose(found.errors(at_s), 12.0, atol=1e-3)


def test_a_jump_of_the_clock_in_between_is_a_jump_of_the_clock_behind() -> None:
    near = line_curve(2e9, 0.0, 5.0)
    far = line_curve(0.0, 0.0, 5.0, (Jump(40.0, 39.9, 40.1),))
    found = seen_through(near, far)
    assert [jump.at_s for jump in found.jumps] == pytest.approx([42.0])
    np.testing.assert_allclose(found.values(np.array([41.9, 42.1])), [2e9, 2e9 + 1000], atol=1e-3)
    # Where it may have come already, or may be yet to come, the error holds both.
    np.testing.assert_allclose(found.errors(np.array([41.0, 41.95, 42.05, 43.0])), [10, 1010, 1010, 10], atol=1e-3)


def test_a_curve_apart_from_one_with_a_jump_jumps_the_other_way() -> None:
    found = apart(line_curve(500.0, 0.0, 0.0), line_curve(0.0, 0.0, 0.0, (Jump(40.0, 39.0, 41.0),)))
    np.testing.assert_allclose(found.values(np.array([10.0, 90.0])), [500.0, -500.0])
    assert np.isinf(found.errors(np.array([10.0]))).all()


def test_the_reference_is_certain() -> None:
    curve = flat_curve(0, 0.0, 10.0)
    assert curve.errors(np.array([0.0, 5.0, 20.0])).tolist() == [0.0, 0.0, 0.0]
    assert widened(curve, 3.0).errors(np.array([5.0])).tolist() == [3.0]


def test_between_an_unbounded_knot_and_a_bounded_one_nothing_is_bounded() -> None:
    knots = np.array([0.0, 1.0, 2.0])
    found = polyline(np.array([-1.0, 0.5, 1.0, 1.5]), knots, np.array([np.inf, 1.0, 3.0]))
    assert found.tolist() == [np.inf, np.inf, 1.0, 2.0]


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_clocks_are_fitted_together_as_each_by_itself(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    when = np.sort(random.uniform(0, 80, 400))
    t = when + random.uniform(0, 1e-3, (rows, 400))
    y = random.normal(0, 500, (rows, 400)) + 1e4 * t + 3e3 * np.sin(t / 10)
    present = random.uniform(size=(rows, 400)) > 0.1
    together = lines_through(t, y, present, when, begin_s=0.0, end_s=80.0)
    for row, level in enumerate(together):
        pick = slice(row, row + 1)
        (alone,) = lines_through(t[pick], y[pick], present[pick], when, begin_s=0.0, end_s=80.0)
        assert level is not None
        assert alone is not None
        assert level.count == alone.count
        np.testing.assert_allclose(level.value_ns, alone.value_ns)

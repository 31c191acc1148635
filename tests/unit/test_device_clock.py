"""A device's clock against the host's: planted offset, drift and stretched ops, and what a map must never do."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xprof_py.postprocess.readers.device_clock import MOST_DRIFT, NEAR_PS, HostTime, offset_line

US, MS, S = 10**6, 10**9, 10**12


@given(
    offset=st.integers(-5 * S, 5 * S),
    drift=st.floats(-1e-4, 1e-4),
    wrong=st.lists(st.tuples(st.integers(0, 399), st.integers(-200 * MS, 200 * MS)), max_size=120),
    seed=st.integers(0, 100),
)
def test_offset_and_drift_are_found_under_stretched_ops(
    offset: int, drift: float, wrong: list[tuple[int, int]], seed: int
) -> None:
    """400 ops in 40 s, to 20 us right, of which up to 120 are off by up to 0.2 s either way.

    An error below NEAR_PS may pass for the truth, and tilt the line by as much again.
    """
    device = np.arange(400, dtype=np.int64) * 100 * MS + 3 * S
    true = device + offset + np.rint(drift * device).astype(np.int64)
    plain = true + np.random.default_rng(seed).integers(0, 20 * US, 400)
    for op, error in wrong:
        plain[op] += error
    line = offset_line(device, plain)
    assert line is not None
    at, found, origin = line
    moved = device + at + np.rint(found * (device - origin)).astype(np.int64)
    assert np.abs(moved - true).max() <= 3 * NEAR_PS


def test_times_without_any_agreement_are_not_believed() -> None:
    device = np.arange(100, dtype=np.int64) * S
    assert offset_line(device, device + np.random.default_rng(1).integers(-S, S, 100)) is None


def test_a_drift_that_no_crystal_has_is_not_believed() -> None:
    device = np.arange(100, dtype=np.int64) * S
    assert offset_line(device, device + np.rint(50 * MOST_DRIFT * device).astype(np.int64)) is None


def test_one_op_gives_an_offset() -> None:
    assert offset_line(np.array([7 * S]), np.array([7 * S + 5 * US])) == (5 * US, 0.0, 7 * S)


_RUNS = st.lists(st.tuples(st.integers(0, 5 * MS), st.integers(1, 900 * MS)), min_size=1, max_size=30)


@given(runs=_RUNS, drift=st.floats(-1e-4, 1e-4), offset=st.integers(-S, S))
def test_runs_keep_their_lengths_their_order_and_their_distance(
    runs: list[tuple[int, int]], drift: float, offset: int
) -> None:
    start, end, at = [], [], S
    for gap, length in runs:
        start.append(at + gap)
        end.append(at + gap + length)
        at = end[-1]
    starts, ends = np.array(start, np.int64), np.array(end, np.int64)
    host = HostTime((offset, drift, S), starts, ends)
    new_start, new_end = host.starts(starts), host.ends(ends)
    assert (new_end - new_start == ends - starts).all()
    assert (new_start[1:] >= new_end[:-1]).all()
    # An op inside a run moves with it.
    middle = (starts + ends) // 2
    assert (host.starts(middle) - new_start == middle - starts).all()


def test_a_clock_that_runs_slow_moves_later_runs_further() -> None:
    starts, ends = np.array([0, 10 * S, 20 * S]), np.array([S, 11 * S, 21 * S])
    host = HostTime((3 * US, 1e-5, 0), starts, ends)
    assert (host.starts(starts) - starts).tolist() == [3 * US, 103 * US, 203 * US]


def test_a_clock_that_runs_fast_takes_no_more_than_the_idle_time() -> None:
    # 10 us a second too fast, runs of 1 s with 4 us between them: each may come only 4 us nearer to the one before.
    starts = np.array([0, S + 4 * US, 2 * S + 8 * US])
    host = HostTime((0, -1e-5, 0), starts, starts + S)
    assert (host.starts(starts) - starts).tolist() == [0, -4 * US, -8 * US]

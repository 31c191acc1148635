"""Recorded trainings of four processes whose clocks were skewed on purpose: errors against the closed form.

Shown = real + offset + rate * (real - t0), offsets 37.5, -120.8, 350.2 ms, rates 50, -80, 20 ppm.
"""

from __future__ import annotations

import numpy as np
import pytest
from skewed_captures import Recorded, recorded

from xprof_py.postprocess.clocks.clock_map import to_fleet_ns
from xprof_py.postprocess.clocks.solve import Solution, solve_clocks

pytestmark = pytest.mark.real_traces


def errors_us(capture: Recorded, solution: Solution, *, spare_s: float = 0.0) -> list[float]:
    """The largest error over each capture, and the bound must hold it everywhere. ``spare_s``: not around jumps."""
    out = []
    for process in range(1, len(capture.processes)):
        span = capture.processes[process]
        shown_ns = np.linspace(span.begin_ns, span.end_ns, 3001).astype(np.int64)
        fleet_ns, bound_ns = to_fleet_ns(solution, process, shown_ns)
        apart_ns = np.abs(shown_ns - fleet_ns - capture.theta_ns(process, shown_ns))
        assert (apart_ns <= bound_ns).all()
        curve = solution.clocks[process].curve
        for jump in curve.jumps if curve is not None else ():
            apart_ns = apart_ns[np.abs((shown_ns - curve.origin_ns) / 1e9 - jump.at_s) > spare_s]
            shown_ns = shown_ns[np.abs((shown_ns - curve.origin_ns) / 1e9 - jump.at_s) > spare_s]
        out.append(float(apart_ns.max()) / 1e3)
    return out


def test_probes_find_the_clocks_within_two_microseconds() -> None:
    capture = recorded("mp4_skew")
    solution = solve_clocks(capture.processes, capture.exchanges(), capture.meetings)
    assert max(errors_us(capture, solution)) <= 2.0
    assert all(clock.method == "probe" and (clock.error_ns or 0) < 25_000 for clock in solution.clocks[1:])


def test_collectives_alone_find_them_within_a_tenth_of_a_millisecond() -> None:
    capture = recorded("mp4_skew")
    solution = solve_clocks(capture.processes, meetings=capture.meetings)
    assert max(errors_us(capture, solution)) <= 100
    assert [clock.status for clock in solution.clocks] == ["aligned"] * 4


def test_fifty_probes_and_then_collectives() -> None:
    """What the collectives are wrong by shows where there are probes: 282 to 638 us without them, 157 us with."""
    capture = recorded("mp4_skew")
    first = capture.exchanges(50)
    assert max(errors_us(capture, solve_clocks(capture.processes, first))) > 400
    solution = solve_clocks(capture.processes, first, capture.meetings)
    assert max(errors_us(capture, solution)) <= 200
    assert {clock.method for clock in solution.clocks[1:]} == {"probe+collectives"}


def test_a_straggler_of_80_ms_changes_nothing() -> None:
    capture = recorded("mp4_straggler")
    assert max(errors_us(capture, solve_clocks(capture.processes, capture.exchanges()))) <= 5
    assert max(errors_us(capture, solve_clocks(capture.processes, meetings=capture.meetings))) <= 200


def test_a_clock_that_wanders_and_one_that_is_set() -> None:
    """host2 is set by 5 ms after nine seconds; host1 swings by 0.3 ms. No probes."""
    capture = recorded("mp4_skew_step_wander")
    solution = solve_clocks(capture.processes, meetings=capture.meetings)
    assert max(errors_us(capture, solution, spare_s=0.05)) <= 300
    jumps = [len(clock.curve.jumps) for clock in solution.clocks if clock.curve is not None]
    assert jumps == [0, 0, 1, 0]
    curve = solution.clocks[2].curve
    assert curve is not None
    set_at_ns = capture.truth["t0_ns"] + 9_000_000_000
    shown_ns = set_at_ns + capture._ahead_ns(2, np.array([set_at_ns - 1]))[0]
    assert abs((shown_ns - curve.origin_ns) / 1e9 - curve.jumps[0].at_s) <= 0.05
    assert solution.clocks[2].status == "bounded"

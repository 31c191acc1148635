"""What fleets do: groups of data, tensor and pipeline parallelism, late joiners, clocks that are set, unlike ways.

Claims: the truth lies within every bound, so no clock is `aligned` that is not; errors at the 99th percentile are as
small as in test_fleets.py: 2 us by probes, 3 us by collectives that come ten times a second to each group. Longer
fleets and more seeds: benchmarks/clocks.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from made_up_fleets import Fleet, Score, score

from xprof_py.postprocess.clocks.solve import Solution, solve_clocks

TENSOR = ((0, 1), (2, 3), (4, 5), (6, 7))
DATA = ((0, 2, 4, 6), (1, 3, 5, 7))
PIPELINE = ((1, 2), (3, 4), (5, 6))


def holds(fleet: Fleet, solution: Solution, hosts: list[int] | None = None) -> Score:
    """Every clock has a bound, and the truth is never outside; none is `aligned` with a wider one."""
    for host in range(1, fleet.count):
        clock = solution.clocks[solution.clock_of[host]]
        assert clock.error_ns is not None
        assert (clock.status == "aligned") == (clock.error_ns <= 1_000_000)
        assert score(fleet, solution, [host]).covered == 1.0
    return score(fleet, solution, hosts)


def by_collectives(fleet: Fleet, **how: object) -> Solution:
    return solve_clocks(fleet.processes(), meetings=fleet.meet(**how)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("lost", [0.0, 0.05])
def test_groups_tie_clocks_that_never_meet(seed: int, lost: float) -> None:
    """No collective has all eight: hosts 1 and 6 share none. Bounds add along the way."""
    fleet = Fleet(8, 60, seed)
    solution = by_collectives(fleet, rate=60.0, among=(*TENSOR, *DATA), lost=lost)
    assert holds(fleet, solution).p99 <= 3.0
    assert {clock.status for clock in solution.clocks} == {"aligned"}


def test_a_chain_of_pairs_is_known_less_well_the_further_it_reaches() -> None:
    fleet = Fleet(8, 60, 2)
    solution = by_collectives(fleet, rate=70.0, among=(*TENSOR, *PIPELINE))
    assert holds(fleet, solution).p99 <= 15.0
    widths = [score(fleet, solution, [host]).half_width for host in (1, 4, 7)]
    assert widths == sorted(widths)
    assert widths[2] > 3 * widths[0]


@pytest.mark.parametrize("host", [0, 5])
def test_a_clock_that_is_set_is_found_among_groups(host: int) -> None:
    """Tensor pairs cannot tell which of the two was set; data groups can."""
    fleet = Fleet(8, 60, 1, jumps={host: (31.0, 3e6)})
    solution = by_collectives(fleet, rate=40.0, among=(*TENSOR, *DATA))
    assert holds(fleet, solution).p99 <= 5.0
    jumped = [place for place, clock in enumerate(solution.clocks) if clock.curve is not None and clock.curve.jumps]
    assert jumped == ([5] if host else list(range(1, 8)))


@pytest.mark.parametrize("source", ["probes", "collectives"])
def test_hosts_that_join_late_or_leave_early_are_known_while_they_are_there(source: str) -> None:
    fleet = Fleet(8, 60, 0, there={3: (20, 60), 5: (0, 30), 6: (35, 50)})
    probes = [fleet.exchange(host, 0) for host in range(1, 8)] if source == "probes" else []
    meetings = fleet.meet()[0] if source == "collectives" else None
    solution = solve_clocks(fleet.processes(), probes, meetings)
    assert holds(fleet, solution).p99 <= (2.0 if probes else 4.0)
    assert {clock.status for clock in solution.clocks} == {"aligned"}


def test_a_reference_that_leaves_is_carried_on() -> None:
    """What its clock did after it left nobody saw: its rate is carried on, and the bound grows by a ppm."""
    fleet = Fleet(6, 60, 1, there={0: (0, 20), 4: (15, 60)})
    assert holds(fleet, by_collectives(fleet)).p99 <= 15.0


@pytest.mark.parametrize("seconds", [1, 3, 30])
def test_a_host_that_is_always_late_is_no_clock(seconds: int) -> None:
    """The others wait 2 ms for it every time: their collectives last 2 ms more, which says nothing of when they end."""
    fleet = Fleet(6, seconds, 1)
    solution = by_collectives(fleet, always_last=3, straggler_us=2000.0)
    assert holds(fleet, solution).largest <= 15.0
    # No stamp can tell it from a clock that is 2 ms behind: that is in the bound, and nobody is called aligned.
    assert {clock.status for clock in solution.clocks[1:]} == {"bounded"}


@pytest.mark.parametrize("extra_us", [30.0, 300.0])
def test_a_longer_way_back_widens_the_bound_by_half_of_it(extra_us: float) -> None:
    even, uneven = Fleet(2, 60, 3), Fleet(2, 60, 3)
    plain = solve_clocks(even.processes(), [even.exchange(1, 0)])
    longer = solve_clocks(uneven.processes(), [uneven.exchange(1, 0, way_us=(25.0, 25.0 + extra_us))])
    wider = holds(uneven, longer).half_width - holds(even, plain).half_width
    assert wider == pytest.approx(extra_us / 2, abs=1.0)
    assert holds(uneven, longer).p50 == pytest.approx(extra_us / 2, abs=1.0)


def test_collectives_narrow_what_unlike_ways_leave() -> None:
    fleet = Fleet(4, 60, 0)
    probes = [fleet.exchange(host, 0, way_us=(20.0 + 100.0 * host, 20.0)) for host in (1, 2, 3)]
    assert holds(fleet, solve_clocks(fleet.processes(), probes)).p99 > 100
    assert holds(fleet, solve_clocks(fleet.processes(), probes, fleet.meet()[0])).p99 <= 3.0


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_fleet_is_like_its_bounds_are_true(seed: int) -> None:
    random = np.random.default_rng(seed)
    seconds = float(random.uniform(5, 40))
    there = {3: (seconds * float(random.uniform(0, 0.6)), seconds)}
    fleet = Fleet(8, seconds, seed, thermal_ppm=0.05, there=there)
    probes = [
        fleet.exchange(h, 0, rate=5.0, way_us=(float(random.uniform(10, 300)), 25.0), queue_us=200.0)
        for h in range(1, 8)
        if random.uniform() < 0.4
    ]
    meetings = fleet.meet(
        float(random.uniform(5, 40)),
        among=(*TENSOR, *DATA) if random.uniform() < 0.5 else None,
        lost=0.1,
        jitter_us=float(random.choice([5.0, 400.0])),
        always_last=6 if random.uniform() < 0.5 else None,
    )[0]
    solution = solve_clocks(fleet.processes(), probes, meetings)
    for host in range(1, 8):
        clock = solution.clocks[solution.clock_of[host]]
        if clock.error_ns is not None:
            assert score(fleet, solution, [host]).covered == 1.0

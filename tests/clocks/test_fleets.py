"""Fleets whose clocks are known: how far the solution is from the truth, and that no bound is a lie."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from made_up_fleets import QUANTUM_NS, Fleet, Score, score

from xprof_py.postprocess.clocks.clock_map import NO_BOUND, to_fleet_ns
from xprof_py.postprocess.clocks.solve import Exchanges, Solution, solve_clocks

SEEDS = (0, 1)


def every_claim_holds(fleet: Fleet, solution: Solution) -> Score:
    """At least 99 % of the truth lies within the bounds, and no `aligned` clock is wrong by more than it says."""
    tied = [host for host in range(1, fleet.count) if solution.clocks[solution.clock_of[host]].error_ns is not None]
    found = score(fleet, solution, tied)
    assert found.covered >= 0.99
    for host in tied:
        clock = solution.clocks[solution.clock_of[host]]
        if clock.status == "aligned":
            assert score(fleet, solution, [host]).largest * 1e3 <= (clock.error_ns or 0) + QUANTUM_NS
    return found


def statuses(solution: Solution) -> list[str]:
    return [solution.clocks[of].status for of in solution.clock_of]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("way_us", "queue_us", "p99_us"),
    [
        pytest.param((25.0, 25.0), 20.0, 2.0, id="quiet"),
        pytest.param((25.0, 25.0), 500.0, 5.0, id="loaded"),
        # Ways that differ by 10 us shift the clock by half of that, and no stamp can tell.
        pytest.param((30.0, 20.0), 20.0, 7.0, id="asymmetric"),
    ],
)
def test_probes_alone(seed: int, way_us: tuple[float, float], queue_us: float, p99_us: float) -> None:
    fleet = Fleet(4, 300, seed)
    probes = [fleet.exchange(host, 0, way_us=way_us, queue_us=queue_us) for host in (1, 2, 3)]
    solution = solve_clocks(fleet.processes(), probes)
    assert every_claim_holds(fleet, solution).p99 <= p99_us
    assert statuses(solution) == ["aligned"] * 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("hosts", "skew_us"), [(2, 0.0), (8, 0.0), (8, 30.0)])
def test_collectives_alone(seed: int, hosts: int, skew_us: float) -> None:
    """Where one host's collectives end 30 us earlier, their length tells it: the skew is no offset."""
    fleet = Fleet(hosts, 300, seed)
    meetings, _, _ = fleet.meet(skew_us=skew_us)
    solution = solve_clocks(fleet.processes(), meetings=meetings)
    assert every_claim_holds(fleet, solution).p99 <= 3.0
    assert statuses(solution) == ["aligned"] * hosts


def test_ends_that_scatter_more_than_collectives_last() -> None:
    fleet = Fleet(8, 300)
    meetings, _, _ = fleet.meet(jitter_us=300)
    assert every_claim_holds(fleet, solve_clocks(fleet.processes(), meetings=meetings)).p99 <= 15


def test_lost_events_cost_themselves() -> None:
    fleet = Fleet(8, 300)
    meetings, _, _ = fleet.meet(lost=0.1)
    assert every_claim_holds(fleet, solve_clocks(fleet.processes(), meetings=meetings)).p99 <= 3.0


def test_a_host_without_collectives_or_probes_is_unaligned_and_nobody_else_is() -> None:
    fleet = Fleet(5, 60)
    meetings, _, _ = fleet.meet(missing=(3,))
    solution = solve_clocks(fleet.processes(), meetings=meetings)
    every_claim_holds(fleet, solution)
    assert statuses(solution) == ["aligned", "aligned", "aligned", "unaligned", "aligned"]
    assert [(row["code"], row["place"]) for row in solution.diagnostics] == [("clock_unaligned", "h3")]


def test_messages_one_way_only_tie_nothing() -> None:
    """A send says only that its receiver was not earlier. Probes without an answer and collectives that do not wait for
    all are no ties: a host of such is unaligned, and its times have no bound."""
    fleet = Fleet(2, 60)
    meetings, _, _ = fleet.meet()
    nothing = np.empty(0, np.int64)
    unanswered = Exchanges(1, 0, nothing, nothing, nothing, nothing)
    sends = np.zeros(meetings.present.shape[1], np.bool_)
    solution = solve_clocks(fleet.processes(), [unanswered], meetings, sends)
    assert statuses(solution) == ["aligned", "unaligned"]
    _, error = to_fleet_ns(solution, 1, meetings.start_ns[1])
    assert (error == NO_BOUND).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_path_of_probes_reaches_further_and_bounds_add(seed: int) -> None:
    fleet = Fleet(4, 300, seed)
    path = solve_clocks(fleet.processes(), [fleet.exchange(host, host - 1) for host in (1, 2, 3)])
    assert every_claim_holds(fleet, path).p99 <= 2.0
    widths = [score(fleet, path, [host]).half_width for host in (1, 2, 3)]
    assert widths[2] == pytest.approx(3 * widths[0], rel=0.1)


def test_a_mesh_takes_the_narrowest_paths_and_its_cycles_close() -> None:
    fleet = Fleet(4, 100)
    mesh = [fleet.exchange(a, b) for a in range(4) for b in range(a)]
    slow = [fleet.exchange(3, 0, way_us=(400, 400))]
    solution = solve_clocks(fleet.processes(), [e for e in mesh if (e.client, e.server) != (3, 0)] + slow)
    assert every_claim_holds(fleet, solution).p99 <= 2.0
    assert score(fleet, solution, [3]).half_width < 60
    assert not solution.diagnostics


def test_collectives_carry_on_where_probes_stop() -> None:
    fleet = Fleet(4, 300)
    probes = [fleet.exchange(host, 0, until_s=20) for host in (1, 2, 3)]
    meetings, _, _ = fleet.meet(skew_us=20)
    alone = solve_clocks(fleet.processes(), probes)
    assert every_claim_holds(fleet, alone).p99 > 20
    both = solve_clocks(fleet.processes(), probes, meetings)
    assert every_claim_holds(fleet, both).p99 <= 4
    assert {solution.method for solution in both.clocks[1:]} == {"probe+collectives"}
    assert statuses(both) == ["aligned"] * 4


@pytest.mark.parametrize("host", [0, 2])
@pytest.mark.parametrize("source", ["probes", "collectives"])
def test_a_clock_that_is_set_is_cut_there(host: int, source: str) -> None:
    """The reference's clock as well: then it is all others that jump. Around the jump the bound holds both sides."""
    fleet = Fleet(4, 200, jumps={host: (123.4, 4e6)})
    probes = [fleet.exchange(other, 0) for other in (1, 2, 3)] if source == "probes" else []
    meetings = fleet.meet()[0] if source == "collectives" else None
    solution = solve_clocks(fleet.processes(), probes, meetings)
    assert every_claim_holds(fleet, solution).p99 <= 20
    jumped = [place for place, clock in enumerate(solution.clocks) if clock.curve is not None and clock.curve.jumps]
    assert jumped == ([1, 2, 3] if host == 0 else [2])
    for place in jumped:
        curve = solution.clocks[place].curve
        assert curve is not None
        (jump,) = curve.jumps
        true_s = (fleet.shown_ns(place, np.array([123.4 - 1e-6]))[0] - curve.origin_ns) / 1e9
        assert jump.begin_s - 0.11 <= true_s <= jump.end_s + 0.11
        assert abs(jump.at_s - true_s) < 0.2


@pytest.mark.parametrize("lost", [0.0, 0.1])
def test_no_collective_ends_before_its_last_participant_started(lost: float) -> None:
    """Invariant 4, on fleet time and beyond the stated bounds: not once."""
    fleet = Fleet(6, 200, 5)
    meetings, _, _ = fleet.meet(lost=lost)
    solution = solve_clocks(fleet.processes(), meetings=meetings)
    starts = [to_fleet_ns(solution, host, meetings.start_ns[host]) for host in range(6)]
    ends = [to_fleet_ns(solution, host, meetings.end_ns[host]) for host in range(6)]
    for one, other in itertools.permutations(range(6), 2):
        both = meetings.present[one] & meetings.present[other]
        late = starts[one][0] - ends[other][0] - starts[one][1] - ends[other][1]
        assert (late[both] <= QUANTUM_NS).all()


def test_lost_probes_leave_what_is_true() -> None:
    """Three of four probes of a host that is hardly reachable are lost, and its replies take a millisecond."""
    fleet = Fleet(2, 100)
    solution = solve_clocks(fleet.processes(), [fleet.exchange(1, 0, rate=1.0, way_us=(25, 1000), queue_us=300)])
    found = every_claim_holds(fleet, solution)
    assert found.largest > 400
    assert found.half_width > 500


@pytest.mark.parametrize("seed", range(8))
def test_short_and_poor_captures_claim_no_more_than_they_know(seed: int) -> None:
    """Few probes, few collectives, much noise: whatever comes out, what is stated is true."""
    random = np.random.default_rng(seed)
    fleet = Fleet(int(random.integers(2, 5)), float(random.uniform(1, 10)), seed, thermal_ppm=0.05)
    probes = [
        fleet.exchange(host, 0, rate=float(random.uniform(2, 20)), queue_us=float(random.uniform(10, 2000)))
        for host in range(1, fleet.count)
        if random.uniform() < 0.5
    ]
    meetings, _, _ = fleet.meet(
        float(random.uniform(2, 30)), lost=0.2, jitter_us=float(random.uniform(1, 500)), lasting_us=100
    )
    every_claim_holds(fleet, solve_clocks(fleet.processes(), probes, meetings))

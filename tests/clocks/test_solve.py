"""Who shares a clock, what ties whom, and what is said of each: cases worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from made_up_fleets import Fleet

from xprof_py.postprocess.clocks.clock_map import (
    NO_BOUND,
    clock_map_table,
    clock_rows,
    to_fleet_ns,
)
from xprof_py.postprocess.clocks.crowd import Meetings
from xprof_py.postprocess.clocks.solve import ClockedProcess, Exchanges, solve_clocks

T0 = 1_796_000_000_000_000_000
SECOND = 10**9


def exchanges(client: int, server: int, ahead_ns: int, way_ns: int = 10_000, drift_ppm: float = 0.0) -> Exchanges:
    """One a second for ten: the client's clock is ahead of the server's, both ways take ``way_ns`` exactly."""
    t2 = T0 + np.arange(11, dtype=np.int64) * SECOND
    drift = np.rint((t2 - T0) * drift_ppm * 1e-6).astype(np.int64)
    return Exchanges(client, server, t2 - way_ns + ahead_ns + drift, t2, t2, t2 + way_ns + ahead_ns + drift)


def process(host: str, domain: str | None = None, ahead_ns: int = 0) -> ClockedProcess:
    return ClockedProcess(host, domain or host, T0 + ahead_ns, T0 + ahead_ns + 10 * SECOND)


def test_one_process_is_its_own_reference() -> None:
    (row,) = clock_rows(solve_clocks([process("a")]))
    assert row == {
        "host": "a",
        "offset_ns": 0,
        "drift_ppm": 0.0,
        "error_ns": 0,
        "method": "reference",
        "status": "aligned",
    }


def test_processes_of_one_boot_share_a_clock_and_need_no_tie() -> None:
    solution = solve_clocks([process("a", "boot1"), process("b", "boot1")])
    assert len(solution.clocks) == 1
    assert [row["method"] for row in clock_rows(solution)] == ["reference", "shared_clock"]
    assert [row["error_ns"] for row in clock_rows(solution)] == [0, 0]


def test_a_symmetric_exchange_gives_offset_and_half_the_round_trip() -> None:
    """Ahead by 5 ms and 20 ppm; 10 us each way, so +-10 us."""
    solution = solve_clocks(
        [process("a"), process("b", ahead_ns=5_000_000)], [exchanges(1, 0, 5_000_000, drift_ppm=20.0)]
    )
    row = clock_rows(solution)[1]
    assert row["offset_ns"] == pytest.approx(5_000_000, abs=2)
    assert row["drift_ppm"] == pytest.approx(20.0, abs=1e-3)
    assert row["error_ns"] == pytest.approx(10_000, abs=20)
    assert (row["method"], row["status"]) == ("probe", "aligned")
    shown = np.array([T0 + 5_000_000, T0 + 5 * SECOND + 5_000_000 + 100_000])
    fleet, error = to_fleet_ns(solution, 1, shown)
    assert np.abs(fleet - [T0, T0 + 5 * SECOND]).max() <= 2
    assert (error <= 10_020).all()


def test_who_asks_does_not_matter() -> None:
    """The reference asks and the other answers: the same offset with the same sign."""
    asks = solve_clocks([process("a"), process("b")], [exchanges(0, 1, -7_000)])
    answers = solve_clocks([process("a"), process("b")], [exchanges(1, 0, 7_000)])
    for solution in (asks, answers):
        assert clock_rows(solution)[1]["offset_ns"] == pytest.approx(7_000, abs=2)


def test_any_process_of_a_clock_may_be_probed() -> None:
    """Processes 1 and 2 share a clock; only 2 was probed, and only by 0's neighbour."""
    solution = solve_clocks(
        [process("a", "x"), process("b", "y"), process("c", "y"), process("d", "x")], [exchanges(2, 3, 1_000_000)]
    )
    rows = clock_rows(solution)
    assert [row["method"] for row in rows] == ["reference", "probe", "probe", "shared_clock"]
    assert rows[1]["offset_ns"] == pytest.approx(1_000_000, abs=2)


def test_a_wide_bound_is_bounded_not_aligned() -> None:
    solution = solve_clocks([process("a"), process("b")], [exchanges(1, 0, 0, way_ns=3_000_000)])
    assert clock_rows(solution)[1]["status"] == "bounded"
    assert [row["code"] for row in solution.diagnostics] == ["clock_bounded"]


def test_what_nothing_ties_is_null_and_said() -> None:
    solution = solve_clocks([process("a"), process("b")])
    assert clock_rows(solution)[1] == {
        "host": "b",
        "offset_ns": None,
        "drift_ppm": None,
        "error_ns": None,
        "method": "none",
        "status": "unaligned",
    }
    assert [(row["code"], row["place"]) for row in solution.diagnostics] == [("clock_unaligned", "b")]
    fleet, error = to_fleet_ns(solution, 1, np.array([T0]))
    assert (fleet.tolist(), error.tolist()) == ([T0], [NO_BOUND])


def test_a_cycle_that_does_not_close_is_reported_and_widens_the_bound() -> None:
    """b is 0, c is 0 by the reference, but c is 100 us ahead of b: +-10 us each do not explain it."""
    processes = [process("a"), process("b"), process("c")]
    ties = [exchanges(1, 0, 0), exchanges(2, 0, 0), exchanges(2, 1, 100_000)]
    solution = solve_clocks(processes, ties)
    (row,) = solution.diagnostics
    assert (row["code"], row["place"]) == ("clock_cycle", "c")
    assert "70.0 us" in row["message"]
    assert [r["error_ns"] for r in clock_rows(solution)[1:]] == pytest.approx([80_000, 80_000], abs=50)


def test_contradicting_stamps_give_no_bound() -> None:
    """Answers before questions, by more each second than any clock is wrong: no line keeps the bounds."""
    t = T0 + np.arange(40, dtype=np.int64) * SECOND // 4
    chaos = np.where(np.arange(40) % 2, 10_000_000, 0)
    solution = solve_clocks([process("a"), process("b")], [Exchanges(1, 0, t + chaos, t, t, t + chaos + 1)])
    row = clock_rows(solution)[1]
    assert row["status"] in ("unaligned", "bounded")
    assert row["error_ns"] is None or row["error_ns"] >= 5_000_000


def test_a_clock_known_by_collectives_ties_the_next_by_probes() -> None:
    """a and b meet, c only probes b: the tie goes over both."""
    fleet = Fleet(3, 60)
    meetings, _, _ = fleet.meet(missing=(2,))
    solution = solve_clocks(fleet.processes(), [fleet.exchange(2, 1)], meetings)
    assert [row["method"] for row in clock_rows(solution)] == ["reference", "collectives", "probe"]
    assert [row["status"] for row in clock_rows(solution)] == ["aligned"] * 3


def test_collectives_that_do_not_wait_for_all_are_left_out() -> None:
    """A broadcast's root leaves early: 5 ms before the others arrive. As an all-reduce it would contradict the rest."""
    fleet = Fleet(2, 60)
    meetings, _, _ = fleet.meet()
    end = meetings.end_ns.copy()
    end[0, ::2] -= 5_000_000
    synchronising = np.arange(end.shape[1]) % 2 == 1
    mixed = Meetings(meetings.start_ns, end, meetings.present)
    (row,) = clock_rows(solve_clocks(fleet.processes(), meetings=mixed, synchronising=synchronising))[1:]
    (same,) = clock_rows(
        solve_clocks(
            fleet.processes(),
            meetings=Meetings(*(part[:, 1::2] for part in (meetings.start_ns, meetings.end_ns, meetings.present))),
        )
    )[1:]
    assert row == same


def test_the_map_tiles_the_capture_and_says_what_the_curve_says() -> None:
    fleet = Fleet(3, 200, jumps={2: (100.0, 3e6)})
    probes = [fleet.exchange(host, 0) for host in (1, 2)]
    solution = solve_clocks(fleet.processes(), probes)
    rows = clock_map_table(solution).to_pylist()
    for clock in solution.clocks:
        mine = [row for row in rows if row["domain"] == clock.domain]
        assert (mine[0]["begin_ns"], mine[-1]["end_ns"]) == (clock.begin_ns, clock.end_ns)
        assert all(before["end_ns"] == after["begin_ns"] for before, after in itertools.pairwise(mine))
        for row in mine:
            middle = (row["begin_ns"] + row["end_ns"]) // 2
            fleet_ns, error = to_fleet_ns(solution, solution.clocks.index(clock), np.array([middle]))
            by_row = middle - row["offset_ns"] - row["drift_ppm"] * 1e-6 * (middle - row["begin_ns"])
            assert by_row == pytest.approx(int(fleet_ns[0]), abs=1000)
            assert row["error_ns"] >= error[0] - 1


def test_the_order_of_what_is_given_does_not_matter() -> None:
    fleet = Fleet(4, 60)
    probes = [fleet.exchange(host, 0) for host in (1, 2, 3)] + [fleet.exchange(2, 1)]
    meetings, _, _ = fleet.meet()
    shuffle = np.random.default_rng(0).permutation(meetings.present.shape[1])
    mixed = Meetings(*(part[:, shuffle] for part in (meetings.start_ns, meetings.end_ns, meetings.present)))
    turned = [
        Exchanges(e.client, e.server, *(part[::-1] for part in (e.t1_ns, e.t2_ns, e.t3_ns, e.t4_ns)))
        for e in reversed(probes)
    ]
    one, other = (solve_clocks(fleet.processes(), *given) for given in ((probes, meetings), (turned, mixed)))
    assert clock_rows(one) == clock_rows(other)
    assert clock_map_table(one).equals(clock_map_table(other))


@pytest.mark.parametrize(
    ("ties", "rows", "reason"),
    [
        ([exchanges(1, 7, 0)], 2, "processes 1 and 7 of 2"),
        ([Exchanges(1, 0, *(np.zeros(n, np.int64) for n in (1, 2, 2, 2)))], 2, "one length"),
        ([], 3, "3 rows of collectives for 2 processes"),
    ],
)
def test_input_that_does_not_fit_is_refused(ties: list[Exchanges], rows: int, reason: str) -> None:
    nothing = np.zeros((rows, 0), np.int64)
    with pytest.raises(ValueError, match=reason):
        solve_clocks([process("a"), process("b")], ties, Meetings(nothing, nothing, nothing.astype(np.bool_)))

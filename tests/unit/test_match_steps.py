"""Each step pairs with itself, whatever a host has before or behind it."""

from __future__ import annotations

from made_up_endpoints import endpoints, row

from xprof_py.postprocess.match.collectives import match_collectives
from xprof_py.postprocess.match.endpoints import Endpoints
from xprof_py.postprocess.match.programs import stages
from xprof_py.postprocess.match.steps import MatchedSteps, match_steps


def matched(*processes: Endpoints) -> MatchedSteps:
    return match_steps(processes, match_collectives(processes))


def test_hosts_that_trace_at_other_times() -> None:
    a = endpoints([], index=0, steps=[("train", i, 0) for i in range(6)])
    b = endpoints([], index=1, steps=[("train", i, 0) for i in range(3, 9)])
    found = matched(a, b)
    assert set(found.keys) == {("train", i, 0) for i in range(9)}
    key = [found.keys[i][1] for i in found.of_process[1]]
    assert key == [3, 4, 5, 6, 7, 8]
    assert {(s[1], host, why) for s, host, why in found.missing} == {
        *((i, "host1", "its capture began later") for i in range(3)),
        *((i, "host0", "its capture ended before") for i in range(6, 9)),
    }


def test_a_step_that_a_host_did_not_mark_is_missing_there() -> None:
    a = endpoints([], index=0, steps=[("train", i, 0) for i in range(4)])
    b = endpoints([], index=1, steps=[("train", i, 0) for i in (0, 1, 3)])
    assert matched(a, b).missing == [(("train", 2, 0), "host1", "it was not marked there")]


def test_a_resumed_step_pairs_with_its_own_occurrence() -> None:
    # Steps 4 and 5 came twice. host1 began to trace when they came again, and counts them as the first.
    a = endpoints(
        [row(i * 10, run_id=i, step=i) for i in range(4)],
        index=0,
        steps=[("train", 4, 0), ("train", 5, 0), ("train", 4, 1), ("train", 5, 1)],
    )
    b = endpoints(
        [row(i * 10, run_id=i + 2, step=i) for i in range(2)], index=1, steps=[("train", 4, 0), ("train", 5, 0)]
    )
    found = matched(a, b)
    assert [found.keys[i] for i in found.of_process[1]] == [("train", 4, 1), ("train", 5, 1)]
    assert found.moved["host1"] == {("train", 4, 0): ("train", 4, 1), ("train", 5, 0): ("train", 5, 1)}


def test_inferred_steps_are_counted_from_where_the_collectives_say() -> None:
    a = endpoints(
        [row(i * 10, run_id=i, step=i) for i in range(6)],
        index=0,
        steps=[("inferred", i, 0) for i in range(6)],
        source="inferred",
    )
    b = endpoints(
        [row(i * 10, run_id=i + 2, step=i) for i in range(4)],
        index=1,
        steps=[("inferred", i, 0) for i in range(4)],
        source="inferred",
    )
    found = matched(a, b)
    assert [found.keys[i][1] for i in found.of_process[1]] == [2, 3, 4, 5]


def test_ranks_that_run_other_programs_are_other_stages() -> None:
    first, second = {"forward": 60, "backward": 40}, {"loss": 100}
    assert stages([first, second, dict(reversed(first.items())), second]) == [0, 1, 0, 1]


def test_a_rank_that_also_logs_is_no_stage_of_its_own() -> None:
    """One part in twenty of the device time is what makes a difference, and only where the other never runs it."""
    train = {"train": 1000}
    assert stages([{**train, "log": 50}, train]) == [0, 0]
    assert stages([{**train, "log": 53}, train]) == [0, 1]
    assert stages([{**train, "log": 53}, {**train, "log": 1}]) == [0, 0]


def test_a_rank_without_programs_has_no_stage() -> None:
    assert stages([{"train": 1}, {}, {"train": 2}]) == [0, None, 0]

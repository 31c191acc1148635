"""Executions of all ranks become collectives by number, run id or order; what is missing is said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from made_up_endpoints import MS, endpoints, row

from xprof_py.errors import BadInputError
from xprof_py.postprocess.match.collectives import METHODS, Collectives, match_collectives
from xprof_py.postprocess.match.endpoints import Endpoints

Truth = set[tuple[tuple[str, int], ...]]
"""Each collective as ((host, row), ...)."""


def members(found: Collectives) -> set[tuple[tuple[str, int], ...]]:
    """Each collective as ((host, row), ...)."""
    out: dict[int, list[tuple[str, int]]] = {}
    for of, rank, at in zip(found.of.tolist(), found.rank.tolist(), found.row.tolist(), strict=True):
        out.setdefault(of, []).append((found.ranks[rank].host, at))
    return {tuple(pairs) for pairs in out.values()}


def codes(found: Collectives) -> dict[str, int]:
    return {note["code"]: note["count"] for note in found.diagnostics}


def test_equal_run_ids_match_whatever_the_clocks_say() -> None:
    a = endpoints([row(i * 10, run_id=100 + i) for i in range(3)], index=0)
    b = endpoints([row(i * 10 + 2, run_id=100 + i) for i in range(3)], index=1, offset_ms=-5000)
    found = match_collectives([a, b])
    assert members(found) == {(("host0", i), ("host1", i)) for i in range(3)}
    assert found.method.tolist() == [METHODS.index("run_id")] * 3
    assert not found.diagnostics


def test_a_number_in_the_group_goes_before_the_run_id() -> None:
    a = endpoints([row(i * 10, run_id=i, sequence=i) for i in range(3)], index=0)
    b = endpoints([row(i * 10, run_id=i + 1, sequence=i) for i in range(3)], index=1)
    found = match_collectives([a, b])
    assert members(found) == {(("host0", i), ("host1", i)) for i in range(3)}
    assert found.method.tolist() == [METHODS.index("sequence")] * 3


def test_a_number_that_comes_twice_counts_once() -> None:
    a = endpoints([row(0, sequence=0), row(1, sequence=0), row(2, sequence=1)], index=0)
    b = endpoints([row(0, sequence=0), row(2, sequence=1)], index=1)
    found = match_collectives([a, b])
    assert members(found) == {(("host0", 0), ("host1", 0)), (("host0", 2), ("host1", 1))}
    assert codes(found) == {"collective_repeated": 1}


def test_run_ids_of_each_process_its_own_are_matched_in_order_instead() -> None:
    steps = [("train", i, 0) for i in range(3)]
    a = endpoints([row(i * 10, run_id=i, step=i) for i in range(3)], index=0, steps=steps)
    b = endpoints([row(i * 10, run_id=900 + i, step=i) for i in range(3)], index=1, steps=steps)
    found = match_collectives([a, b])
    assert members(found) == {(("host0", i), ("host1", i)) for i in range(3)}
    assert found.method.tolist() == [METHODS.index("order")] * 3


def test_run_ids_that_name_other_steps_are_not_believed() -> None:
    steps = [("train", i, 0) for i in range(8)]
    # Counted in each process from its start: one launched once more than the other.
    a = endpoints([row(i * 10, run_id=i, step=i) for i in range(8)], index=0, steps=steps)
    b = endpoints([row(i * 10, run_id=i + 1, step=i) for i in range(8)], index=1, steps=steps)
    found = match_collectives([a, b])
    assert members(found) == {(("host0", i), ("host1", i)) for i in range(8)}


def with_losses(lost: dict[int, tuple[int, int]], with_run_ids: bool, seed: int) -> tuple[list[Endpoints], Truth]:
    """Three ranks of six steps with four equal events each; ``lost``: step -> (rank, place) of the one that is gone."""
    gone = {(rank, 4 * step + place) for step, (rank, place) in lost.items()}
    rng = np.random.default_rng(seed)
    begin = np.cumsum(rng.uniform(3, 20, 24))
    steps = [("train", i, 0) for i in range(6)]
    processes: list[Endpoints] = []
    true: dict[int, list[tuple[str, int]]] = {}
    for index in range(3):
        kept = [i for i in range(24) if (index, i) not in gone]
        rows = [row(begin[i] + rng.uniform(0, 0.01), 2, step=i // 4, run_id=i if with_run_ids else None) for i in kept]
        processes.append(endpoints(rows, index=index, steps=steps, offset_ms=(0, 37, -120)[index]))
        for at, i in enumerate(kept):
            true.setdefault(i, []).append((f"host{index}", at))
    return processes, {tuple(pairs) for pairs in true.values()}


@settings(max_examples=40, deadline=None)
@given(
    # Of one step at most one is lost: where two ranks lose a different one each, their numbers are equal.
    lost=st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=4),
    with_run_ids=st.booleans(),
    seed=st.integers(0, 1000),
    shuffled=st.permutations(range(3)),
)
def test_one_lost_event_costs_one_participation(
    lost: dict[int, tuple[int, int]], with_run_ids: bool, seed: int, shuffled: list[int]
) -> None:
    # Four without run ids are the next test's.
    assume(with_run_ids or len(lost) < 4)
    processes, true = with_losses(lost, with_run_ids, seed)
    found = match_collectives(processes)
    assert members(found) == true
    # The order of processes is that of their indices; another one changes the rows, not what belongs together.
    other = match_collectives([processes[i] for i in shuffled])
    assert {tuple(sorted(pairs)) for pairs in members(other)} == members(found)


@pytest.mark.xfail(
    reason="where a sixth of equal events is lost, neighbours are taken for one another", strict=True
)
def test_four_lost_of_twenty_four_without_run_ids_cost_themselves_alone() -> None:
    processes, true = with_losses({0: (0, 2), 1: (0, 0), 2: (0, 0), 3: (0, 0)}, False, seed=2)
    assert members(match_collectives(processes)) == true


def test_a_loop_in_a_run_that_lost_one_is_put_in_order() -> None:
    begin = np.cumsum(np.random.default_rng(1).uniform(3, 20, 12))
    a = endpoints([row(t, 1, run_id=5, place=i) for i, t in enumerate(begin)], index=0)
    kept = np.delete(begin, 4)
    b = endpoints([row(t, 1, run_id=5, place=i) for i, t in enumerate(kept)], index=1, offset_ms=350)
    found = match_collectives([a, b])
    alone = {(("host0", 4),)}
    assert members(found) == {(("host0", i), ("host1", i - (i > 4))) for i in range(12) if i != 4} | alone
    assert codes(found) == {"collectives_lost": 1}


def test_what_lies_outside_a_capture_is_not_lost() -> None:
    a = endpoints([row(i * 10, run_id=i) for i in range(10)], index=0)
    b = endpoints([row(i * 10, run_id=i) for i in range(4, 8)], index=1)
    assert codes(match_collectives([a, b])) == {"collectives_outside_capture": 6}


def test_groups_are_ranks_by_the_device_numbers_of_the_op() -> None:
    def of(index: int) -> list:
        return [row(t, run_id=t, groups="0,1|2,3", devices=4) for t in range(3)]

    found = match_collectives([endpoints(of(i), index=i) for i in range(4)])
    pairs = {((f"host{a}", t), (f"host{a + 1}", t)) for a in (0, 2) for t in range(3)}
    assert members(found) == pairs
    assert found.expected.tolist() == [2] * 6
    assert not found.diagnostics


def test_a_rank_without_a_trace_is_missed() -> None:
    of = [row(t, run_id=t, devices=4) for t in range(3)]
    found = match_collectives([endpoints(of, index=i) for i in (0, 1, 3)])
    assert found.count == 3
    assert found.expected.tolist() == [4] * 3
    assert codes(found) == {"collective_ranks_missing": 3}


def test_groups_that_cannot_be_told_are_said_and_not_guessed() -> None:
    of = [row(t, run_id=t, groups="0,1|2,3", devices=4) for t in range(3)]
    from dataclasses import replace

    processes = [replace(endpoints(of, index=i), process_index=None) for i in range(3)]
    found = match_collectives(processes)
    assert found.count == 0
    assert [n["code"] for n in found.diagnostics] == ["collective_group_unknown"] * 3


def test_other_programs_are_other_groups() -> None:
    a = endpoints([row(0, run_id=1, program="stage0")], index=0)
    b = endpoints([row(0, run_id=1, program="stage1")], index=1)
    assert members(match_collectives([a, b])) == {(("host0", 0),), (("host1", 0),)}


def test_two_runs_of_one_rank_are_refused_by_name() -> None:
    rows = [row(0, run_id=1)]
    with pytest.raises(BadInputError, match="first and second"):
        match_collectives([endpoints(rows, index=1, host="first"), endpoints(rows, index=1, host="second")])


def test_one_sided_collectives_do_not_synchronise() -> None:
    def of(**said: object) -> list:
        return [row(0, run_id=1, **said), row(5, run_id=2)]

    found = match_collectives([endpoints(of(kind="send", synchronising=False), index=i) for i in range(2)])
    assert found.synchronising.tolist() == [False, True]
    # One asynchronous participant is enough.
    found = match_collectives([endpoints(of(synchronising=i == 0), index=i) for i in range(2)])
    assert found.synchronising.tolist() == [False, True]


def test_times_for_the_clock_solver_are_the_last_start_and_the_first_end_of_a_clock() -> None:
    a = endpoints([row(0, 10, lane=0, run_id=1), row(3, 8, lane=1, run_id=1)], index=0, lanes=2)
    b = endpoints([row(1, 9, run_id=1)], index=1, offset_ms=100)
    times = match_collectives([a, b]).times()
    assert times.present.tolist() == [[True], [True]]
    assert (times.start_ns[1] - times.start_ns[0]).tolist() == [98 * MS]
    assert (times.end_ns[1] - times.end_ns[0]).tolist() == [100 * MS]


def test_ranks_of_one_clock_alone_say_nothing_about_clocks() -> None:
    rows = [row(0, 10, lane=0, run_id=1), row(3, 8, lane=1, run_id=1)]
    assert match_collectives([endpoints(rows, index=0, lanes=2)]).times().start_ns.shape == (1, 0)

"""Executions of all ranks become collectives by number, run id or order; what is missing is said."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
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


@pytest.mark.parametrize("with_run_ids", [True, False])
def test_an_execution_that_was_written_twice_counts_once(with_run_ids: bool) -> None:
    at = [0, 7, 11, 30, 42]
    rows = [row(t, run_id=i if with_run_ids else None) for i, t in enumerate(at)]
    found = match_collectives([endpoints([*rows, rows[2]], index=0), endpoints(rows, index=1, offset_ms=80)])
    assert members(found) == {(("host0", i + (i > 2)), ("host1", i)) for i in range(5)}
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
    lost=st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=6),
    with_run_ids=st.booleans(),
    seed=st.integers(0, 1000),
    shuffled=st.permutations(range(3)),
)
def test_one_lost_event_costs_one_participation(
    lost: dict[int, tuple[int, int]], with_run_ids: bool, seed: int, shuffled: list[int]
) -> None:
    """With run ids whatever is lost; without, as long as steps that lost nothing tell how far the clocks are apart."""
    assume(with_run_ids or len(lost) <= 4)
    processes, true = with_losses(lost, with_run_ids, seed)
    found = match_collectives(processes)
    assert members(found) == true
    # The order of processes is that of their indices; another one changes the rows, not what belongs together.
    other = match_collectives([processes[i] for i in shuffled])
    assert {tuple(sorted(pairs)) for pairs in members(other)} == members(found)


def test_four_lost_of_twenty_four_without_run_ids_cost_themselves_alone() -> None:
    processes, true = with_losses({0: (0, 2), 1: (0, 0), 2: (0, 0), 3: (0, 0)}, False, seed=2)
    assert members(match_collectives(processes)) == true


@dataclass(frozen=True)
class Train:
    """Equal collectives of some ranks without run ids or numbers; ``kept[i]``: which ones rank i's trace has."""

    processes: list[Endpoints]
    kept: list[np.ndarray]

    def matched(self) -> tuple[int, int, int]:
        """(collectives that were taken for one another, pairs that were found, pairs that there are)."""
        found = match_collectives(self.processes)
        true = np.array([self.kept[rank][at] for rank, at in zip(found.rank.tolist(), found.row.tolist(), strict=True)])
        mixed = sum(len(set(true[found.of == of].tolist())) > 1 for of in range(found.count))
        seen = np.bincount(np.concatenate(self.kept), minlength=1)
        return mixed, len(true) - found.count, int((seen[seen > 1] - 1).sum())


def train(
    seed: int, ranks: int, steps: int, each: int, lost: float, noise_us: float, *, marked: bool, regular: bool
) -> Train:
    """``each`` collectives in each step, on clocks that differ by up to 0.4 s and 50 ppm. ``marked``: whether traces
    have the steps; without, some begin later and end earlier than others. Ends scatter by ``noise_us``."""
    random = np.random.default_rng(seed)
    count = steps * each
    at_ms = np.cumsum(np.full(count, 8.0) if regular else random.uniform(3, 20, count))
    processes, kept = [], []
    for index in range(ranks):
        keep = random.uniform(size=count) >= lost
        if not marked:
            keep[: random.integers(0, 3)] = False
            keep[count - random.integers(0, 3) :] = False
        mine = np.flatnonzero(keep)
        end_ms = at_ms[mine] * (1 + random.uniform(-50e-6, 50e-6)) + random.normal(0, noise_us / 1000, len(mine))
        rows = [row(t, 1e-3, step=i // each if marked else None) for t, i in zip(end_ms, mine.tolist(), strict=True)]
        named = [("train", i, 0) for i in range(steps)] if marked else []
        processes.append(endpoints(rows, index=index, steps=named, offset_ms=random.uniform(-400, 400)))
        kept.append(mine)
    return Train(processes, kept)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    ranks=st.integers(2, 4),
    steps=st.integers(3, 10),
    each=st.integers(2, 7),
    lost=st.sampled_from([0.0, 0.02, 0.1, 0.25]),
    noise_us=st.sampled_from([1.0, 20.0, 300.0]),
    marked=st.booleans(),
    regular=st.booleans(),
)
def test_equal_collectives_are_matched_rightly_or_not_at_all(
    seed: int, ranks: int, steps: int, each: int, lost: float, noise_us: float, marked: bool, regular: bool
) -> None:
    """Whatever was lost, however alike they are: none is taken for another."""
    assert train(seed, ranks, steps, each, lost, noise_us, marked=marked, regular=regular).matched()[0] == 0


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("lost", [0.0, 0.02, 0.1])
def test_ends_that_agree_within_microseconds_find_nearly_all(lost: float, marked: bool) -> None:
    found = np.array([train(seed, 3, 20, 6, lost, 1.0, marked=marked, regular=False).matched() for seed in range(3)])
    assert not found[:, 0].any()
    assert found[:, 1].sum() >= 0.98 * found[:, 2].sum()


def test_a_clock_that_is_set_loses_nothing() -> None:
    """Every step has as many on both: that ends leap by 5 ms half way is the clock's doing."""
    whole = train(4, 2, 10, 4, 0.0, 1.0, marked=True, regular=False)
    first, second = whole.processes
    table = second.table
    for place, name in enumerate(table.column_names):
        if name in ("start_ns", "end_ns", "waits_from_ns"):
            set_by = np.where(np.arange(40) >= 22, 5 * MS, 0)
            table = table.set_column(place, name, [pa.array(table[name].to_numpy() + set_by)])
    assert Train([first, replace(second, table=table)], whole.kept).matched() == (0, 40, 40)


def test_equal_collectives_at_equal_distances_are_not_guessed() -> None:
    """Captures that begin at other times and a train without marks: any shift is as good, so nothing is matched."""
    cut = train(3, 2, 8, 5, 0.0, 1.0, marked=False, regular=True)
    assert len(cut.kept[0]) != len(cut.kept[1]) or (cut.kept[0] != cut.kept[1]).any()
    assert cut.matched()[:2] == (0, 0)
    assert codes(match_collectives(cut.processes))["collectives_doubtful"] > 0


def test_what_is_lost_on_one_rank_is_matched_between_the_others() -> None:
    """Rank 0 has most and is asked first; two that it has lost the others have."""
    whole = train(1, 3, 8, 4, 0.0, 1.0, marked=True, regular=False)
    first, *others = whole.processes
    lost = [5, 18]
    table = first.table.take([i for i in range(first.table.num_rows) if i not in lost])
    elsewhere = [
        other.table.take([i for i in range(other.table.num_rows) if i not in (9, 20 + n, 27)])
        for n, other in enumerate(others)
    ]
    processes = [replace(first, table=table)]
    processes += [replace(other, table=t) for other, t in zip(others, elsewhere, strict=True)]
    rest = np.delete(np.arange(32), lost), *(np.delete(np.arange(32), [9, 20 + n, 27]) for n in (0, 1))
    found = Train(processes, list(rest)).matched()
    assert found == (0, found[2], found[2])


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

"""The first read of an op's result: by hand, and the two ways to find it against each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xprof_py.postprocess.join.device_ops import first_reads, first_reads_once

NEVER = 2**63 - 1


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def edges(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, np.int64).reshape(-1, 2)


def test_the_earliest_reader_of_the_same_run_counts() -> None:
    # Run 5: op 0 at 10 is read by 1 at 30 and by 2 at 20. Run 7: op 0 at 100 is read by 1 at 140, its 2 never ran.
    columns = ints([5, 5, 5, 7, 7]), ints([0, 1, 2, 0, 1]), ints([10, 30, 20, 100, 140])
    for found in (first_reads(*columns, edges([(0, 1), (0, 2)])), first_reads_once(*columns, edges([(0, 1), (0, 2)]))):
        assert found is not None
        assert found.tolist() == [20, NEVER, NEVER, 140, NEVER]


def test_a_reader_that_began_before_read_another_result() -> None:
    columns = ints([0, 0]), ints([0, 1]), ints([50, 40])
    for found in (first_reads(*columns, edges([(0, 1)])), first_reads_once(*columns, edges([(0, 1)]))):
        assert found is not None
        assert found.tolist() == [NEVER, NEVER]


def test_in_a_loop_each_execution_is_read_by_the_next_one() -> None:
    columns = ints([0, 0, 0, 0]), ints([0, 1, 0, 1]), ints([0, 10, 20, 30])
    assert first_reads_once(*columns, edges([(0, 1)])) is None
    assert first_reads(*columns, edges([(0, 1)])).tolist() == [10, NEVER, 30, NEVER]


@given(st.data())
def test_both_ways_agree(data: st.DataObject) -> None:
    ran = data.draw(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1))
    run, op = (ints(list(column)) for column in zip(*sorted(ran), strict=True))
    start = ints(data.draw(st.lists(st.integers(0, 9), min_size=len(run), max_size=len(run))))
    there = sorted(set(op.tolist()))
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(there), st.sampled_from(there)), max_size=8))
    once = first_reads_once(run, op, start, edges(pairs))
    assert once is None or once.tolist() == first_reads(run, op, start, edges(pairs)).tolist()

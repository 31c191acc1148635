"""Rows that are numbered or found by a place of their own, against the same by sorting and by looking at every row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xprof_py.postprocess.join import columns
from xprof_py.postprocess.join.columns import distinct, in_order_of_rows
from xprof_py.postprocess.join.device_ops import row_of
from xprof_py.postprocess.join.gaps import Gaps

FAR = st.integers(-(2**62), 2**62)
"""Sorting alone can number these: their range has no room for a place each."""


@given(st.lists(st.tuples(st.integers(-2, 2), FAR | st.integers(0, 3)), max_size=30))
def test_distinct_says_the_first_row_of_each_combination_in_order(rows: list[tuple[int, int]]) -> None:
    a, b = (np.array([row[at] for row in rows], np.int64) for at in range(2))
    first, group = distinct(a, b)
    combinations = sorted(set(rows))
    assert first.tolist() == [rows.index(one) for one in combinations]
    assert group.tolist() == [combinations.index(row) for row in rows]


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(5, 8)), min_size=1, max_size=60))
def test_numbering_by_place_says_what_sorting_says(rows: list[tuple[int, int]]) -> None:
    pair = [np.array([row[at] for row in rows], np.int64) for at in range(2)]
    found = columns._numbered(pair)
    if found is None:
        assert len(rows) < 7, "seven rows have four places for each of the 28 combinations there are at most"
        return
    for ours, theirs in zip(found, columns._sorted(pair), strict=True):
        assert ours.tolist() == theirs.tolist()


@given(st.lists(FAR | st.integers(-5, 5), max_size=20), st.lists(FAR | st.integers(-8, 8), max_size=20))
def test_the_row_of_a_key_is_its_last_one(keys: list[int], wanted: list[int]) -> None:
    last = {key: row for row, key in enumerate(keys)}
    found = row_of(np.array(keys, np.int64), np.array(wanted, np.int64))
    assert found.tolist() == [last.get(one, -1) for one in wanted]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(-1, 2)), max_size=25), st.integers(0, 25))
def test_pieces_of_gaps_are_in_order_of_start_cause_and_step(rows: list[tuple[int, int, int]], cut: int) -> None:
    start, cause, step = (np.array([row[at] for row in rows], np.int64) for at in range(3))
    number = np.arange(len(rows))
    pieces = Gaps(start, start + 1, cause, step, number, number, number, number, number, number, number)
    ordered = sorted(range(len(rows)), key=lambda row: (*rows[row], row))
    parts = [pieces.take(number[:cut]), pieces.take(number[cut:])]
    assert Gaps.in_order(parts).launch.tolist() == ordered


@given(st.lists(st.tuples(FAR | st.integers(-3, 3), st.integers(0, 2)), max_size=20))
def test_combinations_in_order_of_rows_are_numbered_as_they_come(rows: list[tuple[int, int]]) -> None:
    number: dict[tuple[int, int], int] = {}
    wanted = [number.setdefault(row, len(number)) for row in rows]
    columns = [np.array([row[at] for row in rows], np.int64) for at in range(2)]
    first, group = in_order_of_rows(*columns)
    assert group.tolist() == wanted
    assert [rows[at] for at in first.tolist()] == list(number)

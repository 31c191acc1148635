"""The interval algebra against sets of unit cells: slow, and too simple to be wrong."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xprof_py.postprocess.join import intervals

CELLS = 40
Pairs = list[tuple[int, int]]
pairs = st.lists(st.tuples(st.integers(0, CELLS), st.integers(0, CELLS)).map(lambda p: (min(p), max(p))), max_size=8)


def columns(values: Pairs) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(values, dtype=np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def made(values: Pairs) -> intervals.Intervals:
    return intervals.union(*columns(values))


def cells_of_pairs(values: Pairs) -> set[int]:
    return {cell for start, end in values for cell in range(start, end)}


def cells(disjoint: intervals.Intervals) -> set[int]:
    """The cells of a disjoint set, once it has been seen to be sorted, disjoint and free of empty intervals."""
    start, end = disjoint
    assert np.all(start < end)
    assert np.all(end[:-1] <= start[1:])
    return cells_of_pairs(list(zip(start.tolist(), end.tolist(), strict=True)))


@given(pairs)
def test_a_union_covers_what_any_covers(a: Pairs) -> None:
    assert cells(made(a)) == cells_of_pairs(a)


@given(pairs)
def test_a_union_joins_what_touches(a: Pairs) -> None:
    start, end = made(a)
    assert np.all(end[:-1] < start[1:])


@given(pairs, st.integers(0, CELLS), st.integers(0, CELLS))
def test_a_complement_is_the_rest_of_the_range(a: Pairs, first: int, last: int) -> None:
    first, last = min(first, last), max(first, last)
    assert cells(intervals.complement(made(a), first, last)) == set(range(first, last)) - cells_of_pairs(a)


@given(pairs, pairs)
def test_subtract_and_intersect_are_those_of_sets(a: Pairs, b: Pairs) -> None:
    assert cells(intervals.subtract(made(a), made(b))) == cells_of_pairs(a) - cells_of_pairs(b)
    assert cells(intervals.intersect(made(a), made(b))) == cells_of_pairs(a) & cells_of_pairs(b)


@given(pairs, pairs)
def test_cover_counts_the_cells_in_each_window(a: Pairs, windows: Pairs) -> None:
    covered = intervals.cover(made(a), *columns(windows))
    assert covered.tolist() == [len(cells_of_pairs(a) & set(range(start, end))) for start, end in windows]


@given(pairs, st.lists(st.integers(-5, CELLS + 5), max_size=8))
def test_covered_before_counts_the_cells_before_each_time(a: Pairs, times: list[int]) -> None:
    before = intervals.covered_before(made(a), np.array(times, dtype=np.int64))
    assert before.tolist() == [sum(cell < time for cell in cells_of_pairs(a)) for time in times]


@given(pairs, pairs, st.integers(0, 2**61))
def test_times_near_the_end_of_int64_lose_nothing(a: Pairs, b: Pairs, shift: int) -> None:
    moved = [[(start + shift, end + shift) for start, end in values] for values in (a, b)]
    plain = intervals.subtract(made(a), made(b))
    far = intervals.subtract(made(moved[0]), made(moved[1]))
    assert (far[0] - shift).tolist() == plain[0].tolist()
    assert (far[1] - shift).tolist() == plain[1].tolist()


@given(st.lists(st.tuples(st.integers(0, 4), st.tuples(st.integers(0, CELLS), st.integers(0, CELLS))), max_size=12))
def test_every_group_covers_what_its_own_intervals_cover(values: list[tuple[int, tuple[int, int]]]) -> None:
    group = np.array([owner for owner, _ in values], np.int64)
    start, end = columns([(min(pair), max(pair)) for _, pair in values])
    covered = intervals.cover_of_groups(group, start, end, 5)
    of, low, high = intervals.union_of_groups(group, start, end)
    for owner in range(5):
        alone = intervals.union(start[group == owner], end[group == owner])
        assert covered[owner] == len(cells(alone))
        assert [low[of == owner].tolist(), high[of == owner].tolist()] == [alone[0].tolist(), alone[1].tolist()]


weights_of_one = st.lists(st.integers(1, 10**16), min_size=1, max_size=9)


@given(st.lists(st.tuples(st.integers(0, 10**17), weights_of_one), min_size=1, max_size=5))
def test_shares_sum_to_the_total_and_none_is_off_by_one(asked: list[tuple[int, list[int]]]) -> None:
    totals = np.array([total for total, _ in asked], np.int64)
    owner = np.repeat(np.arange(len(asked)), [len(weights) for _, weights in asked])
    found = intervals.largest_remainders(totals, owner, np.array([w for _, ws in asked for w in ws], np.int64))
    for place, (total, weights) in enumerate(asked):
        shares = found[owner == place].tolist()
        whole = sum(weights)
        assert sum(shares) == total
        floors = [total * weight // whole for weight in weights]
        assert all(floor <= share <= floor + 1 for floor, share in zip(floors, shares, strict=True))
        # whoever got one more has a remainder no smaller than whoever did not; at a tie, the earlier one got it
        ranks = [(-(total * weight % whole), at) for at, weight in enumerate(weights)]
        lifted = [rank for rank, share, floor in zip(ranks, shares, floors, strict=True) if share > floor]
        left = [rank for rank, share, floor in zip(ranks, shares, floors, strict=True) if share == floor]
        assert not lifted or not left or max(lifted) < min(left)

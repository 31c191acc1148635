"""Interval algebra against sets of single picoseconds."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xprof_py.postprocess.join import intervals
from xprof_py.postprocess.join.intervals import Intervals

SPAN = 40
pairs = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)).map(lambda p: (min(p), max(p))), max_size=12)


def points(pieces: list[tuple[int, int]]) -> set[int]:
    return {p for start, end in pieces for p in range(start, end)}


def disjoint(pieces: list[tuple[int, int]]) -> Intervals:
    return intervals.union(np.array([p[0] for p in pieces], np.int64), np.array([p[1] for p in pieces], np.int64))


def points_of(pieces: Intervals) -> set[int]:
    return points(list(zip(pieces[0].tolist(), pieces[1].tolist(), strict=True)))


@given(pairs)
def test_a_union_covers_the_same_points_in_sorted_pieces_that_do_not_touch(pieces: list[tuple[int, int]]) -> None:
    union = disjoint(pieces)
    assert points_of(union) == points(pieces)
    assert all(a < b for a, b in zip(*union, strict=True))
    assert all(end < start for end, start in zip(union[1][:-1], union[0][1:], strict=True))


@given(pairs, pairs)
def test_subtract_and_intersect_are_those_of_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    assert points_of(intervals.subtract(disjoint(a), disjoint(b))) == points(a) - points(b)
    assert points_of(intervals.intersect(disjoint(a), disjoint(b))) == points(a) & points(b)


@given(pairs, st.integers(0, SPAN), st.integers(0, SPAN))
def test_complement_is_what_is_left_of_the_window(pieces: list[tuple[int, int]], a: int, b: int) -> None:
    low, high = min(a, b), max(a, b)
    left = intervals.complement(disjoint(pieces), low, high)
    assert points_of(left) == set(range(low, high)) - points(pieces)


@given(pairs, st.lists(st.integers(-5, SPAN + 5), min_size=2, max_size=8))
def test_cover_counts_the_points_of_each_window(pieces: list[tuple[int, int]], cuts: list[int]) -> None:
    edges = np.array(sorted(cuts), np.int64)
    covered = intervals.cover(disjoint(pieces), edges[:-1], edges[1:])
    expected = [len(points(pieces) & set(range(a, b))) for a, b in itertools.pairwise(edges.tolist())]
    assert covered.tolist() == expected


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**15), min_size=1, max_size=8).filter(any))
def test_largest_remainder_splits_exactly_and_fairly(total: int, weights: list[int]) -> None:
    shares = intervals.largest_remainder(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share * sum(weights) - total * weight) < sum(weights)


def test_ties_of_the_largest_remainder_go_to_the_earlier_weight() -> None:
    assert intervals.largest_remainder(2, [1, 1, 1]) == [1, 1, 0]


def test_nothing_stays_nothing() -> None:
    empty = intervals.nothing()
    assert points_of(intervals.subtract(empty, disjoint([(0, 3)]))) == set()
    assert points_of(intervals.intersect(empty, disjoint([(0, 3)]))) == set()
    assert points_of(intervals.complement(empty, 2, 5)) == {2, 3, 4}

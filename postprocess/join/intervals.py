"""Interval algebra on int64 columns. Every set of intervals is half-open, [start, end); empty ones are dropped."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Intervals = tuple[Int64, Int64]
"""(starts, ends), both int64 of one length. "Disjoint" sets are sorted, and no two of them touch or overlap."""


def nothing() -> Intervals:
    """No interval at all."""
    return np.empty(0, np.int64), np.empty(0, np.int64)


def union(start: Int64, end: Int64) -> Intervals:
    """The disjoint set that covers what any of these intervals covers. O(n log n)."""
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        return nothing()
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    # A new piece begins where nothing before reaches.
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], reach[last]


def complement(covered: Intervals, start: int, end: int) -> Intervals:
    """What a disjoint set leaves of [start, end)."""
    starts = np.concatenate(([start], covered[1])).astype(np.int64)
    ends = np.concatenate((covered[0], [end])).astype(np.int64)
    starts, ends = np.maximum(starts, start), np.minimum(ends, end)
    keep = ends > starts
    return starts[keep], ends[keep]


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """What the disjoint set b leaves of the disjoint set a."""
    if not len(a[0]) or not len(b[0]):
        return a
    low, high = min(a[0][0], b[0][0]), max(a[1][-1], b[1][-1])
    return intersect(a, complement(b, int(low), int(high)))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """What two disjoint sets share, as a disjoint set."""
    if not len(a[0]) or not len(b[0]):
        return nothing()
    _, _, start, end = overlaps(a, b)
    return start, end


def overlaps(a: Intervals, b: Intervals) -> tuple[Int64, Int64, Int64, Int64]:
    """Where a piece of any set a meets one of the disjoint set b: (row of a, row of b, start, end), in order of a."""
    # For every piece of a, the pieces of b that may meet it are consecutive.
    first = np.searchsorted(b[1], a[0], side="right")
    last = np.searchsorted(b[0], a[1], side="left")
    count = np.maximum(last - first, 0)
    owner = np.repeat(np.arange(len(a[0])), count)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    other = first[owner] + offset
    start = np.maximum(a[0][owner], b[0][other])
    end = np.minimum(a[1][owner], b[1][other])
    keep = end > start
    return owner[keep], other[keep], start[keep], end[keep]


def first_started(start: Int64, end: Int64) -> tuple[Int64, Int64, Int64]:
    """Divide what intervals cover among them, each instant to the one that started first (ties: the earlier row).

    Returns (row, start, end) of the pieces: disjoint, sorted, together the union. An interval keeps what lies beyond
    all that started before it: whichever of those reaches furthest covers everything up to there.
    """
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(end[order]) if len(order) else end
    begin = np.maximum(start[order], np.r_[np.iinfo(np.int64).min, reach[:-1]]) if len(order) else start
    keep = end[order] > begin
    return order[keep].astype(np.int64), begin[keep], end[order][keep]


def covered_before(disjoint: Intervals, at: Int64) -> Int64:
    """How much of a disjoint set lies before each time of ``at``; its difference is the cover of a window, exactly."""
    start, end = disjoint
    if not len(start):
        return np.zeros(len(at), np.int64)
    length = np.concatenate(([0], np.cumsum(end - start))).astype(np.int64)
    index = np.searchsorted(start, at, side="right")
    inside = np.minimum(at, end[np.maximum(index - 1, 0)]) - start[np.maximum(index - 1, 0)]
    return np.where(index == 0, 0, length[np.maximum(index - 1, 0)] + np.where(index == 0, 0, inside)).astype(np.int64)


def cover(disjoint: Intervals, start: Int64, end: Int64) -> Int64:
    """How much of a disjoint set lies in each window [start, end)."""
    return covered_before(disjoint, end) - covered_before(disjoint, start)


def union_of_groups(group: Int64, start: Int64, end: Int64) -> tuple[Int64, Int64, Int64]:
    """(group, start, end) of the disjoint sets that the intervals of each group cover, by group, then in order."""
    keep = end > start
    group, start, end = group[keep], start[keep], end[keep]
    if not len(group):
        return np.empty(0, np.int64), *nothing()
    order = np.lexsort((start, group))
    group, start, end = group[order], start[order], end[order]
    # Every group is moved behind the one before it, so that one running maximum serves all.
    first = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
    count = np.diff(np.concatenate((first, [len(group)])))
    lows, highs = start[first], np.maximum.reduceat(end, first)
    length = highs - lows + 1
    moved = np.repeat(np.cumsum(length) - length - lows, count)
    reach = np.maximum.accumulate(end + moved)
    new = np.concatenate(([True], (start + moved)[1:] > reach[:-1]))
    last = np.concatenate((new[1:], [True]))
    return group[new], start[new], reach[last] - moved[last]


def cover_of_groups(group: Int64, start: Int64, end: Int64, groups: int) -> Int64:
    """How much the intervals of each of ``groups`` cover."""
    out = np.zeros(groups, np.int64)
    of, low, high = union_of_groups(group, start, end)
    np.add.at(out, of, high - low)
    return out


def largest_remainders(totals: Int64, owner: Int64, weights: Int64) -> Int64:
    """Split ``totals[k]`` in proportion to the weights whose ``owner`` is k into integers that sum to it.

    ``owner`` ascending; weights positive; total times sum of weights below 2**114 (a day is 2**57 ps). Hamilton's
    method: floors first, then one each to the largest remainders, ties to the earlier weight.
    """
    if not len(owner):
        return np.empty(0, np.int64)
    first = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
    count = np.diff(np.concatenate((first, [len(owner)])))
    total = totals[owner]
    whole = np.repeat(np.add.reduceat(weights, first), count)
    shares, remainders = _divided(total, weights, whole)
    missing = np.repeat(totals[owner[first]] - np.add.reduceat(shares, first), count)
    # Where nothing is missing, as where one weight has all, nothing has to be put in order.
    some = np.flatnonzero(missing > 0)
    order = some[np.lexsort((-remainders[some], owner[some]))]
    rank = np.arange(len(owner)) - np.repeat(first, count)
    shares[order] += rank[some] < missing[some]
    return shares


def _divided(a: Int64, b: Int64, by: Int64) -> tuple[Int64, Int64]:
    """Quotient and remainder of a * b / by, exact although a * b does not fit into 64 bits; b <= by, all positive."""
    quotient = (a.astype(np.float64) * (b / by)).astype(np.int64)
    # The double is off by a little; what is left is small, so that its 64 low bits are all of it.
    left = (a.astype(np.uint64) * b.astype(np.uint64) - quotient.astype(np.uint64) * by.astype(np.uint64)).astype(
        np.int64
    )
    correction = left // by
    return quotient + correction, left - correction * by

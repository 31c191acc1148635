"""Two sequences of one kind of event, of two ranks, of which either may have lost some: which belong together?

The events are equal by name, so the ends decide: a collective ends at about the same time everywhere, and between two
collectives that both ranks saw the same time passes on both clocks, whatever their offset. The cheapest chain of pairs
is found by dynamic programming:

    a pair                                             gains PAIR
    an event of one rank that is skipped       GAP each
    pairs whose distances to the pair before differ    the difference / NOISES times the usual difference, at most MOST
    more than REACH skipped at once            BREAK, and the same for the distance to the commonest offset

So one lost event costs one event, and none behind it is paired with its neighbour. Where many of equal events are lost
some neighbours are taken for one another all the same: such a chain tells how far clocks are apart, and no more
(order.py).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

GAP = 0.7
"""Less than a pair that is off by one period; two of them and the pair more than an end that came late."""
MOST = 3.0
"""What an end that is not where it should be costs at most: more than some events that were lost."""
PAIR = 5.0
"""What a pair gains: more than an end that comes late costs, before and behind it."""
EDGE = 0.03
"""An event of one rank alone, before the first pair or behind the last: captures begin and end at different times."""
BREAK = 4.0
EVIDENCE = 4.0
"""By how much another order must be better where both have equally many: that both lost one is rare."""
REACH = 4
NOISES = 8.0
"""What an end of one rank may differ by before it costs as much as it can."""
MOST_SHIFTS = 64
MOST_CELLS = 16_000_000
"""Longer pairs of sequences are refused: they have no steps to cut them at."""


def align(end_a: Int64, end_b: Int64) -> Int64 | None:
    """Per event of b the event of a that it is, -1 for none; None where both are too long to compare.

    ``end_*``: int64 ns on the clock of each, ascending.
    """
    m, n = len(end_a), len(end_b)
    out = np.full(n, -1, np.int64)
    if not m or not n:
        return out
    a, b = (end_a - end_a[0]).astype(np.float64), (end_b - end_b[0]).astype(np.float64)
    in_order = np.inf
    scale = NOISES * _noise(a, b)
    if m == n:
        if m == 1:
            return np.arange(n)
        apart = float(np.minimum(np.abs(np.diff(a) - np.diff(b)) / scale, MOST).sum())
        in_order = apart - PAIR * n
        # Skipping one on each side costs two gaps and the pair: nothing cheaper than that can be bettered.
        if apart <= 2 * GAP + PAIR:
            return np.arange(n)
    if m * n > MOST_CELLS:
        return None
    offset = (b[:, None] - a[None, :]) / scale
    to_begin = GAP * np.minimum(np.abs(offset - _commonest(offset.ravel(), 1 / 4)), 1.0)
    cost, came = _chains(offset, to_begin)
    whole = cost + EDGE * (np.arange(n)[::-1, None] + np.arange(m)[None, ::-1])
    at = int(np.argmin(whole))
    if in_order - whole.flat[at] < EVIDENCE:
        return np.arange(n)
    while at >= 0:
        out[at // m] = at % m
        at = int(came[at // m, at % m])
    return out


def _noise(a: Float64, b: Float64) -> float:
    """How far distances of ends differ for reasons of the hosts' own: the lower quartile, because some are of events
    that one has lost, at the shift at which it is least."""
    between, other = np.diff(a), np.diff(b)
    usual = np.concatenate((between, other))
    floor = max(float(np.median(usual[usual > 0])) / 100, 1.0) if (usual > 0).any() else 1.0
    fewest = max(min(len(between), len(other)) // 2, 1)
    quartiles = []
    for shift in range(-MOST_SHIFTS, MOST_SHIFTS + 1):
        left, right = between[max(shift, 0) :], other[max(-shift, 0) :]
        both = min(len(left), len(right))
        if both >= fewest:
            quartiles.append(float(np.quantile(np.abs(left[:both] - right[:both]), 0.25)))
    return max(min(quartiles, default=1.0), floor)


def _commonest(offsets: Float64, scale: float) -> float:
    """The offset that most pairs have, within a quarter of the usual distance."""
    ordered = np.sort(offsets)
    until = np.searchsorted(ordered, ordered + scale / 4, side="right")
    count = until - np.arange(len(ordered))
    best = int(np.argmax(count))
    return float(np.median(ordered[best : until[best]]))


def _chains(offset: Float64, to_begin: Float64) -> tuple[Float64, Int64]:
    """Per pair (b, a) the cost of the cheapest chain that ends with it, and the pair before, as b * len(a) + a; -1:
    none.

    ``offset``: what neighbours in a chain should not differ by; ``to_begin``: what it costs to begin a chain with a
    pair, or to go on with it behind a break.
    """
    n, m = offset.shape
    cost = np.empty((n, m))
    came = np.empty((n, m), np.int64)
    columns = np.arange(m)
    # The cheapest chain that ends before row i and column j, and where.
    low, low_at = np.full(m + 1, np.inf), np.full(m + 1, -1, np.int64)
    for i in range(n):
        best = EDGE * (i + columns) + to_begin[i]
        at = np.full(m, -1, np.int64)
        broken = low[:-1] + BREAK + to_begin[i]
        better = broken < best
        best, at = np.where(better, broken, best), np.where(better, low_at[:-1], at)
        for back in range(1, min(REACH, i) + 1):
            for left in range(1, min(REACH, m - 1) + 1):
                moved = np.minimum(np.abs(offset[i, left:] - offset[i - back, :-left]), MOST)
                tried = cost[i - back, :-left] + GAP * (back + left - 2) + moved
                better = tried < best[left:]
                best[left:] = np.where(better, tried, best[left:])
                at[left:] = np.where(better, (i - back) * m + columns[:-left], at[left:])
        cost[i] = best - PAIR
        came[i] = at
        # What ends in this row can be continued from the next one on, in columns behind it.
        row, row_at = cost[i], i * m + columns
        lowest = np.minimum.accumulate(row)
        first = np.maximum.accumulate(np.where(row <= lowest, columns, -1))
        better = lowest < low[1:]
        low[1:] = np.where(better, lowest, low[1:])
        low_at[1:] = np.where(better, row_at[np.maximum(first, 0)], low_at[1:])
    return cost, came

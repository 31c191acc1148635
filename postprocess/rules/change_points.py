"""Where a series of runs changes its level: binary segmentation of ranks, with p-values from permutations.

For a split after the first k of n values with ranks r: |sum of the first k of (r - mean r)| / sqrt(k (n - k) / n), the
standardised CUSUM (Page, Biometrika 41 (1954) 100; on ranks: Pettitt, Applied Statistics 28 (1979) 126). The split with
the largest is a change if no more than ALPHA of all orders of the same values have a larger one anywhere; both sides
are then searched alike (Vostrikova, Soviet Mathematics Doklady 24 (1981) 55).

False alarms: where the runs of a job are exchangeable (no change, and neighbours no more alike than others) some change
is reported with probability ALPHA at most, however long the series and whatever its distribution: the test is exact, up
to its resampling. It holds per job: of a hundred jobs without a change one is named. Runs that depend on their
neighbours (a machine that is slow for a week) are changes of level, and found as such.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.01
FEWEST = 10
"""Runs below which nothing can be told at ALPHA: with 8 the clearest change has p = 2 / 70, with 10 it has 2 / 252."""
RESAMPLES = 999
_EDGE = 2
"""Runs on each side of a split at least."""
_SEED = 20220
_CELLS = 1 << 20


@dataclass(frozen=True)
class Change:
    """``at``: place of the first value after the change. ``p``: of this split among those of its segment."""

    at: int
    p: float


def change_points(values: NDArray[np.float64]) -> list[Change]:
    """The changes of level of ``values`` (in the order of time), sorted by place. The same input, the same answer."""
    found: list[Change] = []
    segments = [(0, len(values))]
    while segments:
        begin, end = segments.pop()
        change = _largest(values[begin:end])
        if change is not None:
            found.append(Change(begin + change.at, change.p))
            segments += [(begin, begin + change.at), (begin + change.at, end)]
    return sorted(found, key=lambda c: c.at)


def _largest(values: NDArray[np.float64]) -> Change | None:
    """The change of one segment, None where there is none."""
    n = len(values)
    if n < FEWEST:
        return None
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    # Twice the mean rank of equal values is a whole number: sums of permuted ones are then compared exactly.
    ranks = (2 * np.cumsum(counts) - counts + 1)[place.reshape(-1)].astype(np.int64)
    centred = n * ranks - ranks.sum()
    observed = _statistics(centred[None, :])[0]
    at = int(observed.argmax())
    rng = np.random.default_rng(_SEED)
    as_large, left = 0, RESAMPLES
    while left:
        some = min(left, max(1, _CELLS // n))
        orders = rng.permuted(np.repeat(centred[None, :], some, axis=0), axis=1)
        as_large += int((_statistics(orders).max(axis=1) >= observed[at]).sum())
        left -= some
    p = (1 + as_large) / (1 + RESAMPLES)
    return Change(at + _EDGE, p) if p <= ALPHA else None


def _statistics(series: NDArray[np.int64]) -> NDArray[np.float64]:
    """The statistic of every allowed split of every row: shape (rows, n - 2 * _EDGE + 1)."""
    n = series.shape[1]
    k = np.arange(_EDGE, n - _EDGE + 1)
    sums = np.abs(np.cumsum(series, axis=1)[:, _EDGE - 1 : n - _EDGE])
    return np.asarray(sums / np.sqrt(k * (n - k)) / math.sqrt(n), np.float64)

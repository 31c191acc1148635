"""Whether two samples of steps differ by more than chance: rank test, correction for many tests, interval.

Steps are not normally distributed (one in ten takes twice as long), so the test is on ranks: Mann and Whitney, Annals
of Mathematical Statistics 18 (1947) 50. Steps are not independent either: where neighbours are alike, a run holds fewer
independent steps than it has (Bayley and Hammersley, Supplement to the Journal of the Royal Statistical Society 8
(1946) 184), and the test statistic is scaled down by that. All of it is deterministic.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

FEWEST = 5
"""Steps on each side below which no difference is called significant: with 4 and 4 the least p is 0.029."""
_EXACT = 50
"""Steps of both sides up to which the exact distribution is used (without ties); beyond it the normal one is close."""
_RESAMPLES = 999
_SEED = 0


def rank_sum_p(a: Float64, b: Float64) -> float:
    """Two-sided p that ``a`` and ``b`` come from one distribution; 1.0 with fewer than FEWEST values on a side.

    ``a``, ``b``: one value per step, in the order in which the steps ran.
    """
    n, m = len(a), len(b)
    if min(n, m) < FEWEST:
        return 1.0
    ranks, ties = _ranks(np.concatenate((a, b)))
    u = float(ranks[:n].sum()) - n * (n + 1) / 2
    u = min(u, n * m - u)
    count = n + m
    if not len(ties) and count <= _EXACT:
        p = min(1.0, 2 * _cumulated(min(n, m), max(n, m))[int(u)])
        z = -NormalDist().inv_cdf(p / 2)
    else:
        spread = n * m / 12 * (count + 1 - float((ties**3 - ties).sum()) / (count * (count - 1)))
        # Half a unit of continuity: U is a whole number.
        z = max(n * m / 2 - u - 0.5, 0.0) / math.sqrt(spread) if spread > 0 else 0.0
    return math.erfc(max(z, 0.0) / math.sqrt(2 * _dependence(a, b)))


def least_p(n: int, m: int) -> float:
    """The least p that ``n`` and ``m`` steps can give: all of one side below all of the other."""
    return 1.0 if min(n, m) < FEWEST else min(1.0, 2 / math.comb(n + m, n))


def _ranks(values: Float64) -> tuple[Float64, Float64]:
    """(ranks from 1, equal values share their mean rank; sizes of the groups of equal values)."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank = last - (counts - 1) / 2
    return np.asarray(mean_rank[place.reshape(-1)], np.float64), counts[counts > 1].astype(np.float64)


@cache
def _cumulated(n: int, m: int) -> list[float]:
    """P(U <= u) of the rank sum of ``n`` values among ``n + m`` distinct ones, for every u.

    The counts are the coefficients of the Gaussian binomial: the product over i of (1 - q^(m+i)) / (1 - q^i).
    """
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for u in range(n * m, m + i - 1, -1):
            counts[u] -= counts[u - m - i]
        for u in range(i, n * m + 1):
            counts[u] += counts[u - i]
    total, below, out = math.comb(n + m, n), 0, []
    for count in counts:
        below += count
        out.append(below / total)
    return out


def _dependence(a: Float64, b: Float64) -> float:
    """How many steps count as one: (1 + r) / (1 - r) with r the correlation of neighbours' ranks, 1 where r is chance.

    Bayley and Hammersley's factor for a chain whose correlation falls off geometrically. Only r above the 95 % point of
    independent steps counts: its estimate is as noisy as the sample is small. Where the gap between the samples is
    wider than the whole of either, no drift that was seen in them bridges it, and every step counts.
    """
    gap = max(float(a.min() - b.max()), float(b.min() - a.max()))
    if gap > max(float(np.ptp(a)), float(np.ptp(b))):
        return 1.0
    products = squares = pairs = 0.0
    for sample in (a, b):
        centred = _ranks(sample)[0] - (len(sample) + 1) / 2
        products += float((centred[1:] * centred[:-1]).sum())
        squares += float((centred**2).sum())
        pairs += len(sample) - 1
    r = products / squares if squares > 0 else 0.0
    if r * math.sqrt(pairs) <= 1.645:
        return 1.0
    r = min(r, 0.95)
    return (1 + r) / (1 - r)


def adjusted(p: Float64) -> Float64:
    """p values corrected for being many: the least false discovery rate at which each would be accepted.

    Benjamini and Hochberg, J. of the Royal Statistical Society B 57 (1995) 289. Shape (k,) in and out.
    """
    order = np.argsort(p, kind="stable")
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    out = np.empty(len(p), np.float64)
    out[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return out


def median_difference_interval(a: Float64, b: Float64) -> tuple[float, float]:
    """95 % interval of median(b) - median(a): percentile bootstrap, _RESAMPLES resamples from a fixed seed."""
    random = np.random.default_rng(_SEED)
    medians = [
        np.median(sample[random.integers(0, len(sample), (_RESAMPLES, len(sample)))], axis=1) for sample in (a, b)
    ]
    low, high = np.quantile(medians[1] - medians[0], [0.025, 0.975])
    return float(low), float(high)

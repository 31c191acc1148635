"""The line that keeps most distance from its bounds, and what lines are possible at all (native/kernels/envelope.h)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xprof_py import _native
from xprof_py.postprocess.clocks.bounds import Bounds, Float64

MAX_RATE_NS_PER_S = 500_000.0
"""No clock is believed to run wrong by more than 500 ppm: adjtimex(2) slews no faster."""


@dataclass(frozen=True)
class Line:
    """theta(t) = value_ns + slope_ns_per_s * (t - at_s).

    ``margin_ns`` is its distance to the nearest bounds, negative where no line keeps them. ``slopes`` are the lowest
    and highest of all possible lines, ``low_ns`` and ``high_ns`` their extremes at the times asked for; NaN
    where there is no such line.
    """

    at_s: float
    value_ns: float
    slope_ns_per_s: float
    margin_ns: float
    slopes: tuple[float, float]
    low_ns: Float64
    high_ns: Float64

    def __call__(self, t_s: Float64) -> Float64:
        """Value at times in seconds."""
        return self.value_ns + self.slope_ns_per_s * (t_s - self.at_s)


def fit_line(
    bounds: Bounds,
    at_s: Float64 | None = None,
    slopes: tuple[float, float] = (-MAX_RATE_NS_PER_S, MAX_RATE_NS_PER_S),
) -> Line | None:
    """Fit the line of largest margin with a slope between ``slopes``; None where a side has no bound."""
    if not len(bounds.upper_s) or not len(bounds.lower_s):
        return None
    at_s = np.empty(0) if at_s is None else np.ascontiguousarray(at_s, np.float64)
    low, high = np.empty(len(at_s)), np.empty(len(at_s))
    upper_s, upper_ns, lower_s, lower_ns = (
        np.ascontiguousarray(column) for column in (bounds.upper_s, bounds.upper_ns, bounds.lower_s, bounds.lower_ns)
    )
    at, value, slope, margin, slope_low, slope_high = _native.fit_line(
        upper_s, upper_ns, lower_s, lower_ns, at_s, low, high, slopes[0], slopes[1]
    )
    return Line(at, value, slope, margin, (slope_low, slope_high), low, high)

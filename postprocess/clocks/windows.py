"""A piece of a clock's curve from lines in windows, and how long the windows may be.

Short windows follow a bend, long ones are less noisy. Windows of 1, 1/2, 1/4 ... of the piece are fitted, and the
longest are taken that agree with all shorter ones within the noise of those (Lepski's rule).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from xprof_py.postprocess.clocks.bounds import Bounds, Float64
from xprof_py.postprocess.clocks.margin import MAX_RATE_NS_PER_S, Line, fit_line

FEWEST = 24
"""Bounds a side, or points, that a window of its own needs."""
SHORTEST_S = 5.0
"""Shorter windows follow the noise of the network rather than the temperature of a quartz."""
AGREE = 2.0
"""Standard deviations, as a root mean square, within which longer windows must agree with shorter ones."""
NEIGHBOURS = 4
LEAST_NOISE_NS = 50.0
ALONE = 7
"""Knots between the ends of a piece that is one line."""
EVERY_SLOPE = (-MAX_RATE_NS_PER_S, MAX_RATE_NS_PER_S)
CLIP = 4.0


@dataclass(frozen=True)
class Fitted:
    """A line in a window: values and certified extremes at the knots, and the standard deviation of its middle."""

    value_ns: Float64
    low_ns: Float64
    high_ns: Float64
    noise_ns: float


Fit = Callable[[float, float, Float64, bool], Fitted | None]
"""(begin, end, knots, whether the window is the whole piece) -> the line; None with too few bounds."""


@dataclass(frozen=True)
class Level:
    """Lines in ``count`` equal windows, joined at their knots."""

    count: int
    knot_s: Float64
    value_ns: Float64
    low_ns: Float64
    high_ns: Float64
    noise_ns: Float64

    @property
    def fits(self) -> bool:
        """Whether lines keep all bounds of their windows."""
        return not np.isnan(self.low_ns).any()


def best_level(fit: Fit, begin_s: float, end_s: float, count: int | None) -> Level | None:
    """The level with ``count`` windows, or fewer where one would be empty; without, the one that the rule chooses."""
    levels: list[Level] = []
    many = 1
    while many == 1 or (end_s - begin_s) / many >= SHORTEST_S:
        if count is None or many == count or many == 1:
            level = _level(fit, begin_s, end_s, many)
            if level is None:
                break
            levels.append(level)
        if many == count:
            break
        many *= 2
    if not levels:
        return None
    if count is not None:
        return levels[-1]
    settled = (level for place, level in enumerate(levels) if level.fits and _agrees(level, levels[place + 1 :]))
    return next(settled, levels[-1])


def _agrees(level: Level, shorter: list[Level]) -> bool:
    for other in shorter:
        distance = polyline(other.knot_s, level.knot_s, level.value_ns) - other.value_ns
        if other.fits and np.sqrt(np.mean((distance / other.noise_ns) ** 2)) > AGREE:
            return False
    return True


def _level(fit: Fit, begin_s: float, end_s: float, count: int) -> Level | None:
    edges = np.linspace(begin_s, end_s, count + 1)
    columns: list[list[Float64]] = [[], [], [], [], []]
    for index in range(count):
        low, high = float(edges[index]), float(edges[index + 1])
        # Several windows are joined at their middles and go on to the outer edges; a lone one has knots all along,
        # because its interval is narrower in the middle.
        inner = np.linspace(low, high, ALONE + 2)[1:-1] if count == 1 else np.array([(low + high) / 2])
        outer = ([low] if index == 0 else [], [high] if index == count - 1 else [])
        times = np.concatenate((outer[0], inner, outer[1]))
        reach = (-np.inf if index == 0 else low, np.inf if index == count - 1 else high)
        found = fit(*reach, times, count == 1)
        if found is None:
            return None
        noise = np.full(len(times), max(found.noise_ns, LEAST_NOISE_NS))
        for column, values in zip(columns, (times, found.value_ns, found.low_ns, found.high_ns, noise), strict=True):
            column.append(values)
    return Level(count, *(np.concatenate(column) for column in columns))


def between_bounds(bounds: Bounds, slope: float | None, slopes: tuple[float, float]) -> Fit:
    """Lines of largest margin. ``slope``, ``slopes``: what a lone window's slope is, and what it can be."""

    def fit(begin_s: float, end_s: float, knots: Float64, alone: bool) -> Fitted | None:
        part = bounds.window(begin_s, end_s)
        if not alone and min(len(part.upper_s), len(part.lower_s)) < FEWEST:
            return None
        widest = fit_line(part, knots, slopes if alone else EVERY_SLOPE)
        line = widest if slope is None or not alone else fit_line(part, slopes=(slope, slope))
        if widest is None or line is None:
            return None
        return Fitted(line(knots), widest.low_ns, widest.high_ns, _margin_noise(part, line))

    return fit


def _margin_noise(bounds: Bounds, line: Line) -> float:
    """From how close the nearest bounds lie to one another.

    Of n delays with an exponential tail the smallest is about as far from the least possible delay as from the next.
    """
    parts = []
    for distance in (bounds.upper_ns - line(bounds.upper_s), line(bounds.lower_s) - bounds.lower_ns):
        count = min(NEIGHBOURS + 1, len(distance))
        nearest = np.partition(distance, count - 1)[:count]
        parts.append(float(nearest.max() - nearest.min()) / max(count - 1, 1))
    return float(np.hypot(*parts))


def through_points(t_s: Float64, y_ns: Float64) -> Fit:
    """Least squares without the points beyond four times the scatter. Nothing is certain about such a line."""

    def fit(begin_s: float, end_s: float, knots: Float64, alone: bool) -> Fitted | None:
        low, high = np.searchsorted(t_s, (begin_s, end_s))
        t, y = t_s[low:high], y_ns[low:high]
        if len(t) < (2 if alone else FEWEST):
            return None
        keep = np.abs(y - np.median(y)) >= 0
        for _ in range(3):
            middle = t[keep].mean()
            spread = float(((t[keep] - middle) ** 2).sum())
            slope = float(((t[keep] - middle) * (y[keep] - y[keep].mean())).sum()) / spread if spread else 0.0
            level = float(np.median(y[keep] - slope * (t[keep] - middle)))
            distance = np.abs(y - level - slope * (t - middle))
            scatter = 1.4826 * float(np.median(distance[keep]))
            keep = distance <= max(CLIP * scatter, LEAST_NOISE_NS)
        level = float((y[keep] - slope * (t[keep] - middle)).mean())
        edge = np.full(len(knots), np.inf)
        value = level + slope * (knots - middle)
        return Fitted(value, -edge, edge, scatter / float(np.sqrt(keep.sum())))

    return fit


def polyline(t_s: Float64, knot_s: Float64, value_ns: Float64) -> Float64:
    """Straight between knots, and on from the outer two."""
    if len(knot_s) == 1:
        return np.full(len(t_s), value_ns[0])
    place = np.clip(np.searchsorted(knot_s, t_s, side="right") - 1, 0, len(knot_s) - 2)
    slope = np.diff(value_ns) / np.diff(knot_s)
    return value_ns[place] + slope[place] * (t_s - knot_s[place])

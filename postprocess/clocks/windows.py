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
AGREE = 1.5
"""Standard deviations, as a root mean square, within which longer windows must agree with shorter ones."""
EDGE = 2.0
"""How much noisier a line is at the end of its window than in the middle."""
NEIGHBOURS = 4
LEAST_NOISE_NS = 50.0
ALONE = 7
"""Knots between the ends of a piece that is one line."""
EVERY_SLOPE = (-MAX_RATE_NS_PER_S, MAX_RATE_NS_PER_S)


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


LevelOf = Callable[[float, float, int], Level | None]
"""(begin, end of the piece, number of windows) -> lines in them; None where one has too few bounds or points."""


def best_level(level_of: LevelOf, begin_s: float, end_s: float, count: int | None) -> Level | None:
    """The level with ``count`` windows, or one line where those would be empty; without, what the rule chooses."""
    if count is not None:
        return level_of(begin_s, end_s, count) or level_of(begin_s, end_s, 1)
    levels: list[Level] = []
    many = 1
    while many == 1 or (end_s - begin_s) / many >= SHORTEST_S:
        level = level_of(begin_s, end_s, many)
        if level is None:
            break
        levels.append(level)
        many *= 2
    settled = (level for place, level in enumerate(levels) if level.fits and _agrees(level, levels[place + 1 :]))
    return next(settled, levels[-1] if levels else None)


def _agrees(level: Level, shorter: list[Level]) -> bool:
    for other in shorter:
        distance = polyline(other.knot_s, level.knot_s, level.value_ns) - other.value_ns
        if other.fits and np.sqrt(np.mean((distance / other.noise_ns) ** 2)) > AGREE:
            return False
    return True


def between_bounds(bounds: Bounds, slope: float | None, slopes: tuple[float, float]) -> LevelOf:
    """Lines of largest margin. ``slope``, ``slopes``: what a lone window's slope is, and what it can be."""

    def level_of(begin_s: float, end_s: float, count: int) -> Level | None:
        edges = np.linspace(begin_s, end_s, count + 1)
        edges[0], edges[-1] = -np.inf, np.inf
        columns: list[list[Float64]] = [[], [], [], [], []]
        for index, times in enumerate(knots_of(begin_s, end_s, count)):
            part = bounds.window(float(edges[index]), float(edges[index + 1]))
            if count > 1 and min(len(part.upper_s), len(part.lower_s)) < FEWEST:
                return None
            widest = fit_line(part, times, slopes if count == 1 else EVERY_SLOPE)
            line = widest if slope is None or count > 1 else fit_line(part, slopes=(slope, slope))
            if widest is None or line is None:
                return None
            noise = np.full(len(times), max(_margin_noise(part, line), LEAST_NOISE_NS))
            if count > 1:
                noise[(times == begin_s) | (times == end_s)] *= EDGE
            for column, values in zip(columns, (times, line(times), widest.low_ns, widest.high_ns, noise), strict=True):
                column.append(values)
        return Level(count, *(np.concatenate(column) for column in columns))

    return level_of


def knots_of(begin_s: float, end_s: float, count: int) -> list[Float64]:
    """Per window: its middle, and the outer edges of the piece. A lone window has knots all along, because its interval
    is narrower in the middle."""
    if count == 1:
        return [np.linspace(begin_s, end_s, ALONE + 2)]
    edges = np.linspace(begin_s, end_s, count + 1)
    knots = [np.array([middle]) for middle in ((edges[:-1] + edges[1:]) / 2).tolist()]
    knots[0] = np.append(begin_s, knots[0])
    knots[-1] = np.append(knots[-1], end_s)
    return knots


def _margin_noise(bounds: Bounds, line: Line) -> float:
    """From how close the nearest bounds lie to one another.

    Of n delays with an exponential tail the smallest is about as far from the least possible delay as from the next.
    """
    parts = []
    for distance in (bounds.upper_ns - line(bounds.upper_s), line(bounds.lower_s) - bounds.lower_ns):
        count = min(NEIGHBOURS + 1, len(distance))
        nearest = np.partition(distance, count - 1)[:count]
        parts.append(float(nearest.max() - nearest.min()) / max(count - 1, 1))
    return float(np.hypot(parts[0], parts[1]))


def polyline(t_s: Float64, knot_s: Float64, value_ns: Float64) -> Float64:
    """Straight between knots, and on from the outer two. ``value_ns`` may have rows: ... x knots gives ... x times."""
    if len(knot_s) == 1:
        return np.repeat(value_ns, len(t_s), axis=-1)
    if value_ns.ndim == 1 and np.isfinite(value_ns).all():
        out = np.interp(t_s, knot_s, value_ns)
        for beyond, edge, other in ((t_s < knot_s[0], 0, 1), (t_s > knot_s[-1], -1, -2)):
            if beyond.any():
                slope = (value_ns[edge] - value_ns[other]) / (knot_s[edge] - knot_s[other])
                out[beyond] = value_ns[edge] + slope * (t_s[beyond] - knot_s[edge])
        return out
    place = np.clip(np.searchsorted(knot_s, t_s, side="right") - 1, 0, len(knot_s) - 2)
    before, behind = value_ns[..., place], value_ns[..., place + 1]
    infinite = np.where(np.isfinite(before), behind, before)
    finite = np.isfinite(infinite)
    rise = np.where(finite, behind, 0.0) - np.where(finite, before, 0.0)
    return np.where(finite, before, infinite) + rise / np.diff(knot_s)[place] * (t_s - knot_s[place])

"""Curves through points: the clocks' ends of collectives against the median end, all clocks at once.

As in windows.py lines are fitted in 1, 2, 4 ... windows and the longest are taken that agree with all shorter ones.
Sums over the shortest windows are enough for all longer ones. Nothing is certain about such lines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xprof_py.postprocess.clocks.bounds import Float64, Int64
from xprof_py.postprocess.clocks.windows import AGREE, FEWEST, LEAST_NOISE_NS, SHORTEST_S, Level, knots_of, polyline

CLIP = 4.0
"""Points further than four times the scatter from their line do not count."""
CLIPS = 3
USUAL_RATE_NS_PER_S = 50_000.0
"""Clocks differ by some 50 ppm: what few points, close together, say of a rate beyond that is their scatter."""
LEAST_SCATTER_NS = 1000.0
"""Many traces hold whole microseconds: points that agree better do so by chance."""
TOGETHER = 64
"""Clocks that are fitted in one go: their columns stay in the cache."""


@dataclass(frozen=True)
class _Lines:
    """Lines of some clocks in ``count`` equal windows: clocks x windows."""

    count: int
    middle_s: Float64
    level_ns: Float64
    slope: Float64
    many: Float64

    def at(self, begin_s: float, end_s: float) -> tuple[Float64, Float64, Int64]:
        """Knots, the values there (clocks x knots), and the window of each knot."""
        knots = knots_of(begin_s, end_s, self.count)
        of = np.repeat(np.arange(self.count), [len(times) for times in knots])
        knot_s = np.concatenate(knots)
        return knot_s, self.level_ns[:, of] + self.slope[:, of] * (knot_s - self.middle_s[:, of]), of


def lines_through(
    t_s: Float64,
    y_ns: Float64,
    present: npt.NDArray[np.bool_],
    column_s: Float64,
    *,
    begin_s: float,
    end_s: float,
    counts: Int64 | None = None,
) -> list[Level | None]:
    """Least squares per clock without the points beyond four times the scatter; None for a clock of one point.

    ``t_s``, ``y_ns``, ``present``: clocks x collectives. ``column_s``: when each collective was, rising: windows are
    cut by it, for all clocks alike. ``counts``: windows per clock (powers of two); without, what the rule chooses.
    """
    finest = 1
    while (end_s - begin_s) / (2 * finest) >= SHORTEST_S and _fewest(column_s, begin_s, end_s, 2 * finest) >= FEWEST:
        finest *= 2
    starts = _starts(column_s, begin_s, end_s, finest)
    points = np.add.reduceat(present, starts, axis=1, dtype=np.int64) if len(column_s) else np.zeros((len(t_s), 1))
    of_clock = np.ones(len(t_s), np.int64)
    while points.shape[1] > 1:
        of_clock = np.maximum(of_clock, np.where(points.min(axis=1) >= FEWEST, points.shape[1], 1))
        points = points[:, ::2] + points[:, 1::2]
    if counts is not None:
        of_clock = np.minimum(of_clock, np.maximum(counts, 1))
    out: list[Level | None] = [None] * len(t_s)
    for count in np.unique(of_clock).tolist():
        rows = np.flatnonzero((of_clock == count) & (points[:, 0] >= 2))
        starts = _starts(column_s, begin_s, end_s, count)
        for first in range(0, len(rows), TOGETHER):
            some = rows[first : first + TOGETHER]
            levels = _levels(t_s[some], y_ns[some], present[some], starts, begin_s, end_s, counts is None)
            for row, level in zip(some.tolist(), levels, strict=True):
                out[row] = level
    return out


def _starts(column_s: Float64, begin_s: float, end_s: float, count: int) -> Int64:
    return np.concatenate(([0], np.searchsorted(column_s, np.linspace(begin_s, end_s, count + 1)[1:-1])))


def _fewest(column_s: Float64, begin_s: float, end_s: float, count: int) -> int:
    return int(np.diff(np.append(_starts(column_s, begin_s, end_s, count), len(column_s))).min())


def _levels(
    t_s: Float64,
    y_ns: Float64,
    present: npt.NDArray[np.bool_],
    starts: Int64,
    begin_s: float,
    end_s: float,
    choose: bool,
) -> list[Level]:
    """Of clocks that all have points enough in every window that begins at ``starts``."""
    lengths = np.diff(np.append(starts, t_s.shape[1]))
    here = present.astype(np.float64)
    around_s, around_ns = (begin_s + end_s) / 2, np.median(np.where(present, y_ns, 0.0), axis=1)[:, None]
    t, y = t_s - around_s, y_ns - around_ns
    weight = here
    scatter = 1.4826 * _median_of_present(np.abs(y), present)
    for _ in range(CLIPS):
        sums = _sums(t, y, weight, starts)
        lines = _lines(sums, scatter)
        distance = np.repeat(lines.level_ns - lines.slope * lines.middle_s, lengths, axis=1)
        distance = np.abs(y - distance - np.repeat(lines.slope, lengths, axis=1) * t)
        scatter = 1.4826 * _median_of_present(distance, present)
        near = here * (distance <= np.maximum(CLIP * scatter, LEAST_NOISE_NS)[:, None])
        enough = np.add.reduceat(near, starts, axis=1) >= 2
        weight = near if enough.all() else np.where(np.repeat(enough, lengths, axis=1), near, here)
    sums = _sums(t, y, weight, starts)
    every = [_lines(sums, scatter)]
    while choose and every[-1].count > 1:
        sums = tuple(part[:, ::2] + part[:, 1::2] for part in sums)
        every.append(_lines(sums, scatter))
    every.reverse()
    half = (end_s - begin_s) / 2
    at = [lines.at(-half, half) for lines in every]
    noise = [np.maximum(scatter[:, None] / np.sqrt(lines.many), LEAST_NOISE_NS) for lines in every]
    agree = np.ones((len(every), len(t)), np.bool_)
    for place, (knot_s, values, _) in enumerate(at):
        for shorter in range(place + 1, len(every)):
            other_s, others, of = at[shorter]
            apart = (polyline(other_s, knot_s, values) - others) / noise[shorter][:, of]
            agree[place] &= np.sqrt(np.mean(apart * apart, axis=1)) <= AGREE
    out = []
    for row, place in enumerate(agree.argmax(axis=0).tolist()):
        knot_s, values, of = at[place]
        value = values[row] + around_ns[row]
        everywhere = np.full(len(value), np.inf)
        out.append(Level(every[place].count, knot_s + around_s, value, -everywhere, everywhere, noise[place][row][of]))
    return out


def _sums(t: Float64, y: Float64, weight: Float64, starts: Int64) -> tuple[Float64, ...]:
    wt, wy = weight * t, weight * y
    return tuple(np.add.reduceat(part, starts, axis=1) for part in (weight, wt, wy, wt * t, wt * y))


def _lines(sums: tuple[Float64, ...], scatter: Float64) -> _Lines:
    """Least squares. The slope of a lone window is that of ridge regression (Hoerl and Kennard 1970): rates of
    USUAL_RATE_NS_PER_S are as likely as points that are ``scatter`` off."""
    many, wt, wy, wtt, wty = sums
    middle, level = wt / many, wy / many
    spread = wtt - wt * middle
    if many.shape[1] == 1:
        spread += (np.maximum(scatter, LEAST_SCATTER_NS)[:, None] / USUAL_RATE_NS_PER_S) ** 2
    slope = (wty - wt * level) / np.where(spread > 0, spread, np.inf)
    return _Lines(many.shape[1], middle, level, slope, many)


def _median_of_present(values: Float64, present: npt.NDArray[np.bool_]) -> Float64:
    if present.all():
        return np.median(values, axis=1)
    return np.array([np.median(row[here]) for row, here in zip(values, present, strict=True)])

"""How one clock runs against its reference: pieces of straight lines, each with a certified interval.

A clock is a line over a short while only: temperature bends it by some tenths of a ppm, and setting it makes a jump.

* **Jumps.** Where no line fits the bounds, the earliest bounds that contradict one another are found, and the clock is
  cut there; each side is fitted by itself.
* **Bends.** Within a piece, lines are fitted in windows that are as long as the bend allows (windows.py).

What is certified: over one window the clock is a line. Then every line that keeps all bounds is possible, and no other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from xprof_py.postprocess.clocks.bounds import Bounds, Float64
from xprof_py.postprocess.clocks.margin import fit_line
from xprof_py.postprocess.clocks.windows import (
    EVERY_SLOPE,
    Level,
    LevelOf,
    best_level,
    between_bounds,
    polyline,
)

GOLDEN = (5**0.5 - 1) / 2
SECOND_CHOICE_NS = 1e9
PARTS = 8
"""Stretches of a piece whose intervals are certified by themselves."""


@dataclass(frozen=True)
class Piece:
    """One stretch without a jump: knots with the value and the certified interval around it, straight in between.

    Beyond the outer knots the clock is extrapolated, and so is the interval.
    """

    begin_s: float
    end_s: float
    knot_s: Float64
    value_ns: Float64
    low_ns: Float64
    high_ns: Float64
    windows: int
    noise_ns: float


@dataclass(frozen=True)
class Jump:
    """The clock was set: some time in [begin_s, end_s], believed at ``at_s``."""

    at_s: float
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Curve:
    """theta over time: ``base_ns`` + the value of the piece that holds the time (seconds since ``origin_ns``)."""

    origin_ns: int
    base_ns: int
    pieces: tuple[Piece, ...]
    jumps: tuple[Jump, ...] = ()

    def values(self, t_s: Float64) -> Float64:
        """ns beyond ``base_ns`` at times in seconds."""
        return self._read(t_s, "value_ns")

    def extremes(self, t_s: Float64) -> tuple[Float64, Float64]:
        """Lowest and highest certified value at times in seconds, ns beyond ``base_ns``.

        While a jump may already have come, or may yet come, the interval holds both sides.
        """
        low, high = self._read(t_s, "low_ns"), self._read(t_s, "high_ns")
        for jump in self.jumps:
            inside = (t_s >= jump.begin_s) & (t_s <= jump.end_s)
            height = float(np.diff(self._read(np.array([np.nextafter(jump.at_s, -np.inf), jump.at_s]), "value_ns"))[0])
            early = inside & (t_s < jump.at_s)
            for part, step in ((early, height), (inside & ~early, -height)):
                low[part] += min(step, 0.0)
                high[part] += max(step, 0.0)
        return low, high

    def errors(self, t_s: Float64) -> Float64:
        """Half-width in ns at times in seconds: how far the truth can be from ``values``."""
        value = self.values(t_s)
        low, high = self.extremes(t_s)
        return np.maximum(high - value, value - low)

    def _read(self, t_s: Float64, column: str) -> Float64:
        if len(self.pieces) == 1:
            return polyline(t_s, self.pieces[0].knot_s, getattr(self.pieces[0], column))
        out = np.zeros(len(t_s))
        which = np.searchsorted([piece.end_s for piece in self.pieces[:-1]], t_s, side="right")
        for index, piece in enumerate(self.pieces):
            mine = which == index
            out[mine] = polyline(t_s[mine], piece.knot_s, getattr(piece, column))
        return out


def fit_curve(
    bounds: Bounds, *, begin_s: float, end_s: float, jumps: Sequence[Jump] | None = None, windows: int | None = None
) -> Curve | None:
    """Fit the clock to bounds over [begin_s, end_s]; None where a side has no bound at all.

    ``jumps``: where the clock was set, if that is known; without, they are looked for. ``windows``: how many a piece
    has; without, as many as its bends need.
    """
    jumps = find_jumps(bounds) if jumps is None else jumps
    cuts = [begin_s, *(jump.at_s for jump in jumps), end_s]
    parts = [bounds.window(*reach) for reach in _reaches(cuts)]
    slope, slopes = _shared_slope(parts) if jumps else (None, EVERY_SLOPE)
    fits = [between_bounds(part, slope, slopes) for part in parts]
    return _curve(bounds.origin_ns, bounds.base_ns, fits, cuts, jumps, windows)


def _curve(
    origin_ns: int, base_ns: int, fits: Sequence[LevelOf], cuts: list[float], jumps: Sequence[Jump], windows: int | None
) -> Curve | None:
    levels = [
        best_level(fit, low, high, windows) for fit, (low, high) in zip(fits, itertools.pairwise(cuts), strict=True)
    ]
    return curve_of(origin_ns, base_ns, levels, cuts, jumps)


def curve_of(
    origin_ns: int, base_ns: int, levels: Sequence[Level | None], cuts: Sequence[float], jumps: Sequence[Jump]
) -> Curve | None:
    """The curve of a level per stretch from cut to cut; None where a stretch has none."""
    pieces = []
    for level, (low, high) in zip(levels, itertools.pairwise(cuts), strict=True):
        if level is None:
            return None
        # Where no line keeps the bounds nothing is certain.
        lowest = np.where(np.isnan(level.low_ns), -np.inf, level.low_ns)
        highest = np.where(np.isnan(level.high_ns), np.inf, level.high_ns)
        noise = float(level.noise_ns.max())
        pieces.append(Piece(low, high, level.knot_s, level.value_ns, lowest, highest, level.count, noise))
    return Curve(origin_ns, base_ns, tuple(pieces), tuple(jumps))


def _reaches(cuts: list[float]) -> list[tuple[float, float]]:
    """From cut to cut; what lies before the first and after the last belongs to the outer pieces."""
    edges = [-np.inf, *cuts[1:-1], np.inf]
    return [
        (low if low == -np.inf else float(np.nextafter(low, np.inf)), high) for low, high in itertools.pairwise(edges)
    ]


def _shared_slope(parts: Sequence[Bounds]) -> tuple[float | None, tuple[float, float]]:
    """Slope of the largest smallest margin over all parts, and the slopes possible for all: a clock that is set runs on
    at its rate. (None, every slope) where no slope keeps all bounds."""
    lines = [line for part in parts if (line := fit_line(part)) is not None]
    low = max((line.slopes[0] for line in lines), default=np.inf)
    high = min((line.slopes[1] for line in lines), default=-np.inf)
    if not lines or low > high or any(line.margin_ns < 0 for line in lines):
        return None, EVERY_SLOPE

    def smallest(slope: float) -> float:
        found = (fit_line(part, slopes=(slope, slope)) for part in parts)
        return min(line.margin_ns for line in found if line is not None)

    # Concave in the slope: golden section.
    begin, end = low, high
    for _ in range(40):
        third = (end - begin) * GOLDEN
        left, right = end - third, begin + third
        begin, end = (begin, right) if smallest(left) >= smallest(right) else (left, end)
    return (begin + end) / 2, (low, high)


def keeps_all(curve: Curve) -> bool:
    """Whether its pieces keep all the bounds that they were fitted to."""
    return all(np.isfinite(piece.low_ns).all() for piece in curve.pieces)


def bounded(curve: Curve, bounds: Bounds) -> Curve | None:
    """The curve with the certified interval that other bounds give; None where a stretch has none on a side.

    Certified is: over an eighth of a piece (over its window, if that is longer) the clock is a straight line. Where the
    curve itself is none it can be what bends, so bounds give way by that much.
    """
    upper = bounds.upper_ns - curve.values(bounds.upper_s)
    lower = bounds.lower_ns - curve.values(bounds.lower_s)
    apart = replace(bounds, upper_ns=upper, lower_ns=lower)
    pieces = []
    cuts = [curve.pieces[0].begin_s, *(piece.end_s for piece in curve.pieces)]
    for piece, reach in zip(curve.pieces, _reaches(cuts), strict=True):
        part = apart.window(*reach)
        count = min(piece.windows, PARTS)
        while True:
            bend_ns = _bend_ns(piece, count)
            level = _within(part, piece, bend_ns, count)
            if level is None:
                return None
            if level.count < count:
                bend_ns = _bend_ns(piece, level.count)
                level = _within(part, piece, bend_ns, level.count) or level
            if level.fits or level.count < count or count >= 4 * PARTS:
                break
            count *= 2
        if not level.fits:
            return None
        # A clock whose curve the others' bounds contradict is as uncertain as they say.
        low = np.minimum(polyline(piece.knot_s, level.knot_s, level.low_ns) - bend_ns, 0.0)
        high = np.maximum(polyline(piece.knot_s, level.knot_s, level.high_ns) + bend_ns, 0.0)
        pieces.append(replace(piece, low_ns=piece.value_ns + low, high_ns=piece.value_ns + high))
    return replace(curve, pieces=tuple(pieces))


def _within(part: Bounds, piece: Piece, bend_ns: float, count: int) -> Level | None:
    """Lines that keep bounds which give way by ``bend_ns``."""
    wider = replace(part, upper_ns=part.upper_ns + bend_ns, lower_ns=part.lower_ns - bend_ns)
    return best_level(between_bounds(wider, None, EVERY_SLOPE), piece.begin_s, piece.end_s, count)


def _bend_ns(piece: Piece, count: int) -> float:
    """How far the curve leaves a straight line within one of ``count`` windows: from the chord, half of the most."""
    edges = np.linspace(piece.begin_s, piece.end_s, count + 1)
    at = np.unique(np.concatenate((edges, piece.knot_s)))
    value, ends = polyline(at, piece.knot_s, piece.value_ns), polyline(edges, piece.knot_s, piece.value_ns)
    off = value - np.interp(at, edges, ends)
    window = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, count - 1)
    highest, lowest = np.zeros(count), np.zeros(count)
    np.maximum.at(highest, window, off)
    np.minimum.at(lowest, window, off)
    return float((highest - lowest).max()) / 2


def find_jumps(bounds: Bounds) -> list[Jump]:
    """When the clock was set: where one line can go no further, and one from behind can reach no further back."""
    if _keeps(bounds):
        return []
    first, last = bounds.span_s
    times = np.unique(np.concatenate((bounds.upper_s, bounds.lower_s)))

    # The longest beginning that one line fits ends behind the jump; the longest such end begins before it.
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _keeps(bounds.window(first, times[middle])) else (low, middle - 1)
    latest = low
    if latest == len(times) - 1:
        return []
    low, high = 0, latest + 1
    while low < high:
        middle = (low + high) // 2
        kept = _keeps(bounds.window(times[middle], times[latest + 1]))
        low, high = (low, middle) if kept else (middle + 1, high)
    earliest = low
    at = _best_cut(bounds, times, earliest, latest)
    rest = bounds.window(np.nextafter(at, np.inf), last)
    jump = Jump(at, float(times[max(earliest - 1, 0)]), float(times[latest + 1]))
    return [jump, *find_jumps(rest)]


def _best_cut(bounds: Bounds, times: Float64, earliest: int, latest: int) -> float:
    """Between the two: the time that leaves both sides the largest smaller margin."""
    candidates = times[max(earliest - 1, 0) : latest + 1]
    candidates = candidates[np.linspace(0, len(candidates) - 1, min(len(candidates), 64)).astype(np.int64)]
    first, last = bounds.span_s
    best, best_margin = float(times[latest]), -np.inf
    for at in np.unique(candidates).tolist():
        parts = [bounds.window(first, at), bounds.window(np.nextafter(at, np.inf), last)]
        slope, _ = _shared_slope(parts)
        slopes = EVERY_SLOPE if slope is None else (slope, slope)
        margins = [line.margin_ns for part in parts if (line := fit_line(part, slopes=slopes)) is not None]
        # A slope for both beats two slopes of their own.
        margin = min(margins, default=np.inf) - (0 if slope is not None else SECOND_CHOICE_NS)
        if margin > best_margin:
            best, best_margin = at, margin
    return best


def _keeps(bounds: Bounds) -> bool:
    """Whether one line keeps all bounds."""
    line = fit_line(bounds)
    return line is None or line.margin_ns >= 0

"""Clocks from collectives alone: every host against the crowd of the others.

No participant of a collective ends before the last has started. So at every collective a host's clock is bounded by the
crowd: its end is not before the latest start of the others, its start not after their earliest end. The crowd's times
need the clocks that are sought; they are found in turns, from a first guess: all wait for the last, so collectives end
at about the same time everywhere, while starts differ by whatever the hosts did before.

* Where ends scatter by less than a fifth of what the shortest collectives last, they are as good as simultaneous: a clock is fitted to its
  ends against the median of all ends.
* Else ends are late by what woke the hosts up, and only bounds can be trusted. The turns end where each host lies half
  way between its bounds. That is not biased by late hosts, but by what makes one host's collectives shorter than
  another's: nothing in the stamps tells such a difference from an offset. The part of it that shows in how long
  collectives last on a host is taken out first.

The certified interval holds what is left. It is carried from the reference outwards, host by host, each bounded by those
that are bounded already: shortest paths in the graph of difference constraints (Bellman-Ford).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from xprof_py.postprocess.clocks.bounds import Bounds, Float64, Int64
from xprof_py.postprocess.clocks.curve import Curve, Jump, bounded, fit_curve, fit_points, keeps_all
from xprof_py.postprocess.clocks.windows import LEAST_NOISE_NS

TURNS = 40
SETTLED_NS = 100.0
"""Turns end when no clock moves further than this."""
SHORTEST_OF = 5
"""Collectives of least duration whose mean tells how late a clock's ends come."""
JUMP_WINDOW = 20
"""Collectives on either side that must agree on a jump of a clock."""
JUMP_NOISES = 3.0
"""A jump is higher than three times the scatter of single ends around it."""
MOST_JUMPS = 8
SIMULTANEOUS = 0.2
"""Of the shortest duration: what ends on a host differ by for reasons of its own stays within their scatter."""
LEAST_DURATIONS = 0.05
"""The share of collectives that may last less than what counts as the shortest: a median end can come early."""
ROUNDS = 8
"""How many clocks away from the reference a bound is carried at most."""


@dataclass(frozen=True)
class Meetings:
    """Collectives that all wait for all, as each clock stamped them.

    ``start_ns`` and ``end_ns``: int64, clocks x collectives: the last start and the first end of the processes on that
    clock. ``present``: whether the clock took part. Collectives are in order of time.
    """

    start_ns: Int64
    end_ns: Int64
    present: npt.NDArray[np.bool_]


def solve_crowd(meetings: Meetings, reference: int) -> list[Curve | None]:
    """theta of every clock against clock number ``reference``: None for clocks that no collectives tie to it."""
    base = _guess(meetings, reference)
    tied = np.array([value is not None for value in base])
    out: list[Curve | None] = [None] * len(base)
    if tied.sum() < 2:
        return out
    crowd = _Crowd(meetings, np.flatnonzero(tied), [value for value in base if value is not None], reference)
    crowd.settle(crowd.by_ends, windows=1)
    if crowd.ends_are_simultaneous():
        crowd.cut_at_jumps(crowd.by_ends)
        crowd.settle(crowd.by_ends, windows=None)
    else:
        crowd.settle(crowd.by_bounds, windows=1)
        crowd.cut_at_jumps(crowd.by_bounds)
        crowd.settle(crowd.by_bounds, windows=None)
    found = crowd.certified()
    for place, clock in enumerate(np.flatnonzero(tied).tolist()):
        out[clock] = found[place]
    return out


def _guess(meetings: Meetings, reference: int) -> list[int | None]:
    """Median difference of the ends to the reference's, carried on through shared collectives."""
    base: list[int | None] = [None] * len(meetings.present)
    base[reference] = 0
    waiting = [reference]
    while waiting:
        known = waiting.pop(0)
        unknown = [clock for clock, value in enumerate(base) if value is None]
        for clock in unknown:
            both = meetings.present[clock] & meetings.present[known]
            if both.any():
                between = meetings.end_ns[clock, both] - meetings.end_ns[known, both]
                base[clock] = (base[known] or 0) + int(np.median(between))
                waiting.append(clock)
    return base


def _two_largest(values: Float64) -> tuple[Float64, Float64, Int64]:
    """Per column the largest, the second largest, and the row of the largest. ``values`` is used up."""
    who = values.argmax(axis=0)
    columns = np.arange(values.shape[1])
    largest = values[who, columns]
    values[who, columns] = -np.inf
    return largest, values.max(axis=0), who


class _Crowd:
    """The state of the turns. Times are seconds since ``origin_ns`` and values ns, both without the first guess.

    ``at_start`` and ``at_end`` are theta of every clock at its start and its end of every collective.
    """

    def __init__(self, meetings: Meetings, clocks: Int64, base: list[int], reference: int) -> None:
        self.base = np.array(base, np.int64)
        self.reference = int(np.flatnonzero(clocks == reference)[0])
        self.many = range(len(clocks))
        present = meetings.present[clocks]
        used = present.sum(axis=0) >= 2
        self.present = present[:, used]
        start = meetings.start_ns[clocks][:, used] - self.base[:, None]
        end = meetings.end_ns[clocks][:, used] - self.base[:, None]
        self.origin_ns = int(start[self.present].min())
        self.start_ns = np.where(self.present, start - self.origin_ns, 0).astype(np.float64)
        self.end_ns = np.where(self.present, end - self.origin_ns, 0).astype(np.float64)
        self.start_s, self.end_s = self.start_ns / 1e9, self.end_ns / 1e9
        self.span_s = float(self.end_s.max())
        self.mine = [np.flatnonzero(row) for row in self.present]
        # An end that comes late on one clock alone would pass for an offset: how long collectives last there tells it.
        lasting = np.array(
            [np.sort((self.end_ns - self.start_ns)[i, self.mine[i]])[:SHORTEST_OF].mean() for i in self.many]
        )
        self.late_end_ns = (lasting - lasting.min())[:, None]
        self.at_start, self.at_end = np.zeros_like(self.start_ns), np.zeros_like(self.end_ns)
        self.jumps: list[list[Jump]] = [[] for _ in clocks]
        self.curves: list[Curve | None] = [None] * len(clocks)
        self.windows: list[int | None] = [None] * len(clocks)

    # --- one turn -----------------------------------------------------------------------------------------------------

    def settle(self, fit: Callable[[int, int | None], Curve | None], windows: int | None) -> None:
        """Turns until no clock moves any more.

        ``fit``: by_ends or by_bounds. ``windows``: how many a piece has; None lets each clock choose, once.
        """
        self.windows = [windows] * len(self.many)
        for turn in range(TURNS):
            self.prepare()
            for place in self.many:
                self.curves[place] = curve = fit(place, self.windows[place])
                if curve is not None and len(curve.pieces) == 1:
                    self.windows[place] = curve.pieces[0].windows
            # Two clocks that both move the whole way change places: each goes half of it.
            if self._move(1.0 if turn == 0 and fit == self.by_ends else 0.5) < SETTLED_NS:
                break

    def prepare(self) -> None:
        """What all clocks of a turn look at: the median end, the latest start, the earliest end, the second of each."""
        ends = self.end_ns - self.late_end_ns - self.at_end
        ends[~self.present] = np.nan
        self.median_end = np.nanmedian(ends, axis=0) if len(self.many) > 2 else np.nanmin(ends, axis=0)
        ends[~self.present] = np.inf
        earliest, next_end, self.whose = _two_largest(-ends)
        self.earliest, self.next_end = -earliest, -next_end
        starts = self.start_ns - self.at_start
        starts[~self.present] = -np.inf
        self.latest, self.next_start, self.who = _two_largest(starts)

    def by_ends(self, place: int, windows: int | None) -> Curve | None:
        """A clock by its ends against the median of all ends."""
        mine = self.mine[place]
        ends = (self.end_ns[place] - self.late_end_ns[place] - self.median_end)[mine]
        return fit_points(
            self.end_s[place, mine],
            ends,
            origin_ns=self.origin_ns,
            begin_s=0.0,
            end_s=self.span_s,
            jumps=self.jumps[place],
            windows=windows,
        )

    def by_bounds(self, place: int, windows: int | None) -> Curve | None:
        """A clock half way between the bounds that the others set it."""
        bounds = self._bounds(place, self.late_end_ns[place, 0])
        return fit_curve(bounds, begin_s=0.0, end_s=self.span_s, jumps=self.jumps[place], windows=windows)

    def _bounds(self, place: int, late_ns: float) -> Bounds:
        """Of a clock against the crowd. A collective without another participant says nothing."""
        others_start = np.where(self.who == place, self.next_start, self.latest)
        others_end = np.where(self.whose == place, self.next_end, self.earliest)
        up = self.present[place] & np.isfinite(others_start)
        low = self.present[place] & np.isfinite(others_end)
        up_s, up_ns = self.end_s[place, up], (self.end_ns[place] - late_ns - others_start)[up]
        low_s, low_ns = self.start_s[place, low], (self.start_ns[place] - others_end)[low]
        return Bounds(self.origin_ns, 0, *_in_order(up_s, up_ns), *_in_order(low_s, low_ns))

    def _move(self, share: float) -> float:
        """Towards the new curves, seen from the reference; how far the furthest clock moved, in ns."""
        anchor = self.curves[self.reference]
        moved = 0.0
        for place, curve in enumerate(self.curves):
            if curve is None:
                continue
            for at, times in ((self.at_start, self.start_s), (self.at_end, self.end_s)):
                wanted = curve.values(times[place])
                if anchor is not None:
                    wanted -= anchor.values(times[place])
                step = (wanted - at[place]) * share
                moved = max(moved, float(np.abs(step[self.mine[place]]).max(initial=0.0)))
                at[place] += step
        return moved

    def ends_are_simultaneous(self) -> bool:
        """Whether ends scatter far less around their medians than the shortest collectives last."""
        self.prepare()
        between = self.end_ns - self.late_end_ns - self.at_end - self.median_end
        scatter = 1.4826 * float(np.median(np.abs(between[self.present])))
        return scatter < float(np.quantile(self.earliest - self.latest, LEAST_DURATIONS)) * SIMULTANEOUS

    # --- jumps --------------------------------------------------------------------------------------------------------

    def cut_at_jumps(self, fit: Callable[[int, int | None], Curve | None]) -> None:
        """Where lines cannot keep all bounds: cut the clock whose ends leap furthest beyond their noise, and try again.

        A clock that leaps spoils the bounds of all others, so the medians of ends decide which it was.
        """
        for _ in range(MOST_JUMPS):
            self.prepare()
            if all(keeps_all(curve) for curve in map(self.by_bounds, self.many, [1] * len(self.many)) if curve):
                return
            candidates = [found for place in self.many if (found := self._largest_leap(place)) is not None]
            if not candidates:
                return
            _, place, jump = max(candidates, key=lambda found: found[0])
            self.jumps[place] = sorted((*self.jumps[place], jump), key=lambda found: found.at_s)
            self._begin_with_medians()
            self.settle(fit, windows=1)
            for _ in range(2):
                self.jumps[place] = [self._moved(place, found) for found in self.jumps[place]]
                self.settle(fit, windows=1)

    def _largest_leap(self, place: int) -> tuple[float, int, Jump] | None:
        """(height in noises, clock, between which collectives) of the largest change of the ends' running medians."""
        mine = self.mine[place]
        ends = (self.end_ns[place] - self.at_end[place] - self.first_median)[mine]
        if len(mine) < 2 * JUMP_WINDOW or (len(self.many) == 2 and place == self.reference):
            return None
        views = np.lib.stride_tricks.sliding_window_view(ends, JUMP_WINDOW)
        medians = np.median(views, axis=1)
        noise = 1.4826 * np.median(np.abs(views - medians[:, None]), axis=1)
        height = np.abs(medians[JUMP_WINDOW:] - medians[:-JUMP_WINDOW])
        noises = height / np.maximum(np.maximum(noise[JUMP_WINDOW:], noise[:-JUMP_WINDOW]), LEAST_NOISE_NS)
        peak = int(np.argmax(noises))
        if noises[peak] < JUMP_NOISES:
            return None
        before, behind = (float(self.end_s[place, mine[peak + i]]) for i in (JUMP_WINDOW - 1, JUMP_WINDOW))
        return float(noises[peak]), place, Jump((before + behind) / 2, before, behind)

    @functools.cached_property
    def first_median(self) -> Float64:
        """Per collective the median end of its participants by the first guess: no later fit can spoil it."""
        return np.nanmedian(np.where(self.present, self.end_ns, np.nan), axis=0)

    def _begin_with_medians(self) -> None:
        for place, jumps in enumerate(self.jumps):
            mine = self.mine[place]
            ends = (self.end_ns[place] - self.first_median)[mine]
            cuts = [jump.at_s for jump in jumps]
            side = np.searchsorted(cuts, self.end_s[place, mine])
            heights = np.array([np.median(ends[side == i]) if (side == i).any() else 0.0 for i in range(len(cuts) + 1)])
            for at, times in ((self.at_start, self.start_s), (self.at_end, self.end_s)):
                at[place] = heights[np.searchsorted(cuts, times[place])]

    def _moved(self, place: int, jump: Jump) -> Jump:
        """The jump where its sides, carried on, explain the ends around it best: least absolute deviations."""
        curve = self.curves[place]
        if curve is None or len(curve.pieces) != len(curve.jumps) + 1:
            return jump
        which = [found.at_s for found in curve.jumps].index(jump.at_s)
        mine = self.mine[place]
        times = self.end_s[place, mine]
        sides = [replace(curve, pieces=(piece,), jumps=()).values(times) for piece in curve.pieces[which : which + 2]]
        cuts = [-np.inf, *(found.at_s for found in curve.jumps), np.inf]
        self.prepare()
        ends = (self.end_ns[place] - self.late_end_ns[place] - self.median_end)[mine]
        inside = np.flatnonzero((times > cuts[which]) & (times < cuts[which + 2]))
        better_before = (np.abs(ends - sides[1]) - np.abs(ends - sides[0]))[inside]
        last = int(np.argmax(np.cumsum(better_before)))
        if last + 1 >= len(inside):
            return jump
        low, high = (float(times[inside[i]]) for i in (last, last + 1))
        return Jump((low + high) / 2, low, high)

    # --- what is certain ----------------------------------------------------------------------------------------------

    def certified(self) -> list[Curve | None]:
        """The curves seen from the reference, each with the interval that the bounds leave it."""
        anchor = self.curves[self.reference]
        out = [self._seen_from(curve, anchor, place) for place, curve in enumerate(self.curves)]
        for place, curve in enumerate(out):
            if curve is not None:
                self.at_start[place] = curve.values(self.start_s[place])
                self.at_end[place] = curve.values(self.end_s[place])
        low, high = np.full_like(self.end_ns, -np.inf), np.full_like(self.end_ns, np.inf)
        low[self.reference] = high[self.reference] = 0.0
        for _ in range(min(len(self.many), ROUNDS)):
            # What is sure of the others: they started no earlier and ended no later than this.
            starts = self.start_ns - self.at_start - high
            starts[~self.present] = -np.inf
            self.latest, self.next_start, self.who = _two_largest(starts)
            ends = self.end_ns - self.at_end - low
            ends[~self.present] = np.inf
            earliest, next_end, self.whose = _two_largest(-ends)
            self.earliest, self.next_end = -earliest, -next_end
            tighter = False
            for place, curve in enumerate(out):
                within = None
                if curve is not None and place != self.reference:
                    within = bounded(curve, self._bounds(place, 0.0))
                if within is None:
                    continue
                out[place] = within
                lowest, highest = within.extremes(self.end_s[place])
                value = within.values(self.end_s[place])
                before = (high - low)[place].max()
                low[place] = np.maximum(low[place], lowest - value)
                high[place] = np.minimum(high[place], highest - value)
                tighter = tighter or bool((high - low)[place].max() < 0.95 * before)
            if not tighter:
                break
        return out

    def _seen_from(self, curve: Curve | None, anchor: Curve | None, place: int) -> Curve | None:
        if curve is None:
            return None
        pieces = []
        for piece in curve.pieces:
            if place == self.reference:
                value = edge = np.zeros(len(piece.knot_s))
            else:
                value = piece.value_ns - (anchor.values(piece.knot_s) if anchor is not None else 0.0)
                edge = np.full(len(value), np.inf)
            pieces.append(replace(piece, value_ns=value, low_ns=value - edge, high_ns=value + edge))
        return replace(curve, base_ns=int(self.base[place]), pieces=tuple(pieces))


def _in_order(t_s: Float64, value_ns: Float64) -> tuple[Float64, Float64]:
    if (np.diff(t_s) >= 0).all():
        return t_s, value_ns
    order = np.argsort(t_s, kind="stable")
    return t_s[order], value_ns[order]

"""Clocks from collectives alone: every host against the crowd of the others.

No participant of a collective ends before the last has started. So at every collective a host's clock is bounded by the
crowd: its end is not before the latest start of the others, its start not after their earliest end. The crowd's times
need the clocks that are sought; they are found in turns, from a first guess: all wait for the last, so collectives end
at about the same time everywhere, while starts differ by whatever the hosts did before.

* Where ends scatter by less than a fifth of what the shortest collectives last, they are as good as simultaneous: a
  clock is fitted to its ends against the median of all ends.
* Else ends are late by what woke the hosts up, and only bounds can be trusted. The turns end where each host lies half
  way between its bounds. That is not biased by late hosts, but by what makes one host's collectives shorter than
  another's: nothing in the stamps tells such a difference from an offset. The part of it that shows in how long
  collectives last on a host is taken out first.

The certified interval holds what is left. It is carried from the reference outwards, host by host, each bounded by
those that are bounded already: shortest paths in the graph of difference constraints (Bellman-Ford).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from xprof_py.postprocess.clocks.bounds import Bounds, Float64, Int64
from xprof_py.postprocess.clocks.curve import Curve, Jump, bounded, curve_of, fit_curve, keeps_all
from xprof_py.postprocess.clocks.joined_curves import apart, flat_curve
from xprof_py.postprocess.clocks.points import lines_through
from xprof_py.postprocess.clocks.windows import LEAST_NOISE_NS, polyline

TURNS = 40
SETTLED_NS = 100.0
"""Turns end when no clock moves further than this."""
FEW = 2048
"""Collectives that first turns, and turns by bounds, look at."""
PICKED = 8
"""Collectives of a stretch that are looked at where few are enough: those that bind most."""
ALL = slice(None)
SHORTEST_OF = 5
"""Collectives of least duration whose mean tells how late a clock's ends come."""
JUMP_WINDOW = 20
"""Collectives on either side that must agree on a jump of a clock."""
JUMP_NOISES = 3.0
"""A jump is higher than three times the scatter of single ends around it."""
MOST_JUMPS = 8
MOSTLY = 0.6
"""The share of collectives that clocks take part in, if lost events are all that they miss."""
MOST_GROUPS = 64
SIMULTANEOUS = 0.2
"""Of the shortest duration: what ends on a host differ by for reasons of its own stays within their scatter."""
LEAST_DURATIONS = 0.05
"""The share of collectives that may last less than what counts as the shortest: a median end can come early."""
TIGHTER = 0.9
"""Bounds are carried on while clocks become bounded, or intervals a tenth narrower."""
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
    whole = _Crowd(_together(meetings, tied, base), int(tied[:reference].sum()))
    few = whole.some(np.linspace(0, whole.meetings - 1, min(whole.meetings, FEW)).astype(np.int64))
    few.settle(few.by_ends, windows=1)
    simultaneous = few.ends_are_simultaneous()
    few.tell_late_ends(who_started_last_is_known=simultaneous)
    few.settle(few.by_ends, windows=1)
    if simultaneous and few.ends_are_simultaneous():
        few.cut_at_jumps(few.by_ends)
        whole.go_on_from(few)
        # One turn is enough after settled lines: what bends the median bends all clocks alike.
        whole.curves = whole.by_ends(None)
    else:
        whole.go_on_from(few)
        few = whole.some(whole.shortest(FEW))
        few.settle(few.by_bounds, windows=1)
        few.cut_at_jumps(few.by_bounds)
        few.settle(few.by_bounds, windows=None)
        whole.go_on_from(few)
    found = whole.certified()
    for place, clock in enumerate(np.flatnonzero(tied).tolist()):
        curve = found[place]
        # Here time was counted without the first guess.
        out[clock] = curve and replace(curve, origin_ns=curve.origin_ns + curve.base_ns)
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


@dataclass(frozen=True)
class _Stamps:
    """What _Crowd looks at: clocks x collectives in order of time, ns since ``origin_ns``, without the first guess."""

    origin_ns: int
    base_ns: Int64
    start_ns: Float64
    end_ns: Float64
    present: npt.NDArray[np.bool_]


def _together(meetings: Meetings, tied: npt.NDArray[np.bool_], base: list[int | None]) -> _Stamps:
    base_ns = np.array([value for value in base if value is not None], np.int64)
    used = meetings.present[tied].sum(axis=0) >= 2
    kept = (slice(None), slice(None)) if tied.all() and used.all() else np.ix_(tied, used)
    present = meetings.present[kept]
    start = meetings.start_ns[kept] - base_ns[:, None]
    origin_ns = int(start.min(initial=np.iinfo(np.int64).max, where=present))
    start_ns = (start - origin_ns).astype(np.float64)
    end_ns = (meetings.end_ns[kept] - (base_ns + origin_ns)[:, None]).astype(np.float64)
    if not present.all():
        start_ns[~present] = end_ns[~present] = 0.0
    order = np.argsort(_median_of_columns(end_ns, present), kind="stable")
    if (order[1:] > order[:-1]).all():
        return _Stamps(origin_ns, base_ns, start_ns, end_ns, present)
    return _Stamps(origin_ns, base_ns, start_ns[:, order], end_ns[:, order], present[:, order])


def _median_of_columns(values: Float64, present: npt.NDArray[np.bool_]) -> Float64:
    """Per column the median of those present; of two clocks the lower, so that both keep their bounds."""
    columns: Float64 = np.ascontiguousarray(np.where(present, values, np.inf).T)
    many = present.sum(axis=0)
    middle: Float64
    if len(values) <= 2:
        middle = columns.min(axis=1)
    elif (many == len(values)).all():
        middle = np.median(columns, axis=1, overwrite_input=True)
    else:
        columns.sort(axis=1)
        at = np.arange(len(columns))
        middle = (columns[at, (many - 1) // 2] + columns[at, many // 2]) / 2
    return middle


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

    def __init__(self, stamps: _Stamps, reference: int) -> None:
        self.stamps, self.reference = stamps, reference
        self.origin_ns, self.base = stamps.origin_ns, stamps.base_ns
        self.start_ns, self.end_ns, self.present = stamps.start_ns, stamps.end_ns, stamps.present
        self.many, self.meetings = range(len(self.base)), self.end_ns.shape[1]
        self.start_s, self.end_s = self.start_ns / 1e9, self.end_ns / 1e9
        self.span_s = float(self.end_s.max())
        self.mine = [np.flatnonzero(row) for row in self.present]
        self.late_end_ns = np.zeros((len(self.base), 1))
        self.at_start, self.at_end = np.zeros_like(self.start_ns), np.zeros_like(self.end_ns)
        self.jumps: list[list[Jump]] = [[] for _ in self.many]
        self.curves: list[Curve | None] = [None] * len(self.base)

    def some(self, columns: Int64) -> _Crowd:
        """The same state of some of the collectives."""
        stamps = self.stamps
        few = _Crowd(
            _Stamps(
                stamps.origin_ns,
                stamps.base_ns,
                stamps.start_ns[:, columns],
                stamps.end_ns[:, columns],
                stamps.present[:, columns],
            ),
            self.reference,
        )
        few.span_s, few.late_end_ns = self.span_s, self.late_end_ns
        few.at_start, few.at_end = self.at_start[:, columns], self.at_end[:, columns]
        few.jumps, few.curves = self.jumps, self.curves
        return few

    def go_on_from(self, few: _Crowd) -> None:
        """Take over where some of the collectives led to; find the jumps again among all."""
        self.jumps, self.curves, self.late_end_ns = few.jumps, few.curves, few.late_end_ns
        self._move(1.0, both=False)
        if few.meetings < self.meetings:
            for place in self.many:
                self.jumps[place] = [self._moved(place, found) for found in self.jumps[place]]

    def shortest(self, count: int) -> Int64:
        """Collectives that bind most: in equal numbers along the capture, those that last least once all are there."""
        if count >= self.meetings:
            return np.arange(self.meetings)
        self.prepare()
        lasting = self.earliest - self.latest
        return np.sort(np.concatenate(_least_of_stretches(lasting[None], count // PICKED), axis=1)[0])

    # --- one turn -----------------------------------------------------------------------------------------------------

    def settle(self, fit: Callable[[Int64 | None], list[Curve | None]], windows: int | None) -> None:
        """Turns until no clock moves any more.

        ``fit``: by_ends or by_bounds. ``windows``: how many a piece has; None lets each clock choose, once.
        """
        counts = None if windows is None else np.full(len(self.many), windows)
        for _ in range(TURNS):
            self.curves = fit(counts)
            if counts is None:
                counts = np.array([curve.pieces[0].windows if curve is not None else 1 for curve in self.curves])
            # Two clocks that both move the whole way by their bounds change places: each goes half of it.
            if self._move(1.0 if fit == self.by_ends else 0.5, both=fit != self.by_ends) < SETTLED_NS:
                break

    def prepare(self) -> None:
        """What bounds a clock: the latest start and the earliest end, and the second of each."""
        ends = np.where(self.present, self.end_ns - self.late_end_ns - self.at_end, np.inf)
        earliest, next_end, self.whose = _two_largest(-ends)
        self.earliest, self.next_end = -earliest, -next_end
        starts = np.where(self.present, self.start_ns - self.at_start, -np.inf)
        self.latest, self.next_start, self.who = _two_largest(starts)

    def tell_late_ends(self, *, who_started_last_is_known: bool) -> None:
        """How much later a clock's ends come than those of the clock where they come first.

        An end that comes late on one clock alone would pass for an offset. How long collectives last there tells it, if
        the clock was the last to start: else it waited for others in all of them. Of one that was not often enough
        nothing is known, and the usual is assumed. Where it cannot be told who was, all collectives are looked at.
        """
        self.prepare()
        late = np.full(len(self.base), np.nan)
        for place in self.many:
            last = self.present[place] & np.isfinite(self.next_start)
            if who_started_last_is_known:
                last &= self.who == place
            if last.sum() >= SHORTEST_OF:
                lasting = (self.end_ns[place] - self.start_ns[place])[last]
                late[place] = np.partition(lasting, SHORTEST_OF - 1)[:SHORTEST_OF].mean()
        known = np.isfinite(late)
        if known.any():
            late -= late[known].min()
            self.late_end_ns[:, 0] = np.where(known, late, np.median(late[known]))

    def beyond_median(self) -> Float64:
        """Every end beyond the median end of its collective."""
        ends = self.end_ns - self.late_end_ns
        return ends - _median_of_columns(ends - self.at_end, self.present)

    def by_ends(self, windows: Int64 | None) -> list[Curve | None]:
        """Every clock by its ends against the median of all ends."""
        ends = self.beyond_median()
        column_s = np.maximum.accumulate(_median_of_columns(self.end_s, self.present))
        out: list[Curve | None] = [None] * len(self.many)
        whole = [place for place in self.many if not self.jumps[place]]
        groups = [(np.array(whole), column_s, [0.0, self.span_s])] if whole else []
        for place in self.many:
            if self.jumps[place]:
                cuts = [0.0, *(jump.at_s for jump in self.jumps[place]), self.span_s]
                groups.append((np.array([place]), np.where(self.present[place], self.end_s[place], column_s), cuts))
        for rows, times, cuts in groups:
            edges = np.searchsorted(times, cuts[1:-1])
            parts = []
            for columns, (begin_s, end_s) in zip(
                (slice(*reach) for reach in itertools.pairwise((0, *edges.tolist(), len(times)))),
                itertools.pairwise(cuts),
                strict=True,
            ):
                parts.append(
                    lines_through(
                        self.end_s[rows, columns],
                        ends[rows, columns],
                        self.present[rows, columns],
                        times[columns],
                        begin_s=begin_s,
                        end_s=end_s,
                        counts=None if windows is None or len(cuts) > 2 else windows[rows],
                    )
                )
            for place, *levels in zip(rows.tolist(), *parts, strict=True):
                out[place] = curve_of(self.origin_ns, 0, levels, cuts, self.jumps[place])
        return out

    def by_bounds(self, windows: Int64 | None) -> list[Curve | None]:
        """Every clock half way between the bounds that the others set it."""
        self.prepare()
        return [
            fit_curve(
                self._bounds(place, self.late_end_ns[place, 0]),
                begin_s=0.0,
                end_s=self.span_s,
                jumps=self.jumps[place],
                windows=None if windows is None else int(windows[place]),
            )
            for place in self.many
        ]

    def _bounds(self, place: int, late_ns: float, columns: Int64 | slice = ALL) -> Bounds:
        """Of a clock against the crowd. A collective without another participant says nothing."""
        others_start = np.where(self.who[columns] == place, self.next_start[columns], self.latest[columns])
        others_end = np.where(self.whose[columns] == place, self.next_end[columns], self.earliest[columns])
        start_ns, end_ns = self.start_ns[place, columns], self.end_ns[place, columns]
        up = self.present[place, columns] & np.isfinite(others_start)
        low = self.present[place, columns] & np.isfinite(others_end)
        upper_ns, lower_ns = (end_ns - late_ns - others_start)[up], (start_ns - others_end)[low]
        return Bounds(
            self.origin_ns, 0, *_in_order(end_ns[up] / 1e9, upper_ns), *_in_order(start_ns[low] / 1e9, lower_ns)
        )

    def _move(self, share: float, *, both: bool) -> float:
        """Towards the new curves, seen from the reference, or from another while that one jumps; how far the furthest
        clock moved, in ns.

        ``both``: starts by themselves; else they move as their ends, good enough for finding short collectives.
        """
        steady = [place for place in (self.reference, *self.many) if not self.jumps[place]]
        anchor = self.curves[steady[0] if steady else self.reference]
        moved = 0.0
        for at, times in ((self.at_end, self.end_s), (self.at_start, self.start_s))[: 2 if both else 1]:
            for place, curve in enumerate(self.curves):
                if curve is None:
                    continue
                wanted = curve.values(times[place]) if anchor is None else _between(curve, anchor, times[place])
                step = (wanted - at[place]) * share
                moved = max(moved, float(np.abs(step[self.mine[place]]).max(initial=0.0)))
                at[place] += step
        if not both:
            self.at_start = self.at_end.copy()
        return moved

    def ends_are_simultaneous(self) -> bool:
        """Whether ends scatter far less around their medians than the shortest collectives last."""
        self.prepare()
        between = self.beyond_median() - self.at_end
        scatter = 1.4826 * float(np.median(np.abs(between[self.present])))
        return scatter < float(np.quantile(self.earliest - self.latest, LEAST_DURATIONS)) * SIMULTANEOUS

    # --- jumps --------------------------------------------------------------------------------------------------------

    def cut_at_jumps(self, fit: Callable[[Int64 | None], list[Curve | None]]) -> None:
        """Where lines cannot keep all bounds: cut the clock whose ends leap furthest beyond their noise, and try again.

        A clock that leaps spoils the bounds of all others, so the medians of ends decide which it was.
        """
        for _ in range(MOST_JUMPS):
            self.prepare()
            if (self.earliest >= self.latest).all():
                return
            if all(keeps_all(curve) for curve in self.by_bounds(np.ones(len(self.many), np.int64)) if curve):
                return
            found = self._largest_leap()
            if found is None:
                return
            place, jump = found
            self.jumps[place] = sorted((*self.jumps[place], jump), key=lambda one: one.at_s)
            self._begin_with_medians()
            self.settle(fit, windows=1)
            for _ in range(2):
                self.jumps[place] = [self._moved(place, one) for one in self.jumps[place]]
                self.settle(fit, windows=1)

    def _largest_leap(self) -> tuple[int, Jump] | None:
        """(clock, between which collectives) of the largest change of a clock's ends that the others' do not share.

        Of two clocks nothing tells which one was set: then it is not the reference.
        """
        best: tuple[float, int, int] | None = None
        for columns in self._alike():
            members = np.flatnonzero(self.present[:, columns].mean(axis=1) >= MOSTLY)
            changes, noises = [], []
            for place in members.tolist():
                mine = np.flatnonzero(self.present[place, columns])
                ends = (self.end_ns[place] - self.at_end[place] - self.first_median)[columns[mine]]
                views = np.lib.stride_tricks.sliding_window_view(
                    np.interp(np.arange(len(columns)), mine, ends), JUMP_WINDOW
                )
                medians = np.median(views, axis=1)
                noise = 1.4826 * np.median(np.abs(views - medians[:, None]), axis=1)
                change = medians[JUMP_WINDOW:] - medians[:-JUMP_WINDOW]
                # A rate changes all medians alike.
                changes.append(change - np.median(change))
                noises.append(np.maximum(np.maximum(noise[JUMP_WINDOW:], noise[:-JUMP_WINDOW]), LEAST_NOISE_NS))
            change = np.array(changes)
            steady = int(np.searchsorted(members, self.reference)) if self.reference in members else 0
            shared = np.median(change, axis=0) if len(change) > 2 else change[steady]
            heights = np.abs(change - shared) / np.array(noises)
            which, peak = (int(at) for at in np.unravel_index(heights.argmax(), heights.shape))
            if best is None or heights[which, peak] > best[0]:
                best = float(heights[which, peak]), int(members[which]), int(columns[peak + JUMP_WINDOW])
        if best is None or best[0] < JUMP_NOISES:
            return None
        _, place, column = best
        at = np.searchsorted(self.mine[place], column)
        if not 0 < at < len(self.mine[place]):
            return None
        before, behind = self.end_s[place, self.mine[place][at - 1 : at + 1]].tolist()
        return place, Jump((before + behind) / 2, before, behind)

    def _alike(self) -> list[Int64]:
        """Collectives of the same clocks: all, where most take part in most; else by who does.

        Whom a clock is compared with must not change in between. Of two clocks nothing tells which one leaps: larger
        groups are looked at where there are any.
        """
        if self.present.mean() >= MOSTLY:
            every = [np.arange(self.meetings)]
        else:
            _, of, many = np.unique(self.present, axis=1, return_inverse=True, return_counts=True)
            of = of.reshape(-1)
            every = [np.flatnonzero(of == group) for group in np.argsort(-many, kind="stable")[:MOST_GROUPS].tolist()]
        every = [columns for columns in every if len(columns) >= 2 * JUMP_WINDOW]
        larger = [columns for columns in every if self.present[:, columns[0]].sum() > 2]
        return larger or every

    @functools.cached_property
    def first_median(self) -> Float64:
        """Per collective the median end of its participants by the first guess: no later fit can spoil it."""
        return _median_of_columns(self.end_ns, self.present)

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
        # The others decide where it lies: this clock's own ends are spoilt by where it was thought to lie.
        others = self.present.copy()
        others[place] &= others.sum(axis=0) == 1
        ends = self.end_ns - self.late_end_ns
        ends = (ends[place] - _median_of_columns(ends - self.at_end, others))[mine]
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
        # A collective during which a clock was set bounds nothing.
        self.present = self.present.copy()
        for place, curve in enumerate(out):
            for jump in curve.jumps if curve is not None else ():
                spans = (self.start_s[place] <= jump.end_s) & (self.end_s[place] >= jump.begin_s)
                self.present[place] &= ~spans
        binding = self._binding()
        low, high = np.full_like(self.end_ns, -np.inf), np.full_like(self.end_ns, np.inf)
        low[self.reference] = high[self.reference] = 0.0
        width = (high - low).max(axis=1)
        # A way over a third clock takes two collectives: it is narrower only where few lead straight there.
        straight = bool(self.present[self.reference].all())
        for _ in range(min(len(self.many), ROUNDS)):
            self._prepare_certain(low, high)
            before = width.copy()
            for place, curve in enumerate(out):
                within = None
                if curve is not None and place != self.reference:
                    within = bounded(curve, self._bounds(place, 0.0, binding[place]))
                if within is None:
                    continue
                out[place] = within
                if straight:
                    continue
                lowest, highest = within.extremes(self.end_s[place])
                low[place] = np.maximum(low[place], lowest - self.at_end[place])
                high[place] = np.minimum(high[place], highest - self.at_end[place])
                width[place] = (high[place] - low[place]).max()
            if straight:
                break
            bound = np.isfinite(before)
            if (np.isfinite(width) == bound).all() and width[bound].sum() >= TIGHTER * before[bound].sum():
                break
        return out

    def _prepare_certain(self, low: Float64, high: Float64) -> None:
        """The same as prepare by what is sure of the others: they started no earlier and ended no later than this."""
        # Of clocks that nothing bounds yet nothing is sure: the others alone are looked at.
        rows = np.flatnonzero(np.isfinite(high).any(axis=1))
        starts = np.where(self.present[rows], self.start_ns[rows] - self.at_start[rows] - high[rows], -np.inf)
        self.latest, self.next_start, who = _two_largest(starts)
        self.who = rows[who]
        rows = np.flatnonzero(np.isfinite(low).any(axis=1))
        ends = np.where(self.present[rows], self.end_ns[rows] - self.at_end[rows] - low[rows], np.inf)
        earliest, next_end, whose = _two_largest(-ends)
        self.earliest, self.next_end, self.whose = -earliest, -next_end, rows[whose]

    def _binding(self) -> list[Int64 | slice]:
        """Per clock the collectives that can bind it: where it started last or ended first, or the reference started
        last. Fewer bounds are as certain, only wider."""
        if self.meetings <= FEW:
            return [ALL] * len(self.many)
        self.prepare()
        wide = np.where(self.present, self.end_ns - self.at_end - self.latest, np.inf)
        upper = np.concatenate(_least_of_stretches(wide, FEW // 4 // PICKED), axis=1)
        wide = np.where(self.present, self.earliest - self.start_ns + self.at_start, np.inf)
        lower = np.concatenate(_least_of_stretches(wide, FEW // 4 // PICKED), axis=1)
        return [np.unique(np.concatenate((*pair, lower[self.reference]))) for pair in zip(upper, lower, strict=True)]

    def _seen_from(self, curve: Curve | None, anchor: Curve | None, place: int) -> Curve | None:
        if place == self.reference:
            return flat_curve(self.origin_ns, 0.0, self.span_s)
        if curve is None:
            return None
        return replace(curve if anchor is None else apart(curve, anchor), base_ns=int(self.base[place]))


def _least_of_stretches(values: Float64, count: int) -> list[Int64]:
    """Columns of the least values of each row, as many in each of ``count`` stretches of equal length."""
    return [
        part[np.argpartition(values[:, part], PICKED - 1, axis=1)[:, :PICKED]]
        for part in np.array_split(np.arange(values.shape[1]), count)
    ]


def _between(curve: Curve, anchor: Curve, t_s: Float64) -> Float64:
    """``curve`` less ``anchor`` at times; of two with the same knots, read once."""
    one, other = curve.pieces[0], anchor.pieces[0]
    if len(curve.pieces) == len(anchor.pieces) == 1 and np.array_equal(one.knot_s, other.knot_s):
        return polyline(t_s, one.knot_s, one.value_ns - other.value_ns)
    return curve.values(t_s) - anchor.values(t_s)


def _in_order(t_s: Float64, value_ns: Float64) -> tuple[Float64, Float64]:
    if (np.diff(t_s) >= 0).all():
        return t_s, value_ns
    order = np.argsort(t_s, kind="stable")
    return t_s[order], value_ns[order]

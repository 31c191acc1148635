"""Executions of one key of which ranks have several, equal to one another: which belong together, or that it cannot be
told.

Nothing but their order and their times tells them apart. A wrong pair is worse than none, so:

1. Ends of what is known to be one collective tell how far the clocks of two ranks are apart, and by how much single
   ends scatter around that (`_Apart`). Where nothing is known, that is tried on what ranks that have as many in a key
   have in order, else on a cheapest chain of pairs (alignment.py); neither is believed where another shift of the
   sequences would explain nearly as many pairs.
2. Ranks that have as many in a key have the same ones, in order, unless their ends contradict that.
3. In other keys two executions are one collective if their ends agree within the scatter, and neither's agrees with any
   other.

What then agrees with several is `doubtful`, and matched with nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xprof_py.postprocess.join.columns import distinct
from xprof_py.postprocess.match.alignment import align

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

FEWEST = 3
"""Collectives that two ranks share before their ends are believed to tell how far the clocks are apart."""
TOGETHER = 33
"""Collectives whose median end says how far the clocks are apart about then: a bend of a clock is slower."""
SCATTERS = 8.0
"""Ends that agree within eight times the scatter may be of one collective,"""
SURE = 0.75
"""within three quarters of that they are, if they agree with no other."""
FEW = 10
"""Of so many pairs the scatter is doubled: it is uncertain itself, and so is the line."""
LEAST_TOLERANCE_NS = 20_000.0
STEEPEST = 2e-4
"""Two clocks run apart by 200 ppm at most, for telling neighbours from one another."""
AS_GOOD = 0.5
"""Another shift that explains half of the pairs may be the true one: of events at equal distances every shift explains
as many as chance has it. So may one that explains all but one."""
MOST_UNLIKE = 0.05
"""Two ranks lose hardly anything if they have as many in all but a twentieth of their keys,"""
ENOUGH_KEYS = 5
"""and in so many at least. Then two that lost as many in one key, but not the same, are too rare to look for."""
FULL = 0.75
"""The largest number of executions in a step, if three of four runs have it, is that of a step that lost none,"""
ENOUGH_FULL = 16
"""of so many runs at least."""
AGREE = 0.9
"""The share of ends that must agree within the scatter, if they are of what is taken to be in order."""
CLOSE = 0.1
"""A tenth of executions may lie closer together than ends scatter."""
LATE = 1 / 8
"""Of the distance between executions: how far an end may lie from where it should be if nothing was lost."""
LOOKED_AT = 1000
"""Executions, from the beginning, that chains are made of and other shifts are looked for in."""
REFINED = 12
"""Times at most that what the beginnings told is carried on to the rest."""


@dataclass(frozen=True)
class Ordered:
    """Per execution: the ``number`` of its collective (its own, where it is matched with nobody); whether it is
    ``doubtful``."""

    number: Int64
    doubtful: Bool


@dataclass(frozen=True)
class Shared:
    """Executions that are known to belong together: those of one ``collective``. Columns of one length."""

    collective: Int64
    rank: Int64
    end_ns: Int64


@dataclass(frozen=True)
class _Apart:
    """The clock of one rank less that of another, over the time of the other."""

    origin_ns: int
    base_ns: int
    slope: float
    knot_ns: Float64
    beyond_ns: Float64
    tolerance_ns: float

    @staticmethod
    def by_ends(one_ns: Int64, other_ns: Int64) -> _Apart | None:
        """From the ends of shared collectives on either; None where they are too few."""
        if len(one_ns) < FEWEST:
            return None
        order = np.argsort(one_ns, kind="stable")
        one_ns, other_ns = one_ns[order], other_ns[order]
        origin_ns, base_ns = int(one_ns[0]), int(np.median(other_ns - one_ns))
        t, y = (one_ns - origin_ns).astype(np.float64), (other_ns - one_ns - base_ns).astype(np.float64)
        half = len(t) // 2
        run = t[half:] - t[: len(t) - half]
        rise = (y[half:] - y[: len(t) - half])[run > 0] / run[run > 0]
        slope = float(np.clip(np.median(rise), -STEEPEST, STEEPEST)) if len(rise) else 0.0
        blocks = np.array_split(np.arange(len(t)), max(len(t) // TOGETHER, 1))
        knots = np.array([t[block].mean() for block in blocks])
        beyond = np.array([np.median(y[block] - slope * t[block]) for block in blocks])
        scatter = 1.4826 * float(np.median(np.abs(y - slope * t - np.interp(t, knots, beyond))))
        tolerance_ns = SCATTERS * scatter * (1 + FEW / len(t))
        return _Apart(origin_ns, base_ns, slope, knots, beyond, max(tolerance_ns, LEAST_TOLERANCE_NS))

    def on_other(self, one_ns: Int64) -> Float64:
        """Times of the one on the clock of the other, in ns since ``origin_ns + base_ns``."""
        t = (one_ns - self.origin_ns).astype(np.float64)
        return t + self.slope * t + np.interp(t, self.knot_ns, self.beyond_ns)

    def since(self, other_ns: Int64) -> Float64:
        """Times of the other on the same axis."""
        return (other_ns - self.origin_ns - self.base_ns).astype(np.float64)


class _Clocks:
    """How far the clocks of any two ranks are apart, by what they share."""

    def __init__(self, shared: Shared) -> None:
        order = np.lexsort((shared.collective, shared.rank))
        rank = shared.rank[order]
        self._reach = {r: slice(*np.searchsorted(rank, (r, r + 1))) for r in np.unique(rank).tolist()}
        self._collective, self._end_ns = shared.collective[order], shared.end_ns[order]
        self._known: dict[tuple[int, int], _Apart | None] = {}

    def apart(self, one: int, other: int) -> _Apart | None:
        """None where they share too little."""
        if (one, other) not in self._known:
            a, b = self._reach.get(one, slice(0, 0)), self._reach.get(other, slice(0, 0))
            _, i, j = np.intersect1d(self._collective[a], self._collective[b], return_indices=True)
            self._known[one, other] = _Apart.by_ends(self._end_ns[a][i], self._end_ns[b][j])
        return self._known[one, other]


def put_in_order(key: Int64, family: Int64, rank: Int64, end_ns: Int64, shared: Shared) -> Ordered:
    """Number the collectives among executions in order of (key, rank, time).

    ``key``: what executions of one collective have in common. ``family``: the same without the step. ``end_ns``: int64,
    each on the clock of its rank. ``shared``: what is known already.
    """
    return _Several(key, family, rank, end_ns, shared).run_all()


Runs = list[tuple[Int64, Int64]]
"""Executions of two ranks in one key, several times."""


class _Several:
    """A run is what one rank has of one key."""

    def __init__(self, key: Int64, family: Int64, rank: Int64, end_ns: Int64, shared: Shared) -> None:
        self.rank, self.end_ns, self.shared = rank, end_ns, shared
        self.number = np.full(len(key), -1, np.int64)
        self.doubtful = np.zeros(len(key), np.bool_)
        self.next = 0
        new_key = np.concatenate(([True], np.diff(key) != 0))[: len(key)]
        new_run = new_key | np.concatenate(([True], np.diff(rank) != 0))[: len(key)]
        self.key, self.key_begin = np.cumsum(new_key) - 1, np.flatnonzero(new_key)
        self.run, self.run_begin = np.cumsum(new_run) - 1, np.flatnonzero(new_run)
        self.run_end = np.append(self.run_begin, len(key))[1:]
        self.first_run = self.run[self.key_begin]
        self.gap_ns = self._gaps(family)
        self.full = self._full(family[self.run_begin])

    def run_all(self) -> Ordered:
        if len(self.rank):
            even = self._in_step()
            self._by_times(np.flatnonzero(~even))
            alone = np.flatnonzero(self.number < 0)
            self.number[alone] = self.next + np.arange(len(alone))
        return Ordered(self.number, self.doubtful)

    def _gaps(self, family: Int64) -> Float64:
        """How far the nearest execution of the same rank and family ends from each; infinite without one."""
        order = np.lexsort((self.end_ns, family, self.rank))
        same = (np.diff(self.rank[order]) == 0) & (np.diff(family[order]) == 0)
        apart = np.where(same, np.diff(self.end_ns[order]).astype(np.float64), np.inf)
        out = np.empty(len(order))
        out[order] = np.minimum(np.append(np.inf, apart), np.append(apart, np.inf))[: len(order)]
        return out

    def _full(self, family: Int64) -> Bool:
        """Per run whether it has as many executions as a run of its family has that lost none."""
        length = self.run_end - self.run_begin
        most, runs, full = (np.zeros(int(family.max(initial=-1)) + 1, np.int64) for _ in range(3))
        np.maximum.at(most, family, length)
        np.add.at(runs, family, 1)
        np.add.at(full, family, length == most[family])
        told = (runs >= ENOUGH_FULL) & (full >= FULL * runs)
        return np.asarray((length == most[family]) & told[family])

    # --- in order -----------------------------------------------------------------------------------------------------

    def _in_step(self) -> Bool:
        """Per key whether its executions are in order on all its ranks; those are numbered."""
        length = self.run_end - self.run_begin
        key_of_run = self.key[self.run_begin]
        alike = length == length[self.first_run[key_of_run]]
        first = self.rank[self.run_begin[self.first_run[key_of_run]]]
        _, pair = distinct(first, self.rank[self.run_begin])
        of_pair = np.argsort(pair, kind="stable")
        partners = self._clocks(np.logical_and.reduceat(alike, self.first_run))
        for runs in np.split(of_pair, np.flatnonzero(np.diff(pair[of_pair])) + 1):
            if not (runs == self.first_run[key_of_run[runs]]).all():
                alike[runs] &= self._confirmed(runs, self.first_run[key_of_run[runs]], alike[runs], partners)
        even = np.logical_and.reduceat(alike, self.first_run)
        rows = np.flatnonzero(even[self.key])
        first_row, of = np.unique(self._partner(rows), return_inverse=True)
        self.number[rows] = of
        self.next = len(first_row)
        return even

    def _confirmed(self, runs: Int64, firsts: Int64, alike: Bool, clocks: _Clocks) -> Bool:
        """Of the runs of one rank which are, one by one, those of another."""
        out = np.zeros(len(runs), np.bool_)
        loses_nothing = len(runs) >= ENOUGH_KEYS and (~alike).mean() <= MOST_UNLIKE
        trusted = alike if loses_nothing else alike & self.full[runs] & self.full[firsts]
        both = [(self._rows(one), self._rows(other)) for one, other in zip(firsts[alike], runs[alike], strict=True)]
        if not both:
            return out
        apart = clocks.apart(int(self.rank[both[0][0][0]]), int(self.rank[both[0][1][0]]))
        if trusted.any():
            sure = [pair for pair, is_sure in zip(both, trusted[alike], strict=True) if is_sure]
            apart = _Apart.by_ends(*(self.end_ns[np.concatenate([pair[i] for pair in sure])] for i in (0, 1)))
        ones, others = (np.concatenate([pair[i] for pair in both]) for i in (0, 1))
        gap = np.minimum(self.gap_ns[ones], self.gap_ns[others])
        usual = float(np.median(gap))
        if apart is None or apart.tolerance_ns > usual / 2:
            return trusted
        off = np.abs(apart.since(self.end_ns[others]) - apart.on_other(self.end_ns[ones]))
        believed = (
            trusted.any() and (off <= apart.tolerance_ns)[np.isin(self.run[others], runs[trusted])].mean() >= AGREE
        )
        wrong = off > np.maximum(apart.tolerance_ns, np.minimum(gap, usual) * LATE)
        if loses_nothing and not believed:
            # Rather a clock was set than so many keys lost as many but not the same.
            return alike
        if not believed and not self._is_the_only_shift(apart, both):
            return out
        return alike & ~np.isin(runs, self.run[others[wrong]])

    def _rows(self, run: int) -> Int64:
        return np.arange(self.run_begin[run], self.run_end[run])

    def _partner(self, rows: Int64) -> Int64:
        """The execution of the key's first rank at the same place."""
        return np.asarray(self.key_begin[self.key[rows]] + rows - self.run_begin[self.run[rows]], np.int64)

    def _clocks(self, alike: Bool | None = None) -> _Clocks:
        """What is known, and what was numbered so far; with ``alike``, what keys would be in order that are."""
        number = (
            self.number if alike is None else np.where(alike[self.key], self._partner(np.arange(len(self.key))), -1)
        )
        rows = np.flatnonzero(number >= 0)
        first = int(self.shared.collective.max(initial=-1)) + 1
        return _Clocks(
            Shared(
                np.concatenate((self.shared.collective, first + number[rows])),
                np.concatenate((self.shared.rank, self.rank[rows])),
                np.concatenate((self.shared.end_ns, self.end_ns[rows])),
            )
        )

    # --- by times -----------------------------------------------------------------------------------------------------

    def _by_times(self, keys: Int64) -> None:
        """Each key against one rank, the same where it can be; what that one has lost, against one another."""
        most = np.bincount(self.rank)
        left = {key: self._runs(key, most) for key in keys.tolist()}
        while left:
            clocks = self._clocks()
            pairs: dict[tuple[int, int], Runs] = {}
            for reference, *others in left.values():
                for part in others:
                    pairs.setdefault((int(self.rank[reference[0]]), int(self.rank[part[0]])), []).append(
                        (reference, part)
                    )
            told = {ranks: self._told(clocks.apart(*ranks), runs) for ranks, runs in pairs.items()}
            next_left = {}
            for key, (reference, *others) in left.items():
                self.number[reference] = self.next + np.arange(len(reference))
                self.next += len(reference)
                rest = [
                    self._take(reference, part, told[int(self.rank[reference[0]]), int(self.rank[part[0]])])
                    for part in others
                ]
                rest = [part for part in rest if len(part)]
                if len(rest) > 1:
                    next_left[key] = self._largest_first(rest, most)
            left = next_left

    def _runs(self, key: int, most: Int64) -> list[Int64]:
        end = self.key_begin[key + 1] if key + 1 < len(self.key_begin) else len(self.key)
        rows = np.arange(self.key_begin[key], end)
        return self._largest_first(np.split(rows, np.flatnonzero(np.diff(self.run[rows])) + 1), most)

    def _largest_first(self, parts: Sequence[Int64], most: Int64) -> list[Int64]:
        """The run of the rank that has most of all keys; of equal ones the first."""
        largest = max(range(len(parts)), key=lambda i: (most[self.rank[parts[i][0]]], -i))
        return [parts[largest], *parts[:largest], *parts[largest + 1 :]]

    def _told(self, apart: _Apart | None, runs: Runs) -> _Apart | None:
        """How far two clocks are apart; None where that tells nothing of executions as close together as these."""
        apart = apart or self._told_by_chains(runs)
        gap = self.gap_ns[np.concatenate([part for run in runs for part in run])]
        return apart if apart is not None and apart.tolerance_ns <= np.quantile(gap, CLOSE, method="lower") else None

    def _told_by_chains(self, runs: Runs) -> _Apart | None:
        """How far two clocks are apart by the cheapest chains; None where another shift is as good.

        The beginnings of some runs are enough to begin with; what they tell finds more pairs, and those tell more.
        """
        many = max(LOOKED_AT // max(len(one) for one, _ in runs), 1)
        some = [runs[i] for i in np.unique(np.linspace(0, len(runs) - 1, min(len(runs), many)).astype(np.int64))]
        ones, others = [], []
        for one, other in ((one[:LOOKED_AT], other[:LOOKED_AT]) for one, other in some):
            to = align(self.end_ns[one], self.end_ns[other])
            if to is not None:
                ones.append(one[to[to >= 0]])
                others.append(other[to >= 0])
        if not ones:
            return None
        apart = _Apart.by_ends(self.end_ns[np.concatenate(ones)], self.end_ns[np.concatenate(others)])
        if apart is None or not self._is_the_only_shift(apart, some):
            return None
        found = 0
        for _ in range(REFINED):
            certain = [self._certain(one, other, apart)[:2] for one, other in runs]
            ones, others = ([pair[i] for pair in certain] for i in (0, 1))
            if sum(map(len, ones)) <= found:
                break
            found = sum(map(len, ones))
            apart = _Apart.by_ends(self.end_ns[np.concatenate(ones)], self.end_ns[np.concatenate(others)]) or apart
        return apart

    def _is_the_only_shift(self, apart: _Apart, runs: Runs) -> bool:
        """Whether no other constant offset lets nearly as many ends agree."""
        off = np.concatenate(
            [
                np.subtract.outer(apart.since(self.end_ns[other]), apart.on_other(self.end_ns[one])).ravel()
                for one, other in ((one[:LOOKED_AT], other[:LOOKED_AT]) for one, other in runs)
            ]
        )
        agree = int((np.abs(off) <= apart.tolerance_ns).sum())
        off = np.sort(off[np.abs(off) > apart.tolerance_ns])
        until = np.searchsorted(off, off + 2 * apart.tolerance_ns, side="right")
        most = int((until - np.arange(len(off))).max(initial=0))
        return most <= agree - 2 and most < AS_GOOD * agree

    def _take(self, reference: Int64, part: Int64, apart: _Apart | None) -> Int64:
        """Number those of ``part`` that are certainly of ``reference``; returns those that certainly are not."""
        if apart is None:
            self.doubtful[part] = True
            return np.empty(0, np.int64)
        ones, others, doubtful, far = self._certain(reference, part, apart)
        self.number[others] = self.number[ones]
        self.doubtful[doubtful] = True
        return far

    def _certain(self, reference: Int64, part: Int64, apart: _Apart) -> tuple[Int64, Int64, Int64, Int64]:
        """Pairs that are certainly of one collective; what of ``part`` may be of several, and what is of none."""
        there, here = apart.on_other(self.end_ns[reference]), apart.since(self.end_ns[part])
        reference, there = reference[np.argsort(there, kind="stable")], np.sort(there)
        first, many = _near(there, here, apart.tolerance_ns)
        _, many_back = _near(np.sort(here), there, apart.tolerance_ns)
        certain = many == 1
        at = first[certain]
        certain[certain] = (many_back[at] == 1) & (np.abs(here[certain] - there[at]) <= SURE * apart.tolerance_ns)
        return reference[first[certain]], part[certain], part[~certain & (many > 0)], part[many == 0]


def _near(ordered: Float64, at: Float64, within: float) -> tuple[Int64, Int64]:
    """Per ``at`` the first of ``ordered`` that is not further away than ``within``, and how many there are."""
    low, high = np.searchsorted(ordered, at - within, "left"), np.searchsorted(ordered, at + within, "right")
    return np.asarray(low), np.asarray(high - low)

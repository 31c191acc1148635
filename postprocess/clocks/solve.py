"""The clocks of a job: who shares one, what ties the others to the reference, how far each can be wrong.

1. Processes of one clock domain (one boot of one machine) share a clock; the first one's is the reference.
2. Probes: every pair of clocks that exchanged stamps has a curve with a certified interval. The tree of narrowest paths
   to the reference carries them there (Dijkstra over the half-widths, which add). Pairs outside the tree must agree
   with it: what they disagree by, beyond both bounds, is reported and widens the bound.
3. Collectives: clocks that took part in the same ones are solved together (crowd.py) against the one of them that is
   known best.
4. A clock that has both is taken from its probes for as long as they last, and from its collectives before and after;
   from its collectives alone where those are certain to less.

What no path ties to the reference is `unaligned`, and nothing is said of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xprof_py.postprocess.clocks.bounds import Bounds, Int64, make_bounds
from xprof_py.postprocess.clocks.crowd import Meetings, solve_crowd
from xprof_py.postprocess.clocks.curve import Curve, fit_curve
from xprof_py.postprocess.clocks.joined_curves import carried_on, flat_curve, seen_through, widened, widened_beyond

ALIGNED_NS = 1_000_000
"""A clock whose certified error is at most this is `aligned`."""
LOOKS = 65
"""Times at which a clock's error over the capture is read; knots are read as well."""
FEWEST_EXCHANGES = 2


@dataclass(frozen=True)
class ClockedProcess:
    """One process: whose clock it reads (``domain``), and when it was captured, ns on that clock."""

    host: str
    domain: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Exchanges:
    """Stamps that two processes exchanged: t1 the client sends, t2 the server receives, t3 it answers, t4 the client
    has the answer. int64 ns arrays of one length; ``client`` and ``server`` are places in the list of processes."""

    client: int
    server: int
    t1_ns: Int64
    t2_ns: Int64
    t3_ns: Int64
    t4_ns: Int64


@dataclass(frozen=True)
class Clock:
    """One clock domain: theta against the reference over ``begin_ns`` to ``end_ns`` (its own time); ``curve`` is None
    where nothing ties it."""

    domain: str
    begin_ns: int
    end_ns: int
    method: str
    curve: Curve | None

    def times_s(self) -> npt.NDArray[np.float64]:
        """Ends of the capture, knots, and around jumps, seconds on the curve's axis: all is straight in between."""
        if self.curve is None:
            return np.empty(0)
        begin_s, end_s = ((t - self.curve.origin_ns) / 1e9 for t in (self.begin_ns, self.end_ns))
        at = [np.array([begin_s, end_s]), *(piece.knot_s for piece in self.curve.pieces)]
        at += [np.array([j.begin_s, np.nextafter(j.at_s, -np.inf), j.at_s, j.end_s]) for j in self.curve.jumps]
        every = np.unique(np.concatenate(at))
        return every[(every >= begin_s) & (every <= end_s)]

    @property
    def error_ns(self) -> int | None:
        """Certified half-width in ns, the largest over the capture, rounded up; None where nothing is certain."""
        if self.curve is None:
            return None
        largest = float(self.curve.errors(self.times_s()).max())
        return int(np.ceil(largest)) if np.isfinite(largest) else None

    @property
    def status(self) -> str:
        """`aligned`, `bounded` or `unaligned`."""
        error = self.error_ns
        if error is None:
            return "unaligned"
        return "aligned" if error <= ALIGNED_NS else "bounded"


@dataclass(frozen=True)
class Solution:
    """The clocks of a job. ``clock_of[i]``: the clock of process i. ``clocks[0]`` is the reference."""

    processes: tuple[ClockedProcess, ...]
    clocks: tuple[Clock, ...]
    clock_of: tuple[int, ...]
    diagnostics: tuple[dict[str, Any], ...]


def solve_clocks(
    processes: Sequence[ClockedProcess],
    exchanges: Sequence[Exchanges] = (),
    meetings: Meetings | None = None,
    synchronising: npt.NDArray[np.bool_] | None = None,
) -> Solution:
    """Solve the clocks of a job.

    ``processes`` in order of their index: the first one's clock is the reference. ``meetings``: matched collectives,
    processes x collectives; ``synchronising``: which of them wait for all participants (without: all). Raises
    ValueError where shapes do not fit or a process is named that is not there.
    """
    if not processes:
        raise ValueError("no processes")
    domains = list(dict.fromkeys(process.domain for process in processes))
    clock_of = tuple(domains.index(process.domain) for process in processes)
    spans = [_span(processes, clock_of, clock) for clock in range(len(domains))]
    solver = _Solver(domains, spans)
    shared: Meetings | None = None
    if meetings is not None:
        if meetings.start_ns.shape != meetings.present.shape or meetings.end_ns.shape != meetings.present.shape:
            raise ValueError("start_ns, end_ns and present must have one shape")
        if len(meetings.present) != len(processes):
            raise ValueError(f"{len(meetings.present)} rows of collectives for {len(processes)} processes")
        shared = _of_clocks(meetings, clock_of, len(domains), synchronising)
    solver.fit_pairs(_pairs(exchanges, clock_of))
    solver.grow_by_probes()
    while shared is not None and solver.grow_by_collectives(shared) and solver.grow_by_probes():
        pass
    solver.close_cycles()
    return solver.solution(tuple(processes), clock_of)


def _span(processes: Sequence[ClockedProcess], clock_of: Sequence[int], clock: int) -> tuple[int, int]:
    mine = [process for process, of in zip(processes, clock_of, strict=True) if of == clock]
    return min(p.begin_ns for p in mine), max(p.end_ns for p in mine)


Pair = tuple[int, int]
Messages = tuple[Int64, Int64]
"""When a message was sent, on the sender's clock, and received, on the receiver's; ns."""


def _pairs(exchanges: Sequence[Exchanges], clock_of: Sequence[int]) -> dict[Pair, Messages]:
    """All messages by (clock of the sender, clock of the receiver), for clocks that differ."""
    parts: dict[Pair, list[Messages]] = {}
    for found in exchanges:
        if not 0 <= min(found.client, found.server) <= max(found.client, found.server) < len(clock_of):
            raise ValueError(f"probe between processes {found.client} and {found.server} of {len(clock_of)}")
        if len({len(t) for t in (found.t1_ns, found.t2_ns, found.t3_ns, found.t4_ns)}) != 1:
            raise ValueError("the four stamps of exchanges must have one length")
        client, server = clock_of[found.client], clock_of[found.server]
        if client != server and len(found.t1_ns):
            parts.setdefault((client, server), []).append((found.t1_ns, found.t2_ns))
            parts.setdefault((server, client), []).append((found.t3_ns, found.t4_ns))
    return {
        pair: (np.concatenate([p[0] for p in some]), np.concatenate([p[1] for p in some]))
        for pair, some in sorted(parts.items())
    }


def _of_clocks(
    meetings: Meetings, clock_of: Sequence[int], count: int, synchronising: npt.NDArray[np.bool_] | None
) -> Meetings:
    """Rows of processes to rows of clocks: the latest start and the earliest end on each."""
    if synchronising is None and count == len(clock_of):
        return meetings
    keep = np.ones(meetings.present.shape[1], np.bool_) if synchronising is None else synchronising
    shape = (count, int(keep.sum()))
    limits = np.iinfo(np.int64)
    start, end = np.full(shape, limits.min, np.int64), np.full(shape, limits.max, np.int64)
    present = np.zeros(shape, np.bool_)
    for row, clock in enumerate(clock_of):
        here = meetings.present[row, keep]
        start[clock, here] = np.maximum(start[clock, here], meetings.start_ns[row, keep][here])
        end[clock, here] = np.minimum(end[clock, here], meetings.end_ns[row, keep][here])
        present[clock] |= here
    return Meetings(np.where(present, start, 0), np.where(present, end, 0), present)


@dataclass
class _Solver:
    domains: list[str]
    spans: list[tuple[int, int]]
    curves: dict[int, Curve] = field(default_factory=dict)
    method: dict[int, str] = field(default_factory=dict)
    probed: dict[int, tuple[float, float]] = field(default_factory=dict)
    """First and last bound of the probes that tie a clock, in seconds of its curve."""
    parent: dict[int, int] = field(default_factory=dict)
    messages: dict[Pair, Messages] = field(default_factory=dict)
    fitted: dict[Pair, Curve] = field(default_factory=dict)
    """theta of the first clock against the second."""
    children: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """Per clock: half-width in ns and clock of every pair against it."""
    met: set[int] = field(default_factory=set)
    """Clocks whose collectives are solved."""
    diagnostics: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        begin_ns, end_ns = self.spans[0]
        self.curves[0] = flat_curve(begin_ns, 0.0, (end_ns - begin_ns) / 1e9)
        self.method[0] = "reference"

    # --- probes -------------------------------------------------------------------------------------------------------

    def fit_pairs(self, messages: dict[Pair, Messages]) -> None:
        """The curve of every pair that exchanged stamps, both ways round."""
        self.messages = messages
        for pair in messages:
            curve = self._pair(messages, *pair) if pair[::-1] in messages else None
            if curve is None:
                continue
            width = self._width(pair[0], curve)
            if np.isfinite(width):
                self.fitted[pair] = curve
                self.children.setdefault(pair[1], []).append((width, pair[0]))
            elif pair[0] > pair[1]:
                what = "no clock that runs evenly between jumps explains the probes between"
                self._note("warning", "clock_probes_contradict", pair[0], f"{what} {self._names(*pair)}")

    def grow_by_probes(self) -> bool:
        """Tie clocks to those that are tied, by the narrowest paths. Whether there were any."""
        waiting = [(self._width(clock, curve), clock, clock) for clock, curve in sorted(self.curves.items())]
        heapq.heapify(waiting)
        looked_at: set[int] = set()
        before = len(self.curves)
        while waiting:
            total, clock, parent = heapq.heappop(waiting)
            if clock in looked_at:
                continue
            looked_at.add(clock)
            if clock not in self.curves:
                self.parent[clock] = parent
                self.curves[clock] = seen_through(self.fitted[clock, parent], self.curves[parent])
                self.method[clock] = "probe"
                self.probed[clock] = _stretch(self.messages, clock, parent, self.curves[clock].origin_ns)
            for width, child in self.children.get(clock, ()):
                if child not in self.curves:
                    heapq.heappush(waiting, (total + width, child, clock))
        return len(self.curves) > before

    def close_cycles(self) -> None:
        """A pair that ties nobody must say what the others say, within both bounds: else those are widened, and so
        is what hangs on the two clocks."""
        for (one, other), direct in sorted(self.fitted.items()):
            if one < other or not {one, other} <= self.curves.keys():
                continue
            if self.parent.get(one) == other or self.parent.get(other) == one:
                continue
            curve, around = self.curves[one], seen_through(direct, self.curves[other])
            at = (np.linspace(*self.spans[one], LOOKS) - curve.origin_ns) / 1e9
            apart = np.abs(curve.values(at) - around.values(at) + (curve.base_ns - around.base_ns))
            excess = float((apart - curve.errors(at) - around.errors(at)).max())
            if excess <= 0:
                continue
            for clock in self.curves:
                if self._hangs_on(clock, {one, other}):
                    self.curves[clock] = widened(self.curves[clock], excess)
            what = f"{excess / 1e3:.1f} us more than their bounds allow, which are now wider by that"
            names = self._names(one, other)
            self._note("warning", "clock_cycle", one, f"probes between {names} disagree with the others by {what}")

    def _hangs_on(self, clock: int, some: set[int]) -> bool:
        while clock not in some and clock in self.parent:
            clock = self.parent[clock]
        return clock in some and clock != 0

    def _pair(self, messages: dict[Pair, Messages], clock: int, over: int) -> Curve | None:
        """theta of ``clock`` against ``over``, over the capture of ``clock``."""
        begin_ns, end_ns = self.spans[clock]
        received, sent = messages[over, clock], messages[clock, over]
        if min(len(received[0]), len(sent[0])) < FEWEST_EXCHANGES:
            return None
        bounds = _message_bounds(received, sent, begin_ns)
        first_s, last_s = bounds.span_s
        span_s = (end_ns - begin_ns) / 1e9
        curve = fit_curve(bounds, begin_s=min(0.0, first_s), end_s=max(span_s, last_s))
        return None if curve is None else widened_beyond(curve, first_s, last_s)

    def _width(self, clock: int, curve: Curve) -> float:
        begin_ns, end_ns = self.spans[clock]
        at = (np.linspace(begin_ns, end_ns, LOOKS) - curve.origin_ns) / 1e9
        return float(np.median(curve.errors(at)))

    # --- collectives --------------------------------------------------------------------------------------------------

    def grow_by_collectives(self, meetings: Meetings) -> bool:
        """Clocks that share collectives, against the one of them that is known best. Whether that tied any.

        A group is solved once, as soon as one of its clocks is known.
        """
        before = len(self.curves)
        for group in _groups(meetings.present):
            known = [clock for clock in group if clock in self.curves]
            if not known or group[0] in self.met:
                continue
            self.met.update(group)
            anchor = min(known, key=lambda clock: (self._width(clock, self.curves[clock]), clock))
            every = len(group) == len(meetings.present)
            part = (
                meetings
                if every
                else Meetings(meetings.start_ns[group], meetings.end_ns[group], meetings.present[group])
            )
            for clock, curve in zip(group, solve_crowd(part, group.index(anchor)), strict=True):
                if curve is not None and clock != anchor:
                    self._add(clock, anchor, seen_through(self._reaching(clock, curve), self.curves[anchor]))
        return len(self.curves) > before

    def _reaching(self, clock: int, curve: Curve) -> Curve:
        """The curve over the whole capture of its clock."""
        first_s, last_s = curve.pieces[0].begin_s, curve.pieces[-1].end_s
        begin_s, end_s = ((t - curve.origin_ns) / 1e9 for t in self.spans[clock])
        pieces = list(curve.pieces)
        pieces[0] = replace(pieces[0], begin_s=min(begin_s, first_s))
        pieces[-1] = replace(pieces[-1], end_s=max(end_s, last_s))
        return widened_beyond(replace(curve, pieces=tuple(pieces)), first_s, last_s)

    def _add(self, clock: int, anchor: int, collectives: Curve) -> None:
        probes = self.curves.get(clock)
        if probes is None:
            self.curves[clock], self.method[clock], self.parent[clock] = collectives, "collectives", anchor
            return
        if clock not in self.probed:
            return
        first_s, last_s = self.probed[clock]
        at = np.linspace(first_s, last_s, LOOKS)
        moved_s = (probes.origin_ns - collectives.origin_ns) / 1e9
        if np.median(collectives.errors(at + moved_s)) < np.median(probes.errors(at)):
            self.curves[clock], self.method[clock], self.parent[clock] = collectives, "collectives", anchor
            return
        begin_s, end_s = ((t - probes.origin_ns) / 1e9 for t in self.spans[clock])
        if first_s <= begin_s + (end_s - begin_s) / LOOKS and last_s >= end_s - (end_s - begin_s) / LOOKS:
            return
        self.curves[clock] = carried_on(probes, collectives, first_s, last_s, at)
        self.method[clock] = "probe+collectives"

    # --- what comes out -----------------------------------------------------------------------------------------------

    def solution(self, processes: tuple[ClockedProcess, ...], clock_of: tuple[int, ...]) -> Solution:
        clocks = []
        for place, (domain, (begin_ns, end_ns)) in enumerate(zip(self.domains, self.spans, strict=True)):
            clock = Clock(domain, begin_ns, end_ns, self.method.get(place, "none"), self.curves.get(place))
            clocks.append(clock)
            if clock.curve is None:
                what = "nothing ties its clock to the others: no probe reached it and no collective of its was matched"
                self._note("warning", "clock_unaligned", place, what)
            elif clock.status == "unaligned":
                what = "what is known of its clock contradicts itself: no bound can be given"
                self._note("warning", "clock_unaligned", place, what)
            elif clock.status == "bounded":
                what = f"its clock is known to {(clock.error_ns or 0) / 1e6:.3f} ms only"
                self._note("note", "clock_bounded", place, what)
            if clock.curve is not None and clock.curve.jumps:
                at = ", ".join(
                    f"{jump.at_s + (clock.curve.origin_ns - begin_ns) / 1e9:.3f} s" for jump in clock.curve.jumps
                )
                what = f"its clock was set during the capture (after {at}); events are placed accordingly"
                self._note("note", "clock_jump", place, what)
        return Solution(processes, tuple(clocks), clock_of, tuple(self.diagnostics))

    def _names(self, *clocks: int) -> str:
        return " and ".join(self.domains[clock] for clock in sorted(clocks))

    def _note(self, severity: str, code: str, clock: int, message: str) -> None:
        row = {"severity": severity, "code": code, "file": "", "place": self.domains[clock]}
        self.diagnostics.append({**row, "count": 1, "message": message})


def _message_bounds(received: Messages, sent: Messages, origin_ns: int) -> Bounds:
    """Bounds of a clock from messages that it received and that it sent."""
    upper, lower = received[1] - received[0], sent[0] - sent[1]
    base_ns = int(np.median(np.concatenate((upper, lower))))
    return make_bounds(received[1], upper, sent[0], lower, origin_ns=origin_ns, base_ns=base_ns)


def _stretch(messages: dict[Pair, Messages], clock: int, over: int, origin_ns: int) -> tuple[float, float]:
    times = np.concatenate((messages[clock, over][0], messages[over, clock][1]))
    return (int(times.min()) - origin_ns) / 1e9, (int(times.max()) - origin_ns) / 1e9


def _groups(present: npt.NDArray[np.bool_]) -> list[list[int]]:
    """Clocks that collectives connect, each group in order."""
    if present.all() and present.shape[1]:
        return [list(range(len(present)))] if len(present) > 1 else []
    shared = present.astype(np.float32) @ present.T.astype(np.float32) > 0
    left = set(range(len(present)))
    out = []
    while left:
        waiting = [min(left)]
        group = set(waiting)
        while waiting:
            fresh = set(np.flatnonzero(shared[waiting.pop()]).tolist()) - group
            group |= fresh
            waiting += sorted(fresh)
        left -= group
        if len(group) > 1:
            out.append(sorted(group))
    return out

"""Gaps of a lane and what caused each of them (BREAKDOWN.md 5).

A gap [a, b) ends with op X. L is the end of X's launch, or b if the launch is still open then; m = min(b, max(a, L)).
[m, b) is `device_wait`. [a, m) came of a late launch: its causes share it in proportion to the self time of what the
launching thread did between S and L, where S is the later of the end of its last wait in which device work ended and
the end of the launch of the previous late gap that the thread ended. In the windows of steps S is no earlier than the
first of them: what a program does before its steps is no cause of theirs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields, replace

import numpy as np

from xprof_py import _native
from xprof_py.postprocess.join import intervals
from xprof_py.postprocess.join.columns import Bool, Events, Int64, distinct
from xprof_py.postprocess.join.host_activity import HostActivity, Pieces
from xprof_py.postprocess.join.host_names import Evidence
from xprof_py.postprocess.join.intervals import Intervals
from xprof_py.postprocess.join.samples import Stacks
from xprof_py.postprocess.join.steps import Steps
from xprof_py.postprocess.schema import CLASSES

CAUSE = {
    Evidence.NOTHING: "unknown",
    Evidence.HOST: "host",
    Evidence.WAIT: "unknown",
    Evidence.CHECKPOINT: "checkpoint",
    Evidence.INPUT: "input",
    Evidence.COMPILER: "compiler",
}
CAUSE_CODE = np.array([CLASSES.index(CAUSE[evidence]) for evidence in Evidence], np.int64)
"""Index of CLASSES per Evidence."""
METHODS = ("none", "id", "order", "steps_line", "inferred", "ambiguous", "put")
_UNKNOWN, _DEVICE_WAIT = CLASSES.index("unknown"), CLASSES.index("device_wait")
_WITHIN_RUN, _IN_TIME, _WOKE, _NO_LAUNCH, _OUTSIDE, _NO_SPAN = range(6)
REASONS = (
    "between two ops of one run",
    "launched in time",
    "the host woke up after the device",
    "no launch is joined to what ends this gap",
    "outside the steps, and no device",
    "no span was open",
)
"""What the evidence is where it is no name and no place."""


@dataclass(frozen=True)
class Gaps:
    """Pieces of gaps with their causes, as columns of one length.

    ``cause``: index of CLASSES. ``cause_step``, ``launch``, ``event`` and ``stack``: rows, -1 without. ``method``:
    index of METHODS. ``evidence``: number of a text of ``GapCauses.texts``. ``window``: row of the windows.
    """

    start_ps: Int64
    end_ps: Int64
    cause: Int64
    cause_step: Int64
    length_ps: Int64
    launch: Int64
    method: Int64
    event: Int64
    stack: Int64
    evidence: Int64
    window: Int64

    @staticmethod
    def together(parts: list[Gaps]) -> Gaps:
        """All rows of ``parts``, which are not none, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return Gaps(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Gaps)))

    def take(self, rows: Int64) -> Gaps:
        """These rows."""
        return Gaps(*(getattr(self, field.name)[rows] for field in fields(Gaps)))

    @staticmethod
    def in_order(parts: list[Gaps]) -> Gaps:
        """All rows of ``parts`` by start, then cause, then its step."""
        start, cause, step = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("start_ps", "cause", "cause_step")
        )
        order = np.argsort(start, kind="stable")
        start = start[order]
        same = start[1:] == start[:-1]
        # Few pieces begin together: only these are put in order by what else they are.
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = order[tied]
        order[tied] = rows[np.lexsort((step[rows], cause[rows], start[tied]))]
        # Column by column: all of them in a row once more would be most of the memory that gaps need.
        return Gaps(*(np.concatenate([getattr(part, field.name) for part in parts])[order] for field in fields(Gaps)))

    def in_windows(self, rows: Int64, end_ps: Int64) -> Gaps:
        """The same with the window that each lies in, of the windows ``rows`` that tile the lane up to ``end_ps``."""
        window = rows[np.searchsorted(end_ps, self.start_ps, side="right")]
        return replace(self, window=window)


@dataclass(frozen=True)
class Ends:
    """What ends each gap [start, end) of a lane, in order of time.

    ``thread`` -1: no launch is known. ``launch_end_ps``: when the host had it launched. ``within_run``: it is not the
    first op of its run. ``launch``: row of launches, -1 without; ``method``: index of METHODS.
    """

    start_ps: Int64
    end_ps: Int64
    thread: Int64
    launch: Int64
    launch_end_ps: Int64
    method: Int64
    within_run: Bool


class GapCauses:
    """Attributes gaps; an earlier late launch of a lane bounds where a gap's causes begin."""

    def __init__(self, events: Events, steps: Steps, activity: HostActivity, stacks: Stacks, start_ps: int) -> None:
        """``start_ps``: where the capture starts."""
        self._steps = steps
        self._activity = activity
        self._start_ps = start_ps
        self._event_name = events.name
        self._unseen: dict[int, list[Intervals]] = defaultdict(list)
        places = [stacks.place(stack) for stack in range(stacks.count)]
        named = sorted({*REASONS, *events.names, *(text for at in places if at for text in (at.in_function, at.text))})
        number = {text: at for at, text in enumerate(named)}
        self.texts = named
        """Every text that evidence can be, in order."""
        self._reason = np.array([number[reason] for reason in REASONS], np.int64)
        self._name = np.array([number[name] for name in events.names] or [0], np.int64)
        # What is added up as one, and the text that is shown; -1 for a stack without a place.
        self._function = np.array([number[at.in_function] if at else -1 for at in places] or [-1], np.int64)
        self._line = np.array([number[at.text] if at else -1 for at in places] or [-1], np.int64)

    def of_lane(self, ends: Ends, work_ends_ps: Int64, cuts: Int64, first_window_ps: int) -> Gaps:
        """Rows of a lane's gaps, cut at ``cuts`` (window boundaries, ascending), in order of time.

        ``work_ends_ps``: when the lane's leaves ended; ``first_window_ps``: where its first window begins.
        """
        start, end = ends.start_ps, ends.end_ps
        known = (ends.thread >= 0) & ~ends.within_run
        late_to = np.where(known, np.minimum(end, np.maximum(start, ends.launch_end_ps)), start)
        late = np.flatnonzero(late_to > start)
        # What is nearly in order is sorted by merging in no time.
        since, woke = self._since(ends.thread[late], late_to[late], np.sort(work_ends_ps, kind="stable"))
        served = np.where(woke, np.clip(since, start[late], late_to[late]), start[late])
        unnamed = np.flatnonzero((ends.thread < 0) & ~ends.within_run)
        within = np.flatnonzero(ends.within_run)
        in_time = np.flatnonzero(known & (end > late_to))
        parts = [
            self._plain(ends, within, start[within], end[within], _DEVICE_WAIT, _WITHIN_RUN, cuts),
            self._plain(ends, unnamed, start[unnamed], end[unnamed], _UNKNOWN, _NO_LAUNCH, cuts),
            self._plain(ends, late, start[late], served, _DEVICE_WAIT, _WOKE, cuts),
            self._plain(ends, in_time, late_to[in_time], end[in_time], _DEVICE_WAIT, _IN_TIME, cuts),
        ]
        shared = late_to[late] > served
        owner, low, high = _cut(served[shared], late_to[late][shared], cuts)
        gap, since = late[shared][owner], since[shared][owner]
        # In the windows of steps only what was done since the first of them counts.
        since = np.where((since < first_window_ps) & (low >= first_window_ps), first_window_ps, since)
        parts.append(self._shared(low, high, since, late_to[gap], ends.thread[gap], ends.launch[gap], ends.method[gap]))
        return Gaps.in_order(parts)

    def on_threads(self, start_ps: Int64, end_ps: Int64, thread: Int64) -> Gaps:
        """All of each [start, end) by what a thread did in it: a host without a device."""
        none = np.full(len(start_ps), -1, np.int64)
        return Gaps.in_order(
            [self._shared(start_ps, end_ps, start_ps, end_ps, thread, none, np.zeros(len(start_ps), np.int64))]
        )

    def outside(self, start_ps: Int64, end_ps: Int64) -> Gaps:
        """All of each [start, end) unknown: outside the steps of a host without a device."""
        none = np.full(len(start_ps), -1, np.int64)
        nobody = Ends(start_ps, end_ps, none, none, none, np.zeros(len(none), np.int64), np.zeros(len(none), np.bool_))
        return self._plain(nobody, np.arange(len(none)), start_ps, end_ps, _UNKNOWN, _OUTSIDE, np.empty(0, np.int64))

    def unseen(self) -> dict[int, Intervals]:
        """Per sampled thread the pieces that gaps so far rest on and that neither a span nor a sample explains."""
        return {
            thread: (np.concatenate([low for low, _ in found]), np.concatenate([high for _, high in found]))
            for thread, found in self._unseen.items()
        }

    def _since(self, thread: Int64, late_to: Int64, work_ends: Int64) -> tuple[Int64, Bool]:
        """(S, whether a wait's end gives it) per late gap of a lane, in order of time."""
        since = np.full(len(thread), self._start_ps, np.int64)
        woke = np.zeros(len(thread), np.bool_)
        for one in np.unique(thread).tolist():
            mine = np.flatnonzero(thread == one)
            # The launch that ended the thread's last late gap.
            floor = np.concatenate(([self._start_ps], late_to[mine][:-1]))
            waits = self._activity.waits(one)
            # Only a wait in which device work ended was a wait for the device.
            served = np.searchsorted(work_ends, waits.start_ps) < np.searchsorted(work_ends, waits.end_ps, "right")
            ends = np.sort(waits.end_ps[served])
            place = np.searchsorted(ends, late_to[mine], side="right") - 1
            last = ends[np.maximum(place, 0)] if len(ends) else floor
            woke[mine] = (place >= 0) & (last > floor)
            since[mine] = np.where(woke[mine], last, floor)
        return since, woke

    def _plain(self, ends: Ends, gap: Int64, low: Int64, high: Int64, cause: int, why: int, cuts: Int64) -> Gaps:
        owner, low, high = _cut(low, high, cuts)
        none = np.full(len(owner), -1, np.int64)
        return Gaps(
            start_ps=low,
            end_ps=high,
            cause=np.full(len(owner), cause, np.int64),
            cause_step=none,
            length_ps=high - low,
            launch=ends.launch[gap][owner],
            method=ends.method[gap][owner],
            event=none,
            stack=none,
            evidence=np.full(len(owner), self._reason[why], np.int64),
            window=none,
        )

    def _shared(
        self, low: Int64, high: Int64, since: Int64, until: Int64, thread: Int64, launch: Int64, method: Int64
    ) -> Gaps:
        """[low, high) shared by what the thread did from ``since`` to ``until`` and began before ``high``."""
        parts = []
        for one in np.unique(thread).tolist():
            mine = np.flatnonzero(thread == one)
            pieces = self._activity.between(one, intervals.union(since[mine], until[mine]))
            first = np.searchsorted(pieces.end_ps, since[mine], side="right")
            behind = np.searchsorted(pieces.start_ps, np.minimum(until, high)[mine], side="left")
            asked = _Asked(low[mine], high[mine], since[mine], until[mine], first, behind)
            owner, found = self._share_out(asked, pieces, one)
            parts.append(_with_end(found, launch[mine][owner], method[mine][owner]))
        return Gaps.together(parts) if parts else _NO_GAPS

    def _share_out(self, asked: _Asked, pieces: Pieces, thread: int) -> tuple[Int64, Gaps]:
        """(place in ``asked``, row): for each its causes by class and step, with the strongest evidence of each."""
        if self._activity.sampled(thread):
            self._unseen[thread].append(_unexplained(asked, pieces))
        function, text = self._words(pieces.event, pieces.stack)
        # Every gap has a piece, and of its pieces the first alone may begin before what is asked for.
        begun = np.maximum(pieces.start_ps[asked.first], asked.since_ps)
        columns = (
            *(pieces.start_ps, pieces.end_ps, CAUSE_CODE[pieces.evidence]),
            *(self._steps.enclosing_all(pieces.start_ps, thread), function, text, pieces.event, pieces.stack),
            *(asked.first, asked.behind, asked.since_ps, asked.until_ps, self._steps.enclosing_all(begun, thread)),
        )
        owner_of, cause_of, step_of, weight, evidence, event_of, stack_of = map(
            np.asarray, _native.share_out(*(np.ascontiguousarray(column, np.int64) for column in columns))
        )
        share = intervals.largest_remainders((asked.high_ps - asked.low_ps), owner_of, weight)
        rows = np.flatnonzero(share > 0)
        none = np.full(len(rows), -1, np.int64)
        return owner_of[rows], Gaps(
            start_ps=asked.low_ps[owner_of][rows],
            end_ps=asked.high_ps[owner_of][rows],
            cause=cause_of[rows],
            cause_step=step_of[rows],
            length_ps=share[rows],
            launch=none,
            method=none,
            event=event_of[rows],
            stack=stack_of[rows],
            evidence=evidence[rows],
            window=none,
        )

    def _words(self, event: Int64, stack: Int64) -> tuple[Int64, Int64]:
        """What is added up as one, and the text that is shown, as numbers of ``texts``."""
        name = np.where(event >= 0, self._name[self._event_name[event]], self._reason[_NO_SPAN])
        placed = (stack >= 0) & (self._function[stack] >= 0)
        return np.where(placed, self._function[stack], name), np.where(placed, self._line[stack], name)


@dataclass(frozen=True)
class _Asked:
    """[low, high) to be shared by the pieces [first, behind) as far as they lie in [since, until)."""

    low_ps: Int64
    high_ps: Int64
    since_ps: Int64
    until_ps: Int64
    first: Int64
    behind: Int64


_NONE = np.empty(0, np.int64)
_NO_GAPS = Gaps(*(_NONE for _ in fields(Gaps)))


def _with_end(rows: Gaps, launch: Int64, method: Int64) -> Gaps:
    columns = {field.name: getattr(rows, field.name) for field in fields(Gaps)}
    return Gaps(**{**columns, "launch": launch, "method": method})


def _cut(start: Int64, end: Int64, cuts: Int64) -> tuple[Int64, Int64, Int64]:
    """(which, low, high): the intervals [start, end) cut at ``cuts``; empty ones are dropped."""
    which = np.flatnonzero(end > start)
    start, end = start[which], end[which]
    first = np.searchsorted(cuts, start, side="right")
    count = np.maximum(np.searchsorted(cuts, end, side="left") - first, 0) + 1
    if (count == 1).all():
        return which, start, end
    owner = np.repeat(np.arange(len(which)), count)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    cut = np.concatenate((cuts, [0]))
    behind = np.minimum(first[owner] + place, len(cuts))
    low = np.where(place == 0, start[owner], cut[behind - 1])
    high = np.where(place == count[owner] - 1, end[owner], cut[behind])
    return which[owner], low, high


def _unexplained(asked: _Asked, pieces: Pieces) -> Intervals:
    """What of the pieces in question neither a span nor a sample explains."""
    count = asked.behind - asked.first
    owner = np.repeat(np.arange(len(count)), count)
    at = asked.first[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    silent = np.flatnonzero((pieces.evidence[at] == Evidence.NOTHING) & (pieces.stack[at] < 0))
    owner, at = owner[silent], at[silent]
    start = np.maximum(pieces.start_ps[at], asked.since_ps[owner])
    end = np.minimum(pieces.end_ps[at], asked.until_ps[owner])
    first, _ = distinct(start, end)
    return start[first], end[first]

"""What is replayed of one process, as the columns that the kernel wants (native/kernels/replay.h).

Threads and lanes advance on demand: a wait asks for its work, work for the thread that made it ready. Only a wait for
work takes another time than its own or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xprof_py import _native
from xprof_py.postprocess.join.columns import Int64
from xprof_py.postprocess.replay.timeline import Timeline
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES

Windows = tuple[Int64, Int64, Int64, Int64]
"""Of lanes in steps: lane, step, start, end in ps, as step_times takes them."""
COLLECTIVE = CLASSES.index("collective")
_DEVICE_WAIT = CLASSES.index("device_wait")
_LEFT_OUT = int(np.iinfo(np.int64).min)
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Joins:
    """Where the work of one process joins that of others, by row of its work: the collective that it waits in, fleet
    time less own time, and how long it waited there as measured. -1, 0 and 0 where it joins nobody."""

    meeting: Int64
    shift_ps: Int64
    waited_ps: Int64


@dataclass(frozen=True)
class Meetings:
    """The participants of all collectives, those of collective i from ``begin[i]``: their process, row of its work, and
    how much later than the beginning of that they come, in fleet time."""

    begin: Int64
    process: Int64
    part: Int64
    later_ps: Int64


NOBODY = Meetings(np.zeros(1, np.int64), _NONE, _NONE, _NONE)


class Program:
    """One process, made once for all replays of it. ``joins``: None where it is replayed alone."""

    def __init__(
        self, timeline: Timeline, windows: Windows, thread_of_step: Sequence[int], joins: Joins | None = None
    ) -> None:
        work = timeline.work
        self._work, self.windows, self._joins = work, windows, joins
        threads = {thread: s for thread, s in sorted(timeline.segments.items()) if len(s.start_ps)}
        segments = list(threads.values())
        numbers = np.array(list(threads), np.int64)
        self._label = _joined([s.label for s in segments])
        self._length = _joined([s.end_ps - s.start_ps for s in segments])
        begin = _begins([len(s.start_ps) for s in segments])
        waits = []
        for s in segments:
            some = np.flatnonzero(s.work >= 0)
            waits.append(some[s.start_ps[some] <= work.end_ps[s.work[some]]])
        self._waits = _joined([some + first for some, first in zip(waits, begin, strict=False)])
        awaited, counts = [], []
        for s, some in zip(segments, waits, strict=True):
            first, last = (np.searchsorted(s.also_of, some, side=side) for side in ("left", "right"))
            place = np.concatenate([np.arange(len(some)), np.repeat(np.arange(len(some)), last - first)])
            rows = np.concatenate([s.work[some], s.also[_ranges(first, last)]])
            awaited.append(rows[np.argsort(place, kind="stable")])
            counts.append(last - first + 1)
        lane, step, start_ps, end_ps = windows
        _, window_lane = np.unique(lane, return_inverse=True)
        _, lane_first, lane_of_work = np.unique(work.lane, return_index=True, return_inverse=True)
        first, last = _rows_of_windows(work.lane, work.step, lane, step)
        order = np.lexsort((work.step, work.lane))
        self._columns = (
            lane_of_work,
            work.start_ps,
            work.end_ps,
            None,
            _place_in(numbers, work.thread),
            work.ready_ps,
            np.full(len(work.lane), -1) if joins is None else work.follows,
            np.full(len(work.lane), -1) if joins is None else joins.meeting,
            np.zeros(len(work.lane)) if joins is None else joins.shift_ps,
            np.zeros(len(work.lane)) if joins is None else joins.waited_ps,
            lane_first,
            begin,
            _joined([s.start_ps for s in segments]),
            None,
            _begins([len(some) for some in waits]),
            _joined(waits),
            _joined([s.end_ps[some] for s, some in zip(segments, waits, strict=True)]),
            _begins(_joined(counts)),
            _joined(awaited),
            window_lane,
            _place_in(numbers, np.array(thread_of_step, np.int64)[step] if len(step) else _NONE),
            start_ps,
            end_ps,
            _begins(last - first),
            order[_ranges(first, last)],
        )
        self._columns = tuple(None if c is None else np.ascontiguousarray(c, np.int64) for c in self._columns)
        self._lengths, self._kept = 3, 13

    def without(self, removed: int) -> tuple[Int64, ...]:
        """The kernel's columns where class ``removed`` takes no time (-1: none), and two to write the windows to."""
        work = self._work
        length = work.end_ps - work.start_ps
        if removed == _DEVICE_WAIT:
            length = length - work.inner_gaps_ps
        elif 0 <= removed < len(BUSY_CLASSES):
            length = length - work.exclusive_ps[:, removed]
        if self._joins is not None:
            # A wait is what joins the ranks, not the class's own time.
            waited = self._joins.waited_ps
            own = np.minimum(waited, work.exclusive_ps[:, COLLECTIVE]) if removed == COLLECTIVE else 0
            length = np.maximum(length - waited + own, 0)
        kept = np.where(self._label == removed, 0, self._length)
        kept[self._waits] = self._length[self._waits]
        columns = list(self._columns)
        columns[self._lengths], columns[self._kept] = np.ascontiguousarray(length, np.int64), kept
        low, high = (np.empty(len(self.windows[0]), np.int64) for _ in range(2))
        return (*columns, low, high)


def replay(
    programs: Sequence[Program], removed: int, meetings: Meetings = NOBODY, *, never_waits: bool = False
) -> list[tuple[Windows, Int64]]:
    """Per process its windows where the replay without class ``removed`` (-1: with all) puts them, and their rows.

    Those before the first of a lane that is not empty are left out. ``never_waits``: every collective takes its
    transfer alone. Raises RecursionError where too many waits wait for one another.
    """
    columns = tuple(program.without(removed) for program in programs)
    met = (meetings.begin, meetings.process, meetings.part, meetings.later_ps)
    _native.replay(
        columns,
        tuple(np.ascontiguousarray(column, np.int64) for column in met),
        removed == _DEVICE_WAIT,
        never_waits,
    )
    out = []
    for program, (*_, low, high) in zip(programs, columns, strict=True):
        kept = np.flatnonzero(low != _LEFT_OUT)
        lane, step, _, _ = program.windows
        out.append(((lane[kept], step[kept], low[kept], high[kept]), kept))
    return out


def _joined(columns: Sequence[Int64]) -> Int64:
    return np.concatenate(columns) if columns else _NONE


def _begins(counts: Sequence[int] | Int64) -> Int64:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _ranges(first: Int64, last: Int64) -> Int64:
    """The numbers from each first up to its last, one range after the other."""
    count = last - first
    return np.repeat(first - (np.cumsum(count) - count), count) + np.arange(count.sum())


def _place_in(sorted_values: Int64, values: Int64) -> Int64:
    """Where each value is, -1 where it is not."""
    if not len(sorted_values):
        return np.full(len(values), -1)
    at = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    return np.where(sorted_values[at] == values, at, -1)


def _rows_of_windows(lane: Int64, step: Int64, window_lane: Int64, window_step: Int64) -> tuple[Int64, Int64]:
    """The range of each window's rows, which lie in order of (lane, step), rows of one in their order."""
    steps = np.concatenate([step, window_step])
    least = int(steps.min(initial=0))
    width = int(steps.max(initial=0)) - least + 1
    keys = np.sort(lane * width + (step - least))
    wanted = window_lane * width + (window_step - least)
    return np.searchsorted(keys, wanted, side="left"), np.searchsorted(keys, wanted, side="right")

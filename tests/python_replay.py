"""The replay of steps in Python, which the kernel in C must give value by value (native/kernels/replay.c)."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from xprof_py.postprocess.join.columns import Int64
from xprof_py.postprocess.replay.program import COLLECTIVE, Joins, Meetings, Windows
from xprof_py.postprocess.replay.timeline import Segments, Timeline, Work
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES

_DEVICE_WAIT = CLASSES.index("device_wait")
_NOT_YET = int(np.iinfo(np.int64).min)


def one_by_one(column: Int64) -> memoryview[int]:
    """A column to be read value by value: as quick as a list of Python's, which takes five times the memory."""
    return np.ascontiguousarray(column, np.int64).data.cast("B").cast("q")


class _Thread:
    """A host thread in one replay: where its segments begin, as far as it has come.

    Only a wait for work takes another time than its own or none: between two of them a segment's place is a difference
    of sums.
    """

    def __init__(self, segments: Segments, work: Work, removed: int) -> None:
        length = segments.end_ps - segments.start_ps
        target = segments.work
        waits = np.flatnonzero(target >= 0)
        waits = waits[segments.start_ps[waits] <= work.end_ps[target[waits]]]
        kept = np.where(segments.label == removed, 0, length)
        kept[waits] = length[waits]
        self._starts = one_by_one(segments.start_ps)
        self._kept = one_by_one(kept)
        self._before = one_by_one(np.concatenate(([0], np.cumsum(kept))))
        self.waits = one_by_one(waits)
        self.ends = one_by_one(segments.end_ps[waits])
        self.work = one_by_one(target[waits])
        self._also = one_by_one(segments.also)
        self._also_begin = one_by_one(np.searchsorted(segments.also_of, waits, side="left"))
        self._also_end = one_by_one(np.searchsorted(segments.also_of, waits, side="right"))
        self.waited: list[int] = []
        """How long each wait so far takes in the replay; the last one may still be going on, at its own length."""
        self._moved: list[int] = [0]
        self.advancing = False

    def segment_before(self, at_ps: int) -> int:
        """The segment that a moment lies in or ends, -1 before the first."""
        return bisect_left(self._starts, at_ps) - 1

    def own_length(self, wait: int) -> int:
        """The measured length of a wait."""
        return self._kept[self.waits[wait]]

    def waited_for(self, wait: int) -> list[int]:
        """The rows of all work that a wait waits for."""
        return [self.work[wait], *self._also[self._also_begin[wait] : self._also_end[wait]]]

    def start_of(self, segment: int) -> int:
        """Where a segment begins in the replay, whose every earlier wait is known."""
        done = bisect_left(self.waits, segment)
        return self._starts[0] + self._before[segment] + self._moved[done]

    def settle(self, wait: int, length: int) -> None:
        """The wait takes so long."""
        self.waited[wait] = length
        self._moved.append(self._moved[wait] + length - self.own_length(wait))

    def place_of(self, at_ps: int, segment: int) -> int:
        """When a moment comes that was in a segment; in one that is not reached yet, as late as is known."""
        if self.advancing:
            segment = min(segment, self.waits[len(self.waited) - 1])
        wait = bisect_left(self.waits, segment)
        is_wait = wait < len(self.waits) and self.waits[wait] == segment
        length = self.waited[wait] if is_wait else self._kept[segment]
        return self.start_of(segment) + min(max(at_ps - self._starts[segment], 0), length)


class Replay:
    """One replay. Threads and lanes advance on demand: a wait asks for its work, work for the host that made it."""

    def __init__(self, timeline: Timeline, removed: int) -> None:
        work = timeline.work
        self._removed = removed
        self._threads = {
            thread: _Thread(segments, work, removed)
            for thread, segments in timeline.segments.items()
            if len(segments.start_ps)
        }
        length = work.end_ps - work.start_ps
        if removed == _DEVICE_WAIT:
            length = length - work.inner_gaps_ps
        elif 0 <= removed < len(BUSY_CLASSES):
            length = length - work.exclusive_ps[:, removed]
        self._length = one_by_one(length)
        columns = (work.lane, work.start_ps, work.end_ps, work.thread, work.ready_ps)
        self._lane, self._start, self._end, self._thread, self._ready = map(one_by_one, columns)
        # Work is in order of lane.
        lanes, first = np.unique(work.lane, return_index=True)
        self._next: dict[int, int] = dict(zip(lanes.tolist(), first.tolist(), strict=True))
        self._lane_end: dict[int, tuple[int, int]] = {}
        self._ends, self._begins = (one_by_one(np.full(len(length), _NOT_YET)) for _ in range(2))
        self._begun: dict[int, int] = {}
        """Per lane the work that has begun and whose end is not known."""
        self._asked: set[int] = set()

    def moved(self, thread: int, at_ps: int) -> int:
        """When the moment ``at_ps`` of a thread comes in the replay. Moments of unknown threads do not move."""
        state = self._threads.get(thread)
        if state is None:
            return at_ps
        # A moment between two segments ends the first: the second may be a wait for what this moment makes ready.
        segment = state.segment_before(at_ps)
        if segment < 0:
            return at_ps
        if not state.advancing:
            self._advance(state, segment)
        return state.place_of(at_ps, segment)

    def _advance(self, state: _Thread, upto: int) -> None:
        while len(state.waited) < len(state.waits) and state.waits[len(state.waited)] <= upto:
            wait = len(state.waited)
            now = state.start_of(state.waits[wait])
            length = state.own_length(wait)
            row = state.work[wait]
            # Where its own work is asked for below, the thread must already know how far it has come.
            state.waited.append(length)
            state.advancing = True
            if self._end[row] > state.ends[wait]:
                length = 0
            elif row not in self._asked:
                woke = 0 if self._removed == _DEVICE_WAIT else state.ends[wait] - self._end[row]
                length = max(now, *(self.end_of(awaited) for awaited in state.waited_for(wait))) - now + woke
            state.settle(wait, length)
            state.advancing = False

    def end_of(self, row: int) -> int:
        """When a piece of work ends in the replay."""
        lane = self._lane[row]
        while self._ends[row] == _NOT_YET:
            self._finish_next(lane)
        return self._ends[row]

    def begin_of(self, row: int) -> int:
        """When a piece of work begins, whose end may not be known yet."""
        lane = self._lane[row]
        while self._begins[row] == _NOT_YET:
            if lane in self._begun:
                self._finish_next(lane)
            else:
                self._begun[lane] = self._begin_next(lane)
        return self._begins[row]

    def _finish_next(self, lane: int) -> None:
        row = self._begun.pop(lane, -1)
        if row < 0:
            row = self._begin_next(lane)
        # Known to whoever asks for it while its wait is looked for.
        self._ends[row] = self._begins[row] + self._length[row]
        end = self._ends[row] = self._ends[row] + self._waits(row)
        free_then, free_now = self._lane_end.get(lane, (self._end[row], end))
        self._lane_end[lane] = (max(free_then, self._end[row]), max(free_now, end))

    def _begin_next(self, lane: int) -> int:
        row = self._next[lane]
        self._next[lane] += 1
        # A thread that made work ready while already waiting for it would ask in a circle: that wait keeps its length.
        self._asked.add(row)
        ready_then, ready = self._made_ready(row)
        self._asked.discard(row)
        free_then, free_now = self._lane_end.get(lane, (ready_then, ready))
        lag = self._start[row] - max(ready_then, free_then)
        if self._removed == _DEVICE_WAIT:
            lag = min(lag, 0)
        self._begins[row] = max(ready, max(ready, free_now) + lag)
        return row

    def _made_ready(self, row: int) -> tuple[int, int]:
        """When the work was ready, as measured and in the replay."""
        return self._ready[row], self.moved(self._thread[row], self._ready[row])

    def _waits(self, row: int) -> int:
        """What it waits for other processes, beyond its length: nothing where it is replayed alone."""
        return 0


def replayed_windows(run: Replay, timeline: Timeline, windows: Windows, thread_of_step: list[int]) -> Windows:
    """The windows (lane, step, start, end) where the replay puts them, but for those before a lane's first."""
    of_step: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, key in enumerate(zip(timeline.work.lane.tolist(), timeline.work.step.tolist(), strict=True)):
        of_step[key].append(row)
    at: dict[int, int] = {}
    out: list[tuple[int, int, int, int]] = []
    for lane, step, start_ps, end_ps in zip(*(column.tolist() for column in windows), strict=True):
        thread = thread_of_step[step]
        if lane not in at:
            if end_ps == start_ps:
                continue
            at[lane] = run.moved(thread, start_ps)
        low = at[lane]
        if of_step:
            at[lane] = max([low, *(run.end_of(row) for row in of_step.get((lane, step), ()))])
        else:
            at[lane] = max(low, run.moved(thread, end_ps))
        out.append((lane, step, low, at[lane]))
    lane_of, step_of, start, end = np.array(out, np.int64).reshape(-1, 4).T
    return lane_of, step_of, start, end


class _Process(Replay):
    """One process in a replay of the job."""

    def __init__(self, timeline: Timeline, joins: Joins, removed: int, job: Job) -> None:
        super().__init__(timeline, removed)
        work = timeline.work
        self._job = job
        self._follows, self._meeting, self._shift = (
            work.follows.tolist(),
            joins.meeting.tolist(),
            joins.shift_ps.tolist(),
        )
        self._measured = joins.waited_ps.tolist()
        own = np.minimum(joins.waited_ps, work.exclusive_ps[:, COLLECTIVE]) if removed == COLLECTIVE else 0
        self._length = one_by_one(np.maximum(np.asarray(self._length) - joins.waited_ps + own, 0))

    def _made_ready(self, row: int) -> tuple[int, int]:
        before = self._follows[row]
        return super()._made_ready(row) if before < 0 else (self._end[before], self.end_of(before))

    def _waits(self, row: int) -> int:
        meeting = self._meeting[row]
        if meeting < 0:
            return 0
        until = self._job.met(meeting)
        if until is None:
            return self._measured[row] if not self._job.never_waits else 0
        return max(until - self._shift[row] - self._begins[row], 0)


class Job:
    """All processes in one replay."""

    def __init__(
        self, timelines: Sequence[Timeline], joins: Sequence[Joins], removed: int, meetings: Meetings, never_waits: bool
    ) -> None:
        self.never_waits = never_waits
        self.processes = [_Process(t, j, removed, self) for t, j in zip(timelines, joins, strict=True)]
        self._begin, self._who, self._part, self._later_ps = (
            column.tolist() for column in (meetings.begin, meetings.process, meetings.part, meetings.later_ps)
        )
        self._met: dict[int, int | None] = {}
        for meeting in range(len(self._begin) - 1):
            self.met(meeting)

    def met(self, meeting: int) -> int | None:
        """When the last participant comes, in fleet time; None where nobody is waited for, or it is being asked
        already."""
        if meeting not in self._met:
            self._met[meeting] = None
            if not self.never_waits:
                self._met[meeting] = max(
                    self.processes[self._who[at]].begin_of(self._part[at]) + self._later_ps[at]
                    for at in range(self._begin[meeting], self._begin[meeting + 1])
                )
        return self._met[meeting]

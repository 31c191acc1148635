"""What would a step of the job take without one class of its time, or without anybody's being late?

All processes, or all devices of one, are replayed together (step_replay.py says how each process is), joined at their
collectives: a part of a run that begins with one waits there until the last participant has come, and then goes on. So
what is removed on one rank shortens the waiting of all others. Besides the classes three things are tried:

    straggler       one process's lateness: it comes and goes with the others, so it is left out
    waiting         every collective takes its transfer alone: nobody waits for anybody
    input           is a class: batches that cost nothing

Taking away `collective` takes away transfers; who comes late still comes late. Replayed with nothing removed the steps
must come out as measured. Only collectives whose participants were all seen, on clocks that match, join their ranks;
the others keep their measured length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.join.columns import Int64
from xprof_py.postprocess.join.windows import step_times
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.replay.program import Joins, Meetings, Program, Windows, replay
from xprof_py.postprocess.replay.step_replay import NOTHING, step_windows
from xprof_py.postprocess.replay.timeline import Timeline, read_timeline, step_threads
from xprof_py.postprocess.schema import CLASSES

WAITING = "waiting"
STRAGGLER = "straggler"
_FIELDS = [("removed", pa.string()), *((n, pa.int64()) for n in ("steps", "measured_ps", "replayed_ps"))]


@dataclass(frozen=True)
class ProcessTimeline:
    """Of one process, on its own clock in ps: its timeline, runs cut at collectives; its windows of steps (lane, step,
    start, end) with the thread of each step; and the classes that take time in them."""

    timeline: Timeline
    windows: Windows
    thread_of_step: list[int]
    classes: frozenset[str]


def read_process(profile: Profile) -> ProcessTimeline:
    """Map 1 of one joined profile."""
    breakdown = profile["breakdown"]
    present = breakdown.filter(pc.and_(pc.equal(breakdown["kind"], "step"), pc.greater(breakdown["exclusive_ps"], 0)))
    return ProcessTimeline(
        read_timeline(profile, cut_at_collectives=True),
        step_windows(profile),
        step_threads(profile),
        frozenset(present["class"].unique().to_pylist()),
    )


@dataclass(frozen=True)
class Met:
    """The joining collectives of one process, as columns by row of its endpoints (-1: it joins nobody).

    ``meeting``: number of the collective. ``arrival_ps``: when this rank came, on its own clock; ``wait_ps``: how long
    the last came after the wait could begin; ``shift_ps``: fleet time less own time.
    """

    meeting: Int64
    arrival_ps: Int64
    wait_ps: Int64
    shift_ps: Int64


class _Joined:
    """Where the work of one process joins others, whatever is removed: its program, and its rows of the meetings."""

    def __init__(self, process: ProcessTimeline, met: Met) -> None:
        work = process.timeline.work
        known = (work.execution >= 0) & (work.execution < len(met.meeting))
        execution = np.where(known, work.execution, 0)
        none = np.zeros(len(known), np.int64)
        joins = known & (met.meeting[execution] >= 0) if len(met.meeting) else known
        waited = none
        meeting, shift = none - 1, none
        if len(met.meeting):
            waited = np.where(joins, np.clip(met.wait_ps[execution], 0, work.end_ps - work.start_ps), 0)
            meeting, shift = np.where(joins, met.meeting[execution], -1), met.shift_ps[execution]
        self.program = Program(process.timeline, process.windows, process.thread_of_step, Joins(meeting, shift, waited))
        # Where its arrivals lie, one per lane: in the part that waits, or for an asynchronous one in an earlier one.
        rows = np.flatnonzero(joins)
        at = met.arrival_ps[work.execution[rows]] if len(rows) else rows
        part = rows.copy()
        while True:
            earlier = np.flatnonzero((part > 0) & (work.start_ps[part] > at))
            earlier = earlier[work.lane[part[earlier] - 1] == work.lane[rows[earlier]]]
            if not len(earlier):
                break
            part[earlier] -= 1
        self.meetings, self.part = meeting[rows], part
        self.later_ps = np.maximum(at - work.start_ps[part], 0) + shift[rows]


def _meetings(joined: Sequence[_Joined]) -> Meetings:
    """The participants of all collectives among these processes."""
    meeting = np.concatenate([of.meetings for of in joined])
    who = np.repeat(np.arange(len(joined)), [len(of.meetings) for of in joined])
    order = np.argsort(meeting, kind="stable")
    begin = np.searchsorted(meeting[order], np.arange(meeting.max(initial=-1) + 2))
    part = np.concatenate([of.part for of in joined])[order]
    later_ps = np.concatenate([of.later_ps for of in joined])[order]
    return Meetings(begin, who[order], part, later_ps)


def replay_job(
    processes: Sequence[ProcessTimeline],
    met: Sequence[Met],
    step_of: Sequence[Int64],
    shift_ps: Sequence[Int64],
    used: np.ndarray[tuple[int], np.dtype[np.bool_]],
    measured_ps: Int64,
    straggler: int = -1,
) -> pa.Table:
    """Per removed class, and for WAITING and STRAGGLER: the mean job step in ps as measured and as replayed, like
    step_replay.finish.

    ``step_of``: per process the job's step of each of its steps. ``shift_ps``: per process and window fleet time less
    own time at its end. ``used``: which of the job's steps count; ``measured_ps``: what each took. ``straggler``:
    process whose lateness is taken away, -1 for none.
    """
    count = int(used.sum())
    if not count:
        return pa.schema(_FIELDS).empty_table()
    classes = frozenset[str]().union(*(process.classes for process in processes))
    tries: list[tuple[str, bool]] = [
        (name, False) for name in (NOTHING, *(c for c in CLASSES if c in classes), WAITING)
    ]
    tries += [(STRAGGLER, True)] if straggler >= 0 and len(processes) > 1 else []
    measured = int(measured_ps[used].sum()) // count
    joined = [_Joined(process, of) for process, of in zip(processes, met, strict=True)]
    rows = []
    for name, without in tries:
        some = [number for number in range(len(processes)) if not (without and number == straggler)]
        mine = [processes[number] for number in some]
        removed = CLASSES.index(name) if name in classes else -1
        some_joined = [joined[number] for number in some]
        run = replay([of.program for of in some_joined], removed, _meetings(some_joined), never_waits=name == WAITING)
        took = _steps(run, mine, [step_of[n] for n in some], [shift_ps[n] for n in some], len(used))
        rows.append(
            {"removed": name, "steps": count, "measured_ps": measured, "replayed_ps": int(took[used].sum()) // count}
        )
    return pa.Table.from_pylist(rows, schema=pa.schema(_FIELDS))


def _steps(
    run: Sequence[tuple[Windows, Int64]],
    processes: Sequence[ProcessTimeline],
    step_of: Sequence[Int64],
    shift_ps: Sequence[Int64],
    count: int,
) -> Int64:
    columns = []
    lanes = 0
    for number, ((lane, step, low, high), kept) in enumerate(run):
        shift = shift_ps[number][kept]
        order = np.argsort(lane, kind="stable")
        columns.append(
            [(lane + lanes)[order], step_of[number][step][order], (low + shift)[order], (high + shift)[order]]
        )
        lanes += int(processes[number].windows[0].max(initial=-1)) + 1
    lane, step, low, high = (np.concatenate([c[i] for c in columns]) for i in range(4))
    order = np.lexsort((step, lane))
    return step_times(lane[order], step[order], low[order], high[order], count)

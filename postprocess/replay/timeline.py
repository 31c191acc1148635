"""The timeline of one process as a program to replay: host segments, dispatches, runs, waits.

A host thread is a sequence of segments; at some of its moments it hands a run to a lane, and in some it waits for work
of the device to end. A lane executes its work in the order in which it did. Replaying keeps these dependences and gives
every segment and run its measured duration, less what is removed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xprof_py.postprocess.join import host_names, intervals
from xprof_py.postprocess.join.columns import Events, Int64, dictionary, integers
from xprof_py.postprocess.join.gaps import CAUSE
from xprof_py.postprocess.join.host_activity import HostActivity
from xprof_py.postprocess.join.samples import Samples
from xprof_py.postprocess.join.steps import read_steps
from xprof_py.postprocess.join.threads import thread_of_line
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES


@dataclass(frozen=True)
class Segment:
    """A stretch of a host thread. ``label``: index of CLASSES; ``work``: what it waits for, -1 if it does not wait."""

    start_ps: int
    end_ps: int
    label: int
    work: int


@dataclass
class Work:
    """A run, or a copy outside runs: a stretch of a lane. ``ready_ps``: the moment on ``thread`` that made it ready."""

    lane: int
    start_ps: int
    end_ps: int
    thread: int
    ready_ps: int
    step: int
    exclusive_ps: list[int]
    inner_gaps_ps: int


@dataclass
class Timeline:
    """Segments per thread, in order of start, tiling the capture; work in order of (lane, start)."""

    segments: dict[int, list[Segment]]
    work: list[Work]


def read_timeline(profile: Profile) -> Timeline:
    """The timeline of one joined profile."""
    events = Events(profile)
    threads = thread_of_line(profile, events)
    steps = read_steps(events, threads)
    launches = profile["launches"]
    launch_line = integers(launches, "line")
    launching = sorted({int(threads[line]) for line in launch_line} | {int(t) for t in steps.thread[: steps.outer]})
    host_line = np.isin(threads, np.array(launching, np.int64))
    samples = Samples(profile, threads)
    activity = HostActivity(events, threads, host_line, steps, profile.capture_start_ps, samples)
    work = _read_work(profile, events, threads)
    start = min([profile.capture_start_ps, *(int(s) for s in steps.start_ps[:1]), *(w.start_ps for w in work[:1])])
    end = max([profile.capture_end_ps, *(w.end_ps for w in work)])
    segments = {
        thread: _thread_segments(profile, events, threads, activity, work, thread, start, end) for thread in launching
    }
    return Timeline(segments, work)


def step_threads(profile: Profile) -> list[int]:
    """The thread (as in Timeline.segments) of every row of `steps`."""
    threads = thread_of_line(profile, Events(profile))
    return [int(threads[line]) for line in profile["steps"]["line"].to_pylist()]


def _read_work(profile: Profile, events: Events, threads: Int64) -> list[Work]:
    """Runs in order of (lane, start), with copies outside runs as work of their own."""
    ops, runs, launches = profile["ops"], profile["runs"], profile["launches"]
    leaf = np.asarray(ops["leaf"].to_numpy(zero_copy_only=False), np.bool_)
    run = integers(ops, "run")
    class_code, class_names = dictionary(ops, "class")
    code = np.array([CLASSES.index(name) for name in class_names] or [0], np.int64)[class_code]
    start = integers(ops, "start_ps")
    end = start + integers(ops, "duration_ps") + integers(ops, "open_ps")
    launch_end = integers(launches, "end_ps")
    launch_line = integers(launches, "line")
    out = []
    order = np.argsort(run, kind="stable")
    bounds = np.searchsorted(run[order], np.arange(runs.num_rows + 1))
    for row, item in enumerate(runs.to_pylist()):
        mine = order[bounds[row] : bounds[row + 1]]
        mine = mine[leaf[mine]]
        exclusive, busy = _exclusive(start[mine], end[mine], code[mine])
        launch = item["launch"] if item["launch"] is not None else -1
        # A run may start while its launch is still open: then it was ready when it started.
        done = int(launch_end[launch]) if launch >= 0 else item["start_ps"]
        out.append(
            Work(
                lane=item["lane"],
                start_ps=item["start_ps"],
                end_ps=item["end_ps"],
                thread=int(threads[launch_line[launch]]) if launch >= 0 else -1,
                ready_ps=item["start_ps"] if done < 0 else min(done, item["start_ps"]),
                step=item["step"] if item["step"] is not None else -1,
                exclusive_ps=exclusive,
                inner_gaps_ps=item["end_ps"] - item["start_ps"] - busy,
            )
        )
    lane = integers(ops, "lane")
    event = integers(ops, "event")
    puts = np.flatnonzero(events.matching(lambda name: name in host_names.PUTS))
    puts = puts[np.argsort(events.start_ps[puts], kind="stable")]
    for row in np.flatnonzero(run < 0).tolist():
        low, high = int(start[row]), int(end[row])
        exclusive = [0] * len(BUSY_CLASSES)
        exclusive[int(code[row])] = high - low
        place = int(np.searchsorted(events.start_ps[puts], low, side="right")) - 1
        put = int(puts[place]) if place >= 0 else int(event[row])
        # The put returns when it has handed the copy over; a copy made inside the put is ready when it starts.
        ready = min(low, int(events.end_ps[put]))
        out.append(Work(int(lane[row]), low, high, int(threads[events.line[put]]), ready, -1, exclusive, 0))
    out.sort(key=lambda w: (w.lane, w.start_ps, w.end_ps))
    return out


def _exclusive(start: Int64, end: Int64, code: Int64) -> tuple[list[int], int]:
    """Per busy class what it covers alone inside one run (earlier classes win), and the cover of all."""
    taken = intervals.nothing()
    out = []
    for index in range(len(BUSY_CLASSES)):
        mine = intervals.union(start[code == index], end[code == index])
        left = intervals.subtract(mine, taken)
        out.append(int((left[1] - left[0]).sum()))
        taken = intervals.union(np.concatenate((taken[0], mine[0])), np.concatenate((taken[1], mine[1])))
    return out, int((taken[1] - taken[0]).sum())


def _thread_segments(
    profile: Profile,
    events: Events,
    threads: Int64,
    activity: HostActivity,
    work: list[Work],
    thread: int,
    start: int,
    end: int,
) -> list[Segment]:
    """The thread's pieces from start to end. Ops and copies that ran on the thread itself carry their own class."""
    ops = profile["ops"]
    event = integers(ops, "event")
    leaf = np.asarray(ops["leaf"].to_numpy(zero_copy_only=False), np.bool_)
    inline = np.flatnonzero(leaf & (threads[events.line[event]] == thread)) if len(event) else np.empty(0, np.int64)
    class_code, class_names = dictionary(ops, "class")
    op_start = integers(ops, "start_ps")[inline]
    op_end = op_start + integers(ops, "duration_ps")[inline]
    order = np.argsort(op_start, kind="stable")
    own = [
        (int(op_start[i]), int(op_end[i]), CLASSES.index(class_names[class_code[inline[i]]]))
        for i in order
        if op_end[i] > op_start[i]
    ]
    waits = {wait.event: wait for wait in activity.waits(thread)}
    ends = np.array(sorted((w.end_ps, row) for row, w in enumerate(work)) or np.empty((0, 2)), np.int64)
    out: list[Segment] = []

    def add(low: int, high: int, label: int, target: int) -> None:
        # What is no wait moves and shrinks by its label alone: neighbours of one label are one segment.
        if target < 0 and out and (out[-1].end_ps, out[-1].label, out[-1].work) == (low, label, -1):
            low = out.pop().start_ps
        out.append(Segment(low, high, label, target))

    at = 0
    for piece in activity.between(thread, start, end):
        label = CLASSES.index(CAUSE[piece.evidence])
        target = -1
        if piece.event in waits:
            wait = waits[piece.event]
            place = int(np.searchsorted(ends[:, 0], wait.end_ps, side="right")) - 1
            if place >= 0 and ends[place, 0] >= wait.start_ps:
                target = int(ends[place, 1])
        # Cut out what ran inline: it is the device's work, on this thread.
        low = piece.start_ps
        while at < len(own) and own[at][1] <= low:
            at += 1
        look = at
        while look < len(own) and own[look][0] < piece.end_ps:
            own_start, own_end, own_label = own[look]
            own_start, own_end = max(own_start, low), min(own_end, piece.end_ps)
            if own_start > low:
                add(low, own_start, label, target)
            if own_end > own_start:
                add(own_start, own_end, own_label, -1)
            low = max(low, own_end)
            look += 1
        if piece.end_ps > low:
            add(low, piece.end_ps, label, target)
    return out

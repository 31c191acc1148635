"""The timeline of one process as a program to replay: host segments, dispatches, runs, waits.

A host thread is a sequence of segments; at some of its moments it hands a run to a lane, and in some it waits for work
of the device to end. A lane executes its work in the order in which it did. Replaying keeps these dependences and gives
every segment and run its measured duration, less what is removed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from xprof_py.postprocess.join import host_names, intervals
from xprof_py.postprocess.join.columns import Bool, Events, Int64, dictionary, distinct, integers
from xprof_py.postprocess.join.driver_calls import call_of
from xprof_py.postprocess.join.gaps import CAUSE_CODE
from xprof_py.postprocess.join.host_activity import HostActivity, Waits
from xprof_py.postprocess.join.samples import Samples
from xprof_py.postprocess.join.threads import thread_of_line
from xprof_py.postprocess.match.endpoints import read_executions
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES

WOKE_PS, WOKE_PART = 10**9, 10
"""A thread that waited for the device without a note of it goes on within 1 ms of the work's end, or within a tenth of
the wait: on a machine with busy cores a thread takes a time slice of a few milliseconds to wake up."""
_UNKNOWN = CLASSES.index("unknown")


@dataclass(frozen=True)
class Segments:
    """Stretches of a host thread, in order, tiling the capture. ``label``: index of CLASSES; ``work``: row of the work
    that each waits for, -1 if it does not wait.

    ``also``: rows of further work waited for, on other lanes too; ``also_of``: which segment waits for each, ascending.
    """

    start_ps: Int64
    end_ps: Int64
    label: Int64
    work: Int64
    also: Int64
    also_of: Int64


@dataclass(frozen=True)
class Work:
    """Runs, and copies outside runs: stretches of lanes, in order of (lane, start). Columns of one length.

    ``ready_ps``: the moment on ``thread`` that made it ready. ``exclusive_ps``: of shape (rows, BUSY_CLASSES).

    Where runs are cut at their collectives a piece that is not its run's first ``follows`` another row, and begins
    where ``execution`` (row of match.endpoints) can begin to wait; both -1 elsewhere.
    """

    lane: Int64
    start_ps: Int64
    end_ps: Int64
    thread: Int64
    ready_ps: Int64
    step: Int64
    exclusive_ps: Int64
    inner_gaps_ps: Int64
    follows: Int64
    execution: Int64


@dataclass(frozen=True)
class Timeline:
    """Segments per thread, and the work."""

    segments: dict[int, Segments]
    work: Work


@dataclass(frozen=True)
class _Ops:
    """The columns of the table ops that are read here; ``end_ps`` is that of the op's own event."""

    event: Int64
    lane: Int64
    run: Int64
    class_code: Int64
    leaf: Bool
    start_ps: Int64
    end_ps: Int64
    open_end_ps: Int64


def read_timeline(profile: Profile, *, cut_at_collectives: bool = False) -> Timeline:
    """The timeline of one joined profile."""
    events = Events.of(profile)
    threads = thread_of_line(profile, events)
    ops = _read_ops(profile)
    work = _read_work(profile, events, threads, ops, cut_at_collectives)
    steps = profile["steps"]
    first_step = integers(steps, "start_ps")[integers(steps, "parent") < 0][:1]
    start = int(np.concatenate(([profile.capture_start_ps], first_step, work.start_ps[:1])).min())
    end = int(np.concatenate(([profile.capture_end_ps], work.end_ps)).max())
    # These are the same however runs are cut.
    of = (events, profile["launches"], profile["ops"], steps, start, end)
    stretches = profile.once("stretches", of, lambda: _stretches(profile, events, threads, ops, start, end))
    return Timeline({thread: _segments(found, work, thread) for thread, found in stretches.items()}, work)


@dataclass(frozen=True)
class _Stretches:
    """What a thread did from start to end, in order: what Segments are made of, and the thread's waits.

    ``label``: index of CLASSES; ``event``: that which decided, -1 for an op that ran on the thread itself.
    """

    start_ps: Int64
    end_ps: Int64
    label: Int64
    event: Int64
    waits: Waits


def _stretches(
    profile: Profile, events: Events, threads: Int64, ops: _Ops, start: int, end: int
) -> dict[int, _Stretches]:
    """Of every thread that launches or has steps."""
    steps = profile["steps"]
    outer = integers(steps, "parent") < 0
    launching = np.unique(
        threads[np.concatenate((integers(profile["launches"], "line"), integers(steps, "line")[outer]))]
    )
    activity = HostActivity(
        events, threads, np.isin(threads, launching), profile.capture_start_ps, Samples(profile, threads)
    )
    return {thread: _stretches_of(events, threads, activity, ops, thread, start, end) for thread in launching.tolist()}


def step_threads(profile: Profile) -> list[int]:
    """The thread (as in Timeline.segments) of every row of `steps`."""
    found: list[int] = thread_of_line(profile, Events.of(profile))[integers(profile["steps"], "line")].tolist()
    return found


def _read_ops(profile: Profile) -> _Ops:
    table = profile["ops"]
    code, names = dictionary(table, "class")
    start = integers(table, "start_ps")
    end = start + integers(table, "duration_ps")
    return _Ops(
        event=integers(table, "event"),
        lane=integers(table, "lane"),
        run=integers(table, "run"),
        class_code=np.array([CLASSES.index(name) for name in names] or [0], np.int64)[code],
        leaf=np.asarray(table["leaf"].to_numpy(), np.bool_),
        start_ps=start,
        end_ps=end,
        open_end_ps=end + integers(table, "open_ps"),
    )


@dataclass(frozen=True)
class _Parts:
    """Runs, each cut where a collective of its can begin to wait: by run, then time. ``run``: row of runs;
    ``execution``: the collective that a part begins with, -1 for none."""

    run: Int64
    start_ps: Int64
    end_ps: Int64
    execution: Int64


def _cut_runs(profile: Profile, ops: _Ops, cut: bool) -> _Parts:
    runs = profile["runs"]
    start, end = integers(runs, "start_ps"), integers(runs, "end_ps")
    run, execution = np.arange(runs.num_rows), np.full(runs.num_rows, -1, np.int64)
    if not cut:
        return _Parts(run, start, end, execution)
    last = read_executions(profile).last
    of, at = ops.run[last], ops.start_ps[last]
    at_start = np.flatnonzero((of >= 0) & (at == start[of]))
    execution[of[at_start]] = at_start
    inside = np.flatnonzero((of >= 0) & (at > start[of]) & (at < end[of]))
    # Of two that begin at once the first stands for both.
    first, _ = distinct(of[inside], at[inside])
    inside = inside[first]
    part_run = np.concatenate((run, of[inside]))
    part_start = np.concatenate((start, at[inside]))
    execution = np.concatenate((execution, inside))
    order = np.lexsort((part_start, part_run))
    part_run, part_start, execution = part_run[order], part_start[order], execution[order]
    is_last = np.append(part_run[1:] != part_run[:-1], True)[: len(part_run)]
    part_end = np.where(is_last, end[part_run], np.append(part_start[1:], 0)[: len(part_run)])
    return _Parts(part_run, part_start, part_end, execution)


def _in_parts(ops: _Ops, parts: _Parts) -> _Ops:
    """The leaves inside runs, each in the parts that it lies in: ``run`` is a row of ``parts`` then."""
    mine = np.flatnonzero(ops.leaf & (ops.run >= 0))
    first = _part_of(parts, ops.run[mine], ops.start_ps[mine])
    last = np.maximum(_part_of(parts, ops.run[mine], np.maximum(ops.open_end_ps[mine] - 1, ops.start_ps[mine])), first)
    count = last - first + 1
    op = np.repeat(mine, count)
    part = np.repeat(first, count) + np.arange(len(op)) - np.repeat(np.cumsum(count) - count, count)
    low, high = np.maximum(ops.start_ps[op], parts.start_ps[part]), np.minimum(ops.open_end_ps[op], parts.end_ps[part])
    return replace(
        ops,
        lane=ops.lane[op],
        run=part,
        class_code=ops.class_code[op],
        leaf=ops.leaf[op],
        start_ps=low,
        open_end_ps=high,
    )


def _part_of(parts: _Parts, run: Int64, at_ps: Int64) -> Int64:
    """The part of a run that a moment lies in: moments are sorted in among the parts' starts."""
    runs, starts = np.concatenate((parts.run, run)), np.concatenate((parts.start_ps, at_ps))
    asked = np.arange(len(runs)) >= len(parts.run)
    order = np.lexsort((asked, starts, runs))
    before = np.cumsum(~asked[order]) - 1
    place = np.empty(len(order), np.int64)
    place[order] = before
    return place[len(parts.run) :]


def _read_work(profile: Profile, events: Events, threads: Int64, ops: _Ops, cut: bool) -> Work:
    """Runs (or the pieces that collectives cut them into), with copies outside runs as work of their own."""
    runs, launches = profile["runs"], profile["launches"]
    parts = _cut_runs(profile, ops, cut)
    start, end = parts.start_ps, parts.end_ps
    launch = integers(runs, "launch")[parts.run]
    exclusive, busy = _exclusive(_in_parts(ops, parts), len(parts.run))
    continued = np.zeros(len(parts.run), np.bool_)
    continued[1:] = parts.run[1:] == parts.run[:-1]
    launched = np.flatnonzero((launch >= 0) & ~continued)
    thread = np.full(len(parts.run), -1, np.int64)
    thread[launched] = threads[integers(launches, "line")[launch[launched]]]
    # A run may start while its launch is still open: then it was ready when it started.
    ready = start.copy()
    done = integers(launches, "end_ps")[launch[launched]]
    ready[launched] = np.where(done < 0, start[launched], np.minimum(done, start[launched]))
    copies = np.flatnonzero(ops.run < 0)
    low, high = ops.start_ps[copies], ops.open_end_ps[copies]
    puts = events.rows_where(lambda name: name in host_names.PUTS)
    puts = puts[np.argsort(events.start_ps[puts], kind="stable")]
    place = np.searchsorted(events.start_ps[puts], low, side="right") - 1
    put = np.where(place >= 0, puts[place], ops.event[copies]) if len(puts) else ops.event[copies]
    # A GPU's copy is made ready by the call of the driver that launched it.
    call = call_of(profile, events, ops.event[copies])
    put = np.where(call >= 0, call, put)
    copied = np.zeros((len(copies), len(BUSY_CLASSES)), np.int64)
    copied[np.arange(len(copies)), ops.class_code[copies]] = high - low
    none = np.full(len(copies), -1, np.int64)
    columns = (
        (integers(runs, "lane")[parts.run], ops.lane[copies]),
        (start, low),
        (end, high),
        (thread, threads[events.line[put]]),
        # The put returns when it has handed the copy over; a copy made inside the put is ready when it starts.
        (ready, np.minimum(low, events.end_ps[put])),
        (integers(runs, "step")[parts.run], none),
        (exclusive, copied),
        (end - start - busy, np.zeros(len(copies), np.int64)),
        (np.where(continued, np.arange(len(continued)) - 1, -1), none),
        (parts.execution, none),
    )
    joined = [np.concatenate(pair) for pair in columns]
    order = np.lexsort((joined[2], joined[1], joined[0]))
    row = np.empty(len(order), np.int64)
    row[order] = np.arange(len(order))
    joined[8] = np.where(joined[8] >= 0, row[joined[8]], -1)
    return Work(*(column[order] for column in joined))


def _exclusive(ops: _Ops, runs: int) -> tuple[Int64, Int64]:
    """Per run and busy class what it covers alone inside the run (earlier classes win), and the cover of all."""
    mine = np.flatnonzero(ops.leaf & (ops.run >= 0))
    run, code, start, end = ops.run[mine], ops.class_code[mine], ops.start_ps[mine], ops.open_end_ps[mine]
    exclusive = np.zeros((runs, len(BUSY_CLASSES)), np.int64)
    before = np.zeros(runs, np.int64)
    for index in range(len(BUSY_CLASSES)):
        # What a class covers alone is what it adds to the cover of those before it.
        if (code == index).any():
            wins = code <= index
            covered = intervals.cover_of_groups(run[wins], start[wins], end[wins], runs)
            exclusive[:, index] = covered - before
            before = covered
    return exclusive, before


def _stretches_of(
    events: Events, threads: Int64, activity: HostActivity, ops: _Ops, thread: int, start: int, end: int
) -> _Stretches:
    """The thread's pieces from start to end. Ops and copies that ran on the thread itself carry their own class."""
    inline = np.flatnonzero(ops.leaf & (threads[events.line[ops.event]] == thread) & (ops.end_ps > ops.start_ps))
    inline = inline[np.argsort(ops.start_ps[inline], kind="stable")]
    # Cut out what ran inline: it is the device's work, on this thread. Of those that overlap the first goes on.
    own_end = np.minimum(ops.end_ps[inline], end)
    reach = np.maximum.accumulate(np.concatenate(([start], own_end)))[:-1]
    own_start = np.maximum(ops.start_ps[inline], reach)
    shown = own_end > own_start
    own_start, own_end, own_label = own_start[shown], own_end[shown], ops.class_code[inline[shown]]
    free = intervals.complement(intervals.union(own_start, own_end), start, end)
    pieces = activity.outline(thread, start, end).clipped(free)
    low = np.concatenate((pieces.start_ps, own_start))
    high = np.concatenate((pieces.end_ps, own_end))
    label = np.concatenate((CAUSE_CODE[pieces.evidence], own_label))
    event = np.concatenate((pieces.event, np.full(len(own_label), -1, np.int64)))
    order = np.argsort(low, kind="stable")
    return _Stretches(low[order], high[order], label[order], event[order], activity.waits(thread))


def _segments(stretches: _Stretches, work: Work, thread: int) -> Segments:
    low, high, label = stretches.start_ps, stretches.end_ps, stretches.label
    target = _waited_for(stretches.waits, work, stretches.event)
    # What is no wait moves and shrinks by its label alone: neighbours of one label are one segment.
    new = np.ones(len(low), np.bool_)
    new[1:] = (low[1:] != high[:-1]) | (label[1:] != label[:-1]) | (target[1:] >= 0) | (target[:-1] >= 0)
    first = np.flatnonzero(new)
    last = np.concatenate((first[1:], [len(low)])) - 1
    none = np.empty(0, np.int64)
    segments = Segments(low[first], high[last], label[first], target[first], none, none)
    return segments if len(stretches.waits) else _silent_waits(segments, work, thread)


def _silent_waits(segments: Segments, work: Work, thread: int) -> Segments:
    """The segments of a thread of which XLA noted no wait, with those as waits that can be nothing else.

    With several devices in one process `block_until_ready` leaves no event. It is a stretch in which nothing shows what
    the thread did, in which all work that it had launched on several lanes came to its end, and which ended with it.
    """
    # A run that was cut into pieces is waited for by its last one, and was launched with its first.
    first = _first_pieces(work)
    is_last = np.ones(len(first), np.bool_)
    is_last[work.follows[work.follows >= 0]] = False
    mine = np.flatnonzero((work.thread[first] == thread) & is_last)
    if len(np.unique(work.lane[mine])) < 2:
        return segments
    mine = mine[np.argsort(work.ready_ps[first[mine]], kind="stable")]
    start, end = segments.start_ps, segments.end_ps
    launched = np.searchsorted(work.ready_ps[first[mine]], start, side="right")
    latest = np.maximum.accumulate(work.end_ps[mine])[np.maximum(launched - 1, 0)]
    woke = np.maximum(WOKE_PS, (end - start) // WOKE_PART)
    silent = (segments.label == _UNKNOWN) & (launched > 0)
    silent &= (start < latest) & (latest <= end) & (end <= latest + woke)
    # What ended before it began was not waited for: only the segment in which a piece of work ended waited for it.
    place = np.searchsorted(start, work.end_ps[mine], side="left") - 1
    asked = np.flatnonzero(place >= 0)
    asked = asked[silent[place[asked]] & (asked < launched[place[asked]])]
    asked = asked[np.lexsort((-work.end_ps[mine[asked]], place[asked]))]
    waiting, last = np.unique(place[asked], return_index=True)
    target = segments.work.copy()
    target[waiting] = mine[asked[last]]
    also = np.delete(asked, last)
    return replace(segments, work=target, also=mine[also], also_of=place[also])


def _first_pieces(work: Work) -> Int64:
    """Per row the first piece of its run, itself where it is that."""
    before = np.where(work.follows >= 0, work.follows, np.arange(len(work.follows)))
    while True:
        # Each turn doubles how far back a row looks.
        further = before[before]
        if (further == before).all():
            return before
        before = further


def _waited_for(waits: Waits, work: Work, event: Int64) -> Int64:
    """Per piece, by its event, the work that the wait waited for: the last to end in it; -1 for what is no wait."""
    target = np.full(len(event), -1, np.int64)
    if not len(waits) or not len(work.lane):
        return target
    order = np.argsort(waits.event, kind="stable")
    place = np.maximum(np.searchsorted(waits.event[order], event, side="right") - 1, 0)
    wait = order[place]
    rows = np.flatnonzero(waits.event[wait] == event)
    wait = wait[rows]
    by_end = np.argsort(work.end_ps, kind="stable")
    place = np.searchsorted(work.end_ps[by_end], waits.end_ps[wait], side="right") - 1
    work_of = by_end[np.maximum(place, 0)]
    inside = (place >= 0) & (work.end_ps[work_of] >= waits.start_ps[wait])
    target[rows[inside]] = work_of[inside]
    return target

"""What would a step take without one class of its time? The timeline is replayed with that class taken away.

Never by subtraction: overlap and run-ahead make that false. Replayed with nothing removed the windows must come out as
measured; `finish` says by how much they do not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.join.windows import step_times
from xprof_py.postprocess.profile import Profile
from xprof_py.postprocess.replay.timeline import Timeline, read_timeline, step_threads
from xprof_py.postprocess.schema import BUSY_CLASSES, CLASSES

NOTHING = "nothing"
_DEVICE_WAIT = CLASSES.index("device_wait")
_SCHEMA = pa.schema(
    [
        ("host", pa.string()),
        ("name", pa.string()),
        ("number", pa.int64()),
        ("occurrence", pa.int32()),
        ("phase", pa.string()),
        ("removed", pa.string()),
        ("step_ps", pa.int64()),
        ("measured_ps", pa.int64()),
    ]
)


def partial(profile: Profile) -> pa.Table:
    """Per outermost step of one joined profile: its time over all lanes as measured and as replayed without each class.

    Columns of _SCHEMA; `removed` is "nothing" or a class of schema.CLASSES that takes any time in the step windows.
    No rows where the steps are those of a device's line `Steps`: what the host did for them is not known.
    """
    breakdown = profile["breakdown"]
    present = breakdown.filter(pc.and_(pc.equal(breakdown["kind"], "step"), pc.greater(breakdown["exclusive_ps"], 0)))
    classes = [name for name in CLASSES if name in set(present["class"].unique().to_pylist())]
    # Steps of a device's own line have no thread whose work could be moved.
    if not classes or "steps_line" in profile["runs"]["join"].to_pylist():
        return _SCHEMA.empty_table()
    steps = profile["steps"].filter(pc.is_null(profile["steps"]["parent"]))
    table = profile["windows"]
    table = table.filter(pc.equal(table["kind"], "step"))
    columns = (table[name].to_pylist() for name in ("lane", "step", "start_ps", "end_ps"))
    windows = list(zip(*columns, strict=True))
    measured = pa.array(step_times(windows, steps.num_rows), pa.int64())
    thread_of_step = step_threads(profile)
    timeline = read_timeline(profile)
    parts = []
    for removed in (NOTHING, *classes):
        run = _Replay(timeline, -1 if removed == NOTHING else CLASSES.index(removed))
        replayed = step_times(_replayed(run, timeline, windows, thread_of_step), steps.num_rows)
        parts.append(
            pa.Table.from_arrays(
                [
                    pa.repeat(profile.host, steps.num_rows),
                    *(steps[name] for name in ("name", "number", "occurrence", "phase")),
                    pa.repeat(removed, steps.num_rows),
                    pa.array(replayed, pa.int64()),
                    measured,
                ],
                names=_SCHEMA.names,
            ).cast(_SCHEMA)
        )
    return pa.concat_tables(parts)


def _replayed(
    run: _Replay, timeline: Timeline, windows: list[tuple[int, int, int, int]], thread_of_step: list[int]
) -> Iterator[tuple[int, int, int, int]]:
    """The windows (lane, step, start, end) where the replay puts them."""
    of_step: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, work in enumerate(timeline.work):
        of_step[work.lane, work.step].append(row)
    at: dict[int, int] = {}
    for lane, step, start_ps, end_ps in windows:
        thread = thread_of_step[step]
        if lane not in at:
            if end_ps == start_ps:
                continue
            at[lane] = run.moved(thread, start_ps)
        low = at[lane]
        if timeline.work:
            at[lane] = max([low, *(run.end_of(row) for row in of_step[lane, step])])
        else:
            at[lane] = max(low, run.moved(thread, end_ps))
        yield lane, step, low, at[lane]


def merge(a: pa.Table, b: pa.Table) -> pa.Table:
    """Rows of both: a step of a host belongs to one profile."""
    return pa.concat_tables([a, b])


def finish(merged: pa.Table, phases: tuple[str, ...]) -> pa.Table:
    """Per removed class: the mean step in ps, as measured and as replayed, over steps of these phases and hosts.

    The mean, not the median: a cause that hits two steps of twelve must show. A host without a class takes as long
    without it. Columns removed, steps (of all hosts), measured_ps, replayed_ps (sums divided as integers).
    """
    used = merged.filter(pc.is_in(merged["phase"], pa.array(phases)))
    sums = used.group_by(["host", "removed"]).aggregate(
        [("step_ps", "sum"), ("measured_ps", "sum"), ("removed", "count")]
    )
    of_host: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    for row in sums.to_pylist():
        of_host[row["host"]][row["removed"]] = row
    rows = []
    for name in (NOTHING, *CLASSES):
        if any(name in found for found in of_host.values()):
            mine = [found.get(name, found[NOTHING]) for found in of_host.values()]
            steps = sum(row["removed_count"] for row in mine)
            rows.append(
                {
                    "removed": name,
                    "steps": steps,
                    "measured_ps": sum(row["measured_ps_sum"] for row in mine) // steps,
                    "replayed_ps": sum(row["step_ps_sum"] for row in mine) // steps,
                }
            )
    fields = [("removed", pa.string()), *((n, pa.int64()) for n in ("steps", "measured_ps", "replayed_ps"))]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


class _Replay:
    """One replay. Threads and lanes advance on demand: a wait asks for its work, work for the host that made it."""

    def __init__(self, timeline: Timeline, removed: int) -> None:
        self._segments = timeline.segments
        self._starts = {thread: [s.start_ps for s in segments] for thread, segments in timeline.segments.items()}
        self._work = timeline.work
        self._removed = removed
        self._new_start: dict[int, list[int]] = {thread: [] for thread in timeline.segments}
        self._new_length: dict[int, list[int]] = {thread: [] for thread in timeline.segments}
        self._clock = {thread: segments[0].start_ps if segments else 0 for thread, segments in self._segments.items()}
        self._advancing: set[int] = set()
        self._lanes: dict[int, list[int]] = defaultdict(list)
        for row, work in enumerate(self._work):
            self._lanes[work.lane].append(row)
        self._done: dict[int, int] = defaultdict(int)
        self._lane_end: dict[int, tuple[int, int]] = {}
        self._ends: dict[int, int] = {}
        self._asked: set[int] = set()

    def moved(self, thread: int, at_ps: int) -> int:
        """When the moment ``at_ps`` of a thread comes in the replay. Moments of unknown threads do not move."""
        if thread not in self._segments or not self._segments[thread]:
            return at_ps
        # A moment between two segments ends the first: the second may be a wait for what this moment makes ready.
        index = bisect_left(self._starts[thread], at_ps) - 1
        if index < 0:
            return at_ps
        if thread not in self._advancing:
            self._advance(thread, index)
        index = min(index, len(self._new_start[thread]) - 1)
        inside = at_ps - self._segments[thread][index].start_ps
        return self._new_start[thread][index] + min(max(inside, 0), self._new_length[thread][index])

    def _advance(self, thread: int, upto: int) -> None:
        self._advancing.add(thread)
        segments, new_start, new_length = self._segments[thread], self._new_start[thread], self._new_length[thread]
        while len(new_start) <= upto:
            segment = segments[len(new_start)]
            now = self._clock[thread]
            length = segment.end_ps - segment.start_ps
            # Where its own work is asked for below, the thread must already know how far it has come.
            new_start.append(now)
            new_length.append(length)
            if segment.work >= 0 and segment.start_ps <= self._work[segment.work].end_ps:
                work = self._work[segment.work]
                if work.end_ps > segment.end_ps:
                    length = 0
                elif segment.work not in self._asked:
                    woke = 0 if self._removed == _DEVICE_WAIT else segment.end_ps - work.end_ps
                    length = max(self.end_of(segment.work) - now, 0) + woke
            elif segment.label == self._removed:
                length = 0
            new_length[-1] = length
            self._clock[thread] = now + length
        self._advancing.discard(thread)

    def end_of(self, row: int) -> int:
        """When a piece of work ends in the replay."""
        lane = self._work[row].lane
        while row not in self._ends:
            self._finish_next(lane)
        return self._ends[row]

    def _finish_next(self, lane: int) -> None:
        row = self._lanes[lane][self._done[lane]]
        work = self._work[row]
        self._done[lane] += 1
        # A thread that made work ready while already waiting for it would ask in a circle: that wait keeps its length.
        self._asked.add(row)
        ready = self.moved(work.thread, work.ready_ps)
        self._asked.discard(row)
        free_then, free_now = self._lane_end.get(lane, (work.ready_ps, ready))
        lag = work.start_ps - max(work.ready_ps, free_then)
        if self._removed == _DEVICE_WAIT:
            lag = min(lag, 0)
        length = work.end_ps - work.start_ps
        if self._removed == _DEVICE_WAIT:
            length -= work.inner_gaps_ps
        elif 0 <= self._removed < len(BUSY_CLASSES):
            length -= work.exclusive_ps[self._removed]
        start = max(ready, max(ready, free_now) + lag)
        self._ends[row] = start + length
        self._lane_end[lane] = (max(free_then, work.end_ps), max(free_now, start + length))

"""Copies between host and device of a JAX CPU trace (BREAKDOWN.md 3 and 5): no run, no device, often a late end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from xprof_py.postprocess.join import host_names
from xprof_py.postprocess.join.columns import Bool, Events, Int64
from xprof_py.postprocess.join.device_ops import DeviceOps
from xprof_py.postprocess.join.host_activity import HostActivity
from xprof_py.postprocess.join.launches import Launches
from xprof_py.postprocess.schema import CLASSES


@dataclass
class Copies:
    """Copies in order of start. ``thread``: that of the put that began the copy, -1 without a put."""

    event: Int64
    start_ps: Int64
    end_ps: Int64
    thread: Int64
    put: Int64
    cut_off: list[bool]
    """The hand-over was still open at the end of the capture; the profiler dropped the copy's own event."""


def read_copies(
    events: Events,
    thread_of_line: Int64,
    host_line: Bool,
    launches: Launches,
    activity: HostActivity,
    capture_end_ps: int,
) -> Copies:
    """All copies to the device. Each ends no later than its thread's wait for its buffer."""
    puts = events.rows_where(lambda n: n in host_names.PUTS)
    puts = puts[host_line[events.line[puts]]]
    puts = puts[np.argsort(events.start_ps[puts], kind="stable")]
    rows = events.rows_where(lambda n: n in host_names.COPIES_TO_DEVICE)
    found = [(int(r), int(events.start_ps[r]), int(events.end_ps[r]), False) for r in rows]
    found += [(row, start, capture_end_ps, True) for row, start in _cut_off(events, puts, rows)]
    found.sort(key=lambda copy: (copy[1], copy[0]))
    out: dict[str, list[int]] = {"start": [], "end": [], "thread": [], "put": []}
    put_starts = events.start_ps[puts]
    threads: dict[int, _ThreadEvents] = {}
    for _, start, end, _ in found:
        index = int(np.searchsorted(put_starts, start, side="right")) - 1
        put = int(puts[index]) if index >= 0 else -1
        thread = int(thread_of_line[events.line[put]]) if put >= 0 else -1
        if put >= 0:
            if thread not in threads:
                threads[thread] = _ThreadEvents(launches, thread_of_line, activity, thread)
            end = min(end, threads[thread].buffer_wait_end(int(events.start_ps[put]), start, end))
        for key, value in (("start", start), ("end", end), ("thread", thread), ("put", put)):
            out[key].append(value)
    return Copies(
        event=np.array([copy[0] for copy in found], np.int64),
        start_ps=np.array(out["start"], np.int64),
        end_ps=np.array(out["end"], np.int64),
        thread=np.array(out["thread"], np.int64),
        put=np.array(out["put"], np.int64),
        cut_off=[copy[3] for copy in found],
    )


def no_copies() -> Copies:
    """None: the planes of GPUs and TPUs show their copies themselves."""
    empty = np.empty(0, np.int64)
    return Copies(empty, empty, empty, empty, empty, [])


class _ThreadEvents:
    """The launches and waits of one thread, in order of start."""

    def __init__(self, launches: Launches, thread_of_line: Int64, activity: HostActivity, thread: int) -> None:
        mine = thread_of_line[launches.line] == thread if len(launches.line) else np.zeros(0, np.bool_)
        self._launches: list[int] = launches.start_ps[mine].tolist()
        waits = activity.waits(thread)
        self._wait_starts, self._wait_ends = waits.start_ps.tolist(), waits.end_ps.tolist()

    def buffer_wait_end(self, put_start: int, start: int, end: int) -> int:
        """End of the first wait after a put, if no launch lies between: then it can only be for the put's buffer."""
        launch = bisect_right(self._launches, put_start)
        place = bisect_left(self._wait_starts, put_start)
        if place == len(self._wait_starts):
            return end
        if launch < len(self._launches) and self._wait_starts[place] >= self._launches[launch]:
            return end
        return self._wait_ends[place] if self._wait_ends[place] > start else end


def _cut_off(events: Events, puts: Int64, copies: Int64) -> list[tuple[int, int]]:
    """(event, start) of hand-overs inside a put that a pool thread took up and had not ended at the capture's end."""
    handed = events.rows_named(host_names.HAND_OVER)
    has_producer, producer = events.argument_of("_p", handed)
    handed, producer = handed[has_producer], producer[has_producer]
    # Events are in order of (line, start): what lies inside a put follows it.
    first = np.searchsorted(handed, puts)
    behind = np.searchsorted(handed, _first_row_after(events, puts))
    inside = np.flatnonzero(_covered(first, np.maximum(behind, first), len(handed)))
    if not len(inside):
        return []
    taken = events.rows_named(host_names.HAND_OVER_BEGIN)
    has_consumer, consumer = events.argument_of("_c", taken)
    taken, consumer = taken[has_consumer], consumer[has_consumer]
    order = np.argsort(consumer, kind="stable")
    links = producer[inside]
    place = np.searchsorted(consumer[order], links, side="right") - 1
    found = place >= 0
    found[found] = consumer[order[place[found]]] == links[found]
    begin = np.unique(taken[order[place[found]]])
    where, start = events.line[begin], events.start_ps[begin]
    # Nothing on the line of the pool's thread says that it ended, and nothing came after it.
    last_end = _last_start(events, events.rows_named(host_names.HAND_OVER_END))
    # Events are in order of (line, start).
    last_row = events.first_row(np.arange(len(last_end)) + 1) - 1
    last_copy, last_event = _last_start(events, copies), _last_start(events, last_row)
    open_still = (last_end[where] < start) & (last_copy[where] < start) & (last_event[where] <= start)
    return list(zip(begin[open_still].tolist(), start[open_still].tolist(), strict=True))


def _first_row_after(events: Events, rows: Int64) -> Int64:
    """Per row the first one of its line that begins when it has ended, or that of the next line."""
    out = np.empty(len(rows), np.int64)
    lines = events.line[rows]
    for line in np.unique(lines).tolist():
        mine = lines == line
        out[mine] = events.first_row_from(line, events.end_ps[rows[mine]])
    return out


def _covered(first: Int64, behind: Int64, count: int) -> Bool:
    """Which of ``count`` places lie in one of the ranges [first, behind)."""
    edges = np.zeros(count + 1, np.int64)
    np.add.at(edges, first, 1)
    np.subtract.at(edges, behind, 1)
    return np.cumsum(edges)[:-1] > 0


def _last_start(events: Events, rows: Int64) -> Int64:
    """Per line the latest start among these events; before all time where there is none."""
    last = np.full(int(events.line[-1]) + 1 if events.count else 0, np.iinfo(np.int64).min)
    np.maximum.at(last, events.line[rows], events.start_ps[rows])
    return last


def add_copies(ops: DeviceOps, copies: Copies) -> None:
    """Put the copies on the lane, if there is one only: the trace names no device for them."""
    count = len(copies.event)
    if not count:
        return
    if len(ops.lanes) != 1:
        ops.unplaced_copies = count
        return
    code = CLASSES.index("host_device")
    ops.event = np.concatenate((ops.event, copies.event))
    ops.lane = np.concatenate((ops.lane, np.zeros(count, np.int64)))
    ops.run = np.concatenate((ops.run, np.full(count, -1, np.int64)))
    ops.hlo_op = np.concatenate((ops.hlo_op, np.full(count, -1, np.int64)))
    ops.class_code = np.concatenate((ops.class_code, np.full(count, code, np.int64)))
    ops.leaf = np.concatenate((ops.leaf, np.ones(count, np.bool_)))
    ops.start_ps = np.concatenate((ops.start_ps, copies.start_ps))
    ops.end_ps = np.concatenate((ops.end_ps, copies.end_ps))
    ops.open_end_ps = np.concatenate((ops.open_end_ps, copies.end_ps))
    ops.launch = np.concatenate((ops.launch, np.full(count, -1, np.int64)))
    ops.how = np.concatenate((ops.how, np.zeros(count, np.int64)))
    ops.stated = np.concatenate((ops.stated, np.full(count, -1, np.int64)))
    ops.take(np.lexsort((ops.start_ps, ops.lane)))

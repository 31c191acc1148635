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
    puts: Int64 = np.flatnonzero(events.matching(lambda n: n in host_names.PUTS))
    puts = puts[host_line[events.line[puts]]]
    puts = puts[np.argsort(events.start_ps[puts], kind="stable")]
    rows = np.flatnonzero(events.matching(lambda n: n in host_names.COPIES_TO_DEVICE))
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
        self._waits = activity.waits(thread)
        self._wait_starts = [wait.start_ps for wait in self._waits]

    def buffer_wait_end(self, put_start: int, start: int, end: int) -> int:
        """End of the first wait after a put, if no launch lies between: then it can only be for the put's buffer."""
        launch = bisect_right(self._launches, put_start)
        place = bisect_left(self._wait_starts, put_start)
        if place == len(self._waits):
            return end
        wait = self._waits[place]
        if launch < len(self._launches) and wait.start_ps >= self._launches[launch]:
            return end
        return wait.end_ps if wait.end_ps > start else end


def _cut_off(events: Events, puts: Int64, copies: Int64) -> list[tuple[int, int]]:
    """(event, start) of hand-overs inside a put that a pool thread took up and had not ended at the capture's end."""
    has_producer, producer = events.argument("_p")
    has_consumer, consumer = events.argument("_c")
    handed = np.flatnonzero(events.named(host_names.HAND_OVER) & has_producer)
    taken = np.flatnonzero(events.named(host_names.HAND_OVER_BEGIN) & has_consumer)
    ended = np.flatnonzero(events.named(host_names.HAND_OVER_END))
    take_of = {int(consumer[row]): int(row) for row in taken}
    last_end, last_copy, last_event = (_last_start(events, rows) for rows in (ended, copies, slice(None)))
    out = []
    for put in puts.tolist():
        line, high = events.line[put], events.end_ps[put]
        # Events are in order of (line, start): what lies inside the put follows it.
        for row in handed[np.searchsorted(handed, put) :].tolist():
            if events.line[row] != line or events.start_ps[row] >= high:
                break
            begin = take_of.get(int(producer[row]))
            if begin is None:
                continue
            where, start = int(events.line[begin]), int(events.start_ps[begin])
            if last_end[where] < start and last_copy[where] < start and last_event[where] <= start:
                out.append((begin, start))
    return sorted(set(out))


def _last_start(events: Events, rows: Int64 | slice) -> Int64:
    """Per line the latest start among these events; before all time where there is none."""
    last = np.full(int(events.line.max(initial=-1)) + 1, np.iinfo(np.int64).min)
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
    ops.take(np.lexsort((ops.start_ps, ops.lane)))

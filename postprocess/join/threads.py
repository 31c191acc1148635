"""Which lines are one thread: a shard and PyTorch's trace beside it know the kernel's thread id, an XSpace does not.

Our recorder leaves events with the thread id in XLA's trace (step markers, one marker at a thread's first event); each
links its line to the shard's line of that id. A line that nothing links is a thread of its own, unless another thread
waits for it throughout (handed_on.py).
"""

from __future__ import annotations

import numpy as np

from xprof_py.postprocess.join import host_names
from xprof_py.postprocess.join.columns import Events, Int64, integers
from xprof_py.postprocess.join.driver_calls import call_events
from xprof_py.postprocess.join.handed_on import thread_that_waits
from xprof_py.postprocess.profile import Profile


def thread_of_line(profile: Profile, events: Events) -> Int64:
    """Per line the lowest line number of its thread: lines with equal numbers are one thread.

    Found once for the lines and events of a profile, and of every profile that adds tables to it.
    """
    return profile.once("thread_of_line", (events, profile["lines"]), lambda: _read_threads(profile, events))


def _read_threads(profile: Profile, events: Events) -> Int64:
    lines = profile["lines"]
    thread = np.arange(lines.num_rows, dtype=np.int64)
    thread_id = integers(lines, "thread_id")
    beside = np.array([source == "chrome_json" for source in lines["source"].to_pylist()] or np.zeros(0), np.bool_)
    shard_line = {int(t): i for i, t in enumerate(thread_id) if t >= 0 and not beside[i]}
    marks, tids = _marks(events)
    pairs, first = np.unique(np.stack([events.line[marks], tids], axis=1), axis=0, return_index=True)
    stated = [(line, int(thread_id[line])) for line in np.flatnonzero(beside & (thread_id >= 0)).tolist()]
    for line, tid in stated:
        shard_line.setdefault(tid, line)
    for line, tid in [*pairs[np.argsort(first)].tolist(), *stated]:
        own = shard_line.get(tid)
        if own is not None and line != own:
            low = min(thread[line], thread[own])
            thread[line] = thread[own] = low
    for helper, waiting in thread_that_waits(events, call_events(profile, events), thread).items():
        thread[np.isin(thread, [helper, waiting])] = min(helper, waiting)
    return thread


def markers(events: Events) -> Int64:
    """Rows of the events that our recorder wrote into XLA's trace: doubles of what the shard holds, not spans."""
    return _marks(events)[0]


def _marks(events: Events) -> tuple[Int64, Int64]:
    """(rows, thread ids that they state)."""
    steps, step_tids = events.having(host_names.STEP_MARKER_ARG)
    threads = events.rows_named(host_names.THREAD_MARKER)
    stated, tids = events.argument_of("tid", threads)
    threads, tids = threads[stated], tids[stated]
    also = ~np.isin(threads, steps)
    rows = np.concatenate((steps, threads[also]))
    order = np.argsort(rows, kind="stable")
    return rows[order], np.concatenate((step_tids, tids[also]))[order]

"""Which lines are one thread: a shard knows the kernel's thread id, an XSpace line does not.

Our recorder leaves events with the thread id in XLA's trace (step markers, one marker at a thread's first event); each
links its line to the shard's line of that id. A line that nothing links is a thread of its own.
"""

from __future__ import annotations

import numpy as np

from xprof_py.postprocess.join import host_names
from xprof_py.postprocess.join.columns import Bool, Events, Int64, integers
from xprof_py.postprocess.profile import Profile


def thread_of_line(profile: Profile, events: Events) -> Int64:
    """Per line the lowest line number of its thread: lines with equal numbers are one thread."""
    lines = profile["lines"]
    thread = np.arange(lines.num_rows, dtype=np.int64)
    thread_id = integers(lines, "thread_id")
    shard_line = {int(t): i for i, t in enumerate(thread_id) if t >= 0}
    marks, tids = _marks(events)
    for row in np.flatnonzero(marks):
        own = shard_line.get(int(tids[row]))
        line = int(events.line[row])
        if own is not None and line != own:
            low = min(thread[line], thread[own])
            thread[line] = thread[own] = low
    return thread


def markers(events: Events) -> Bool:
    """Events that our recorder wrote into XLA's trace: doubles of what the shard holds, not spans of their own."""
    return _marks(events)[0]


def _marks(events: Events) -> tuple[Bool, Int64]:
    has_step_tid, step_tid = events.argument(host_names.STEP_MARKER_ARG)
    has_tid, tid = events.argument("tid")
    has_tid = has_tid & events.named(host_names.THREAD_MARKER)
    return has_step_tid | has_tid, np.where(has_step_tid, step_tid, tid)

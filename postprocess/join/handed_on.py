"""Threads that work while another one waits for them: PyTorch's backward pass runs on a thread of its own.

`loss.backward()` hands on to autograd's thread and blocks until it is done. Nothing in the trace notes that wait: the
step's thread would seem to do nothing, and the launches of the backward pass to be nobody's delay. Two threads of which
never both work are one thread of control: here they are made one, and what the second one does lies inside what the
first one was doing.
"""

from __future__ import annotations

import numpy as np

from xprof_py.postprocess.join import intervals
from xprof_py.postprocess.join.columns import Events, Int64, united
from xprof_py.postprocess.join.intervals import Intervals
from xprof_py.postprocess.schema import Kind

SHARED_PART = 100
"""Clocks and edges of events are not exact: less than a hundredth of a thread's work beside the other's is none."""
INSIDE_PARTS = (9, 10)
"""So much of a thread's work lies in steps of the other, if that asked for it."""


def thread_that_waits(events: Events, calls: Int64, thread: Int64) -> dict[int, int]:
    """Per thread that another one waits for throughout: that other one.

    ``calls``: rows of the driver's calls; ``thread``: per line. Operations of a framework and calls are work. A thread
    without steps, but with calls, is waited for by the one thread in whose steps its work lies and beside whose work it
    never does. Where two would do, nothing tells.
    """
    operations = events.rows_of_kind(Kind.HOST_OP)
    if not len(operations):
        return {}
    stepping = events.rows_of_kind(Kind.STEP)
    rows = united(operations, calls)
    owner = thread[events.line[rows]]
    with_steps = np.unique(thread[events.line[stepping]])
    helping = np.setdiff1d(np.unique(thread[events.line[calls]]), with_steps)
    steps = {one: _cover(events, stepping[thread[events.line[stepping]] == one]) for one in with_steps.tolist()}
    work = {one: _cover(events, rows[owner == one]) for one in [*with_steps.tolist(), *helping.tolist()]}
    found = {}
    for helper in helping.tolist():
        own = _length(work[helper])
        fits = [
            one
            for one in steps
            if INSIDE_PARTS[1] * _length(intervals.intersect(work[helper], steps[one])) >= INSIDE_PARTS[0] * own > 0
            and SHARED_PART * _length(intervals.intersect(work[helper], work[one])) <= own
        ]
        if len(fits) == 1:
            found[helper] = fits[0]
    return found


def _cover(events: Events, rows: Int64) -> Intervals:
    return intervals.union(events.start_ps[rows], events.end_ps[rows])


def _length(pieces: Intervals) -> int:
    return int((pieces[1] - pieces[0]).sum())

"""The leaves among the operations, and the step of each: what most questions about ops begin with, made once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xprof_py.postprocess.join.columns import Int64, integers
from xprof_py.postprocess.profile import Profile


def leaves(profile: Profile) -> pa.Table:
    """The rows of `ops` that are leaves; the table itself where all are."""
    ops = profile["ops"]
    return profile.once("leaves", (ops,), lambda: ops if pc.all(ops["leaf"]).as_py() else ops.filter(ops["leaf"]))


def step_of_leaves(profile: Profile) -> Int64:
    """Per leaf its step, a row of `steps`, -1 without: that of its run, or for a copy of the window it starts in."""
    made_of = tuple(profile[name] for name in ("ops", "runs", "windows"))
    return profile.once("step_of_leaves", made_of, lambda: _step_of(profile, leaves(profile)))


def _step_of(profile: Profile, ops: pa.Table) -> Int64:
    run = integers(ops, "run")
    run_step = integers(profile["runs"], "step")
    step = np.where(run >= 0, run_step[np.maximum(run, 0)] if len(run_step) else -1, -1)
    table = profile["windows"]
    table = table.filter(pc.and_(pc.equal(table["kind"], "step"), pc.less(table["start_ps"], table["end_ps"])))
    lane_of, step_of, low, high = (integers(table, name) for name in ("lane", "step", "start_ps", "end_ps"))
    lane, start = integers(ops, "lane"), integers(ops, "start_ps")
    for one in np.unique(lane[run < 0]).tolist():
        # Windows of one lane are disjoint and in order of time.
        mine = np.flatnonzero(lane_of == one)
        copies = np.flatnonzero((run < 0) & (lane == one))
        place = np.searchsorted(high[mine], start[copies], side="right")
        inside = place < len(mine)
        inside[inside] = low[mine[place[inside]]] <= start[copies[inside]]
        step[copies[inside]] = step_of[mine[place[inside]]]
    return np.asarray(step, np.int64)
